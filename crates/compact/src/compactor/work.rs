//! The steps of one compaction.

use steadfast_chat::{
    ChatRequest, Message, Role,
    transcript::{repair, validate},
};

use super::{Compactor, Pending, Run, Summary, Task};
use crate::{
    Conversation, Cut, Digest, Effect, Goal, Heading, Ledger, Plan, Report, Stripped, Tier,
    TooLarge, ledger::clip, render, strip,
};

/// Ways to cut that are tried before the history is repaired instead.
const MAX_CUTS: usize = 8;

/// Bytes of a summary's body with which it is not made smaller any more.
const LEAST_BODY: usize = 64;

/// One compaction at work.
pub(super) struct Work<'a> {
    compactor: &'a Compactor,
    task: &'a Task<'a>,
    /// Measured tokens to those added up.
    scale: f64,
    goal: Goal,
    before: u64,
    original: ChatRequest,
    /// Where the earlier summary stands.
    summary: Option<usize>,
}

/// The conversation after tier 1.
struct Lean {
    messages: Vec<Message>,
    tokens: Vec<u64>,
    stripped: Stripped,
    plan: Plan,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        compactor: &'a Compactor,
        task: &'a Task<'a>,
        before: u64,
        sum: u64,
        goal: Goal,
        original: ChatRequest,
    ) -> Self {
        let scale = before as f64 / sum.max(1) as f64;
        let summary = task.summary.and_then(|summary| summary.find(&original.messages));
        Self { compactor, task, scale, goal, before, original, summary }
    }

    /// Tier 1.
    fn strip(&self, mut tokens: Vec<u64>) -> Result<Lean, TooLarge> {
        let policy = &self.compactor.policy;
        for tokens in &mut tokens {
            *tokens = self.scaled(*tokens);
        }
        let mut messages = self.original.messages.to_vec();
        let plan = Plan::new(&self.conversation(&messages, &tokens), policy);
        if plan.required > self.goal.limit {
            return Err(self.too_large(&plan));
        }
        let wanted = self.before.saturating_sub(self.goal.target);
        let stripped = strip(&mut messages, &tokens, plan.recent(), policy.strip_over, wanted);
        for index in &stripped.messages {
            tokens[*index] = self.weigh(&messages[*index]);
        }
        let plan = Plan::new(&self.conversation(&messages, &tokens), policy);
        Ok(Lean { messages, tokens, stripped, plan })
    }

    /// What came of tier 1 alone, when that is enough: to the target, or, where nothing may be cut,
    /// below the trigger.
    fn suffices(&self, lean: &Lean) -> Option<Effect> {
        let total = lean.plan.total;
        if total >= self.before {
            None
        } else if total <= self.goal.target {
            Some(Effect::Effective)
        } else {
            (!lean.plan.can_cut() && total < self.goal.trigger).then_some(Effect::Eased)
        }
    }

    pub(super) fn pending(&self, tokens: Vec<u64>) -> Result<Option<Pending>, TooLarge> {
        let lean = self.strip(tokens)?;
        if self.suffices(&lean).is_some() || !lean.plan.can_cut() {
            return Ok(None);
        }
        let Some(cut) = self.choose(&lean) else { return Ok(None) };
        let gone = || self.gone(&cut);
        let message = |index: usize| self.original.messages[index].clone();
        Ok(Some(Pending {
            messages: gone().map(message).collect(),
            tokens: gone().map(|index| self.weigh(&self.original.messages[index])).collect(),
            earlier: self.earlier().map(Summary::record),
            room: self.room() / 2,
        }))
    }

    pub(super) fn run(
        &self,
        request: &mut ChatRequest,
        tokens: Vec<u64>,
        rng: &mut fastrand::Rng,
    ) -> Result<Run, TooLarge> {
        let lean = self.strip(tokens)?;
        if let Some(effect) = self.suffices(&lean) {
            let target = self.goal.target.max(lean.plan.total);
            return Ok(self.stripped(request, lean, effect, target));
        }
        if lean.plan.can_cut()
            && let Some(run) = self.summarised(request, &lean, rng)
        {
            return Ok(run);
        }
        if self.before <= self.goal.limit {
            let target = self.goal.target;
            let none = Stripped::default();
            return Ok(self.finish(
                request,
                Tier::None,
                Effect::Ineffective,
                target,
                &lean.plan,
                &none,
            ));
        }
        // Markers alone, where they are what makes it fit.
        if lean.plan.total <= self.goal.limit {
            return Ok(self.stripped(request, lean, Effect::Tight, self.goal.limit));
        }
        Err(self.too_large(&lean.plan))
    }

    fn stripped(&self, request: &mut ChatRequest, lean: Lean, effect: Effect, target: u64) -> Run {
        request.messages = lean.messages.into();
        self.finish(request, Tier::Strip, effect, target, &lean.plan, &lean.stripped)
    }

    /// A summary in place of older messages: the written one, else tier 4. `None` when the result
    /// would not fit, or not be smaller.
    fn summarised(
        &self,
        request: &mut ChatRequest,
        lean: &Lean,
        rng: &mut fastrand::Rng,
    ) -> Option<Run> {
        let cut = self.choose(lean)?;
        let rest = lean.plan.total - cut.freed;
        // Facts are read from what stood there before anything was stripped.
        let gone = || self.gone(&cut).map(|index| &self.original.messages[index]);
        let (mut digest, mut ledger) = self
            .earlier()
            .map(|summary| (summary.digest.clone(), summary.ledger.clone()))
            .unwrap_or_default();
        digest.read(gone());
        ledger.read(gone());

        // Where what stays is above the target already, nothing is won by a summary that says nothing.
        let aim = match rest.saturating_add((LEAST_BODY / 4) as u64) {
            least if least <= self.goal.target && !self.task.half => self.goal.target,
            least if least < self.goal.trigger => self.goal.trigger - 1,
            _ => self.goal.limit,
        };
        let mut room = self.room();
        let (message, after) = loop {
            let message = write(self.task.written, &digest, &ledger, room, rng);
            let after = rest.saturating_add(self.weigh(&message));
            if after <= aim || room < LEAST_BODY {
                break (message, after);
            }
            room /= 2;
        };
        let (effect, target) = if after >= self.before {
            return None;
        } else if after <= self.goal.target {
            (Effect::Effective, self.goal.target)
        } else if after < self.goal.trigger {
            (Effect::Eased, after)
        } else if after <= self.goal.limit && self.before > self.goal.limit {
            (Effect::Tight, self.goal.limit)
        } else {
            return None;
        };
        request.messages = place(&lean.messages, &cut, message.clone()).into();
        let tier = match (self.task.written, self.task.half) {
            (Some(_), false) => Tier::Summary,
            (Some(_), true) => Tier::Partial,
            (None, _) => Tier::Plain,
        };
        let mut run = self.finish(request, tier, effect, target, &lean.plan, &lean.stripped);
        let written = self.task.written.map(Into::into);
        run.summary = Some(Summary { message, digest, ledger, written });
        run.report.dropped = cut.dropped.len();
        run.report.kept = lean.messages.len() - cut.dropped.len();
        Some(run)
    }

    /// The summary that is taken up in the new one.
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

    /// The first way to cut that the provider accepts; the first of all, to be repaired, when it
    /// accepts none or did not accept the history before.
    fn choose(&self, lean: &Lean) -> Option<Cut> {
        let conversation = self.conversation(&lean.messages, &lean.tokens);
        let room = (self.room() / 4) as u64;
        let is_valid = |request: &ChatRequest| validate(request, self.task.rules).is_ok();
        let was_valid = is_valid(&self.original);
        let mut first = None;
        let wanted = match self.task.half {
            true => lean.plan.total.saturating_sub(lean.plan.floor) / 2,
            false => lean.plan.wanted(self.goal, room),
        };
        let cuts = lean.plan.cuts_freeing(&conversation, wanted).take(MAX_CUTS);
        for cut in cuts.filter(|cut| !cut.dropped.is_empty()) {
            if !was_valid {
                return Some(cut);
            }
            let mut attempt = self.original.clone();
            attempt.messages = place(&lean.messages, &cut, Message::user("summary")).into();
            if is_valid(&attempt) {
                return Some(cut);
            }
            first.get_or_insert(cut);
        }
        first
    }

    fn finish(
        &self,
        request: &mut ChatRequest,
        tier: Tier,
        effect: Effect,
        target: u64,
        plan: &Plan,
        stripped: &Stripped,
    ) -> Run {
        let repairs = match tier {
            Tier::None => 0,
            _ => repair(request, self.task.rules).done.len(),
        };
        let after = match tier {
            Tier::None => self.before,
            _ => {
                let messages: u64 =
                    request.messages.iter().map(|message| self.weigh(message)).sum();
                messages.saturating_add(self.scaled(self.task.fixed))
            }
        };
        let report = Report {
            tier,
            effect,
            before: self.before,
            after,
            floor: plan.floor,
            target,
            kept: self.original.messages.len(),
            dropped: 0,
            stripped: stripped.results + stripped.arguments,
            repaired: repairs,
        };
        // The summary of before is still there when only markers were made.
        let summary = self.earlier().filter(|earlier| earlier.find(&request.messages).is_some());
        let summary = summary.cloned();
        Run { report, summary }
    }

    fn conversation<'b>(&'b self, messages: &'b [Message], tokens: &'b [u64]) -> Conversation<'b> {
        let pinned = &*self.compactor.pinned;
        let fixed = self.scaled(self.task.fixed);
        Conversation { messages, tokens, fixed, summary: self.summary, pinned }
    }

    fn too_large(&self, plan: &Plan) -> TooLarge {
        TooLarge {
            before: self.before,
            floor: plan.floor,
            required: plan.required,
            window: self.task.room.window,
            reserve: self.task.room.reserve,
            limit: self.goal.limit,
        }
    }

    fn weigh(&self, message: &Message) -> u64 {
        self.scaled((self.task.weigh)(message))
    }

    fn scaled(&self, tokens: u64) -> u64 {
        if self.scale == 1.0 { tokens } else { (tokens as f64 * self.scale).ceil() as u64 }
    }
}

/// The summary as a message, its body in at most `room` bytes: what was written in half of it, or
/// what is kept by rule in a third, and facts in the rest.
fn write(
    written: Option<&str>,
    digest: &Digest,
    ledger: &Ledger,
    room: usize,
    rng: &mut fastrand::Rng,
) -> Message {
    let messages = digest.messages();
    let (heading, body) = match written {
        Some(written) => {
            let about = clip(written, room / 2);
            let facts = ledger.complete(about, room - about.len());
            (Heading::written(messages), format!("{about}\n{facts}"))
        }
        None => {
            let about = digest.render(room / 3);
            let facts = ledger.render(room - about.len());
            (Heading::emergency(messages), format!("{about}{facts}"))
        }
    };
    render(&heading, body.trim_end(), rng)
}

/// The messages with what is cut replaced by the summary, which stands where the rest goes on: all
/// before it stays as it is, for the sake of prompt caches. Only where the model would then open
/// the conversation, the summary opens it.
fn place(messages: &[Message], cut: &Cut, summary: Message) -> Vec<Message> {
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
