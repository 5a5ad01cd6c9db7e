//! Credentials that are fetched while the gateway runs: masked as those of the configuration are.

use std::{collections::VecDeque, sync::Weak};

use parking_lot::Mutex;
use steadfast::client::{CredentialFuture, CredentialSource};

use super::{Arc, Secrets};

/// How many of one source are kept: the one in use, and the one before it, which calls under way may have.
const KEPT: usize = 2;

/// What sources have given.
static FETCHED: Mutex<Vec<Weak<Kept>>> = Mutex::new(Vec::new());

#[derive(Debug, Default)]
struct Kept(Mutex<VecDeque<Arc<Secrets>>>);

/// A source of credentials, all of which are masked wherever they would be seen.
#[derive(Debug)]
pub(crate) struct Fetched {
    source: Box<dyn CredentialSource>,
    kept: Arc<Kept>,
}

impl Fetched {
    #[cfg(any(feature = "aws", feature = "google"))]
    pub(crate) fn new(source: impl CredentialSource + 'static) -> Self {
        let kept = Arc::new(Kept::default());
        let mut all = FETCHED.lock();
        all.retain(|kept| kept.strong_count() > 0);
        all.push(Arc::downgrade(&kept));
        Self { source: Box::new(source), kept }
    }
}

impl CredentialSource for Fetched {
    fn fetch(&self) -> CredentialFuture<'_> {
        Box::pin(async move {
            let credential = self.source.fetch().await?;
            let secrets =
                Secrets::of(credential.secrets().map(|secret| secret.expose().as_bytes()));
            let mut kept = self.kept.0.lock();
            kept.truncate(KEPT - 1);
            kept.push_front(Arc::new(secrets));
            drop(kept);
            Ok(credential)
        })
    }
}

/// All that are masked now.
pub(super) fn fetched() -> Vec<Arc<Secrets>> {
    let all: Vec<_> = FETCHED.lock().iter().filter_map(Weak::upgrade).collect();
    all.iter().flat_map(|kept| kept.0.lock().iter().cloned().collect::<Vec<_>>()).collect()
}
