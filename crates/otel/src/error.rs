//! Why nothing can be exported.

/// Settings by which nothing can be exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// A setting that can not be read.
    #[error("{name} is `{value}`; right would be {right}")]
    Setting {
        /// Its name.
        name: String,
        /// What it is.
        value: String,
        /// What it could be.
        right: &'static str,
    },
    /// The exporter does not take the settings.
    #[error("the exporter of {signal} can not be made: {problem}")]
    Exporter {
        /// Traces or metrics.
        signal: &'static str,
        /// What it reports.
        problem: String,
    },
    /// There is no runtime to export on.
    #[error("telemetry is exported by a task; start it within a tokio runtime")]
    NoRuntime,
}
