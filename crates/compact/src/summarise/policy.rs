//! How a summariser is asked, and when it is not.

use std::time::Duration;

use crate::PolicyError;

/// How a summariser is asked, and when it is not. Data only.
///
/// ```
/// use steadfast_compact::SummaryPolicy;
///
/// let mut policy = SummaryPolicy::default();
/// policy.parallel = 0;
/// assert_eq!(policy.validate().unwrap_err().to_string(), "`parallel` is 0: it must be at least 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SummaryPolicy {
    /// Tokens of messages that one call is shown. 30,000: small models that are used for summaries
    /// read that much well, and fast.
    pub chunk: u64,
    /// Messages that a chunk has in common with the one before. 2: a call and its result.
    pub overlap: usize,
    /// Calls at a time. 4: a whole window of 128,000 tokens at once.
    pub parallel: usize,
    /// Calls for one compaction. 16: a long history is then half a million tokens, which is the
    /// budget of an hour. Of a longer one the older half is summarised; when that is too long too,
    /// nobody is asked.
    pub max_chunks: usize,
    /// How long all calls of one compaction may take together. 60 s: somebody waits for it. It is
    /// never more than half of what is left to the request's deadline.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "time_s", with = "steadfast_core::config::Seconds")
    )]
    pub time: Duration,
    /// How long somebody still waits once an attempt has failed and the summariser's own layers try
    /// again. 5 s: a retry or two; rules alone take no time. In the background nobody waits.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "patience_s", with = "steadfast_core::config::Seconds")
    )]
    pub patience: Duration,
    /// Compactions of one tenant in a row whose summariser failed, after which it is not asked for this
    /// tenant for a while; 64 at most. 5, as for targets: it is down, and not shaky.
    pub failures: u32,
    /// How long it is not asked. 60 s, as wide as the providers' rate windows.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "rest_s", with = "steadfast_core::config::Seconds")
    )]
    pub rest: Duration,
    /// How long the one compaction that tries it again may take. 30 s: about what an answer takes.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_s", with = "steadfast_core::config::Seconds")
    )]
    pub probe: Duration,
}

impl Default for SummaryPolicy {
    fn default() -> Self {
        Self {
            chunk: 30_000,
            overlap: 2,
            parallel: 4,
            max_chunks: 16,
            time: Duration::from_secs(60),
            patience: Duration::from_secs(5),
            failures: 5,
            rest: Duration::from_secs(60),
            probe: Duration::from_secs(30),
        }
    }
}

impl SummaryPolicy {
    /// Whether it makes sense.
    ///
    /// # Errors
    ///
    /// The first field that does not, and what it must be.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let ms = |time: Duration| usize::try_from(time.as_millis()).unwrap_or(usize::MAX);
        PolicyError::check_least(&[
            ("chunk", usize::try_from(self.chunk).unwrap_or(usize::MAX), 1_000),
            ("parallel", self.parallel, 1),
            ("max_chunks", self.max_chunks, 1),
            ("time", ms(self.time), 1),
            ("failures", self.failures as usize, 1),
            ("probe", ms(self.probe), 1),
        ])
    }
}
