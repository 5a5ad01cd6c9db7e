//! Answers that know how they go on, when a request asks for the rest of them.
//!
//! An [`Answer`] with [`goes_on`](Answer::goes_on) is a *whole* answer: what the model would say if
//! nothing cut it. The provider remembers it. A request whose conversation ends with the beginning
//! of its text, as a prefill or with a user's message behind it, asks for the rest; what it gets
//! depends on [`GoesOn`] and on how it asks:
//!
//! | the request | a [faithful](GoesOn::Faithful) model says |
//! |---|---|
//! | ends with the beginning of the answer (prefill) | exactly what follows it |
//! | asks to repeat the last words, which stand in it between line ends or quotes | these words and what follows them |
//! | asks to go on in any other way | exactly what follows |
//! | is the request again that the answer was given to | the answer again, from its start |
//! | is that request with one more text of the user's, as nothing but thinking was heard | the answer from its start, without the thinking |
//! | says anything else | nothing of it: it is a new question, and takes the next of the script |
//!
//! So one entry of a script is enough for an answer that is cut, broken and asked for again any
//! number of times. Another provider that shall take over is given the same whole answer.
//!
//! ```
//! use http_body_util::BodyExt;
//! use steadfast_sim::{Answer, Dialect, GoesOn, SimProvider};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let provider = SimProvider::builder(Dialect::OpenAi)
//!     .with_script([Answer::text("one two three four").goes_on(GoesOn::Faithful)])
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
//! let said = r#"{"role": "assistant", "content": "one two"}"#;
//! let more = r#"{"role": "user", "content": "go on"}"#;
//! assert_eq!(ask(&format!("{question}, {said}, {more}")).await, " three four");
//! # }
//! ```
//!
//! Blocks are passed over with the text before them: thinking that was thought and calls that were
//! made are not repeated; a call behind the last text is made anew from its beginning.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::{Answer, Block};
use crate::asked::Asked;
use crate::hash;
use crate::tokens::{count_output, pieces};

/// How a model goes on with an answer of its own of which a part was heard.
///
/// As JSON: `"faithful"`, `{"chatty": "Sure, here is the rest: "}`, `{"skips": 3}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GoesOn {
    /// As it is asked to: see the [module](self).
    #[default]
    Faithful,
    /// Does not repeat the words it is asked to repeat, and goes on exactly.
    WithoutRepeating,
    /// Says this first, then goes on as it is asked to.
    Chatty(String),
    /// Says the last words in another order, then goes on. Never word for word, whether it was
    /// asked to repeat or not.
    Paraphrase,
    /// Goes on after a gap of so many output tokens, without repeating.
    Skips(u64),
    /// Takes no notice of what was said: another text, the same for the same conversation.
    IgnoresAnchor,
    /// Says everything again from the start.
    FromStart,
}

/// Where in a whole answer a request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Bytes of text that were heard.
    heard: usize,
    /// Where the words begin that are to be repeated.
    anchor: Option<usize>,
    prefilled: bool,
}

/// The fewest characters of a text that are words to repeat, unless all of it are fewer.
const ANCHOR_MIN: usize = 6;
/// The most.
const ANCHOR_MAX: usize = 1_024;
/// Characters by which the place is found in a conversation that did not keep to the text.
const TAIL: usize = 32;
/// Words of the last that a paraphrase says again.
const PARAPHRASED: usize = 8;
/// Words of a text that has nothing to do with the question.
const UNRELATED: usize = 24;

impl Answer {
    /// What the model says to a request that asks for the rest of this answer; `None` if `asked`
    /// does not, or this answer says nothing of how it [goes on](Answer::goes_on).
    ///
    /// For [`respond`](crate::SimProviderBuilder::respond) closures; a provider does it by itself.
    #[must_use]
    pub fn follow(&self, asked: &Asked) -> Option<Answer> {
        let how = self.goes_on.as_ref()?;
        let limit = asked.max_output.unwrap_or(0);
        let whole = self.spun(limit, &asked.said);
        let place = whole.place(asked)?;
        Some(whole.rest(how, place, text_seed(asked)))
    }

    /// An endless answer, made long enough to be cut at `limit` behind what was said.
    pub(crate) fn spun(&self, limit: u64, said: &str) -> Cow<'_, Answer> {
        if !self.endless {
            return Cow::Borrowed(self);
        }
        let wanted = limit.saturating_add(2 * count_output(said) as u64 + 1);
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

    /// Where `asked` goes on with this answer, if it does.
    fn place(&self, asked: &Asked) -> Option<Place> {
        let said = asked.said.as_str();
        let text = self.whole_text();
        if said.trim().is_empty() || text.is_empty() {
            return None;
        }
        let heard = if text.starts_with(said) {
            said.len()
        } else {
            let end = said.trim_end();
            let from = end.char_indices().rev().nth(TAIL - 1).map(|(at, _)| at)?;
            text.rfind(&end[from..])? + end.len() - from
        };
        let prefilled = !asked.prefill.is_empty();
        let words = if prefilled { None } else { asked_for(&text[..heard], &asked.last_user) };
        // All was said and nothing of it is asked for: the conversation goes on, not the answer.
        let over =
            text[heard..].trim().is_empty() && !self.blocks_from(heard).iter().any(Block::is_call);
        if over && words.is_none() && !prefilled {
            return None;
        }
        Some(Place { heard, anchor: words, prefilled })
    }

    /// What is said from `place` on.
    fn rest(&self, how: &GoesOn, place: Place, seed: u64) -> Answer {
        let text = self.whole_text();
        let (from, before) = match how {
            GoesOn::FromStart => return Answer { goes_on: None, ..self.clone() },
            GoesOn::IgnoresAnchor => {
                let mut rng = fastrand::Rng::with_seed(seed);
                let other = crate::generate::sentence(&mut rng, UNRELATED);
                let blocks = vec![Block::Text(other)];
                return Answer { blocks, goes_on: None, ..self.clone() };
            }
            _ if place.prefilled && !matches!(how, GoesOn::Paraphrase | GoesOn::Skips(_)) => {
                (place.heard, String::new())
            }
            GoesOn::Faithful => (place.anchor.unwrap_or(place.heard), String::new()),
            GoesOn::WithoutRepeating => (place.heard, String::new()),
            GoesOn::Chatty(before) => (place.anchor.unwrap_or(place.heard), before.clone()),
            GoesOn::Paraphrase => (place.heard, paraphrase(&text[..place.heard])),
            GoesOn::Skips(tokens) => {
                let keep = usize::try_from(*tokens).unwrap_or(usize::MAX);
                let gap: usize = pieces(&text[place.heard..]).take(keep).map(str::len).sum();
                (place.heard + gap, String::new())
            }
        };
        let mut blocks = self.blocks_from(from);
        if !before.is_empty() {
            match blocks.first_mut() {
                Some(Block::Text(text)) => text.insert_str(0, &before),
                _ => blocks.insert(0, Block::Text(before)),
            }
        }
        Answer { blocks, goes_on: None, ..self.clone() }
    }

    /// The blocks behind the first `from` bytes of text.
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

/// Where the last words of `heard` begin that `request` has, set off by line ends or quotes.
fn asked_for(heard: &str, request: &str) -> Option<usize> {
    let words = heard.trim_end();
    let starts: Vec<usize> =
        words.char_indices().rev().map(|(at, _)| at).take(ANCHOR_MAX).collect();
    let all = starts.len();
    // The longest first: a shorter one may stand in it.
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

/// The last words with neighbours exchanged, in a sentence of their own.
fn paraphrase(heard: &str) -> String {
    let mut last: Vec<&str> = heard.split_whitespace().rev().take(PARAPHRASED).collect();
    last.reverse();
    for pair in last.chunks_exact_mut(2) {
        pair.swap(0, 1);
    }
    format!("To put it in other words, {} and so on.", last.join(" "))
}

/// The same conversation has the same number, whatever limits and form a request sets. With
/// `without_last`, the conversation before the last text of the user's; `None` if it ends with
/// something else.
fn conversation(asked: &Asked, without_last: bool) -> Option<u64> {
    let body = &asked.body;
    let mut said: Vec<(&str, Cow<'_, str>)> = Vec::new();
    let mut last_is_text = false;
    for message in ["messages", "contents"].iter().flat_map(|key| body[*key].as_array()).flatten() {
        let role = message["role"].as_str().unwrap_or("user");
        let content = if message["parts"].is_array() { "parts" } else { "content" };
        let parts = match &message[content] {
            Value::Array(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        for part in parts {
            let text = part.as_str().or(part["text"].as_str());
            last_is_text = role == "user" && text.is_some();
            said.push((role, text.map_or_else(|| part.to_string().into(), Cow::Borrowed)));
        }
        // What a message has besides its content: calls, and whose result it is.
        for key in ["tool_calls", "tool_call_id"] {
            if !message[key].is_null() {
                said.push((key, message[key].to_string().into()));
            }
        }
    }
    if without_last {
        said.pop().filter(|_| last_is_text)?;
    }
    let system = ["system", "systemInstruction", "system_instruction"];
    let system = system.map(|key| if body[key].is_null() { None } else { Some(&body[key]) });
    said.extend(system.into_iter().flatten().map(|part| ("system", part.to_string().into())));
    let parts: Vec<&[u8]> =
        said.iter().flat_map(|(role, text)| [role.as_bytes(), text.as_bytes()]).collect();
    Some(hash::seed(&parts))
}

fn text_seed(asked: &Asked) -> u64 {
    hash::seed(&[b"unrelated", &conversation(asked, false).unwrap_or(0).to_le_bytes()])
}

/// Whole answers that may be asked for again, newest last.
#[derive(Debug, Default)]
pub(crate) struct Wholes {
    kept: VecDeque<(u64, Arc<Answer>)>,
}

/// More than any test has open at a time.
const WHOLES: usize = 256;

impl Wholes {
    /// The newest whole answer that `asked` goes on with or asks for again.
    pub(crate) fn find(&self, asked: &Asked, limit: u64) -> Option<Arc<Answer>> {
        if self.kept.is_empty() {
            return None;
        }
        let same = conversation(asked, false);
        let (_, whole) = self.kept.iter().rev().find(|(of, whole)| {
            Some(*of) == same || whole.spun(limit, &asked.said).place(asked).is_some()
        })?;
        Some(whole.clone())
    }

    /// The newest whole answer of which nothing was heard, and to whose question the user only
    /// added something: what is left of it when it is not thought over again.
    pub(crate) fn unheard(&self, asked: &Asked) -> Option<Arc<Answer>> {
        if self.kept.is_empty() {
            return None;
        }
        let before = conversation(asked, true)?;
        let (_, whole) = self.kept.iter().rev().find(|(of, _)| *of == before)?;
        let mut whole = Answer::clone(whole);
        let thought = whole.blocks.iter().take_while(|block| block.is_thinking()).count();
        whole.blocks.drain(..thought);
        Some(Arc::new(whole))
    }

    pub(crate) fn remember(&mut self, asked: &Asked, whole: Arc<Answer>) {
        let Some(number) = conversation(asked, false) else { return };
        if self.kept.len() == WHOLES {
            self.kept.pop_front();
        }
        self.kept.push_back((number, whole));
    }
}

/// What is said to `asked` of a whole answer: the rest of it if that is asked for, else all.
pub(crate) fn say(whole: &Answer, how: Option<&GoesOn>, asked: &Asked, limit: u64) -> Answer {
    let spun = whole.spun(limit, &asked.said);
    let place = how.and_then(|how| Some((how, spun.place(asked)?)));
    match place {
        Some((how, place)) => spun.rest(how, place, text_seed(asked)),
        None => spun.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_last_words_that_are_set_off_are_asked_for() {
        let heard = "one two three four five six \n";
        let at = |request: &str| asked_for(heard, request).map(|at| &heard[at..]);
        let tail = |words: &str| Some(format!("{words} \n"));
        for (request, words) in [
            ("Begin with:\nfour five six\nThen go on.", tail("four five six")),
            ("Begin with \"five six\".", tail("five six")),
            ("`two three four five six`", tail("two three four five six")),
            ("one two three four five six", tail("one two three four five six")),
            // Its words stand in the request's own sentence.
            ("Go on with five six or so", None),
            // Too short to be told from chance.
            ("\"six\"", None),
            ("\"four five\"", None),
            ("", None),
        ] {
            assert_eq!(at(request), words.as_deref(), "{request}");
        }
        assert_eq!(asked_for("Hi", "say\nHi\nand go on"), Some(0));
    }

    #[test]
    fn the_rest_begins_at_every_byte_and_passes_over_what_was_done() {
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
        let said = paraphrase("one two three four five six seven eight nine ten");
        assert!(said.contains("four three six five eight seven ten nine"), "{said}");
        assert!(!paraphrase("alone").starts_with("alone"));
    }
}
