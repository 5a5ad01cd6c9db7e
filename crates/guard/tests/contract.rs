//! The contract of every layer.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use steadfast_chat::{ChatRequest, ChatResponse};
use steadfast_core::Call;
use steadfast_guard::SafetyGuardLayer;
use steadfast_testkit::{Action, Aspect, Chat, Contract, Exchange, Pieces, ProbeEvents, contract};
use support::*;

const HOLDS_NOTHING: &str = "a call is allowed or refused before it is sent";

/// Five times the same call.
fn looping(request: &mut ChatRequest) {
    let same = tool_run("read_file", r#"{"path":"a"}"#, "unchanged");
    *request.messages.make_mut() = history(&one_by_one(vec![same; 5]));
}

/// Chat in a named task.
#[derive(Clone, Copy, Debug)]
struct InTask;

impl Exchange for InTask {
    type Request = ChatRequest;
    type Reply = ChatResponse<ProbeEvents>;

    fn request(&self) -> ChatRequest {
        let mut request = Chat.request();
        request.context_mut().identity_mut().task = Some(TASK.into());
        request
    }

    fn same(&self, sent: &ChatRequest, received: &ChatRequest) -> bool {
        Chat.same(sent, received)
    }

    fn reply(&self, pieces: Pieces) -> Self::Reply {
        Chat.reply(pieces)
    }
}

contract!(
    chat,
    Contract::new(Chat, SafetyGuardLayer::default)
        .refuses(|_, request| looping(request))
        .none(Aspect::State, "it reads only the history of the request")
        .none(Aspect::Held, HOLDS_NOTHING)
);

contract!(
    a_named_task,
    Contract::new(InTask, SafetyGuardLayer::default)
        .refuses(|_, request| looping(request))
        .none(Aspect::State, "it reads only the history of the request")
        .none(Aspect::Held, HOLDS_NOTHING)
);

/// The same guard around the tools.
fn with_tools() -> SafetyGuardLayer {
    let layer = SafetyGuardLayer::default();
    let _ = layer.guard().tool_layer();
    layer
}

contract!(
    a_task_with_a_tool_layer,
    Contract::new(InTask, with_tools)
        .refuses(|layer, _| {
            for at in 0..4 {
                let call = tool_run("delete_file", &format!(r#"{{"path":"{at}"}}"#), "").call("x");
                let _ = layer.guard().check_call(TASK, &call);
            }
        })
        .state(Action::answer(), |layer| layer.guard().get(TASK).map_or(0, |task| task.events))
        .none(Aspect::Held, HOLDS_NOTHING)
);
