//! Errors of invalid policies.

/// Why a policy is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A limit of zero would end or refuse every call.
    #[error("`{0}` is zero and would end every call at once; set a larger number{1}")]
    Zero(
        /// The field.
        &'static str,
        /// How to switch it off, where that is possible.
        &'static str,
    ),
    /// More failures than are remembered.
    #[error("`{0}` {1} is more failures than are counted; set at most {2}, or `None` for no limit")]
    TooMany(
        /// The field.
        &'static str,
        /// Its value.
        u32,
        /// The most.
        u32,
    ),
    /// The profile of calls that have none of their own is missing.
    #[error("there is no profile `{0}`, which `default` names; add it to `profiles`")]
    NoProfile(
        /// The name.
        String,
    ),
    /// A root that is no absolute path means another folder wherever the process is started.
    #[error("`{field}` `{path}` of the profile `{profile}` is not absolute; write the whole path")]
    NotAbsolute {
        /// The field.
        field: &'static str,
        /// The path.
        path: String,
        /// Whose it is.
        profile: String,
    },
    /// Not a host.
    #[error(
        "`{host}` of the profile `{profile}` is not a host; write `example.com`, \
         `*.example.com` or `example.com:8080`"
    )]
    Host {
        /// What is written.
        host: String,
        /// Whose it is.
        profile: String,
    },
}
