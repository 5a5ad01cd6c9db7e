//! The callers of the gateway, and the checks of what they receive.

use std::{net::SocketAddr, time::Duration};

use fastrand::Rng;
use serde_json::Value;
use steadfast::sim::{self, Dialect, Entry, Sent};
use steadfast_tests::{
    gateway::{
        DIALECTS, ask,
        http::{HttpRequest, Reply},
        model, path, question,
        wire_answer::{WireAnswer, without_ids},
    },
    seeds::{chance, maybe},
};
use tokio::time::{sleep, timeout};

/// One caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// In its message, so that the caller of each attempt in a journal is known.
    id: usize,
    dialect: Dialect,
    stream: bool,
    tools: bool,
    after: Duration,
    cancel_at: Option<CancelAt>,
}

/// When a caller disconnects before the end.
#[derive(Clone, Copy, Debug)]
enum CancelAt {
    /// After this time.
    Time(Duration),
    /// After so many pieces of the answer.
    Pieces(usize),
}

/// How a call ended for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// With a whole answer.
    Whole,
    /// With an answer that ends in an error.
    Broken,
    /// With an error and nothing else.
    Refused,
    /// The caller disconnected.
    Cancelled,
}

impl End {
    pub(crate) const ALL: [End; 4] = [End::Whole, End::Broken, End::Refused, End::Cancelled];
}

impl Caller {
    pub(crate) fn new(id: usize, rng: &mut Rng) -> Self {
        let cancel_at = |rng: &mut Rng| match rng.bool() {
            true => CancelAt::Time(Duration::from_millis(rng.u64(0..500))),
            false => CancelAt::Pieces(rng.usize(0..20)),
        };
        Self {
            id,
            dialect: DIALECTS[rng.usize(..3)],
            stream: rng.bool(),
            tools: chance(rng, 0.3),
            after: Duration::from_millis(rng.u64(0..300)),
            cancel_at: maybe(rng, cancel_at).filter(|_| chance(rng, 0.6)),
        }
    }

    fn ask(&self) -> HttpRequest {
        let Self { id, dialect, stream, tools, .. } = *self;
        let words = if tools { "please call look_up" } else { "what is it?" };
        let body = question(dialect, model(dialect), stream).to_string();
        let body = body.replace("What is it?", &format!("Caller {id}: {words}"));
        ask(dialect, model(dialect), stream).at(path(dialect, model(dialect), stream)).body(body)
    }

    /// Waits, makes the call, and reads the reply or disconnects.
    pub(crate) async fn call(self, gateway: SocketAddr) -> (Self, Option<Reply>) {
        sleep(self.after).await;
        let ask = self.ask();
        let reply = match self.cancel_at {
            None => Some(ask.send(gateway).await),
            Some(CancelAt::Time(patience)) => timeout(patience, ask.send(gateway)).await.ok(),
            Some(CancelAt::Pieces(pieces)) => {
                let mut open = ask.open(gateway).await;
                for _ in 0..pieces {
                    if open.next().await.is_none() {
                        break;
                    }
                }
                None
            }
        };
        (self, reply)
    }

    /// How it ended, or an error if the reply is wrong.
    pub(crate) fn check(&self, reply: Option<Reply>, entries: &[Entry]) -> Result<End, String> {
        let Some(reply) = reply else { return Ok(End::Cancelled) };
        // Behind an error event Gemini's SDKs take an end for a good one: it is broken off there.
        let breaks_off = self.dialect == Dialect::Gemini
            && reply.status == 200
            && reply.text().contains("\"error\"");
        if reply.clean == breaks_off {
            return Err(format!("the body has no end: {reply:?}"));
        }
        let name = format!("Caller {}:", self.id);
        let own = entries.iter().filter(|entry| text(&entry.body).contains(&name));
        // Nothing is asked after a head here.
        let attempts = reply.header("x-steadfast-attempts").and_then(|it| it.parse().ok());
        let steps = reply.header("x-steadfast-recovery").unwrap_or_default().split("; ");
        let cut = steps.filter(|step| step.contains("hedged") || step.contains(" timeout"));
        let cut = cut.count() + usize::from(is_late(&reply));
        let asked = own.clone().count();
        if !attempts.is_some_and(|attempts: usize| (asked..=asked + cut).contains(&attempts)) {
            return Err(format!("attempts {attempts:?}, and asked {asked} times"));
        }
        if reply.status != 200 {
            return check_message(&reply.json()).map(|()| End::Refused);
        }
        let answer = match self.stream {
            true => WireAnswer::stream(self.dialect, &reply.body),
            false => WireAnswer::whole(self.dialect, &reply.body),
        };
        let sent = |whole: bool| {
            let own = own.clone().filter(move |entry| !whole || entry.end == sim::End::Complete);
            own.filter_map(|entry| entry.sent.as_ref())
        };
        match answer.errors.as_slice() {
            [] if self.stream && answer.ends.is_empty() || answer.stop.is_none() => {
                Err(format!("it has no end: {answer:?}"))
            }
            [] if sent(true).any(|sent| is_whole(&answer, sent)) => Ok(End::Whole),
            [] => Err(format!("no provider's answer: {answer:?}")),
            [error] => {
                check_message(error)?;
                let nothing = answer.text.is_empty() && answer.thinking.is_empty();
                let nothing = nothing && answer.calls.is_empty();
                let begins = nothing || sent(false).any(|sent| is_beginning(&answer, sent));
                if begins {
                    Ok(End::Broken)
                } else {
                    Err(format!("no provider's beginning: {answer:?}"))
                }
            }
            more => Err(format!("{} errors: {answer:?}", more.len())),
        }
    }
}

/// Whether a time limit ended it before its answer.
pub(crate) fn is_late(reply: &Reply) -> bool {
    reply.status == 504
}

/// Every dialect has the error message at the same path.
fn check_message(error: &Value) -> Result<(), String> {
    let found = error["error"]["message"].as_str().is_some_and(|message| !message.is_empty());
    if found { Ok(()) } else { Err(format!("an error without a message: {error}")) }
}

fn text(body: &[u8]) -> &str {
    std::str::from_utf8(body).unwrap_or_default()
}

fn is_whole(answer: &WireAnswer, sent: &Sent) -> bool {
    // Thinking may be left out for a caller that did not request it.
    answer.text == sent.text
        && answer.without_ids() == without_ids(&sent.tool_calls)
        && answer.output.is_none_or(|output| output == sent.usage.output)
}

fn is_beginning(answer: &WireAnswer, sent: &Sent) -> bool {
    let (calls, truth) = (answer.without_ids(), without_ids(&sent.tool_calls));
    let begins = calls.len() <= truth.len()
        && calls.iter().zip(&truth).all(|(a, b)| a.0 == b.0 && b.1.starts_with(a.1));
    sent.text.starts_with(&answer.text) && begins
}
