//! A recorded conversation, judged call by call.

use steadfast_chat::ChatRequest;
use tokio::time::Instant;

use crate::{Advice, SafetyGuard, Verdict, history, state::TaskState};

/// One call of a recorded conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// The tool, as the call names it.
    pub tool: Box<str>,
    /// What the guard would have decided, its result seen.
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
    /// What the guard would have decided on each call of a recorded conversation, had it been there:
    /// one verdict a call, in their order. The whole of it is one task; time is not counted, since a
    /// recording has none. From a stop on every call is stopped, until the user speaks where the
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
    /// let replayed = SafetyGuard::default().replay(&recorded);
    /// let verdicts: Vec<_> = replayed.iter().map(|call| call.verdict.as_str()).collect();
    /// assert_eq!(verdicts, ["ok", "ok", "advise", "advise", "stop"]);
    /// ```
    pub fn replay(&self, request: &ChatRequest) -> Vec<Replayed> {
        let mut replayed: Vec<Replayed> = Vec::new();
        let mut stopped = false;
        let (c, mut state) = (&self.tasks().c, TaskState::default());
        history::feed(
            c,
            &request.messages,
            0,
            &mut state,
            Instant::now(),
            |number, call, is_result, verdict| {
                let stops = matches!(verdict, Verdict::Stop(_));
                if !is_result {
                    stopped = stops;
                    replayed.push(Replayed { tool: call.name.as_str().into(), verdict });
                } else if !stopped && verdict != Verdict::Fine {
                    stopped = stops;
                    replayed[number].verdict = verdict;
                }
            },
        );
        replayed
    }
}
