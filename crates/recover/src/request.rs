//! The request that continues an answer.

use steadfast_chat::{ChatRequest, Message, Part, Role};

use crate::overlap::{Overlap, OverlapPolicy};

/// The request whose answer continues `text`, to a model that continues its own last message.
pub(crate) fn prefilled(request: &ChatRequest, text: &str) -> ChatRequest {
    follow_up(request, text.trim_end(), None)
}

/// The request whose answer begins by repeating the end of `text`.
pub(crate) fn repeating(request: &ChatRequest, text: &str, policy: &OverlapPolicy) -> ChatRequest {
    let anchor = Overlap::anchor(text, policy);
    let ask = format!(
        "The connection broke in the middle of your last message. Begin your reply by repeating its \
         last words, exactly these:\n{anchor}\nThen go straight on with what was to come next. Do \
         not mention the interruption, do not start over, do not sum up."
    );
    follow_up(request, text, Some(ask).filter(|_| !text.trim().is_empty()))
}

/// The request whose answer continues `text`, which was cut off by the output limit.
pub(crate) fn continuing(request: &ChatRequest, text: &str) -> ChatRequest {
    let ask = if text.trim().is_empty() {
        "You reached the output limit before you said anything. Answer now, directly."
    } else {
        "You reached the output limit in the middle of your last message. Go on exactly where it \
         was cut off, even in the middle of a word. No apology, no recap, no remark about the \
         limit."
    };
    follow_up(request, text, Some(ask.into()))
}

/// The request whose answer repeats a tool call that the output limit cut off after `bytes` bytes of
/// arguments.
pub(crate) fn calling(request: &ChatRequest, text: &str, bytes: usize) -> ChatRequest {
    let ask = format!(
        "You reached the output limit in the middle of a tool call: its arguments were cut off after \
         {bytes} bytes, and it was not executed. Make the call again from its beginning. If its \
         arguments are long, split the work into several smaller calls. No apology, no recap."
    );
    follow_up(request, text, Some(ask))
}

/// `request` with the text so far as the model's own message, and the instruction `ask`. The format of
/// the whole answer is removed, since its rest does not have it.
fn follow_up(request: &ChatRequest, text: &str, ask: Option<String>) -> ChatRequest {
    let mut request = request.clone();
    request.params.format = None;
    if !text.trim().is_empty() {
        let part = Part::text(text);
        request.messages.make_mut().push(Message::new(Role::Assistant, vec![part]));
    }
    request.messages.make_mut().extend(ask.map(Message::user));
    request
}

#[cfg(test)]
mod tests {
    use steadfast_chat::{
        ThinkingConfig,
        transcript::{TranscriptRules, validate},
    };
    use steadfast_core::Dialect;

    use super::*;

    #[test]
    fn every_dialect_accepts_every_follow_up() {
        let policy = OverlapPolicy::default();
        let tool = steadfast_chat::Tool::function(
            "read",
            "reads",
            steadfast_chat::RawJson::parse(r#"{"type":"object"}"#).unwrap(),
        );
        let mut looped = ChatRequest::user("look").with_tools(vec![tool]);
        let messages = looped.messages.make_mut();
        messages.push(Message::new(Role::Assistant, vec![Part::tool_call("call_1", "read", "{}")]));
        let mut result = Message::tool("call_1", "found");
        if let Part::ToolResult(result) = &mut result.parts_mut()[0] {
            result.name = Some("read".into());
        }
        messages.push(result);
        let mut thinking = looped.clone();
        thinking.params.thinking = Some(ThinkingConfig::Budget(2_000));
        thinking.messages.make_mut()[1].parts_mut().insert(
            0,
            Part::Thinking(steadfast_chat::Thinking {
                text: "hm".into(),
                signature: Some("s".into()),
                extra: None,
            }),
        );
        for request in [ChatRequest::user("hi"), looped, thinking] {
            for text in
                ["", " \n", "Hello", "Hello \n", "one two three four five six seven eight nine"]
            {
                for follow in [
                    repeating(&request, text, &policy),
                    continuing(&request, text),
                    calling(&request, text, 7),
                ] {
                    for dialect in Dialect::ALL {
                        let found = validate(&follow, &TranscriptRules::for_dialect(dialect));
                        assert!(found.is_ok(), "{dialect} {text:?}: {found:?}");
                    }
                }
                if request.params.thinking.is_some() {
                    continue;
                }
                let mut rules = TranscriptRules::for_dialect(Dialect::Anthropic);
                rules.prefill = true;
                let found = validate(&prefilled(&request, text), &rules);
                assert!(found.is_ok(), "{text:?}: {found:?}");
            }
        }
    }

    #[test]
    fn the_original_request_is_unchanged() {
        let request = ChatRequest::user("hi");
        let follow = continuing(&request, "Hello");
        assert_eq!((request.messages.len(), follow.messages.len()), (1, 3));
        assert!(
            follow.messages[0].same(&request.messages[0]),
            "its wire text, and the cache of it"
        );
    }
}
