//! How a model continues an answer of which a client has only the beginning.
//!
//! An [`Answer`] with a [`continuation`](Answer::continuation) is a *whole* answer: what the model
//! would send if nothing cut it. The provider remembers it. A request whose conversation ends with
//! the beginning of its text, as a prefill or followed by a user's message, asks for the rest; what
//! it gets depends on [`ContinuationMode`] and on how it asks:
//!
//! | the request | a [faithful](ContinuationMode::Faithful) model sends |
//! |---|---|
//! | ends with the beginning of the answer (prefill) | exactly what follows it |
//! | asks to repeat the last words, quoting them between line ends or quotation marks | these words and what follows them |
//! | asks to continue in any other way | exactly what follows |
//! | repeats the request that the answer was given to | the answer again, from its start |
//! | repeats that request with one more text from the user, because only thinking arrived | the answer from its start, without the thinking |
//! | is anything else | a new question: the next answer of the script |
//!
//! So one entry of a script is enough for an answer that is cut, broken and requested again any
//! number of times. A second provider that is to take over is given the same whole answer.
//!
//! ```
//! use http_body_util::BodyExt;
//! use steadfast_sim::{Answer, Dialect, ContinuationMode, SimProvider};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let provider = SimProvider::builder(Dialect::OpenAi)
//!     .with_script([Answer::text("one two three four").continuation(ContinuationMode::Faithful)])
//!     .build();
//! let ask = async |messages: &str| {
//!     let body = format!(r#"{{"model": "gpt-4o", "max_tokens": 2, "messages": [{messages}]}}"#);
//!     let request = http::Request::post("http://sim/v1/chat/completions")
//!         .header("authorization", "Bearer sk-anything")
//!         .body(body)
//!         .unwrap();
//!     let response = provider.clone().oneshot(request).await.unwrap();
//!     let body = response.into_body().collect().await.unwrap().to_bytes();
//!     let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
//!     body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
//! };
//! let question = r#"{"role": "user", "content": "count"}"#;
//! assert_eq!(ask(question).await, "one two");
//! let partial = r#"{"role": "assistant", "content": "one two"}"#;
//! let more = r#"{"role": "user", "content": "go on"}"#;
//! assert_eq!(ask(&format!("{question}, {partial}, {more}")).await, " three four");
//! # }
//! ```
//!
//! Blocks before the resume point are left out with the text: earlier thinking and tool calls are
//! not repeated. A tool call after the last text is sent again from its beginning.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::{Answer, Block};
use crate::hash;
use crate::request::SimRequest;
use crate::tokens::{count_output, pieces};

/// How a model continues its own answer when a client has received a part of it.
///
/// As JSON: `"faithful"`, `{"chatty": "Sure, here is the rest: "}`, `{"skips": 3}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContinuationMode {
    /// As the request asks: see the [module](self).
    #[default]
    Faithful,
    /// Does not repeat the words it is asked to repeat; continues with exactly what follows.
    WithoutRepeating,
    /// Begins with this text, then continues as the request asks.
    Chatty(String),
    /// Begins with the last words in another order, then continues. Never word for word, whether
    /// the request asks for a repetition or not.
    Paraphrase,
    /// Skips so many output tokens and continues after them, without repeating.
    Skips(u64),
    /// Ignores the partial answer: sends an unrelated text, the same for the same conversation.
    IgnoresAnchor,
    /// Sends the whole answer again from the start.
    FromStart,
}

/// Where in a whole answer a request asks to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    /// Bytes of text that the client has.
    received: usize,
    /// Where the words begin that it wants repeated.
    anchor: Option<usize>,
    prefilled: bool,
}

/// The fewest characters that count as an anchor, unless the whole text is shorter.
const ANCHOR_MIN: usize = 6;
/// The most.
const ANCHOR_MAX: usize = 1_024;
/// Characters by which the position is found when the conversation altered the text before them.
const TAIL: usize = 32;
/// Number of words that a paraphrase repeats.
const PARAPHRASED: usize = 8;
/// Number of words of an unrelated text.
const UNRELATED: usize = 24;

impl Answer {
    /// The rest of this answer, if `request` asks for it and this answer has a
    /// [`continuation`](Answer::continuation).
    ///
    /// For [`respond`](crate::SimProviderBuilder::respond) closures; a provider does it by itself.
    #[must_use]
    pub fn continue_for(&self, request: &SimRequest) -> Option<Answer> {
        let how = self.continuation.as_ref()?;
        let limit = request.max_output.unwrap_or(0);
        let whole = self.expanded(limit, &request.partial_answer);
        let position = whole.position(request)?;
        Some(whole.rest(how, position, text_seed(request)))
    }

    /// An endless answer, made long enough to be cut at `limit` after the `partial` answer.
    pub(crate) fn expanded(&self, limit: u64, partial: &str) -> Cow<'_, Answer> {
        if !self.endless {
            return Cow::Borrowed(self);
        }
        let wanted = limit.saturating_add(2 * count_output(partial) as u64 + 1);
        let mut text = String::new();
        let mut tokens = 0;
        for n in 1_u64.. {
            let sentence = format!("{}Step {n} comes next.", if n == 1 { "" } else { " " });
            tokens += count_output(&sentence) as u64;
            text.push_str(&sentence);
            if tokens > wanted {
                break;
            }
        }
        let mut whole = self.clone();
        whole.endless = false;
        whole.blocks.push(Block::Text(text));
        Cow::Owned(whole)
    }

    fn whole_text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Where `request` asks to continue this answer, if it does.
    fn position(&self, request: &SimRequest) -> Option<Position> {
        let partial = request.partial_answer.as_str();
        let text = self.whole_text();
        if partial.trim().is_empty() || text.is_empty() {
            return None;
        }
        let received = if text.starts_with(partial) {
            partial.len()
        } else {
            let end = partial.trim_end();
            let from = end.char_indices().rev().nth(TAIL - 1).map(|(at, _)| at)?;
            text.rfind(&end[from..])? + end.len() - from
        };
        let prefilled = !request.prefill.is_empty();
        let words =
            if prefilled { None } else { find_anchor(&text[..received], &request.last_user) };
        // The client has all of it and asks for no repetition: this is the next turn of the
        // conversation.
        let over = text[received..].trim().is_empty()
            && !self.blocks_from(received).iter().any(Block::is_call);
        if over && words.is_none() && !prefilled {
            return None;
        }
        Some(Position { received, anchor: words, prefilled })
    }

    /// The answer from `position` on.
    fn rest(&self, how: &ContinuationMode, position: Position, seed: u64) -> Answer {
        let text = self.whole_text();
        let (from, before) = match how {
            ContinuationMode::FromStart => return Answer { continuation: None, ..self.clone() },
            ContinuationMode::IgnoresAnchor => {
                let mut rng = fastrand::Rng::with_seed(seed);
                let other = crate::generate::sentence(&mut rng, UNRELATED);
                let blocks = vec![Block::Text(other)];
                return Answer { blocks, continuation: None, ..self.clone() };
            }
            _ if position.prefilled
                && !matches!(how, ContinuationMode::Paraphrase | ContinuationMode::Skips(_)) =>
            {
                (position.received, String::new())
            }
            ContinuationMode::Faithful => {
                (position.anchor.unwrap_or(position.received), String::new())
            }
            ContinuationMode::WithoutRepeating => (position.received, String::new()),
            ContinuationMode::Chatty(before) => {
                (position.anchor.unwrap_or(position.received), before.clone())
            }
            ContinuationMode::Paraphrase => {
                (position.received, paraphrase(&text[..position.received]))
            }
            ContinuationMode::Skips(tokens) => {
                let keep = usize::try_from(*tokens).unwrap_or(usize::MAX);
                let gap: usize = pieces(&text[position.received..]).take(keep).map(str::len).sum();
                (position.received + gap, String::new())
            }
        };
        let mut blocks = self.blocks_from(from);
        if !before.is_empty() {
            match blocks.first_mut() {
                Some(Block::Text(text)) => text.insert_str(0, &before),
                _ => blocks.insert(0, Block::Text(before)),
            }
        }
        Answer { blocks, continuation: None, ..self.clone() }
    }

    /// The blocks after the first `from` bytes of text.
    fn blocks_from(&self, from: usize) -> Vec<Block> {
        let mut left = from;
        for (at, block) in self.blocks.iter().enumerate() {
            let Block::Text(text) = block else { continue };
            if left < text.len() {
                let mut rest = vec![Block::Text(text[left..].to_owned())];
                rest.extend_from_slice(&self.blocks[at + 1..]);
                return rest;
            }
            left -= text.len();
            if left == 0 {
                return self.blocks[at + 1..].to_vec();
            }
        }
        Vec::new()
    }
}

/// Where the anchor begins: the last words of `received` that `request` quotes between line ends or
/// quotation marks.
fn find_anchor(received: &str, request: &str) -> Option<usize> {
    let words = received.trim_end();
    let starts: Vec<usize> =
        words.char_indices().rev().map(|(at, _)| at).take(ANCHOR_MAX).collect();
    let all = starts.len();
    // The longest first: a shorter one may be part of it.
    starts
        .into_iter()
        .enumerate()
        .rev()
        .filter(|(n, _)| n + 1 >= ANCHOR_MIN || (n + 1 == all && all < ANCHOR_MIN))
        .map(|(_, at)| at)
        .find(|at| {
            let tail = &words[*at..];
            !tail.starts_with(char::is_whitespace)
                && request.match_indices(tail).any(|(found, _)| {
                    let before = request[..found].chars().next_back();
                    let after = request[found + tail.len()..].chars().next();
                    before.is_none_or(sets_off) && after.is_none_or(sets_off)
                })
        })
}

fn sets_off(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '"' | '\'' | '`' | '<' | '>' | '“' | '”' | '„' | '‘' | '’' | '«' | '»'
    )
}

/// A sentence with the last words, neighbours exchanged.
fn paraphrase(received: &str) -> String {
    let mut last: Vec<&str> = received.split_whitespace().rev().take(PARAPHRASED).collect();
    last.reverse();
    for pair in last.chunks_exact_mut(2) {
        pair.swap(0, 1);
    }
    format!("To put it in other words, {} and so on.", last.join(" "))
}

/// A hash of the conversation, whatever limits and form the request sets. With `without_last`, of
/// the conversation before the user's last text; `None` if it ends with something else.
fn conversation(request: &SimRequest, without_last: bool) -> Option<u64> {
    let body = &request.body;
    let mut contents: Vec<(&str, Cow<'_, str>)> = Vec::new();
    let mut last_is_text = false;
    let lists = ["messages", "contents", "input"];
    if let Some(text) = body["input"].as_str() {
        last_is_text = true;
        contents.push(("user", text.into()));
    }
    for message in lists.iter().flat_map(|key| body[*key].as_array()).flatten() {
        let role = message["role"].as_str().unwrap_or("user");
        let content = if message["parts"].is_array() { "parts" } else { "content" };
        let parts = match &message[content] {
            Value::Array(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        for part in parts {
            let text = part.as_str().or(part["text"].as_str());
            last_is_text = role == "user" && text.is_some();
            contents.push((role, text.map_or_else(|| part.to_string().into(), Cow::Borrowed)));
        }
        // What a message has besides its content: calls, and whose result it is.
        for key in ["tool_calls", "tool_call_id", "call_id", "arguments", "input", "output"] {
            if !message[key].is_null() {
                contents.push((key, message[key].to_string().into()));
            }
        }
        if message["type"] == "compaction" {
            contents.push(("compaction", message["encrypted_content"].to_string().into()));
        }
    }
    if without_last {
        contents.pop().filter(|_| last_is_text)?;
    }
    let system = ["system", "systemInstruction", "system_instruction", "instructions"];
    let system = system.map(|key| if body[key].is_null() { None } else { Some(&body[key]) });
    contents.extend(system.into_iter().flatten().map(|part| ("system", part.to_string().into())));
    let parts: Vec<&[u8]> =
        contents.iter().flat_map(|(role, text)| [role.as_bytes(), text.as_bytes()]).collect();
    Some(hash::seed(&parts))
}

fn text_seed(request: &SimRequest) -> u64 {
    hash::seed(&[b"unrelated", &conversation(request, false).unwrap_or(0).to_le_bytes()])
}

/// Whole answers that may be requested again, newest last.
#[derive(Debug, Default)]
pub(crate) struct WholeAnswers {
    kept: VecDeque<(u64, Arc<Answer>)>,
}

/// More than any test uses at a time.
const WHOLE_ANSWERS_MAX: usize = 256;

impl WholeAnswers {
    /// The newest whole answer that `request` asks to continue or to repeat.
    pub(crate) fn find(&self, request: &SimRequest, limit: u64) -> Option<Arc<Answer>> {
        if self.kept.is_empty() {
            return None;
        }
        let same = conversation(request, false);
        let (_, whole) = self.kept.iter().rev().find(|(of, whole)| {
            Some(*of) == same
                || whole.expanded(limit, &request.partial_answer).position(request).is_some()
        })?;
        Some(whole.clone())
    }

    /// The newest whole answer to the same conversation without the user's last text: the client
    /// received none of it and repeated the request. Without the thinking at its start.
    pub(crate) fn unreceived(&self, request: &SimRequest) -> Option<Arc<Answer>> {
        if self.kept.is_empty() {
            return None;
        }
        let before = conversation(request, true)?;
        let (_, whole) = self.kept.iter().rev().find(|(of, _)| *of == before)?;
        let mut whole = Answer::clone(whole);
        let thought = whole.blocks.iter().take_while(|block| block.is_thinking()).count();
        whole.blocks.drain(..thought);
        Some(Arc::new(whole))
    }

    pub(crate) fn remember(&mut self, request: &SimRequest, whole: Arc<Answer>) {
        let Some(number) = conversation(request, false) else { return };
        if self.kept.len() == WHOLE_ANSWERS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((number, whole));
    }
}

/// The part of a whole answer that `request` asks for: the rest, or all of it.
pub(crate) fn requested_part(
    whole: &Answer,
    how: Option<&ContinuationMode>,
    request: &SimRequest,
    limit: u64,
) -> Answer {
    let expanded = whole.expanded(limit, &request.partial_answer);
    let position = how.and_then(|how| Some((how, expanded.position(request)?)));
    match position {
        Some((how, position)) => expanded.rest(how, position, text_seed(request)),
        None => expanded.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_the_last_words_in_quotes_or_on_their_own_line() {
        let received = "one two three four five six \n";
        let at = |request: &str| find_anchor(received, request).map(|at| &received[at..]);
        let tail = |words: &str| Some(format!("{words} \n"));
        for (request, words) in [
            ("Begin with:\nfour five six\nThen go on.", tail("four five six")),
            ("Begin with \"five six\".", tail("five six")),
            ("`two three four five six`", tail("two three four five six")),
            ("one two three four five six", tail("one two three four five six")),
            // The words are part of the request's own sentence.
            ("Go on with five six or so", None),
            // Too short: may be coincidence.
            ("\"six\"", None),
            ("\"four five\"", None),
            ("", None),
        ] {
            assert_eq!(at(request), words.as_deref(), "{request}");
        }
        assert_eq!(find_anchor("Hi", "say\nHi\nand go on"), Some(0));
    }

    #[test]
    fn the_rest_begins_at_every_byte_without_the_blocks_before() {
        let whole = Answer::thinking("hm")
            .then_text("ab日")
            .then_tool_call("t", "{}")
            .then_thinking("so")
            .then_text("cd");
        let text = |text: &str| Block::Text(text.into());
        assert_eq!(whole.blocks_from(1)[0], text("b日"));
        assert_eq!(whole.blocks_from(1).len(), 4);
        assert_eq!(whole.blocks_from(5), whole.blocks[2..], "behind the text comes the call");
        assert_eq!(whole.blocks_from(6), [text("d")]);
        assert_eq!(whole.blocks_from(7), []);
    }

    #[test]
    fn a_paraphrase_shares_no_words_in_order() {
        let text = paraphrase("one two three four five six seven eight nine ten");
        assert!(text.contains("four three six five eight seven ten nine"), "{text}");
        assert!(!paraphrase("alone").starts_with("alone"));
    }
}
