//! What a request may come to at most, without counting it.

use steadfast_chat::{ChatRequest, MediaKind, Message, Part, RawJson, Tool};

/// Messages that are looked at; a longer history is counted.
const MOST: usize = 32;

/// More than any provider adds to a request, to a message or to a part of one.
const OVERHEAD: u64 = 512;
const EACH: u64 = 24;

/// More than any provider asks for an image.
const IMAGE: u64 = 2_500;

/// More tokens than a request has, where that can be told without counting: no vocabulary has a token
/// of less than a byte. Of a body whose conversation nobody has changed it is its length; pictures that it only
/// names by their address are not in it.
pub(crate) fn at_most(request: &ChatRequest) -> Option<u64> {
    if let Some(bytes) = body_len(request) {
        return Some(bytes as u64 + OVERHEAD);
    }
    if request.messages.len() > MOST || request.tools.len() > MOST {
        return None;
    }
    let mut sum = OVERHEAD;
    for message in &request.messages {
        sum += self::message(message)?;
    }
    for tool in &request.tools {
        sum += EACH + declared(tool)? as u64;
    }
    Some(sum)
}

/// The bytes of a request's body, when nobody has changed its messages.
pub(crate) fn body_len(request: &ChatRequest) -> Option<usize> {
    request.unchanged_body().map(|body| body.len())
}

fn message(message: &Message) -> Option<u64> {
    let mut sum = EACH;
    for part in message.parts() {
        sum += EACH + self::part(part)?;
    }
    Some(sum)
}

fn part(part: &Part) -> Option<u64> {
    Some(match part {
        Part::Text(text) => text.text.len() as u64,
        Part::Thinking(thinking) => thinking.text.len() as u64,
        Part::Redacted { data } => data.len() as u64,
        Part::ToolCall(call) => (call.name.len() + call.arguments.len()) as u64,
        Part::ToolResult(result) => {
            let mut sum = 0;
            for part in &result.content {
                sum += EACH + self::part(part)?;
            }
            sum
        }
        Part::Media(media) if media.kind == MediaKind::Image => IMAGE,
        _ => return None,
    })
}

fn declared(tool: &Tool) -> Option<usize> {
    match tool {
        Tool::Function { name, description, parameters, .. } => Some(
            name.len()
                + description.as_deref().map_or(0, str::len)
                + parameters.as_ref().map_or(0, |schema| RawJson::get(schema).len()),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Tape};

    #[test]
    fn it_is_never_less_than_the_count() {
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let requests = [
            ChatRequest::user(""),
            ChatRequest::user("\u{1f980}\u{301}\u{200b}".repeat(100)),
            ChatRequest::user("a".repeat(1_000)),
            ChatRequest::new(vec![
                Message::user("look"),
                Message::new(steadfast_chat::Role::User, vec![Part::image("image/png", "AAAA"); 5]),
                Message::tool("1", "x"),
            ])
            .with_tools(vec![Tool::function("ls", "lists", schema); 9]),
        ];
        for request in requests {
            for model in ["claude-sonnet-4-5", "gpt-4o", "gemini-2.5-pro", "other"] {
                let count = Counter::default().count(&mut Tape::default(), &request, model);
                assert!(at_most(&request).unwrap() >= count.upper, "{model}");
            }
        }
    }

    #[test]
    fn what_it_can_not_tell_is_counted() {
        assert_eq!(at_most(&ChatRequest::new(vec![Message::user("x"); 33])), None);
    }
}
