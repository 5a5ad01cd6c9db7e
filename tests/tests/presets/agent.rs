//! An agent that calls tools until it is stopped.

use steadfast::{ChatRequest, Message, Part, RawJson, Reason, Role, Tool, sim::Answer};

use crate::{World, sims};

/// Its conversation so far.
pub(crate) struct Agent {
    pub(crate) messages: Vec<Message>,
    calls: usize,
}

impl Agent {
    pub(crate) fn new() -> Self {
        Self { messages: vec![Message::user("Get it done.")], calls: 0 }
    }

    /// The model has called a tool, with this result.
    pub(crate) fn called(&mut self, tool: &str, arguments: &str, result: &str) {
        let id = format!("call_{}", self.calls);
        self.calls += 1;
        let call = Part::tool_call(id.as_str(), tool, arguments);
        self.messages.push(Message::new(Role::Assistant, vec![call]));
        let mut result = Message::tool(id, result);
        if let Part::ToolResult(part) = &mut result.parts_mut()[0] {
            part.name = Some(tool.into());
        }
        self.messages.push(result);
    }

    pub(crate) fn request(&self, tool: &str) -> ChatRequest {
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        ChatRequest::new(self.messages.clone())
            .with_model("any")
            .with_tools(vec![Tool::function(tool, "does it", schema)])
    }
}

/// Lets a model call `tool` again and again with arguments and results of their own: how many calls are
/// executed, and the message at the end.
pub(crate) async fn run(
    world: impl Fn(Vec<steadfast::sim::SimProvider>) -> World,
    tool: &'static str,
    arguments: impl Fn(usize) -> String,
) -> (usize, String) {
    let mut agent = Agent::new();
    for at in 0.. {
        let arguments = arguments(at);
        let answer = Answer::tool_call(tool, arguments.clone());
        let sims = sims([crate::fine()], |_, provider| provider.with_script([answer.clone()]));
        let got = world(sims).send(agent.request(tool)).await;
        if let Some(failure) = got.failure {
            assert_eq!(failure.reason(), Reason::Safety, "{failure}");
            return (at, failure.message().to_owned());
        }
        agent.called(tool, &arguments, &format!("the result of number {at}"));
    }
    unreachable!()
}
