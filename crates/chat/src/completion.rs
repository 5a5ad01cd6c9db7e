//! A whole answer.

use steadfast_core::Usage;

use crate::{
    Citation, Delta, Event, Frame, FrameKind, Head, Message, Part, Role, Stop, Text, Thinking,
    TokenLogprob, ToolCall,
};

/// A whole answer, put together from its events.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Completion {
    /// What was known before the first event.
    pub head: Head,
    /// The provider's id of the answer.
    pub id: Option<String>,
    /// The model that answered, as the provider names it.
    pub model: Option<String>,
    /// The content, in order.
    pub parts: Vec<Part>,
    /// The sources of its text.
    pub citations: Vec<Citation>,
    /// How likely its tokens were.
    pub logprobs: Vec<TokenLogprob>,
    /// Why it stopped.
    pub stop: Option<Stop>,
    /// What it used.
    pub usage: Usage,
    /// Whether the provider has ended it: [`Delta::End`] has come.
    pub ended: bool,
    /// The body it was read from, when it came whole and unchanged.
    pub body: Option<Frame>,
    /// The block each part came from.
    blocks: Vec<u32>,
    events: usize,
}

impl Completion {
    /// An answer without any event so far.
    pub fn new(head: Head) -> Self {
        Self {
            head,
            id: None,
            model: None,
            parts: Vec::new(),
            citations: Vec::new(),
            logprobs: Vec::new(),
            stop: None,
            usage: Usage::default(),
            ended: false,
            body: None,
            blocks: Vec::new(),
            events: 0,
        }
    }

    /// Adds an event.
    pub fn push(&mut self, event: &Event) {
        self.events += 1;
        self.body = match &event.frame {
            Some(frame) if self.events == 1 && frame.kind == FrameKind::Body => Some(frame.clone()),
            _ => None,
        };
        for delta in &event.deltas {
            self.apply(delta);
        }
    }

    /// Adds a delta of an event.
    pub fn apply(&mut self, delta: &Delta) {
        match delta {
            Delta::Start { id, model } => {
                self.id = id.clone().or(self.id.take());
                self.model = model.clone().or(self.model.take());
            }
            Delta::Text { index, text } => {
                match self.block(*index, || Part::Text(Text::default())) {
                    Part::Text(part) => part.text.push_str(text),
                    _ => debug_assert!(false, "block {index} is no text"),
                }
            }
            Delta::Thinking { index, text } => {
                match self.block(*index, || Part::Thinking(Thinking::default())) {
                    Part::Thinking(part) => part.text.push_str(text),
                    _ => debug_assert!(false, "block {index} is no thinking"),
                }
            }
            Delta::Signature { index, signature } => {
                match self.block(*index, || Part::Thinking(Thinking::default())) {
                    Part::Thinking(part) => {
                        part.signature.get_or_insert_default().push_str(signature);
                    }
                    Part::Text(part) => part.signature = Some(signature.clone()),
                    Part::ToolCall(part) => part.signature = Some(signature.clone()),
                    _ => {}
                }
            }
            Delta::Redacted { index, data } => {
                self.block(*index, || Part::Redacted { data: data.clone() });
            }
            Delta::ToolCall { index, id, name } => {
                self.block(*index, || Part::tool_call(id.as_str(), name.as_str(), ""));
            }
            Delta::Arguments { index, json } => {
                match self.block(*index, || Part::ToolCall(ToolCall::default())) {
                    Part::ToolCall(part) => part.arguments.push_str(json),
                    _ => debug_assert!(false, "block {index} is no tool call"),
                }
            }
            Delta::Opaque { index, block } => {
                self.block(*index, || Part::Opaque(block.clone()));
            }
            Delta::Citations(citations) => self.citations.extend_from_slice(citations),
            Delta::Logprobs(logprobs) => self.logprobs.extend_from_slice(logprobs),
            Delta::Usage(usage) => self.usage.update(usage),
            Delta::Stop(stop) => self.stop = Some(stop.clone()),
            Delta::End => self.ended = true,
            Delta::BlockEnd { .. } | Delta::Ping => {}
        }
    }

    /// All text, joined.
    pub fn text(&self) -> String {
        self.parts.iter().filter_map(Part::as_text).collect()
    }

    /// The tool calls.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(Part::as_tool_call)
    }

    /// Whether it has no content.
    pub fn is_empty(&self) -> bool {
        let has_body = self.body.as_ref().is_some_and(|body| body.content);
        !has_body
            && self.parts.iter().all(|part| match part {
                Part::Text(text) => text.text.is_empty(),
                Part::Thinking(thinking) => thinking.text.is_empty(),
                _ => false,
            })
    }

    /// The answer as a message of the conversation.
    pub fn into_message(self) -> Message {
        Message::new(Role::Assistant, self.parts)
    }

    /// The part of block `index`, made by `new` when it is the first of its block.
    fn block(&mut self, index: u32, new: impl FnOnce() -> Part) -> &mut Part {
        // Usually the last one. Else its index is its number, as blocks are numbered in the order
        // they begin: so there is no search in a long answer.
        let is_block = |at: &usize| self.blocks.get(*at) == Some(&index);
        let last = self.blocks.len().checked_sub(1).filter(is_block);
        let found = last
            .or_else(|| usize::try_from(index).ok().filter(is_block))
            .or_else(|| self.blocks.iter().rposition(|block| *block == index));
        let at = match found {
            Some(at) => at,
            None => {
                self.blocks.push(index);
                self.parts.push(new());
                self.parts.len() - 1
            }
        };
        &mut self.parts[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StopReason;
    use steadfast_core::Dialect;

    fn text(index: u32, text: &str) -> Delta {
        Delta::Text { index, text: text.into() }
    }

    #[test]
    fn interleaved_blocks_come_out_whole_and_in_order() {
        let mut answer = Completion::new(Head::new(Dialect::OpenAi));
        answer.push(&Event::new([
            Delta::Start { id: Some("1".into()), model: None },
            text(0, "Let me "),
        ]));
        answer.push(&Event::new([Delta::ToolCall {
            index: 1,
            id: "a".into(),
            name: "read".into(),
        }]));
        answer.push(&Event::new([Delta::ToolCall {
            index: 2,
            id: "b".into(),
            name: "list".into(),
        }]));
        answer.push(&Event::new([
            Delta::Arguments { index: 2, json: "{}".into() },
            Delta::Arguments { index: 1, json: "{\"p\":".into() },
            Delta::Arguments { index: 1, json: "1}".into() },
            text(0, "look"),
        ]));
        let mut later = Usage::default();
        later.output = Some(7);
        answer.push(&Event::new([
            Delta::Usage(Usage::new(10, 1)),
            Delta::Usage(later),
            Delta::Stop(StopReason::ToolUse.into()),
            Delta::End,
        ]));
        assert_eq!(answer.text(), "Let me look");
        let calls: Vec<_> =
            answer.tool_calls().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
        assert_eq!(calls, [("a", "{\"p\":1}"), ("b", "{}")]);
        assert_eq!(answer.usage, Usage::new(10, 7));
        assert!(answer.ended);
    }

    #[test]
    fn a_body_is_kept_only_when_it_is_all_there_is() {
        let body =
            Event::from_frame(Frame::body(Dialect::OpenAi, "{}"), [text(0, "hi"), Delta::End]);
        let mut answer = Completion::new(Head::new(Dialect::OpenAi));
        answer.push(&body);
        assert!(answer.body.is_some());
        answer.push(&Event::new([Delta::Ping]));
        assert!(answer.body.is_none());
    }

    #[test]
    fn content_of_a_body_that_no_part_has_is_content() {
        for content in [false, true] {
            let body = Frame::body(Dialect::OpenAi, "{}").with_content(content);
            let mut answer = Completion::new(Head::new(Dialect::OpenAi));
            answer.push(&Event::from_frame(body, [Delta::End]));
            assert_eq!(answer.is_empty(), !content);
        }
    }
}
