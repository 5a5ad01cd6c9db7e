//! The tokens of one message or tool, before anything learned.

use steadfast_chat::{ChatRequest, Media, MediaKind, MediaSource, Message, Part, RawJson, Tool};

use super::{Encoding, Scheme, calibration::Sample, scheme::OTHER};

/// The tokens of a message: kept apart, because only text is multiplied by the model's factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageTokens {
    /// Tokens of text, in the scheme's encoding.
    text: u64,
    /// Bytes of that text.
    bytes: u64,
    /// Tokens of everything else: overhead and media.
    fixed: u64,
    /// The part of `fixed` that the provider adds to the request as a whole.
    added: u64,
}

impl MessageTokens {
    /// The tokens of a message.
    pub(super) fn of(message: &Message, scheme: &Scheme) -> Self {
        let start = Self::fixed(scheme.message);
        message.parts().iter().fold(start, |sum, part| sum.plus(Self::part(part, scheme)))
    }

    /// The tokens of declared tools.
    pub(super) fn tools(tools: &[Tool], scheme: &Scheme) -> Self {
        let mut sum = Self::added(if tools.is_empty() { 0 } else { scheme.tools });
        for tool in tools {
            sum = sum.plus(Self::fixed(scheme.tool));
            match tool {
                Tool::Function { name, description, parameters, .. } => {
                    let schema = parameters.as_ref().map(RawJson::get);
                    let texts = [Some(name.as_str()), description.as_deref(), schema];
                    for text in texts.into_iter().flatten() {
                        sum = sum.plus(Self::text(text, scheme));
                    }
                }
                Tool::Opaque(opaque) => sum = sum.plus(Self::text(opaque.json.get(), scheme)),
                _ => {}
            }
        }
        sum
    }

    pub(super) fn fixed(tokens: impl Into<u64>) -> Self {
        Self { fixed: tokens.into(), ..Self::default() }
    }

    /// What the provider adds.
    pub(super) fn added(tokens: u32) -> Self {
        Self { added: tokens.into(), ..Self::fixed(tokens) }
    }

    fn text(text: &str, scheme: &Scheme) -> Self {
        Self { text: scheme.encoding.count(text), bytes: text.len() as u64, ..Self::default() }
    }

    fn part(part: &Part, scheme: &Scheme) -> Self {
        match part {
            Part::Text(text) => Self::text(&text.text, scheme),
            Part::Thinking(thinking) => Self::text(&thinking.text, scheme),
            // The thoughts, encrypted: base64 of about as many bytes.
            Part::Redacted { data } => Self::fixed(data.len() as u64 / 5),
            Part::Media(medium) => Self::fixed(media(medium, scheme)),
            Part::ToolCall(call) => Self::fixed(scheme.call)
                .plus(Self::text(&call.name, scheme))
                .plus(Self::text(&call.arguments, scheme)),
            Part::ToolResult(result) => {
                let start = Self::fixed(scheme.call);
                result.content.iter().fold(start, |sum, part| sum.plus(Self::part(part, scheme)))
            }
            Part::Opaque(opaque) => Self::text(opaque.json.get(), scheme),
            _ => Self::default(),
        }
    }

    /// What the estimate is made from.
    pub(super) fn sample(self, scheme: &Scheme) -> Sample {
        Sample {
            scheme: self.text as f64 * scheme.factor + self.fixed as f64,
            quarter: self.bytes as f64 / 4.0,
            added: self.added as f64,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            text: self.text.saturating_add(other.text),
            bytes: self.bytes.saturating_add(other.bytes),
            fixed: self.fixed.saturating_add(other.fixed),
            added: self.added.saturating_add(other.added),
        }
    }

    /// Less what was added before.
    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            text: self.text.saturating_sub(other.text),
            bytes: self.bytes.saturating_sub(other.bytes),
            fixed: self.fixed.saturating_sub(other.fixed),
            added: self.added.saturating_sub(other.added),
        }
    }
}

/// Bytes of a PDF to a page, and tokens to a page: Anthropic states 1,500 to 3,000 a page.
const PDF_PAGE: (u64, u64) = (50_000, 2_250);

/// A document or recording that is not in the request: a dozen pages, or minutes.
const ELSEWHERE: u64 = 25_000;

/// Bytes of sound to a token: 32 tokens a second (Gemini) of 16 KB (128 kbit/s).
const AUDIO: u64 = 500;

/// Bytes of film to a token: 300 tokens a second (Gemini) of 300 KB.
const VIDEO: u64 = 1_000;

fn media(media: &Media, scheme: &Scheme) -> u64 {
    if media.kind == MediaKind::Image {
        return u64::from(scheme.image);
    }
    let MediaSource::Base64 { mime, data } = &media.source else { return ELSEWHERE };
    let bytes = data.len() as u64 / 4 * 3;
    match media.kind {
        MediaKind::Audio => bytes / AUDIO,
        MediaKind::Video => bytes / VIDEO,
        _ if mime.starts_with("text/") => bytes / 3,
        _ => bytes.div_ceil(PDF_PAGE.0).max(1) * PDF_PAGE.1,
    }
}

/// Messages and tools whose sizes are added up for a bound; more are counted.
const MOST: usize = 32;

/// A scheme by which nothing is less than by any other: no vocabulary has a token of less than a
/// byte, and the overheads are more than any provider's.
const MOST_TOKENS: Scheme = Scheme {
    encoding: Encoding::Bytes(1),
    factor: 1.0,
    message: 48,
    call: 24,
    tool: 24,
    tools: 512,
    request: 512,
    image: 2_500,
    ..OTHER
};

/// More tokens than a request has, where that follows from the sizes of its texts: what has room by this needs no
/// count, and nothing is remembered of it. `None` where it takes a count.
pub(crate) fn upper_bound(request: &ChatRequest) -> Option<u64> {
    let overhead = u64::from(MOST_TOKENS.request);
    if let Some(body) = request.unchanged_body() {
        return Some(body.len() as u64 + overhead);
    }
    let (messages, tools) = (&request.messages, &request.tools);
    if messages.len() > MOST || tools.len() > MOST {
        return None;
    }
    if messages.iter().flat_map(Message::parts).any(is_document) {
        return None;
    }
    let start = MessageTokens::tools(tools, &MOST_TOKENS);
    let add = |sum: MessageTokens, one| sum.plus(MessageTokens::of(one, &MOST_TOKENS));
    let sum = messages.iter().fold(start, add);
    Some(sum.text.saturating_add(sum.fixed).saturating_add(overhead))
}

/// Whether the size of a part is guessed.
fn is_document(part: &Part) -> bool {
    match part {
        Part::Media(media) => media.kind != MediaKind::Image,
        Part::ToolResult(result) => result.content.iter().any(is_document),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfast_chat::Role;

    use super::*;
    use crate::Counter;

    fn scheme() -> Scheme {
        Scheme {
            encoding: Encoding::Bytes(1),
            factor: 1.5,
            message: 10,
            call: 100,
            tool: 1_000,
            tools: 5,
            request: 0,
            image: 700,
            error: 0.1,
        }
    }

    fn document(mime: &str, bytes: usize) -> Part {
        Part::Media(Media {
            kind: MediaKind::Document,
            source: MediaSource::Base64 {
                mime: mime.into(),
                data: Arc::from("A".repeat(bytes / 3 * 4)),
            },
            extra: None,
        })
    }

    #[test]
    fn everything_in_a_message_counts() {
        for (parts, text, fixed) in [
            (vec![], 0, 10),
            (vec![Part::text("abc"), Part::text("de")], 5, 10),
            (vec![Part::tool_call("id", "ls", "{}")], 4, 110),
            (vec![Part::tool_result("id", "abcd")], 4, 110),
            (vec![Part::image("image/png", "AAAA")], 0, 710),
            (vec![document("application/pdf", 120_000)], 0, 10 + 3 * 2_250),
            (vec![document("text/plain", 3_000)], 0, 10 + 1_000),
        ] {
            let tokens = MessageTokens::of(&Message::new(Role::User, parts), &scheme());
            assert_eq!(tokens, MessageTokens { text, bytes: text, fixed, added: 0 });
        }
        let sample = MessageTokens { text: 10, bytes: 80, fixed: 5, added: 2 }.sample(&scheme());
        assert_eq!(sample, Sample { scheme: 20.0, quarter: 20.0, added: 2.0 });
    }

    #[test]
    fn tools_count_with_their_schema() {
        let tool = Tool::function("ls", "lists", RawJson::parse(r#"{"type":"object"}"#).unwrap());
        assert_eq!(MessageTokens::tools(&[], &scheme()), MessageTokens::default());
        let expected = MessageTokens { text: 24, bytes: 24, fixed: 1_005, added: 5 };
        assert_eq!(MessageTokens::tools(&[tool], &scheme()), expected);
    }

    #[test]
    fn the_bound_is_never_less_than_the_count() {
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let requests = [
            ChatRequest::user(""),
            ChatRequest::user("\u{1f980}\u{301}\u{200b}".repeat(100)),
            ChatRequest::user("a".repeat(1_000)),
            ChatRequest::new(vec![
                Message::user("see"),
                Message::new(Role::User, vec![Part::image("image/png", "AAAA"); 5]),
                Message::tool("1", "x"),
            ])
            .with_tools(vec![Tool::function("ls", "lists", schema); 9]),
        ];
        for request in requests {
            for model in ["claude-sonnet-4-5", "gpt-4o", "gemini-2.5-pro", "other"] {
                let count = Counter::default().count(&mut Default::default(), &request, model);
                assert!(upper_bound(&request).unwrap() >= count.upper, "{model}");
            }
        }
    }

    #[test]
    fn what_must_be_counted_has_no_bound() {
        assert_eq!(upper_bound(&ChatRequest::new(vec![Message::user("x"); 33])), None);
        let document = Message::new(Role::User, vec![document("text/plain", 30)]);
        assert_eq!(upper_bound(&ChatRequest::new(vec![document])), None);
    }
}
