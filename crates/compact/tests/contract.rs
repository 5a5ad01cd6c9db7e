//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast_chat::{ChatRequest, ChatResponse, Message, RawJson, Tool};
use steadfast_compact::CompactionLayer;
use steadfast_core::{Call, Reason};
use steadfast_testkit::{Action, Aspect, Chat, Contract, Exchange, Pieces, ProbeEvents, contract};

const HOLDS_NOTHING: &str = "rules alone make no call, and take no place, of their own";

/// A request that can not be made to fit.
fn too_large(request: &mut ChatRequest) {
    request.model = "gpt-4".into();
    *request.messages.make_mut() = vec![Message::user("x y z ".repeat(20_000))];
}

const FIRST_EVENT: &str =
    "what is read while the first content is waited for, by whichever layer waits";

contract!(
    chat,
    Contract::new(Chat, CompactionLayer::rules_only)
        .refuses(|_, request| too_large(request))
        .none(Aspect::State, "without a session nothing is remembered")
        .none(Aspect::Held, HOLDS_NOTHING)
        .allocates(1, FIRST_EVENT)
);

/// Chat in a session whose history is too long for the upper bound.
#[derive(Clone, Copy, Debug)]
struct InSession;

impl Exchange for InSession {
    type Request = ChatRequest;
    type Reply = ChatResponse<ProbeEvents>;

    fn request(&self) -> ChatRequest {
        let mut request = Chat.request();
        request.context_mut().identity_mut().session = Some("s".into());
        let list = request.messages.make_mut();
        for turn in 0..30 {
            list.push(Message::assistant(format!("answer {turn}")));
            list.push(Message::user(format!("question {turn}")));
        }
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        request.tools = vec![Tool::function("ls", "lists", schema)].into();
        request
    }

    fn same(&self, sent: &ChatRequest, came: &ChatRequest) -> bool {
        Chat.same(sent, came)
    }

    fn reply(&self, pieces: Pieces) -> Self::Reply {
        Chat.reply(pieces)
    }
}

contract!(
    in_a_session,
    Contract::new(InSession, CompactionLayer::rules_only)
        .refuses(|_, request| too_large(request))
        .state(Action::fail(Reason::ContextOverflow), |layer| layer
            .handle()
            .snapshot()
            .counts
            .overflows)
        .none(Aspect::Held, HOLDS_NOTHING)
        .allocates(1, FIRST_EVENT)
);
