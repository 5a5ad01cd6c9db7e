//! A recorded conversation, judged call by call.

use steadfast_chat::{ChatRequest, Part, Role, ToolCall};
use tokio::time::Instant;

use crate::{
    Advice, SafetyGuard, Verdict,
    history::{MOST_OPEN, answered, begins_answer, is_ours, is_user_turn},
    ledger::Ledger,
    signature::Facts,
};

/// One call of a recorded conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// The tool, as the call names it.
    pub tool: Box<str>,
    /// What the guard would have said, its result seen.
    pub verdict: Verdict,
}

impl Verdict {
    /// The name used in logs: `ok`, `advise` or `stop`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Verdict::Fine => "ok",
            Verdict::Warn(_) => "advise",
            Verdict::Stop(_) => "stop",
        }
    }

    /// The name of the limit or rule behind it.
    pub const fn rule(&self) -> Option<&'static str> {
        match self {
            Verdict::Fine => None,
            Verdict::Warn(Advice::Loop { rule, .. }) => Some(rule.as_str()),
            Verdict::Warn(Advice::Wait { .. }) => Some("poll"),
            Verdict::Warn(Advice::LastEdit { .. }) => Some("file"),
            Verdict::Stop(stop) => Some(stop.cause.as_str()),
        }
    }
}

impl SafetyGuard {
    /// What the guard would have said to each call of a recorded conversation, had it been there:
    /// one verdict a call, in their order. The whole of it is one task; time is not counted, since a
    /// recording tells none. From a stop on every call is stopped, until the user speaks where the
    /// stop was for going in circles. Remembers nothing.
    ///
    /// ```
    /// use steadfast_chat::{ChatRequest, Message, Part, Role};
    /// use steadfast_guard::SafetyGuard;
    ///
    /// let mut recorded = ChatRequest::user("tidy up");
    /// for round in 0..5 {
    ///     let id = format!("call_{round}");
    ///     let call = Part::tool_call(&*id, "ls", "{}");
    ///     recorded.messages.make_mut().push(Message::new(Role::Assistant, vec![call]));
    ///     recorded.messages.make_mut().push(Message::tool(&*id, "a.rs  b.rs  c.rs"));
    /// }
    /// let said = SafetyGuard::default().replay(&recorded);
    /// let said: Vec<_> = said.iter().map(|call| call.verdict.as_str()).collect();
    /// assert_eq!(said, ["ok", "ok", "advise", "advise", "stop"]);
    /// ```
    pub fn replay(&self, request: &ChatRequest) -> Vec<Replayed> {
        let (c, now) = (&self.shared().c, Instant::now());
        let mut ledger = Ledger::new(None);
        let mut said: Vec<Replayed> = Vec::new();
        // Calls that have no result yet, and where in `said` they stand.
        let mut open: Vec<(&ToolCall, (usize, Facts<'_>))> = Vec::new();
        let mut last = Role::System;
        for message in &request.messages {
            if begins_answer(message, last) {
                open.clear();
                ledger.answered();
            }
            last = message.role();
            if is_user_turn(message) {
                ledger.user_turn(false, None);
                continue;
            }
            for part in message.parts() {
                match part {
                    Part::ToolCall(call) => {
                        let facts = c.facts(call);
                        let before = ledger.pending().len();
                        let verdict = match ledger.admit(c, &facts, now) {
                            Err(stop) => Verdict::Stop(stop),
                            Ok(()) => ledger
                                .pending()
                                .get(before)
                                .map_or(Verdict::Fine, |advice| Verdict::Warn(advice.clone())),
                        };
                        if open.len() < MOST_OPEN {
                            open.push((call, (said.len(), facts)));
                        }
                        said.push(Replayed { tool: call.name.as_str().into(), verdict });
                    }
                    Part::ToolResult(result) => {
                        let Some((at, facts)) = answered(&mut open, result) else { continue };
                        if is_ours(result) || ledger.stopped(now).is_some() {
                            continue;
                        }
                        let advice = ledger.observe(c, &facts, c.outcome(result));
                        match (ledger.stopped(now), advice) {
                            (Some(stop), _) => said[at].verdict = Verdict::Stop(stop),
                            (None, Some(advice)) => said[at].verdict = Verdict::Warn(advice),
                            (None, None) => {}
                        }
                    }
                    _ => {}
                }
            }
        }
        said
    }
}
