//! One compaction: tier 1, and when that is not enough a summary that a model wrote (tiers 2 and 3) or
//! the list of facts (tier 4). Calls no model itself; pure but for the random delimiter.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use steadfast_chat::{
    ChatRequest, Message, Role,
    transcript::{TranscriptRules, repair, unbind_edited, validate},
};

use super::{
    CompactionPolicy, Goal, Level, Room,
    plan::{Cut, CutPlan, PlanInput},
};
use crate::{
    CompactionReport, Effect, PolicyError, Stripped, Summary, Tier, TooLarge, UNKNOWN, strip,
};

/// The input of one compaction, besides the request.
#[derive(Clone, Copy)]
pub struct CompactionTask<'a> {
    /// What the target accepts.
    pub rules: &'a TranscriptRules,
    /// Its window.
    pub room: Room,
    /// The tokens of a message: those of a [`Counter`](crate::Counter) for the target's model.
    pub count: &'a dyn Fn(&Message) -> u64,
    /// The tokens of each message of the request, where they are known already; empty to have them
    /// counted.
    pub known: &'a [u64],
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
    /// It is prepared before it is due: compact whatever the size is.
    pub ahead: bool,
    /// What a summariser wrote of the messages that [`Compactor::pending`] named for this very
    /// request and task; `None` to do without.
    pub written: Option<&'a str>,
    /// Cut only the oldest half of what may go (tier 3): for a summariser that can not be asked about
    /// all of it.
    pub half: bool,
}

/// What a summary is needed of.
#[derive(Clone)]
#[non_exhaustive]
pub struct SummaryInput {
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

impl fmt::Debug for SummaryInput {
    /// Without contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SummaryInput").finish_non_exhaustive()
    }
}

impl fmt::Debug for CompactionTask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionTask").field("room", &self.room).finish_non_exhaustive()
    }
}

/// The result of a compaction.
#[derive(Clone, Debug)]
#[must_use = "the next compaction needs the summary of this one"]
pub struct CompactionResult {
    /// What was done.
    pub report: CompactionReport,
    /// The summary that is now in the conversation, for the next compaction.
    pub summary: Option<Summary>,
}

/// Compacts conversations by rule, without asking a model.
///
/// ```
/// use steadfast_compact::{CompactionPolicy, CompactionTask, Compactor, Tier, TokenLimits};
/// use steadfast_chat::{ChatRequest, Message, transcript::TranscriptRules};
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
/// let policy = CompactionPolicy::default();
/// let compactor = Compactor::new(policy.clone())?;
/// let bytes = |message: &Message| message.text().len() as u64 / 4;
/// let rules = TranscriptRules::for_dialect(Dialect::Anthropic);
/// let mut task = CompactionTask::new(&rules, &bytes);
/// task.room = policy.room(TokenLimits::new(4_096), None, true);
///
/// let done = compactor.run(&mut request, &task, &mut fastrand::Rng::with_seed(1))?.unwrap();
/// assert_eq!(done.report.tier, Tier::Fallback);
/// assert!(done.report.after <= done.report.target);
/// assert_eq!(request.messages.last().unwrap().text(), "and now?");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Compactor {
    policy: CompactionPolicy,
    pinned: Arc<dyn Fn(&Message) -> bool + Send + Sync>,
}

impl fmt::Debug for Compactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compactor").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<'a> CompactionTask<'a> {
    /// A compaction for a target that accepts `rules`, with a window that nobody knows.
    pub fn new(rules: &'a TranscriptRules, count: &'a dyn Fn(&Message) -> u64) -> Self {
        Self {
            rules,
            room: CompactionPolicy::default().room(UNKNOWN, None, true),
            count,
            known: &[],
            fixed: 0,
            measured: None,
            growth: None,
            summary: None,
            refused: false,
            ahead: false,
            written: None,
            half: false,
        }
    }
}

impl Default for Compactor {
    /// With the default policy and without pins.
    fn default() -> Self {
        Self { policy: CompactionPolicy::default(), pinned: Arc::new(|_| false) }
    }
}

impl Compactor {
    /// Compacts by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy contradicts itself.
    pub fn new(policy: CompactionPolicy) -> Result<Self, PolicyError> {
        Self::default().with_policy(policy)
    }

    /// The same by another policy.
    pub(crate) fn with_policy(self, policy: CompactionPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { policy, ..self })
    }

    /// Keeps every message for which `pinned` returns true, with its calls and results.
    #[must_use]
    pub fn with_pins(mut self, pinned: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        self.pinned = Arc::new(pinned);
        self
    }

    /// The policy.
    pub fn policy(&self) -> &CompactionPolicy {
        &self.policy
    }

    /// Which messages are pinned; `None` when the closure that decides it panics.
    pub(super) fn pinned(&self, list: &[Message]) -> Option<Vec<bool>> {
        let pinned = || list.iter().map(|message| (self.pinned)(message)).collect();
        catch_unwind(AssertUnwindSafe(pinned)).ok()
    }

    /// Compacts `request` when its size calls for it. `None`, and not a byte changed, when it does
    /// not. What comes out satisfies the task's rules when what went in did, and else is repaired.
    ///
    /// # Errors
    ///
    /// When what is never changed does not fit the window: the request is as it was.
    pub fn run(
        &self,
        request: &mut ChatRequest,
        task: &CompactionTask<'_>,
        rng: &mut fastrand::Rng,
    ) -> Result<Option<CompactionResult>, TooLarge> {
        let compaction = Compaction::new(self, request, task);
        compaction.map(|compaction| compaction.run(request, rng)).transpose()
    }

    /// What a summariser would have to be asked about for [`run`](Self::run) to use its summary.
    /// `None` when none is needed: there is room, tier 1 makes enough, or nothing may be cut.
    ///
    /// # Errors
    ///
    /// When what is never changed does not fit the window: no summary would help.
    pub fn pending(
        &self,
        request: &ChatRequest,
        task: &CompactionTask<'_>,
    ) -> Result<Option<SummaryInput>, TooLarge> {
        let compaction = Compaction::new(self, request, task);
        compaction.map_or(Ok(None), |compaction| compaction.pending())
    }
}

/// Cuts that are tried before the history is repaired instead.
const MAX_CUTS: usize = 8;

/// Bytes of a summary's body with which it is not made smaller any more.
const LEAST_BODY: usize = 64;

/// One compaction of one request.
struct Compaction<'a> {
    compactor: &'a Compactor,
    task: &'a CompactionTask<'a>,
    original: ChatRequest,
    /// The tokens of each of its messages.
    tokens: Vec<u64>,
    /// Measured tokens to those added up.
    scale: f64,
    goal: Goal,
    before: u64,
    /// The index of the earlier summary.
    summary: Option<usize>,
}

/// The conversation after tier 1.
struct Lean {
    messages: Vec<Message>,
    tokens: Vec<u64>,
    stripped: Stripped,
    plan: CutPlan,
}

impl<'a> Compaction<'a> {
    /// `None` when the size of `request` calls for none.
    fn new(
        compactor: &'a Compactor,
        request: &ChatRequest,
        task: &'a CompactionTask<'a>,
    ) -> Option<Self> {
        let policy = &compactor.policy;
        let mut tokens = task.known.to_vec();
        if tokens.len() != request.messages.len() {
            tokens = request.messages.iter().map(task.count).collect();
        }
        let sum = tokens.iter().fold(task.fixed, |sum, tokens| sum.saturating_add(*tokens));
        let before = task.measured.unwrap_or(sum);
        if !task.refused && !task.ahead && policy.level(task.room, before) != Level::Compact {
            return None;
        }
        let mut goal = policy.goal(task.room, task.growth);
        if task.refused {
            // The provider counts more than this counter: the request must become smaller in any case.
            goal = goal.below(before);
            if policy.overflow_target > 0.0 {
                goal = goal.to_share(policy.overflow_target, task.room.window);
            }
        }
        let original = request.clone();
        let summary = task.summary.and_then(|summary| summary.find(&original.messages));
        let scale = before as f64 / sum.max(1) as f64;
        let mut this = Self { compactor, task, original, tokens, scale, goal, before, summary };
        this.tokens = this.tokens.iter().map(|tokens| this.scaled(*tokens)).collect();
        Some(this)
    }

    /// Tier 1.
    fn strip(&self) -> Result<Lean, TooLarge> {
        let policy = &self.compactor.policy;
        let (mut messages, mut tokens) = (self.original.messages.to_vec(), self.tokens.clone());
        let plan = CutPlan::new(&self.plan_input(&messages, &tokens), policy);
        if plan.required > self.goal.limit {
            return Err(self.too_large(&plan));
        }
        let wanted = self.before.saturating_sub(self.goal.target);
        let stripped = strip(&mut messages, &tokens, plan.recent(), policy.strip_over, wanted);
        for index in &stripped.messages {
            tokens[*index] = self.count(&messages[*index]);
        }
        let plan = CutPlan::new(&self.plan_input(&messages, &tokens), policy);
        Ok(Lean { messages, tokens, stripped, plan })
    }

    /// The result of tier 1 alone, when that is enough: at the target, or, where nothing may be cut,
    /// below the trigger.
    fn suffices(&self, lean: &Lean) -> Option<Effect> {
        match lean.plan.total {
            total if total >= self.before => None,
            total if total <= self.goal.target => Some(Effect::Effective),
            total => (!lean.plan.can_cut() && total < self.goal.trigger).then_some(Effect::Eased),
        }
    }

    fn pending(&self) -> Result<Option<SummaryInput>, TooLarge> {
        let lean = self.strip()?;
        if self.suffices(&lean).is_some() {
            return Ok(None);
        }
        Ok(self.choose(&lean).map(|cut| SummaryInput {
            messages: self.gone(&cut).map(|at| self.original.messages[at].clone()).collect(),
            tokens: self.gone(&cut).map(|at| self.tokens[at]).collect(),
            earlier: self.earlier().map(Summary::record),
            room: self.room() / 2,
        }))
    }

    fn run(
        &self,
        request: &mut ChatRequest,
        rng: &mut fastrand::Rng,
    ) -> Result<CompactionResult, TooLarge> {
        let lean = self.strip()?;
        let total = lean.plan.total;
        let (effect, target) = if let Some(effect) = self.suffices(&lean) {
            (effect, self.goal.target.max(total))
        } else if let Some(done) = self.summarised(request, &lean, rng) {
            return Ok(done);
        } else if self.before <= self.goal.limit {
            let mut report = self.report(&lean, Tier::None, Effect::Ineffective, self.goal.target);
            (report.after, report.stripped) = (self.before, 0);
            return Ok(CompactionResult { report, summary: self.earlier().cloned() });
        } else if total <= self.goal.limit {
            // Markers alone, where they are what makes it fit.
            (Effect::Tight, self.goal.limit)
        } else {
            return Err(self.too_large(&lean.plan));
        };
        let report = self.report(&lean, Tier::Strip, effect, target);
        request.messages = lean.messages.into();
        let mut done = self.finish(request, report, self.earlier().cloned());
        done.summary = done.summary.filter(|earlier| earlier.find(&request.messages).is_some());
        Ok(done)
    }

    /// A summary instead of older messages: the written one, else tier 4. `None` when nothing may be
    /// cut, or the result would not fit, or not be smaller.
    fn summarised(
        &self,
        request: &mut ChatRequest,
        lean: &Lean,
        rng: &mut fastrand::Rng,
    ) -> Option<CompactionResult> {
        let (task, goal) = (self.task, self.goal);
        if task.written.is_none() && !self.compactor.policy.plain {
            return None;
        }
        let cut = self.choose(lean)?;
        let rest = lean.plan.total - cut.freed;
        // Facts are read from the messages before anything was stripped.
        let mut ledger = self.earlier().map(|earlier| earlier.ledger().clone()).unwrap_or_default();
        ledger.read(self.gone(&cut).map(|at| &self.original.messages[at]));

        // Where what stays is above the target already, nothing is gained by an empty summary.
        let aim = match rest.saturating_add((LEAST_BODY / 4) as u64) {
            least if least <= goal.target && !task.half => goal.target,
            least if least < goal.trigger => goal.trigger - 1,
            _ => goal.limit,
        };
        let mut room = self.room();
        let (message, after) = loop {
            let message = ledger.summary(task.written, room, rng);
            let after = rest.saturating_add(self.count(&message));
            if after <= aim || room < LEAST_BODY {
                break (message, after);
            }
            room /= 2;
        };
        let (effect, target) = match after {
            after if after >= self.before => return None,
            after if after <= goal.target => (Effect::Effective, goal.target),
            after if after < goal.trigger => (Effect::Eased, after),
            after if after <= goal.limit && self.before > goal.limit => (Effect::Tight, goal.limit),
            _ => return None,
        };
        let tier = match (task.written, task.half) {
            (Some(_), false) => Tier::Summary,
            (Some(_), true) => Tier::Partial,
            (None, _) => Tier::Fallback,
        };
        let mut report = self.report(lean, tier, effect, target);
        report.after = after;
        report.dropped = cut.dropped.len();
        report.kept -= report.dropped;
        request.messages = with_summary(&lean.messages, &cut, message.clone()).into();
        Some(self.finish(request, report, Some(Summary::new(message, ledger, task.written))))
    }

    /// The summary that is merged into the new one.
    fn earlier(&self) -> Option<&'a Summary> {
        self.task.summary.filter(|_| self.summary.is_some())
    }

    /// The messages that a cut drops, but for the earlier summary.
    fn gone<'b>(&'b self, cut: &'b Cut) -> impl Iterator<Item = usize> + 'b {
        cut.dropped.iter().copied().filter(|index| self.summary != Some(*index))
    }

    /// The bytes of a summary's body.
    fn room(&self) -> usize {
        self.compactor.policy.summary_room(self.task.room.window)
    }

    /// The first cut that the provider accepts; the first of all, to be repaired, when it
    /// accepts none or did not accept the history before. `None` when nothing may be cut.
    fn choose(&self, lean: &Lean) -> Option<Cut> {
        let input = self.plan_input(&lean.messages, &lean.tokens);
        let wanted = match self.task.half {
            true => lean.plan.total.saturating_sub(lean.plan.floor) / 2,
            false => lean.plan.wanted(self.goal, (self.room() / 4) as u64),
        };
        let is_valid = |request: &ChatRequest| validate(request, self.task.rules).is_ok();
        let was_valid = is_valid(&self.original);
        let accepted = |cut: &Cut| {
            let mut attempt = self.original.clone();
            attempt.messages = with_summary(&lean.messages, cut, Message::user("summary")).into();
            is_valid(&attempt)
        };
        let cuts = lean.plan.cuts(&input, wanted).take(MAX_CUTS);
        let mut first = None;
        for cut in cuts.filter(|cut| !cut.dropped.is_empty()) {
            if !was_valid || accepted(&cut) {
                return Some(cut);
            }
            first.get_or_insert(cut);
        }
        first
    }

    fn report(&self, lean: &Lean, tier: Tier, effect: Effect, target: u64) -> CompactionReport {
        CompactionReport {
            tier,
            effect,
            before: self.before,
            after: lean.plan.total,
            floor: lean.plan.floor,
            target,
            kept: lean.messages.len(),
            dropped: 0,
            stripped: lean.stripped.results + lean.stripped.arguments,
            repaired: 0,
            unbound: 0,
        }
    }

    /// Drops the thinking that is behind what was changed, and repairs what the target would not accept.
    fn finish(
        &self,
        request: &mut ChatRequest,
        mut report: CompactionReport,
        summary: Option<Summary>,
    ) -> CompactionResult {
        report.unbound = unbind_edited(request, self.task.rules, &self.original.messages);
        report.repaired = repair(request, self.task.rules).done.len();
        if report.repaired + report.unbound > 0 {
            let tokens = request.messages.iter().map(|message| self.count(message));
            report.after = tokens.sum::<u64>().saturating_add(self.scaled(self.task.fixed));
        }
        CompactionResult { report, summary }
    }

    fn plan_input<'b>(&'b self, messages: &'b [Message], tokens: &'b [u64]) -> PlanInput<'b> {
        let pinned = &*self.compactor.pinned;
        let fixed = self.scaled(self.task.fixed);
        PlanInput { messages, tokens, fixed, summary: self.summary, pinned }
    }

    fn too_large(&self, plan: &CutPlan) -> TooLarge {
        TooLarge {
            before: self.before,
            floor: plan.floor,
            required: plan.required,
            window: self.task.room.window,
            reserve: self.task.room.reserve,
            limit: self.goal.limit,
        }
    }

    fn count(&self, message: &Message) -> u64 {
        self.scaled((self.task.count)(message))
    }

    fn scaled(&self, tokens: u64) -> u64 {
        if self.scale == 1.0 { tokens } else { (tokens as f64 * self.scale).ceil() as u64 }
    }
}

/// The messages with the cut replaced by the summary, which comes where the rest continues: all
/// before it is not changed, for the sake of prompt caches. Only where the model would then open
/// the conversation, the summary opens it.
fn with_summary(messages: &[Message], cut: &Cut, summary: Message) -> Vec<Message> {
    let mut dropped = cut.dropped.iter().copied().peekable();
    let mut out = Vec::with_capacity(messages.len() + 1 - cut.dropped.len());
    for (index, message) in messages[..cut.at].iter().enumerate() {
        if dropped.next_if_eq(&index).is_none() {
            out.push(message.clone());
        }
    }
    let opening = out.iter().position(|message| message.role() != Role::System);
    let at = opening.filter(|at| out[*at].role() == Role::Assistant).unwrap_or(out.len());
    out.insert(at, summary);
    out.extend_from_slice(&messages[cut.at..]);
    out
}
