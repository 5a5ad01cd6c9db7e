//! What the layers know, shared with other gateways.

use std::sync::Arc;

use parking_lot::RwLock;
use steadfast::{Target, shared::SharedState};

use super::{Gateway, identity::IdentityTags};

/// What targets are called among gateways, by the configuration in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedNames(Arc<RwLock<IdentityTags>>);

impl SharedNames {
    pub(crate) fn name(&self, target: &Target) -> Option<String> {
        self.0.read().name(target)
    }
}

impl Gateway {
    /// Shares what is known of targets and what was spent under caps, under `names`: those of this gateway from now on. Targets that are others
    /// elsewhere, by their address or key, have other names. What is shared already stays so.
    pub(crate) fn share(&self, state: &Arc<dyn SharedState>, names: &SharedNames) {
        *names.0.write() = self.0.identities.tags();
        let own = names.clone();
        self.handles().spend.share(state.clone(), self.0.cap_sharing);
        self.handles().share_named(state.clone(), move |target| own.name(target));
        if let Some(summariser) = &self.0.kept.summariser {
            // It has targets of its own, whatever they are called.
            let own = names.clone();
            let name = move |target: &Target| Some(format!("summaries: {}", own.name(target)?));
            summariser.share_named(state.clone(), name);
        }
    }
}
