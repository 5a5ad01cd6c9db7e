//! The request that goes on with an answer.

use std::{fmt, sync::Arc};

use steadfast_chat::{ChatRequest, Message, Part, Role, ThinkingConfig};
use steadfast_core::{Dialect, Target};

use crate::seam::{Seam, SeamPolicy};

/// Which targets continue a last message of the model's own (a *prefill*). By default none: current
/// models of Anthropic refuse it, those of OpenAI answer it like any other message.
///
/// A closure is called with the target, when it is known, and the dialect it speaks.
#[derive(Clone, Default)]
pub(crate) struct Prefill(Option<Arc<dyn Accepts>>);

trait Accepts: Fn(Option<&Target>, Dialect) -> bool + Send + Sync {}

impl<F: Fn(Option<&Target>, Dialect) -> bool + Send + Sync> Accepts for F {}

impl Prefill {
    pub(crate) fn new(
        accepts: impl Fn(Option<&Target>, Dialect) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(accepts)))
    }

    pub(crate) fn accepts(&self, target: Option<&Target>, dialect: Dialect) -> bool {
        self.0.as_ref().is_some_and(|accepts| accepts(target, dialect))
    }
}

impl fmt::Debug for Prefill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Prefill(by closure)" } else { "Prefill(never)" })
    }
}

/// Whether the model thinks before it answers `request`: such a request takes no prefill.
pub(crate) fn thinks(request: &ChatRequest) -> bool {
    !matches!(request.params.thinking, None | Some(ThinkingConfig::Off))
}

/// The request whose answer goes on after `text`, to a model that continues its own last words.
pub(crate) fn prefilled(request: &ChatRequest, text: &str) -> ChatRequest {
    let mut request = rest_of(request);
    said(&mut request, text.trim_end());
    request
}

/// The request whose answer begins by repeating the last words of `text`.
pub(crate) fn repeating(request: &ChatRequest, text: &str, policy: &SeamPolicy) -> ChatRequest {
    let mut request = rest_of(request);
    if text.trim().is_empty() {
        return request;
    }
    said(&mut request, text);
    let anchor = Seam::anchor(text, policy);
    let words = format!(
        "The connection broke in the middle of your last message. Begin your reply by repeating its \
         last words, exactly these:\n{anchor}\nThen go straight on with what was to come next. Do \
         not mention the interruption, do not start over, do not sum up."
    );
    request.messages.make_mut().push(Message::user(words));
    request
}

/// The request whose answer goes on where `text` was cut off by the output limit.
pub(crate) fn continuing(request: &ChatRequest, text: &str) -> ChatRequest {
    let mut request = rest_of(request);
    let words = if text.trim().is_empty() {
        "You reached the output limit before you said anything. Answer now, directly."
    } else {
        said(&mut request, text);
        "You reached the output limit in the middle of your last message. Go on exactly where it \
         was cut off, even in the middle of a word. No apology, no recap, no remark about the \
         limit."
    };
    request.messages.make_mut().push(Message::user(words));
    request
}

/// The request whose answer makes a tool call anew that the output limit cut off after `bytes` bytes
/// of arguments.
pub(crate) fn calling(request: &ChatRequest, text: &str, bytes: usize) -> ChatRequest {
    let mut request = rest_of(request);
    said(&mut request, text);
    let words = format!(
        "You reached the output limit in the middle of a tool call: its arguments were cut off after \
         {bytes} bytes, and it was not executed. Make the call again from its beginning. If its \
         arguments are long, split the work into several smaller calls. No apology, no recap."
    );
    request.messages.make_mut().push(Message::user(words));
    request
}

/// The rest of an answer follows no format of the whole: half a JSON document is none.
fn rest_of(request: &ChatRequest) -> ChatRequest {
    let mut request = request.clone();
    request.params.format = None;
    request
}

fn said(request: &mut ChatRequest, text: &str) {
    if !text.trim().is_empty() {
        let part = Part::text(text);
        request.messages.make_mut().push(Message::new(Role::Assistant, vec![part]));
    }
}

#[cfg(test)]
mod tests {
    use steadfast_chat::transcript::{Rules, validate};

    use super::*;

    #[test]
    fn every_dialect_accepts_every_follow_up() {
        let policy = SeamPolicy::default();
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
                        let found = validate(&follow, &Rules::for_dialect(dialect));
                        assert!(found.is_ok(), "{dialect} {text:?}: {found:?}");
                    }
                }
                if thinks(&request) {
                    continue;
                }
                let mut rules = Rules::for_dialect(Dialect::Anthropic);
                rules.prefill = true;
                let found = validate(&prefilled(&request, text), &rules);
                assert!(found.is_ok(), "{text:?}: {found:?}");
            }
        }
    }

    #[test]
    fn the_original_request_is_not_touched() {
        let request = ChatRequest::user("hi");
        let follow = continuing(&request, "Hello");
        assert_eq!((request.messages.len(), follow.messages.len()), (1, 3));
        assert!(
            follow.messages[0].same(&request.messages[0]),
            "its wire text, and the cache of it"
        );
    }
}
