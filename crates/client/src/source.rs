//! Credentials that expire, and where they come from.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use steadfast_core::{Failure, Reason, Scope, time::wall};
use tokio::time::timeout;

use crate::Secret;

/// How long before its end a credential is fetched anew: 5 minutes, as the clouds' own libraries do, or a quarter of its
/// life where that is less. Until its end the old one serves those who would wait, and everybody while a new one can not
/// be had.
const EARLY: Duration = Duration::from_secs(5 * 60);

/// How long a credential is used at most while its replacement can not be had, before its source is asked again: 10 s.
const AGAIN: Duration = Duration::from_secs(10);

/// The longest that a source may take: 20 s. A metadata service answers in milliseconds, a token endpoint in a second,
/// and both are asked again by their libraries.
const LIMIT: Duration = Duration::from_secs(20);

/// How long what has no good credential rests, where one comes from a source: a minute. A key that is refused rests until a
/// person has changed something; what a source gives may be another one any time.
pub(crate) const REST: Duration = Duration::from_secs(60);

/// What a [`CredentialSource`] gives back.
pub type CredentialFuture<'a> =
    Pin<Box<dyn Future<Output = Result<TemporaryCredential, Failure>> + Send + 'a>>;

/// Where credentials come from that hold for a while: a metadata service, a token endpoint, a command.
///
/// [`fetch`](Self::fetch) is called when there is none yet, shortly before the one in use expires, and when a provider
/// has refused that one: so it must not give back what it gave before from a cache of its own. What it gave is kept
/// and shared by all calls; one call fetches while those that need a new one wait.
///
/// ```
/// use steadfast_client::{CredentialFuture, CredentialSource, TemporaryCredential};
///
/// #[derive(Debug)]
/// struct Command;
///
/// impl CredentialSource for Command {
///     fn fetch(&self) -> CredentialFuture<'_> {
///         Box::pin(async { Ok(TemporaryCredential::bearer("a token from somewhere")) })
///     }
/// }
/// ```
pub trait CredentialSource: fmt::Debug + Send + Sync {
    /// Fetches a new one. It is dropped when nobody waits for it any more, and after 20 s.
    ///
    /// # Errors
    ///
    /// When there is none: [`Reason::Auth`] where asking again is in vain, after which it rests for a minute, any transient
    /// reason where it is not.
    fn fetch(&self) -> CredentialFuture<'_>;
}

impl<T: CredentialSource + ?Sized> CredentialSource for Arc<T> {
    fn fetch(&self) -> CredentialFuture<'_> {
        (**self).fetch()
    }
}

/// A credential that holds for a while.
#[derive(Clone, Debug)]
#[must_use]
pub struct TemporaryCredential {
    pub(crate) proof: Proof,
    expires: Option<SystemTime>,
}

/// What proves who asks.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// A token, as `authorization: Bearer`.
    Bearer(Secret),
    /// Keys that sign requests to AWS.
    Aws(AwsKeys),
}

/// Keys of AWS.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "bedrock"), expect(dead_code, reason = "nothing signs"))]
pub(crate) struct AwsKeys {
    pub(crate) access_key_id: Box<str>,
    pub(crate) secret_access_key: Secret,
    pub(crate) session_token: Option<Secret>,
}

impl TemporaryCredential {
    /// A token that is sent as `authorization: Bearer`.
    pub fn bearer(token: impl Into<Arc<str>>) -> Self {
        Self { proof: Proof::Bearer(Secret::new(token)), expires: None }
    }

    /// Keys that sign requests to AWS.
    pub fn aws(
        access_key_id: impl Into<Box<str>>,
        secret_access_key: impl Into<Arc<str>>,
        session_token: Option<Arc<str>>,
    ) -> Self {
        let keys = AwsKeys {
            access_key_id: access_key_id.into(),
            secret_access_key: Secret::new(secret_access_key),
            session_token: session_token.map(Secret::new),
        };
        Self { proof: Proof::Aws(keys), expires: None }
    }

    /// Holds until then; without this until a provider refuses it.
    pub fn expires_at(mut self, expires: SystemTime) -> Self {
        self.expires = Some(expires);
        self
    }

    /// What of it is secret.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let (first, second) = match &self.proof {
            Proof::Bearer(token) => (token, None),
            Proof::Aws(keys) => (&keys.secret_access_key, keys.session_token.as_ref()),
        };
        std::iter::once(first).chain(second)
    }

    /// How long it holds from `now` on; `None` for as long as it is taken.
    fn left(&self, now: SystemTime) -> Option<Duration> {
        self.expires.map(|end| end.duration_since(now).unwrap_or_default())
    }
}

/// The credential of a source, kept until shortly before its end.
pub(crate) struct Renewed {
    source: Arc<dyn CredentialSource>,
    held: Mutex<Held>,
    /// One asks at a time.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Held {
    current: Option<Arc<TemporaryCredential>>,
    /// From when on a replacement is asked for; `None` for one without an end.
    next: Option<SystemTime>,
}

impl Held {
    fn new(credential: Arc<TemporaryCredential>, now: SystemTime) -> Self {
        let left = credential.left(now);
        let next = left.and_then(|left| now.checked_add(left - EARLY.min(left / 4)));
        Self { current: Some(credential), next }
    }
}

impl Renewed {
    pub(crate) fn new(source: Arc<dyn CredentialSource>) -> Self {
        Self { source, held: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    /// The one to use now; fetched where there is none that holds.
    pub(crate) async fn current(&self) -> Result<Arc<TemporaryCredential>, Failure> {
        let usable = match self.usable() {
            (Some(current), false) => return Ok(current),
            (usable, _) => usable,
        };
        let _one = match (usable, self.fetching.try_lock()) {
            (_, Ok(one)) => one,
            // Somebody is at it.
            (Some(current), Err(_)) => return Ok(current),
            (None, Err(_)) => self.fetching.lock().await,
        };
        // Somebody may have been.
        let usable = match self.usable() {
            (Some(current), false) => return Ok(current),
            (usable, _) => usable,
        };
        let fetched = timeout(LIMIT, self.source.fetch()).await.unwrap_or_else(|_| {
            let message = format!("no credential within {LIMIT:?}");
            Err(Failure::new(Reason::Timeout, message))
        });
        let mut held = self.held.lock();
        match (fetched, usable) {
            (Ok(new), _) => {
                let new = Arc::new(new);
                *held = Held::new(new.clone(), wall());
                Ok(new)
            }
            (Err(failure), Some(current)) => {
                tracing::warn!(name: "steadfast::client::credential_not_renewed", target: "steadfast::client", %failure, "a credential could not be renewed; the old one holds for now");
                held.next = wall().checked_add(AGAIN);
                Ok(current)
            }
            (Err(failure), None) => {
                let rest =
                    failure.retry_after().or((failure.reason() == Reason::Auth).then_some(REST));
                let failure = failure.with_retry_after(rest).with_scope(Scope::Credential);
                Err(failure.with_evidence("credential"))
            }
        }
    }

    /// The one that holds, and whether to ask for its replacement.
    fn usable(&self) -> (Option<Arc<TemporaryCredential>>, bool) {
        let (now, held) = (wall(), self.held.lock());
        let Some(current) = held.current.clone() else { return (None, true) };
        if current.left(now) == Some(Duration::ZERO) {
            return (None, true);
        }
        (Some(current), held.next.is_some_and(|next| next <= now))
    }

    /// Forgets the one that a provider has refused, unless there is a newer one already.
    pub(crate) fn forget(&self, refused: &Arc<TemporaryCredential>) {
        let mut held = self.held.lock();
        if held.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, refused)) {
            *held = Held::default();
        }
    }
}

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed").field("source", &self.source).finish_non_exhaustive()
    }
}
