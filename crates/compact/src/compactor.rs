//! One compaction, start to end: tier 1, and when that is not enough a summary that somebody wrote
//! (tiers 2 and 3) or the list of facts that needs nobody (tier 4). Asks no model itself; pure but
//! for the random delimiter.

mod work;

use std::{fmt, sync::Arc};

use steadfast_chat::{ChatRequest, Message, transcript::Rules};

use self::work::Work;
use crate::{Digest, Goal, Ledger, Level, Policy, PolicyError, Report, Room, TooLarge};

/// Bytes of the record that is kept by rule, when it is handed to a summariser.
const RECORD: usize = 4_000;

/// The summary of an earlier compaction: what stands in the conversation, and what is known beyond
/// its text. It is recognised by being this value, never by its words.
#[derive(Clone)]
pub struct Summary {
    message: Message,
    digest: Digest,
    ledger: Ledger,
    /// What a model wrote of it.
    written: Option<Box<str>>,
}

impl fmt::Debug for Summary {
    /// Shows shapes, not contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summary")
            .field("messages", &self.messages())
            .field("written", &self.written.is_some())
            .finish_non_exhaustive()
    }
}

impl Summary {
    /// The message that stands in the conversation.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The facts it keeps.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How many messages it stands for.
    pub fn messages(&self) -> u64 {
        self.digest.messages()
    }

    /// The record so far, for a summariser to bring up to date ([`ask`](crate::ask)): what one wrote
    /// before, or what was kept by rule. The facts are not in it; they are added to any summary.
    pub fn record(&self) -> String {
        self.written.as_deref().map_or_else(|| self.digest.render(RECORD), str::to_owned)
    }

    fn find(&self, list: &[Message]) -> Option<usize> {
        list.iter().position(|message| message.same(&self.message) || *message == self.message)
    }
}

/// What one compaction is to go by.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// What the target accepts.
    pub rules: &'a Rules,
    /// Its window.
    pub room: Room,
    /// The tokens of a message: those of a [`Counter`](crate::Counter) for the target's model.
    pub weigh: &'a dyn Fn(&Message) -> u64,
    /// The tokens of everything that is no message.
    pub fixed: u64,
    /// The tokens of the whole request, where they are known better than by adding up: the upper end
    /// of a count that starts from reported usage. Parts are scaled to it.
    pub measured: Option<u64>,
    /// What a turn adds, when it is known.
    pub growth: Option<u64>,
    /// The summary of the compaction before, when there was one.
    pub summary: Option<&'a Summary>,
    /// The provider refused the request as too large: compact whatever the numbers say, and harder.
    pub refused: bool,
    /// What a summariser wrote of the messages that [`Compactor::pending`] named for this very
    /// request and task; `None` to do without.
    pub written: Option<&'a str>,
    /// Cut only the oldest half of what may go (tier 3): for a summariser that can not be asked about
    /// all of it.
    pub half: bool,
}

/// What a summariser is to be asked about.
#[derive(Clone)]
#[non_exhaustive]
pub struct Pending {
    /// The messages that will go, as they stand in the request, oldest first; an earlier summary
    /// is not among them.
    pub messages: Vec<Message>,
    /// The tokens of each.
    pub tokens: Vec<u64>,
    /// The record so far, when there is one.
    pub earlier: Option<String>,
    /// Bytes that the summary may have; what is longer is cut off.
    pub room: usize,
}

impl fmt::Debug for Pending {
    /// Shows shapes, not contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("messages", &self.messages.len())
            .field("earlier", &self.earlier.is_some())
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Task<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("room", &self.room).finish_non_exhaustive()
    }
}

/// What a compaction came to.
#[derive(Clone, Debug)]
#[must_use = "the next compaction needs the summary of this one"]
pub struct Run {
    /// What was done.
    pub report: Report,
    /// The summary that now stands in the conversation, to be handed to the next compaction.
    pub summary: Option<Summary>,
}

/// Compacts conversations by rule, without asking a model.
///
/// ```
/// use steadfast_compact::{Compactor, Limits, Policy, Task, Tier};
/// use steadfast_chat::{ChatRequest, Message, transcript::Rules};
/// use steadfast_core::Dialect;
///
/// let mut request = ChatRequest::new(
///     (0..40)
///         .flat_map(|n| {
///             [
///                 Message::user(format!("question {n}: {}", "why? ".repeat(50))),
///                 Message::assistant("because. ".repeat(50)),
///             ]
///         })
///         .chain([Message::user("and now?")])
///         .collect::<Vec<_>>(),
/// );
/// let policy = Policy::default();
/// let compactor = Compactor::new(policy.clone())?;
/// let bytes = |message: &Message| message.text().len() as u64 / 4;
/// let rules = Rules::for_dialect(Dialect::Anthropic);
/// let mut task = Task::new(&rules, &bytes);
/// task.room = policy.room(Limits::new(4_096), None, true);
///
/// let run = compactor.run(&mut request, &task, &mut fastrand::Rng::with_seed(1))?.unwrap();
/// assert_eq!(run.report.tier, Tier::Plain);
/// assert!(run.report.after <= run.report.target);
/// assert_eq!(request.messages.last().unwrap().text(), "and now?");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Compactor {
    policy: Policy,
    pinned: Arc<dyn Fn(&Message) -> bool + Send + Sync>,
}

impl fmt::Debug for Compactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compactor").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<'a> Task<'a> {
    /// A compaction for a target that accepts `rules`, with a window that nobody knows.
    pub fn new(rules: &'a Rules, weigh: &'a dyn Fn(&Message) -> u64) -> Self {
        let room = Policy::default().room(crate::UNKNOWN, None, true);
        Self {
            rules,
            room,
            weigh,
            fixed: 0,
            measured: None,
            growth: None,
            summary: None,
            refused: false,
            written: None,
            half: false,
        }
    }
}

impl Compactor {
    /// Compacts by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy contradicts itself.
    pub fn new(policy: Policy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { policy, pinned: Arc::new(|_| false) })
    }

    /// By the default policy, which is sound.
    pub(crate) fn usual() -> Self {
        Self { policy: Policy::default(), pinned: Arc::new(|_| false) }
    }

    /// The same by another policy.
    pub(crate) fn with_policy(self, policy: Policy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { policy, ..self })
    }

    /// Keeps whole every message that `pinned` says so of, and the calls and results that go with
    /// it.
    #[must_use]
    pub fn with_pins(mut self, pinned: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.pinned = Arc::new(pinned);
        self
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Compacts `request` when its size calls for it. `None`, and not a byte changed, when it does
    /// not. What comes out satisfies the task's rules when what went in did, and else is repaired.
    ///
    /// # Errors
    ///
    /// When what is never touched does not fit the window: the request is as it was.
    pub fn run(
        &self,
        request: &mut ChatRequest,
        task: &Task<'_>,
        rng: &mut fastrand::Rng,
    ) -> Result<Option<Run>, TooLarge> {
        match self.work(request, task) {
            Some((work, tokens)) => work.run(request, tokens, rng).map(Some),
            None => Ok(None),
        }
    }

    /// What a summariser would have to be asked about for [`run`](Self::run) to use its words.
    /// `None` when none is needed: there is room, tier 1 makes enough, or nothing may be cut.
    ///
    /// # Errors
    ///
    /// When what is never touched does not fit the window: no summary would help, and nobody has
    /// to be asked.
    pub fn pending(
        &self,
        request: &ChatRequest,
        task: &Task<'_>,
    ) -> Result<Option<Pending>, TooLarge> {
        match self.work(request, task) {
            Some((work, tokens)) => work.pending(tokens),
            None => Ok(None),
        }
    }

    /// A compaction of this request, and the tokens of its messages, when its size calls for one.
    fn work<'a>(
        &'a self,
        request: &ChatRequest,
        task: &'a Task<'a>,
    ) -> Option<(Work<'a>, Vec<u64>)> {
        let tokens: Vec<u64> = request.messages.iter().map(task.weigh).collect();
        let sum = tokens.iter().fold(task.fixed, |sum, tokens| sum.saturating_add(*tokens));
        let before = task.measured.unwrap_or(sum);
        if !task.refused && self.policy.level(task.room, before) != Level::Compact {
            return None;
        }
        let goal = self.goal(task, before);
        let work = Work::new(self, task, before, sum, goal, request.clone());
        Some((work, tokens))
    }

    fn goal(&self, task: &Task<'_>, before: u64) -> Goal {
        let goal = self.policy.goal(task.room, task.growth);
        if !task.refused {
            return goal;
        }
        // The provider counts more than we do: whatever the numbers say, less than this has to go.
        let limit = goal.limit.min(before.saturating_sub(1));
        let trigger = goal.trigger.min(limit);
        let harder = goal.harder();
        Goal { target: harder.target.min(trigger / 4 * 3), trigger, limit }
    }
}
