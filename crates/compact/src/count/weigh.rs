//! The weight of one message or tool, before anything learned.

use std::hash::{BuildHasher, Hash, Hasher};

use steadfast_chat::{Media, MediaKind, MediaSource, Message, Part, RawJson, Tool};

use super::{Sample, Scheme};

/// What a message weighs: kept apart, because only text goes by the model's factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Tokens of text, in the scheme's encoding.
    pub text: u64,
    /// Bytes of that text.
    pub bytes: u64,
    /// Tokens of everything else: overhead and media.
    pub fixed: u64,
}

impl Weight {
    /// What the estimate rests on.
    pub fn sample(self, scheme: &Scheme) -> Sample {
        Sample {
            scheme: self.text as f64 * scheme.factor + self.fixed as f64,
            quarter: self.bytes as f64 / 4.0,
        }
    }

    /// Less what was added before.
    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            text: self.text.saturating_sub(other.text),
            bytes: self.bytes.saturating_sub(other.bytes),
            fixed: self.fixed.saturating_sub(other.fixed),
        }
    }

    fn fixed(tokens: impl Into<u64>) -> Self {
        Self { fixed: tokens.into(), ..Self::default() }
    }

    fn of(text: &str, scheme: &Scheme) -> Self {
        Self { text: scheme.encoding.count(text), bytes: text.len() as u64, fixed: 0 }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            text: self.text.saturating_add(other.text),
            bytes: self.bytes.saturating_add(other.bytes),
            fixed: self.fixed.saturating_add(other.fixed),
        }
    }
}

/// Bytes of a PDF to a page, and tokens to a page: Anthropic states 1,500 to 3,000 a page.
const PDF_PAGE: (u64, u64) = (50_000, 2_250);

/// A document or recording that lies elsewhere: a dozen pages, or minutes.
const ELSEWHERE: u64 = 25_000;

/// Bytes of sound to a token: 32 tokens a second (Gemini) of 16 KB (128 kbit/s).
const AUDIO: u64 = 500;

/// Bytes of film to a token: 300 tokens a second (Gemini) of 300 KB.
const VIDEO: u64 = 1_000;

pub(super) fn message(message: &Message, scheme: &Scheme) -> Weight {
    let start = Weight::fixed(scheme.message);
    message.parts().iter().fold(start, |sum, value| sum.plus(part(value, scheme)))
}

pub(super) fn tools(tools: &[Tool], scheme: &Scheme) -> Weight {
    let mut sum = Weight::default();
    for tool in tools {
        sum = sum.plus(Weight::fixed(scheme.tool));
        match tool {
            Tool::Function { name, description, parameters, .. } => {
                let schema = parameters.as_ref().map(RawJson::get);
                for text in
                    [Some(name.as_str()), description.as_deref(), schema].into_iter().flatten()
                {
                    sum = sum.plus(Weight::of(text, scheme));
                }
            }
            Tool::Opaque(opaque) => sum = sum.plus(Weight::of(opaque.json.get(), scheme)),
            _ => {}
        }
    }
    if tools.is_empty() { sum } else { sum.plus(Weight::fixed(scheme.tools)) }
}

fn part(part: &Part, scheme: &Scheme) -> Weight {
    match part {
        Part::Text(words) => Weight::of(&words.text, scheme),
        Part::Thinking(thinking) => Weight::of(&thinking.text, scheme),
        // Encrypted text of the thoughts: base64 of about as many bytes.
        Part::Redacted { data } => Weight::fixed(data.len() as u64 / 5),
        Part::Media(medium) => Weight::fixed(media(medium, scheme)),
        Part::ToolCall(call) => Weight::fixed(scheme.call)
            .plus(Weight::of(&call.name, scheme))
            .plus(Weight::of(&call.arguments, scheme)),
        Part::ToolResult(result) => {
            let start = Weight::fixed(scheme.call);
            result.content.iter().fold(start, |sum, value| sum.plus(self::part(value, scheme)))
        }
        Part::Opaque(opaque) => Weight::of(opaque.json.get(), scheme),
        _ => Weight::default(),
    }
}

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

/// Tells messages of different weight apart, by content. Seeded once a process: two messages
/// collide by accident only, once in 2^64.
pub(super) fn fingerprint(message: &Message, scheme: &Scheme, hasher: &impl BuildHasher) -> u64 {
    let mut state = hasher.build_hasher();
    (scheme.encoding, scheme.message, scheme.call, scheme.image).hash(&mut state);
    message.parts().len().hash(&mut state);
    for part in message.parts() {
        hash_part(part, &mut state);
    }
    state.finish()
}

fn hash_part(part: &Part, state: &mut impl Hasher) {
    std::mem::discriminant(part).hash(state);
    match part {
        Part::Text(text) => text.text.hash(state),
        Part::Thinking(thinking) => thinking.text.hash(state),
        Part::Redacted { data } => data.len().hash(state),
        Part::Media(media) => {
            media.kind.hash(state);
            match &media.source {
                MediaSource::Base64 { mime, data } => (0_u8, mime, data.len()).hash(state),
                _ => 1_u8.hash(state),
            }
        }
        Part::ToolCall(call) => (&call.name, &call.arguments).hash(state),
        Part::ToolResult(result) => {
            result.content.len().hash(state);
            result.content.iter().for_each(|part| hash_part(part, state));
        }
        Part::Opaque(opaque) => opaque.json.hash(state),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfast_chat::Role;

    use super::super::Encoding;
    use super::*;

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
            let weight = message(&Message::new(Role::User, parts), &scheme());
            assert_eq!(weight, Weight { text, bytes: text, fixed });
        }
        let sample = Weight { text: 10, bytes: 80, fixed: 5 }.sample(&scheme());
        assert_eq!(sample, Sample { scheme: 20.0, quarter: 20.0 });
    }

    #[test]
    fn tools_count_with_their_schema() {
        let tool = Tool::function("ls", "lists", RawJson::parse(r#"{"type":"object"}"#).unwrap());
        assert_eq!(tools(&[], &scheme()), Weight::default());
        assert_eq!(tools(&[tool], &scheme()), Weight { text: 24, bytes: 24, fixed: 1_005 });
    }

    #[test]
    fn fingerprints_tell_apart_what_weighs_differently() {
        let hasher = foldhash::quality::RandomState::default();
        let print = |parts| fingerprint(&Message::new(Role::User, parts), &scheme(), &hasher);
        let all = [
            print(vec![]),
            print(vec![Part::text("ab")]),
            print(vec![Part::text("a"), Part::text("b")]),
            print(vec![Part::tool_result("1", "ab")]),
            print(vec![Part::tool_call("1", "a", "b")]),
            print(vec![Part::tool_call("1", "ab", "")]),
            print(vec![document("text/plain", 30)]),
            print(vec![document("text/plain", 60)]),
            print(vec![document("application/pdf", 30)]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[index + 1..].contains(one), "{index}");
        }
        assert_eq!(print(vec![Part::text("ab")]), all[1]);
    }
}
