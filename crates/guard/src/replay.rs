//! The verdicts on a recorded conversation.

use steadfast_chat::ChatRequest;
use tokio::time::Instant;

use crate::{Advice, GuardVerdict, SafetyGuardHandle, history, known::Counting, state::TaskState};

/// One call of a recorded conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// The tool, as the call names it.
    pub tool: Box<str>,
    /// What the guard would have decided, with the result known.
    pub verdict: GuardVerdict,
}

impl GuardVerdict {
    /// The name used in logs: `ok`, `advise` or `stop`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            GuardVerdict::Fine => "ok",
            GuardVerdict::Warn(_) => "advise",
            GuardVerdict::Stop(_) => "stop",
        }
    }

    /// The name of the limit or rule that decided.
    pub const fn rule(&self) -> Option<&'static str> {
        match self {
            GuardVerdict::Fine => None,
            GuardVerdict::Warn(Advice::Loop { rule, .. }) => Some(rule.as_str()),
            GuardVerdict::Warn(Advice::Wait { .. }) => Some("poll"),
            GuardVerdict::Warn(Advice::LastEdit { .. }) => Some("file"),
            GuardVerdict::Stop(stop) => Some(stop.cause.as_str()),
        }
    }
}

impl SafetyGuardHandle {
    /// What the guard would have decided on each call of a recorded conversation: one verdict a call,
    /// in order. The whole conversation is one named task, whatever the request's context; time is not
    /// counted, since a recording has none. A policy that is
    /// [`loops_only`](crate::GuardPolicy::loops_only) shows what happens to a task that nobody named.
    /// After a stop every call is stopped; after one for a loop, until the next turn of the user.
    /// Stores nothing.
    ///
    /// ```
    /// use steadfast_chat::{ChatRequest, Message, Part, Role};
    /// use steadfast_guard::SafetyGuardHandle;
    ///
    /// let mut recorded = ChatRequest::user("tidy up");
    /// for round in 0..5 {
    ///     let id = format!("call_{round}");
    ///     let call = Part::tool_call(&*id, "ls", "{}");
    ///     recorded.messages.make_mut().push(Message::new(Role::Assistant, vec![call]));
    ///     recorded.messages.make_mut().push(Message::tool(&*id, "a.rs  b.rs  c.rs"));
    /// }
    /// let replayed = SafetyGuardHandle::default().replay(&recorded);
    /// let verdicts: Vec<_> = replayed.iter().map(|call| call.verdict.as_str()).collect();
    /// assert_eq!(verdicts, ["ok", "ok", "advise", "advise", "stop"]);
    /// ```
    pub fn replay(&self, request: &ChatRequest) -> Vec<Replayed> {
        let mut replayed: Vec<Replayed> = Vec::new();
        let mut stopped = false;
        let (c, mut state) = (&self.tasks().c, TaskState::new(None, true));
        history::feed(
            c,
            &request.messages,
            |_| Counting::New,
            &mut state,
            Instant::now(),
            |number, call, is_result, verdict| {
                let stops = matches!(verdict, GuardVerdict::Stop(_));
                if !is_result {
                    stopped = stops;
                    replayed.push(Replayed { tool: call.name.as_str().into(), verdict });
                } else if !stopped && verdict != GuardVerdict::Fine {
                    stopped = stops;
                    replayed[number].verdict = verdict;
                }
            },
        );
        replayed
    }
}
