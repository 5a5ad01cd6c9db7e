//! The layer's state, to be looked at and steered.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

use crate::{
    ConversationId, GateState, Models,
    memory::Conversation,
    state::{Counts, Shared},
};

/// Looks at a [`CompactionLayer`](crate::CompactionLayer) and steers it. Cheap to clone; every clone
/// and every service of the layer share one state.
#[derive(Clone)]
pub struct CompactionHandle(pub(crate) Arc<Shared>);

/// What a layer has done, and what it remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionSnapshot {
    /// Times that a window began to fill.
    pub warned: u64,
    /// Compactions made.
    pub compacted: u64,
    /// Those of them with a summariser's words.
    pub summarised: u64,
    /// Compactions that had to do without a summariser's words.
    pub degraded: u64,
    /// Compactions taken back, as they did not help.
    pub ineffective: u64,
    /// Requests that a provider refused as too large and that were compacted again.
    pub overflows: u64,
    /// Requests that could not be made to fit.
    pub too_large: u64,
    /// Whether the summariser may be asked.
    pub summariser: GateState,
    /// The conversations that are remembered, in no order.
    pub conversations: Vec<ConversationSnapshot>,
    /// What tenants have spent on summaries in the last hour and the last day, in tokens; those that
    /// have spent nothing are left out.
    pub spent: Vec<(Box<str>, u64, u64)>,
}

/// What is remembered of one conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConversationSnapshot {
    /// Whose it is.
    pub id: ConversationId,
    /// Input tokens of its last request that was counted: the upper end of the estimate.
    pub tokens: u64,
    /// Compactions that were kept.
    pub compactions: u64,
    /// The tokens that what stands of them saves in every turn.
    pub saved: u64,
    /// Compactions in a row that did not help.
    pub ineffective: u32,
    /// Errors of the layer's own.
    pub throws: u32,
    /// It is left alone, after errors of the layer's own.
    pub is_off: bool,
    /// It is being compacted.
    pub is_busy: bool,
}

fn conversation(one: &Conversation) -> ConversationSnapshot {
    let book = one.book.lock();
    ConversationSnapshot {
        id: one.id.clone(),
        tokens: book.tokens,
        compactions: book.compactions,
        saved: book.saved,
        ineffective: book.ineffective,
        throws: book.throws,
        is_off: book.off,
        is_busy: book.busy,
    }
}

impl CompactionHandle {
    /// What the layer has done, and what it remembers.
    pub fn snapshot(&self) -> CompactionSnapshot {
        let shared = &*self.0;
        let Counts { warned, compacted, summarised, degraded, ineffective, overflows, too_large } =
            &shared.counts;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CompactionSnapshot {
            warned: get(warned),
            compacted: get(compacted),
            summarised: get(summarised),
            degraded: get(degraded),
            ineffective: get(ineffective),
            overflows: get(overflows),
            too_large: get(too_large),
            summariser: shared.gate.lock().state(),
            conversations: self.each(|_| true),
            spent: self.spending(),
        }
    }

    fn each(&self, wanted: impl Fn(&Conversation) -> bool) -> Vec<ConversationSnapshot> {
        let all = self.0.conversations.entries().into_iter();
        all.filter(|(_, one)| wanted(one)).map(|(_, one)| conversation(&one)).collect()
    }

    fn spending(&self) -> Vec<(Box<str>, u64, u64)> {
        let now = Instant::now();
        let tenants = self.0.tenants.entries().into_iter();
        let spent = tenants.map(|(name, tenant)| {
            let (hour, day) = tenant.0.lock().spent(now);
            (name, hour, day)
        });
        spent.filter(|(_, hour, day)| (*hour, *day) != (0, 0)).collect()
    }

    /// What is remembered of the conversations of this name: of one without a session there may be
    /// several.
    pub fn get(&self, id: &ConversationId) -> Vec<ConversationSnapshot> {
        self.each(|one| one.id == *id)
    }

    /// The conversations that are left alone, after errors of the layer's own.
    pub fn switched_off(&self) -> Vec<ConversationId> {
        self.each(|one| one.book.lock().off).into_iter().map(|one| one.id).collect()
    }

    /// What a tenant has spent on summaries in the last hour and in the last day, in tokens,
    /// reservations included. `None` for calls without a tenant.
    pub fn spent(&self, tenant: Option<&str>) -> (u64, u64) {
        let name: Box<str> = tenant.unwrap_or_default().into();
        let tenant = self.0.tenants.get(&name);
        tenant.map_or((0, 0), |tenant| tenant.0.lock().spent(Instant::now()))
    }

    /// The windows it goes by.
    pub fn models(&self) -> &Models {
        &self.0.config.models
    }

    /// Forgets the conversations of this name, whatever was compacted or switched off in them; a
    /// compaction that is under way is not kept. Returns whether there were any.
    pub fn forget(&self, id: &ConversationId) -> bool {
        let mut found = false;
        self.0.conversations.retain(|_, one| {
            let is_it = one.id == *id;
            if is_it {
                one.book.lock().forget();
            }
            found |= is_it;
            !is_it
        });
        found
    }

    /// Forgets all conversations, lets the summariser be asked again, and counts from zero. What was
    /// spent stays spent.
    pub fn reset(&self) {
        self.0.conversations.retain(|_, one| {
            one.book.lock().forget();
            false
        });
        self.0.gate.lock().reset();
        let Counts { warned, compacted, summarised, degraded, ineffective, overflows, too_large } =
            &self.0.counts;
        for count in [warned, compacted, summarised, degraded, ineffective, overflows, too_large] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for CompactionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionHandle").field("shared", &self.0).finish()
    }
}
