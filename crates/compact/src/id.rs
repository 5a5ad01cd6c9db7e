//! The conversation that a request belongs to.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
};

use steadfast_chat::{ChatRequest, Message, Part, Role};
use steadfast_core::CallContext;

/// The bytes of a name, at most: a longer one is probably content.
const LONGEST: usize = 256;

/// Bytes that count, at each end of the message by which a conversation without a name is known.
const ENDS: usize = 64;

/// The name of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConversationId {
    /// The tenant, who pays.
    pub tenant: Option<Box<str>>,
    /// Which agent.
    pub agent: Option<Box<str>>,
    /// Which session; `None` for conversations that are known by how they begin.
    pub session: Option<Box<str>>,
}

fn names(context: &CallContext) -> [Option<&str>; 3] {
    [context.tenant(), context.agent(), context.session()]
}

impl ConversationId {
    /// The conversation that requests with this context belong to.
    pub fn of(context: &CallContext) -> Self {
        let [tenant, agent, session] = names(context).map(|name| name.map(Into::into));
        Self { tenant, agent, session }
    }

    fn names(&self) -> [Option<&str>; 3] {
        [self.tenant.as_deref(), self.agent.as_deref(), self.session.as_deref()]
    }

    pub(crate) fn is_of(&self, context: &CallContext) -> bool {
        self.names() == names(context)
    }
}

impl fmt::Display for ConversationId {
    /// `tenant/agent/session`, with a `-` for what has no name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().map(|name| name.unwrap_or("-")).join("/"))
    }
}

/// The key of a conversation's state; `None` when a name is malformed: no state is kept then, as
/// it could be that of another conversation.
pub(crate) fn key(request: &ChatRequest, hasher: &impl BuildHasher, strict: bool) -> Option<u64> {
    let names = names(&request.context);
    if strict && !names.iter().flatten().all(|name| is_well_formed(name)) {
        return None;
    }
    let mut state = hasher.build_hasher();
    names.hash(&mut state);
    if names[2].is_none() {
        beginning(request, &mut state);
    }
    Some(state.finish())
}

fn is_well_formed(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST
        && name.trim().len() == name.len()
        && !name.chars().any(char::is_control)
}

/// What distinguishes a conversation without a name from others: the ends of its first text. Two that begin
/// alike share their state, in which nothing is taken over without comparing the messages.
fn beginning(request: &ChatRequest, state: &mut impl Hasher) {
    let speaks = |message: &&Message| message.role() != Role::System;
    let Some(first) = request.messages.iter().find(speaks) else { return };
    (first.role(), first.parts().len()).hash(state);
    if let Some(text) = first.parts().iter().find_map(Part::as_text) {
        let bytes = text.as_bytes();
        let (head, tail) = (ENDS.min(bytes.len()), bytes.len().saturating_sub(ENDS));
        (bytes.len(), &bytes[..head], &bytes[tail..]).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use foldhash::quality::RandomState;

    use super::*;

    #[test]
    fn malformed_names_are_refused() {
        let hasher = RandomState::default();
        let of = |context: CallContext, strict| {
            key(&ChatRequest::user("hi").with_context(context), &hasher, strict)
        };
        for name in ["", " ", "a ", "a\nb", &"x".repeat(257)] {
            for context in [
                CallContext::new().with_session(name),
                CallContext::new().with_tenant(name).with_session("s"),
                CallContext::new().with_agent(name).with_session("s"),
            ] {
                assert_eq!(of(context.clone(), true), None, "{name:?}");
                assert!(of(context, false).is_some());
            }
        }
        assert!(of(CallContext::new().with_session("a b/c"), true).is_some());
    }

    #[test]
    fn no_two_scopes_are_one() {
        let hasher = RandomState::default();
        let of = |context: CallContext, text: &str| {
            key(&ChatRequest::user(text).with_context(context), &hasher, true).unwrap()
        };
        let new = CallContext::new;
        let keys = [
            of(new(), "a"),
            of(new(), "b"),
            of(new().with_tenant("t"), "a"),
            of(new().with_session("s"), "a"),
            of(new().with_session("t"), "a"),
            of(new().with_tenant("t").with_session("s"), "a"),
            of(new().with_agent("t").with_session("s"), "a"),
            of(new().with_tenant("ts"), "a"),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[index + 1..].contains(key), "{index}");
        }
        assert_eq!(keys[3], of(new().with_session("s"), "something else"), "a name is enough");
        assert_eq!(keys[0], of(new(), "a"));
    }
}
