//! Digests of what comes before a message.

use std::hash::{BuildHasher, Hash, Hasher};

use steadfast_chat::{MediaSource, Message, Part, Role};

/// A digest of the messages so far: of what they say, without thinking, without instructions and without
/// what a provider reads over, such as cache marks. Two histories have the same one if a provider that binds
/// thinking takes them for the same, as far as a layer may have changed them: instructions are the caller's.
#[derive(Clone)]
pub(super) struct PrefixDigest<'a, H> {
    hasher: &'a H,
    digest: u64,
}

impl<'a, H: BuildHasher> PrefixDigest<'a, H> {
    pub(super) fn new(hasher: &'a H) -> Self {
        Self { hasher, digest: 0 }
    }

    /// Of all of these messages.
    pub(super) fn of(hasher: &'a H, messages: &[Message]) -> u64 {
        let mut prefix = Self::new(hasher);
        messages.iter().for_each(|message| prefix.add(message));
        prefix.get()
    }

    /// Of the messages added so far.
    pub(super) fn get(&self) -> u64 {
        self.digest
    }

    pub(super) fn add(&mut self, message: &Message) {
        let role = message.role();
        if role == Role::System {
            return;
        }
        let is_model = role == Role::Assistant;
        for part in message.parts().iter().filter(|part| !is_skipped(part)) {
            let mut state = self.hasher.build_hasher();
            (self.digest, is_model).hash(&mut state);
            digest(part, &mut state);
            self.digest = state.finish();
        }
    }
}

fn is_skipped(part: &Part) -> bool {
    part.is_thinking() || part.as_text().is_some_and(str::is_empty)
}

fn digest(part: &Part, state: &mut impl Hasher) {
    std::mem::discriminant(part).hash(state);
    match part {
        Part::Text(text) => text.text.hash(state),
        Part::ToolCall(call) => (&call.id, &call.name, &call.arguments).hash(state),
        Part::ToolResult(result) => {
            (&result.id, result.is_error).hash(state);
            result.content.iter().for_each(|part| digest(part, state));
        }
        Part::Media(media) => match &media.source {
            MediaSource::Base64 { mime, data } => (mime, data).hash(state),
            MediaSource::Url { url, .. } => url.hash(state),
            MediaSource::File { id, .. } => id.hash(state),
            _ => {}
        },
        Part::Opaque(opaque) => opaque.json.get().hash(state),
        _ => {}
    }
}

/// What an answer is recognised by when it comes back: its text and the tools it calls. Ids and the spelling of
/// arguments change on the way through another dialect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerDigest {
    text: u64,
    calls: u64,
}

impl AnswerDigest {
    /// That of a whole message.
    pub(super) fn of(hasher: &impl BuildHasher, message: &Message) -> u64 {
        let mut digest = Self::default();
        for part in message.parts() {
            match part {
                Part::Text(text) => digest.text(&text.text),
                Part::ToolCall(call) => digest.call(hasher, &call.name),
                _ => {}
            }
        }
        digest.get(hasher)
    }

    /// A piece of text; the digest is the same however it is cut into pieces.
    pub(super) fn text(&mut self, piece: &str) {
        // A polynomial over the bytes, so that nothing has to be kept. It only has to tell apart the answers
        // to one and the same history.
        let add = |sum: u64, byte: u8| {
            sum.wrapping_mul(0x0100_0000_01b3).wrapping_add(u64::from(byte) + 1)
        };
        self.text = piece.bytes().fold(self.text, add);
    }

    pub(super) fn call(&mut self, hasher: &impl BuildHasher, name: &str) {
        self.calls = hasher.hash_one((self.calls, name));
    }

    pub(super) fn get(self, hasher: &impl BuildHasher) -> u64 {
        hasher.hash_one((self.text, self.calls))
    }
}

#[cfg(test)]
mod tests {
    use foldhash::quality::RandomState;
    use steadfast_chat::Thinking;

    use super::*;

    fn of(messages: &[Message]) -> u64 {
        // One seed for all digests of a test.
        static HASHER: std::sync::LazyLock<RandomState> =
            std::sync::LazyLock::new(RandomState::default);
        PrefixDigest::of(&*HASHER, messages)
    }

    #[test]
    fn thinking_instructions_and_marks_are_no_part_of_a_prefix() {
        let mut marked = Message::user("hi");
        let Part::Text(text) = &mut marked.parts_mut()[0] else { panic!() };
        text.extra = serde_json::from_str(r#"{"cache_control":{"type":"ephemeral"}}"#).unwrap();
        let plain = [Message::user("hi"), Message::assistant("ho")];
        let thought = Part::Thinking(Thinking::default());
        let thinking = Message::new(Role::Assistant, vec![thought, Part::text("ho")]);
        assert_eq!(of(&plain), of(&[marked, thinking]));
        assert_eq!(
            of(&plain),
            of(&[Message::system("be brief"), plain[0].clone(), plain[1].clone()])
        );
    }

    #[test]
    fn every_other_change_is_another_prefix() {
        let base = vec![
            Message::user("hi"),
            Message::new(Role::Assistant, vec![Part::tool_call("1", "ls", "{}")]),
            Message::tool("1", "a.rs"),
        ];
        let mut all = vec![of(&base)];
        for change in [
            vec![Message::user("ho"), base[1].clone(), base[2].clone()],
            vec![base[0].clone(), base[1].clone(), Message::tool("1", "b.rs")],
            vec![base[0].clone(), base[1].clone()],
            vec![base[0].clone(), Message::assistant("hi"), base[1].clone(), base[2].clone()],
            vec![Message::user("hi"), Message::user("hi"), base[1].clone(), base[2].clone()],
        ] {
            all.push(of(&change));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn an_answer_is_recognised_however_it_was_cut() {
        let hasher = RandomState::default();
        let mut pieces = AnswerDigest::default();
        ["It ", "", "is ", "so."].iter().for_each(|piece| pieces.text(piece));
        pieces.call(&hasher, "ls");
        let parts = vec![Part::text("It is so."), Part::tool_call("other", "ls", "{ }")];
        let whole = Message::new(Role::Assistant, parts);
        assert_eq!(pieces.get(&hasher), AnswerDigest::of(&hasher, &whole));
        assert_ne!(
            pieces.get(&hasher),
            AnswerDigest::of(&hasher, &Message::assistant("It is so."))
        );
    }
}
