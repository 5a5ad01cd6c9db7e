//! The context of a request, and the trait of requests that layers use.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use crate::{
    Beginning, CallSpend, Deadline, Dialect, Failure, RecoveryLog, RetryBudget, Routed, Target,
    TraceContext, Witness,
};

/// What a request carries through the layers.
///
/// Plain fields; the default is empty and allocates nothing. Cloning it is a few counted
/// pointers, and a clone shares the recovery log and the budget of the original.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallContext {
    /// Where the call goes. Set by failover, read by the layers inside it.
    pub target: Option<Target>,
    /// When the call must be over.
    pub deadline: Option<Deadline>,
    /// Attempts already made for this request, on any target, before this one.
    pub attempts: u32,
    /// How many attempts the request may have in total, over all layers.
    pub max_attempts: Option<NonZeroU32>,
    /// Other targets that could serve the call, whether or not they rest or have failed it: with any, a
    /// retry layer retries little in place. Set by failover.
    pub alternatives: u32,
    /// How long the waits of the call between its attempts may still take in all. `None`: as long as the
    /// policies and the deadline allow. Failover sets its own where that is less.
    pub patience: Option<Duration>,
    /// How failover came to the target; `None` without one.
    pub routed: Option<Routed>,
    /// Which target is asked first, or after the others, while it is well, or not at all, or alone; read by
    /// failover. Set where an answer is gone on with, and where a person has chosen.
    pub preference: Option<Arc<Preference>>,
    /// How much the caller cares.
    pub priority: Priority,
    /// The budget that retries of this request draw from; a layer without one of its own uses
    /// this.
    pub budget: Option<RetryBudget>,
    /// How many bytes of memory the request holds, where whoever let it in counts them: calls that wait hold no
    /// more than their [share](crate::BudgetPolicy::max_waiting_bytes).
    pub held_bytes: u64,
    /// What the layers did; disabled by default.
    pub log: RecoveryLog,
    /// The span of the call, and below an [`AttemptsLayer`](crate::AttemptsLayer) that of the attempt; `None` unless
    /// somebody traces it.
    pub trace: Option<Arc<TraceContext>>,
    /// The caller as far as failures are concerned: where a target rests only after failures of two
    /// witnesses, those of one count once. Failover sets it when it is not known.
    pub witness: Witness,
    /// What the call may spend, where that is capped: each attempt takes its part of it.
    pub spend: Option<CallSpend>,
    /// Who calls. Behind a pointer, because most layers do not read it.
    identity: Option<Arc<Identity>>,
}

/// Which targets a call prefers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preference {
    /// This one: it has begun the answer.
    For(Target),
    /// Any other model or provider: the answer has broken here more than once.
    Against(Target),
    /// Any other model or provider, then any but these: each has failed the answer, and is not to be asked for it
    /// again.
    Except(Vec<Target>),
    /// This one and no other, as far as it has parts, whether or not it is well: a person has chosen it.
    Only(Target),
}

/// How much the caller cares about one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Priority {
    /// A user waits for the answer.
    #[default]
    Interactive,
    /// Titles, summaries and the like: no user waits, and an overloaded provider is not called again.
    Background,
}

/// On whose behalf a call is made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Identity {
    /// Who pays.
    pub tenant: Option<Arc<str>>,
    /// The *name* of the API key that the call came with, never the secret.
    pub key: Option<Arc<str>>,
    /// Which agent.
    pub agent: Option<Arc<str>>,
    /// Which of its tasks.
    pub task: Option<Arc<str>>,
    /// Which conversation.
    pub session: Option<Arc<str>>,
}

/// The context of a request that has none.
static EMPTY: CallContext = CallContext::new();

impl Default for CallContext {
    fn default() -> Self {
        Self::new()
    }
}

impl CallContext {
    /// An empty context.
    pub const fn new() -> Self {
        Self {
            target: None,
            deadline: None,
            attempts: 0,
            max_attempts: None,
            alternatives: 0,
            patience: None,
            routed: None,
            preference: None,
            priority: Priority::Interactive,
            budget: None,
            held_bytes: 0,
            log: RecoveryLog::disabled(),
            trace: None,
            witness: Witness::NONE,
            spend: None,
            identity: None,
        }
    }

    /// An empty context that keeps a recovery log.
    pub fn recording() -> Self {
        Self { log: RecoveryLog::enabled(), ..Self::new() }
    }

    /// With this target.
    #[must_use]
    pub fn with_target(mut self, target: impl Into<Target>) -> Self {
        self.target = Some(target.into());
        self
    }

    /// With this deadline, or the earlier one when there is one already.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Deadline) -> Self {
        self.deadline = Some(self.deadline.map_or(deadline, |mine| mine.min(deadline)));
        self
    }

    /// With this priority.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// With this recovery log.
    #[must_use]
    pub fn with_log(mut self, log: RecoveryLog) -> Self {
        self.log = log;
        self
    }

    /// On behalf of `tenant`.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<Arc<str>>) -> Self {
        self.identity_mut().tenant = Some(tenant.into());
        self
    }

    /// With the API key of this name.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.identity_mut().key = Some(key.into());
        self
    }

    /// On behalf of `agent`.
    #[must_use]
    pub fn with_agent(mut self, agent: impl Into<Arc<str>>) -> Self {
        self.identity_mut().agent = Some(agent.into());
        self
    }

    /// As part of `task`.
    #[must_use]
    pub fn with_task(mut self, task: impl Into<Arc<str>>) -> Self {
        self.identity_mut().task = Some(task.into());
        self
    }

    /// As part of the conversation `session`.
    #[must_use]
    pub fn with_session(mut self, session: impl Into<Arc<str>>) -> Self {
        self.identity_mut().session = Some(session.into());
        self
    }

    /// Who pays.
    pub fn tenant(&self) -> Option<&str> {
        self.identity.as_ref()?.tenant.as_deref()
    }

    /// The name of the API key that the call came with.
    pub fn key(&self) -> Option<&str> {
        self.identity.as_ref()?.key.as_deref()
    }

    /// All that is known of who calls.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_deref()
    }

    /// Which agent calls.
    pub fn agent(&self) -> Option<&str> {
        self.identity.as_ref()?.agent.as_deref()
    }

    /// Which task the call is part of.
    pub fn task(&self) -> Option<&str> {
        self.identity.as_ref()?.task.as_deref()
    }

    /// Which conversation the call is part of.
    pub fn session(&self) -> Option<&str> {
        self.identity.as_ref()?.session.as_deref()
    }

    /// All of the above, to be kept.
    pub(crate) fn shared_identity(&self) -> Option<Arc<Identity>> {
        self.identity.clone()
    }

    /// All of the above, to be changed.
    pub fn identity_mut(&mut self) -> &mut Identity {
        Arc::make_mut(self.identity.get_or_insert_default())
    }

    /// Attempts the request may still have: [`u32::MAX`] without a limit.
    pub fn attempts_left(&self) -> u32 {
        self.max_attempts.map_or(u32::MAX, |max| max.get().saturating_sub(self.attempts))
    }
}

/// A request that generic layers can handle.
///
/// It is implemented for `http::Request<B>`, where the context lives in the extensions, and for the
/// chat requests of `steadfast-chat`. A type of your own needs its two accessors:
///
/// ```
/// use steadfast_core::{Call, CallContext};
///
/// #[derive(Clone)]
/// struct Translate { text: String, context: CallContext }
///
/// impl Call for Translate {
///     fn context(&self) -> &CallContext { &self.context }
///     fn context_mut(&mut self) -> &mut CallContext { &mut self.context }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a request that layers can handle: it has no `CallContext`",
    label = "the layer is called with `{Self}`",
    note = "send it as `WithContext::new(request)`, with `.map_request(WithContext::into_inner)` next to the inner \
            service; or `impl Call for {Self}`, two methods that return a field of type `CallContext`"
)]
pub trait Call {
    /// The context of the request.
    fn context(&self) -> &CallContext;

    /// The context of the request, to be changed.
    fn context_mut(&mut self) -> &mut CallContext;

    /// The requested model, when the request names one: failover maps it to that of each target. By
    /// default, the model of the context's target.
    fn model(&self) -> Option<&str> {
        self.context().target.as_ref()?.model()
    }

    /// Whether the answer comes whole, and not as it is made: then its silence says nothing. `None`: it is
    /// not known.
    fn is_whole(&self) -> Option<bool> {
        None
    }

    /// A digest of what is asked, such as the last turn of a user, so that a prompt which fails wherever it
    /// goes is recognised. `None`: this kind of request has none.
    fn prompt_digest(&self) -> Option<u64> {
        None
    }

    /// How the conversation begins that this request goes on with: by that it is recognised in its next turn, where
    /// its caller gives it no name. `None`: this kind of request has none.
    fn beginning(&self) -> Option<Beginning> {
        None
    }

    /// Calls `add` with what its [beginning](Self::beginning) is a digest of, piece by piece, for who needs a digest that is
    /// the same in another process.
    fn beginning_texts(&self, add: &mut dyn FnMut(&[u8])) {
        let _ = add;
    }

    /// What a target has to be able to do for this request. Failover skips targets that can not.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Fits the request to a target: its model, its limits, what it can not take. Called by
    /// failover on a copy for each target, after the context's target has been set.
    ///
    /// # Errors
    ///
    /// When the request can not be made to fit, with a failure that says which part.
    fn adapt(&mut self, profile: &Profile) -> Result<(), Failure> {
        let _ = profile;
        Ok(())
    }

    /// Adds a short user message to the request, such as a request to continue. Returns whether
    /// this kind of request can have one.
    fn nudge(&mut self, text: &str) -> bool {
        let _ = text;
        false
    }
}

impl<B> Call for http::Request<B> {
    fn context(&self) -> &CallContext {
        self.extensions().get().unwrap_or(&EMPTY)
    }

    fn context_mut(&mut self) -> &mut CallContext {
        self.extensions_mut().get_or_insert_default()
    }
}

/// What a target has to be able to do for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// It has images.
    pub vision: bool,
    /// It declares tools.
    pub tools: bool,
    /// It is to be streamed.
    pub stream: bool,
    /// About how many tokens it is, when that is known; a lower bound, so that a target which could
    /// serve it is not skipped.
    pub input_tokens: u64,
    /// The most tokens that it can be taken to be, with its tools and media; zero when that is not known. What
    /// reserves for a call goes by it.
    pub most_input_tokens: u64,
    /// The most tokens of answer that it asks for, when it says so.
    pub max_output: Option<u64>,
}

/// What one target is and can do; [`Call::adapt`] fits a request to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Profile {
    /// Where the request goes; its model is the one to send.
    pub target: Target,
    /// The dialect of the target, when known.
    pub dialect: Option<Dialect>,
    /// A second one, in which callers of it are answered.
    pub also: Option<Dialect>,
    /// What it can do.
    pub can: Capabilities,
    /// The conversation was last answered by another target: content that only that one accepts,
    /// such as signed thinking, is left out.
    pub foreign_history: bool,
}

/// What a model can do. By default everything, without a known limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// It reads images.
    pub vision: bool,
    /// It calls tools.
    pub tools: bool,
    /// Its window in tokens, when known.
    pub window: Option<u64>,
    /// The most it writes in one answer, in tokens, when known.
    pub max_output: Option<u64>,
    /// Parameters it does not take, by their name on the wire of OpenAI's dialect.
    pub unsupported: Vec<String>,
    /// What to do with those, and with images it does not read.
    pub on_unsupported: OnUnsupported,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            vision: true,
            tools: true,
            window: None,
            max_output: None,
            unsupported: Vec::new(),
            on_unsupported: OnUnsupported::default(),
        }
    }
}

/// What to do with what a target does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OnUnsupported {
    /// Leave it out: an answer without it is better than none.
    #[default]
    Drop,
    /// Skip the target.
    Refuse,
}

impl Profile {
    /// A target that can do everything and has no known limits.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            dialect: None,
            also: None,
            can: Capabilities::default(),
            foreign_history: false,
        }
    }

    /// The dialect in which it is asked for a caller that speaks `caller`, when known.
    pub fn asked_in(&self, caller: Option<Dialect>) -> Option<Dialect> {
        self.also.filter(|also| caller == Some(*also)).or(self.dialect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn deadlines_only_shrink() {
        let near = Deadline::after(Duration::from_secs(1));
        let far = Deadline::after(Duration::from_secs(9));
        for (first, second) in [(near, far), (far, near)] {
            let context = CallContext::new().with_deadline(first).with_deadline(second);
            assert_eq!(context.deadline, Some(near));
        }
    }

    #[test]
    fn lives_in_the_extensions_of_an_http_request() {
        let mut request = http::Request::new(());
        assert_eq!(request.context().attempts, 0);
        assert!(request.extensions().is_empty(), "reading adds nothing");
        request.context_mut().attempts = 3;
        assert_eq!(request.clone().context().attempts, 3);
    }

    #[test]
    fn attempts_left_counts_down() {
        let mut context = CallContext::new();
        assert_eq!(context.attempts_left(), u32::MAX);
        context.max_attempts = NonZeroU32::new(3);
        context.attempts = 2;
        assert_eq!(context.attempts_left(), 1);
        context.attempts = 9;
        assert_eq!(context.attempts_left(), 0);
    }

    #[test]
    fn identity_is_copied_on_write() {
        let first = CallContext::new().with_tenant("acme");
        let second = first.clone().with_session("s1");
        assert_eq!((first.session(), second.session()), (None, Some("s1")));
        assert_eq!(second.tenant(), Some("acme"));
    }
}
