//! Who calls the gateway, and what they were told.

use std::{net::SocketAddr, time::Duration};

use fastrand::Rng;
use serde_json::Value;
use steadfast::sim::{self, Dialect, Entry, Sent};
use steadfast_tests::gateway::{
    DIALECTS, ask,
    http::{Ask, Reply},
    model, path, question,
    told::{Told, nameless},
};
use tokio::time::{sleep, timeout};

use crate::{chance, maybe};

/// One caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Its words name it, so that a provider's journal tells whose attempt it was.
    id: usize,
    dialect: Dialect,
    stream: bool,
    tools: bool,
    after: Duration,
    leaves: Option<Leaves>,
}

/// When a caller hangs up before the end.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// Wherever the call stands.
    After(Duration),
    /// With so many pieces of the answer.
    With(usize),
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
    /// The caller hung up.
    Left,
}

impl End {
    pub(crate) const ALL: [End; 4] = [End::Whole, End::Broken, End::Refused, End::Left];
}

impl Caller {
    pub(crate) fn new(id: usize, dice: &mut Rng) -> Self {
        let leaves = |dice: &mut Rng| match dice.bool() {
            true => Leaves::After(Duration::from_millis(dice.u64(0..500))),
            false => Leaves::With(dice.usize(0..20)),
        };
        Self {
            id,
            dialect: DIALECTS[dice.usize(..3)],
            stream: dice.bool(),
            tools: chance(dice, 0.3),
            after: Duration::from_millis(dice.u64(0..300)),
            leaves: maybe(dice, leaves).filter(|_| chance(dice, 0.6)),
        }
    }

    fn ask(&self) -> Ask {
        let Self { id, dialect, stream, tools, .. } = *self;
        let words = if tools { "please call look_up" } else { "what is it?" };
        let body = question(dialect, model(dialect), stream).to_string();
        let body = body.replace("What is it?", &format!("Caller {id}: {words}"));
        ask(dialect, model(dialect), stream).at(path(dialect, model(dialect), stream)).body(body)
    }

    /// Waits, calls, and stays or hangs up: then there is no reply.
    pub(crate) async fn call(self, gateway: SocketAddr) -> (Self, Option<Reply>) {
        sleep(self.after).await;
        let ask = self.ask();
        let reply = match self.leaves {
            None => Some(ask.send(gateway).await),
            Some(Leaves::After(patience)) => timeout(patience, ask.send(gateway)).await.ok(),
            Some(Leaves::With(pieces)) => {
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

    /// How it ended, or what is wrong with what the caller was told.
    pub(crate) fn check(&self, reply: Option<Reply>, entries: &[Entry]) -> Result<End, String> {
        let Some(reply) = reply else { return Ok(End::Left) };
        if !reply.clean {
            return Err(format!("the body has no end: {reply:?}"));
        }
        if reply.status != 200 {
            return words(&reply.json()).map(|()| End::Refused);
        }
        let told = match self.stream {
            true => Told::stream(self.dialect, &reply.body),
            false => Told::whole(self.dialect, &reply.body),
        };
        let name = format!("Caller {}:", self.id);
        let own = entries.iter().filter(|entry| text(&entry.body).contains(&name));
        let sent = |whole: bool| {
            let own = own.clone().filter(move |entry| !whole || entry.end == sim::End::Complete);
            own.filter_map(|entry| entry.sent.as_ref())
        };
        match told.errors.as_slice() {
            [] if self.stream && told.ends.is_empty() || told.stop.is_none() => {
                Err(format!("it has no end: {told:?}"))
            }
            [] if sent(true).any(|sent| is_whole(&told, sent)) => Ok(End::Whole),
            [] => Err(format!("nobody's answer: {told:?}")),
            [error] => {
                words(error)?;
                let nothing = told.text.is_empty() && told.thinking.is_empty();
                let nothing = nothing && told.calls.is_empty();
                let begins = nothing || sent(false).any(|sent| is_beginning(&told, sent));
                if begins { Ok(End::Broken) } else { Err(format!("nobody's beginning: {told:?}")) }
            }
            more => Err(format!("{} errors: {told:?}", more.len())),
        }
    }
}

/// Every dialect has its words in the same place.
fn words(error: &Value) -> Result<(), String> {
    let words = error["error"]["message"].as_str().is_some_and(|words| !words.is_empty());
    if words { Ok(()) } else { Err(format!("an error without words: {error}")) }
}

fn text(body: &[u8]) -> &str {
    std::str::from_utf8(body).unwrap_or_default()
}

fn is_whole(told: &Told, sent: &Sent) -> bool {
    // Whoever does not ask for thinking may not be told it.
    told.text == sent.text
        && told.nameless() == nameless(&sent.tool_calls)
        && told.output.is_none_or(|output| output == sent.usage.output)
}

fn is_beginning(told: &Told, sent: &Sent) -> bool {
    let (calls, truth) = (told.nameless(), nameless(&sent.tool_calls));
    let begins = calls.len() <= truth.len()
        && calls.iter().zip(&truth).all(|(a, b)| a.0 == b.0 && b.1.starts_with(a.1));
    sent.text.starts_with(&told.text) && begins
}
