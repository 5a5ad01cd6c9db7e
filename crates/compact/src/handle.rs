//! A handle to the layer's state.

use std::sync::Arc;

use steadfast_core::{
    RefusedParameter, SpendAccount, SpendLedger, SpendTotals, circuit::CircuitState,
};
use tokio::time::Instant;

use crate::{
    ConversationId, Models,
    state::{Conversation, LayerState},
    summarise::account,
};

/// Shows and resets the state of a [`CompactionLayer`](crate::CompactionLayer). Cheap to clone; every
/// clone and every service of the layer share one state.
#[derive(Clone, Debug)]
pub struct CompactionHandle(pub(crate) Arc<LayerState>);

/// What a layer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionCounts {
    /// Times that a window began to fill.
    pub warned: u64,
    /// Compactions made.
    pub compacted: u64,
    /// Those of them with a summary.
    pub summarised: u64,
    /// Compactions without a summary that should have had one.
    pub degraded: u64,
    /// Compactions undone, as they did not help.
    pub ineffective: u64,
    /// Requests that a provider refused as too large and that were compacted again.
    pub overflows: u64,
    /// Requests that a provider refused for their bytes, their media, a parameter or their transcript, and that were
    /// repaired and sent again.
    pub repaired: u64,
    /// Requests that could not be made to fit.
    pub too_large: u64,
}

/// What a layer has done, and what it remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionSnapshot {
    /// What was done since the layer was made or reset.
    pub counts: CompactionCounts,
    /// The tenants for whom the summariser's breaker is not closed, and its state.
    pub breakers: Vec<(Box<str>, CircuitState)>,
    /// The windows that providers have stated in the last hour, by model.
    pub learned: Vec<(Box<str>, u64)>,
    /// The parameters that providers have refused in the last hour, with provider and model.
    pub refused: Vec<(Box<str>, Box<str>, RefusedParameter)>,
    /// The conversations that are kept, in no order.
    pub conversations: Vec<ConversationSnapshot>,
    /// What tenants have spent on summaries in the last hour and the last day, in tokens; those that
    /// have spent nothing are left out.
    pub spent: Vec<(Box<str>, u64, u64)>,
}

/// What is remembered of one conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConversationSnapshot {
    /// Its name.
    pub id: ConversationId,
    /// Input tokens of its last request that was counted, as it was sent: the likeliest number.
    pub tokens: u64,
    /// Compactions that were kept.
    pub compactions: u64,
    /// The tokens that these save in every turn.
    pub saved: u64,
    /// Compactions in a row that did not help.
    pub ineffective: u32,
    /// Internal errors of the layer, since an answer to a compacted request.
    pub throws: u32,
    /// It is not compacted any more, after internal errors.
    pub is_off: bool,
    /// It is being compacted.
    pub is_busy: bool,
}

/// Of the last hour and of the last day, reservations included.
fn tokens(totals: &SpendTotals) -> (u64, u64) {
    let SpendTotals { hour, day, held, .. } = *totals;
    (hour.plus(held).tokens, day.plus(held).tokens)
}

impl CompactionHandle {
    /// What the layer has done, and what it remembers.
    pub fn snapshot(&self) -> CompactionSnapshot {
        let now = Instant::now();
        let tenants = self.0.memory.tenants.entries();
        let breakers = tenants.iter().map(|(name, tenant)| (name.clone(), tenant.breaker.state()));
        let spent = self.0.ledger.snapshot(now).into_iter().filter_map(|(account, totals)| {
            let SpendAccount::Summaries(name) = account else { return None };
            let (hour, day) = tokens(&totals);
            Some((name.as_ref().into(), hour, day))
        });
        let conversations = self.0.memory.conversations.entries().into_iter().map(|(_, one)| {
            let snapshot = one.state.lock().snapshot.clone();
            ConversationSnapshot { id: one.id.clone(), is_busy: one.is_busy(), ..snapshot }
        });
        CompactionSnapshot {
            counts: *self.0.memory.counts.lock(),
            breakers: breakers.filter(|(_, state)| *state != CircuitState::Closed).collect(),
            learned: self.models().all_learned(),
            refused: self.models().all_refused(),
            conversations: conversations.collect(),
            spent: spent.filter(|(_, hour, day)| (*hour, *day) != (0, 0)).collect(),
        }
    }

    /// What a tenant has spent on summaries in the last hour and in the last day, in tokens,
    /// reservations included. `None` for calls without a tenant.
    pub fn spent(&self, tenant: Option<&str>) -> (u64, u64) {
        let account = account(tenant.unwrap_or_default());
        tokens(&self.0.ledger.totals(&account, Instant::now()))
    }

    /// What tenants have spent on summaries: to be saved and restored, or reset.
    pub fn ledger(&self) -> &SpendLedger {
        &self.0.ledger
    }

    /// Whether the summariser may be called for a tenant. `None` for calls without one.
    pub fn summariser(&self, tenant: Option<&str>) -> CircuitState {
        let tenant = self.0.memory.tenants.get(&tenant.unwrap_or_default().into());
        tenant.map_or(CircuitState::Closed, |tenant| tenant.breaker.state())
    }

    /// The windows it goes by.
    pub fn models(&self) -> &Models {
        &self.0.models
    }

    /// Shares with other processes the windows that providers state, and the compactions of conversations: one whose next turn is
    /// another node's goes on with the summary that there is. Once for its [`Models`], from inside a tokio
    /// runtime; whether this was the first time. See [`shared`](steadfast_core::shared).
    ///
    /// A call waits for the store before it compacts a conversation, where other nodes have compacted some: for 20 ms at most.
    /// Dropping it meanwhile leaves nothing behind. What is put is the summary with what else has changed, for as long as conversations are
    /// [remembered](crate::CompactionLayer::with_conversations), under a digest of the conversation's names and beginning.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share(&self, state: std::sync::Arc<dyn steadfast_core::shared::SharedState>) -> bool {
        let is_first = crate::measure::share(&self.0.models, state.clone());
        crate::shared::share(&self.0, state);
        is_first
    }

    /// Forgets the conversations of this name, whatever was compacted or switched off in them; a
    /// compaction that is running is not kept. Returns whether there were any.
    pub fn forget(&self, id: &ConversationId) -> bool {
        self.forget_where(|one| one.id == *id)
    }

    /// Forgets the window that a provider stated of a model, and the parameters that were refused for it: requests are
    /// measured against what was known of it before, and have all of them. Returns whether there was one. Without this it is forgotten after an hour.
    pub fn forget_learned(&self, model: &str) -> bool {
        self.models().forget(model)
    }

    /// Forgets all conversations, closes the summariser's breakers, and counts from zero. What tenants
    /// have spent and what was learned of models is kept.
    pub fn reset(&self) {
        self.forget_where(|_| true);
        for (_, tenant) in self.0.memory.tenants.entries() {
            tenant.breaker.reset();
        }
        *self.0.memory.counts.lock() = CompactionCounts::default();
    }

    fn forget_where(&self, goes: impl Fn(&Conversation) -> bool) -> bool {
        let mut found = false;
        self.0.memory.conversations.retain(|_, one| {
            let goes = goes(one);
            if goes {
                one.state.lock().forget();
            }
            found |= goes;
            !goes
        });
        found
    }
}
