//! Answers to requests for summaries, good and bad.

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Stop};
use crate::fault::ErrorKind;
use crate::request::SimRequest;
use crate::tokens::count_output;

/// An answer to a request for a summary, made from the request.
///
/// As JSON: `"good"`, `{"fails": "overloaded"}`. In a script or a plan it is the `summary` of an
/// [`Answer`]: `{"summary": "empty"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum SummaryReply {
    /// The beginnings of the lines of the request, as many as fit the output limit and
    /// [`SummaryReply::TOKENS`].
    Good,
    /// A well-formed summary without any fact of the conversation.
    Forgetful,
    /// No content; a normal end of turn.
    Empty,
    /// Thinking without a text.
    ThinkingOnly,
    /// Endless text: always cut at the output limit.
    Endless,
    /// A 200 without text whose stop reason is the dialect's refusal.
    Refused,
    /// A text that declines; a normal end of turn.
    Declines,
    /// A 400 of the provider's content policy.
    Blocked,
    /// A tool call instead of text: of the first declared tool, else of an undeclared one.
    ToolCall,
    /// This refusal.
    Fails(ErrorKind),
}

impl SummaryReply {
    /// The most output tokens of a [good](Self::Good) summary.
    pub const TOKENS: u64 = 400;

    /// The answer to `request` with at most `limit` output tokens.
    #[must_use]
    pub fn answer(&self, request: &SimRequest, limit: u64) -> Answer {
        match self {
            Self::Good => Answer::text(good(&request.last_user, limit.min(Self::TOKENS))),
            Self::Forgetful => {
                Answer::text("Some things were asked for, some were done, and the work goes on.")
            }
            Self::Empty => Answer::default(),
            Self::ThinkingOnly => Answer::thinking("There is much that could be said about this."),
            Self::Endless => Answer { endless: true, ..Answer::default() },
            Self::Refused => Answer::default().stop(Stop::Refusal),
            Self::Declines => Answer::text("I'm sorry, but I can't help with that."),
            Self::Blocked => Answer::refuse(ErrorKind::ContentFilter),
            Self::ToolCall => {
                let name = request.tools.first().map_or("lookup", |(name, _)| name.as_str());
                Answer::tool_call(name, r#"{"query":"the conversation"}"#)
            }
            Self::Fails(kind) => Answer::refuse(kind.clone()),
        }
    }
}

/// Answers for the requests that ask for summaries, apart from the script for all others: a
/// compaction and its conversation may use the same provider.
///
/// ```
/// use steadfast_sim::{Dialect, SimProvider, Summaries, SummaryReply};
///
/// let provider = SimProvider::builder(Dialect::Anthropic)
///     .with_summaries(Summaries::to("You keep the record").then(SummaryReply::Empty).then(SummaryReply::Good))
///     .build();
/// # drop(provider);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summaries {
    /// A request asks for a summary if its system prompt or a message contains this text.
    pub contains: String,
    /// The answers, in order; the last one repeats.
    pub answers: Vec<SummaryReply>,
}

impl Summaries {
    /// For the requests that contain this text.
    pub fn to(contains: impl Into<String>) -> Self {
        Self { contains: contains.into(), answers: Vec::new() }
    }

    /// Adds an answer after the others.
    #[must_use]
    pub fn then(mut self, summary: SummaryReply) -> Self {
        self.answers.push(summary);
        self
    }

    /// The answer to the `nth` request for a summary, from 0.
    pub(crate) fn at(&self, nth: usize) -> Option<&SummaryReply> {
        self.answers.get(nth).or(self.answers.last())
    }
}

/// The most words of a line that are kept.
const WORDS: usize = 12;

fn good(shown: &str, limit: u64) -> String {
    let mut text = String::from("What was said:");
    for line in shown.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().take(WORDS).collect();
        let entry = format!("\n- {}", words.join(" "));
        if count_output(&text) as u64 + count_output(&entry) as u64 > limit {
            break;
        }
        text.push_str(&entry);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_summary_keeps_lines_and_fits() {
        let shown = "first line\n\n  second   line\nthird";
        assert_eq!(good(shown, 100), "What was said:\n- first line\n- second line\n- third");
        for limit in 3..20 {
            assert!(count_output(&good(shown, limit)) as u64 <= limit);
        }
    }

    #[test]
    fn the_last_answer_repeats() {
        let list = Summaries::to("x").then(SummaryReply::Empty).then(SummaryReply::Good);
        let got: Vec<_> = (0..4).map(|n| list.at(n)).collect();
        assert_eq!(got[0], Some(&SummaryReply::Empty));
        assert_eq!(got[1..], [Some(&SummaryReply::Good); 3]);
        assert_eq!(Summaries::to("x").at(0), None);
    }
}
