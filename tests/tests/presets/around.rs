//! What stands around an agent, for the rows of presets that are not of a single call: turns of models and
//! tools, and a channel to people that can be down.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatService, Failure, Message, Part, RawJson, Role, Tool, ToolRequest, ToolResult,
    deliver::Announcement,
    supervise::{Actors, PostBody, Prompt, ThreadPost},
};
use tokio::time::Instant;
use tower::{ServiceExt as _, service_fn, util::BoxCloneSyncService};

/// The tools of an agent, with the layers around them.
pub(crate) type Tools = BoxCloneSyncService<ToolRequest, ToolResult, Failure>;

/// An agent: it asks its model, runs the tools that this calls, and asks again.
#[derive(Clone)]
pub(crate) struct TurnLoop {
    pub(crate) llm: ChatService,
    pub(crate) tools: Tools,
}

impl TurnLoop {
    /// An agent whose model calls no tool.
    pub(crate) fn without_tools(llm: ChatService) -> Self {
        let tools = service_fn(async |_: ToolRequest| -> Result<ToolResult, Failure> {
            panic!("there are no tools")
        });
        Self { llm, tools: Tools::new(tools) }
    }

    /// The text of the answer that calls no tool any more.
    pub(crate) async fn run(&self, mut request: ChatRequest) -> Result<String, Failure> {
        loop {
            let answer = self.llm.clone().oneshot(request.clone()).await?.collect().await?;
            let calls: Vec<_> = answer.tool_calls().cloned().collect();
            if calls.is_empty() {
                return Ok(answer.text());
            }
            let mut results = Vec::new();
            for call in calls {
                let call = ToolRequest::new(request.context.clone(), call);
                results.push(Part::ToolResult(self.tools.clone().oneshot(call).await?));
            }
            let messages = request.messages.make_mut();
            messages.push(answer.into_message());
            messages.push(Message::new(Role::Tool, results));
        }
    }
}

/// A request of an agent that has this tool.
pub(crate) fn prompt(text: &str, tool: &str) -> ChatRequest {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let tools = vec![Tool::function(tool, "does it", schema)];
    ChatRequest::user(text).with_model("any").with_tools(tools)
}

/// What users were sent, and how many milliseconds after the beginning.
#[derive(Clone)]
pub(crate) struct Posts {
    began: Instant,
    posts: Arc<Mutex<Vec<(u128, String, String)>>>,
}

impl Posts {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), posts: Arc::default() }
    }

    pub(crate) fn push(&self, post: &ThreadPost<String>) {
        let text = match &post.body {
            PostBody::Reply(text) => text.clone(),
            PostBody::Failed(failure) => failure.to_string(),
            other => panic!("{other:?}"),
        };
        let at = self.began.elapsed().as_millis();
        self.posts.lock().push((at, post.thread.thread().to_owned(), text));
    }

    pub(crate) fn all(&self) -> Vec<(u128, String, String)> {
        self.posts.lock().clone()
    }

    /// The texts alone.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.posts.lock().iter().map(|(_, _, text)| text.clone()).collect()
    }
}

/// Mailboxes around this agent; what they send is in `posts`.
pub(crate) fn mailboxes(
    agent: impl Fn(Prompt<String>) -> Turn + Clone + Send + 'static,
    posts: &Posts,
) -> Actors<String> {
    let posts = posts.clone();
    Actors::new(service_fn(agent), move |post: ThreadPost<String>| {
        posts.push(&post);
        std::future::ready(Ok(()))
    })
}

/// The turn of an agent.
pub(crate) type Turn =
    std::pin::Pin<Box<dyn Future<Output = Result<String, Failure>> + Send + 'static>>;

/// A channel to people; clones are the same channel.
#[derive(Clone, Default)]
pub(crate) struct Channel(Arc<Mutex<ChannelState>>);

#[derive(Default)]
struct ChannelState {
    fails: Option<Arc<dyn Fn() -> Failure + Send + Sync>>,
    calls: Vec<Instant>,
    sent: Vec<(Instant, String)>,
}

impl Channel {
    /// Every call fails so from now on.
    pub(crate) fn fail(&self, failure: impl Fn() -> Failure + Send + Sync + 'static) {
        self.0.lock().fails = Some(Arc::new(failure));
    }

    pub(crate) fn recover(&self) {
        self.0.lock().fails = None;
    }

    /// When it was called.
    pub(crate) fn calls(&self) -> Vec<Instant> {
        self.0.lock().calls.clone()
    }

    /// The waits between its calls, in milliseconds.
    pub(crate) fn waits(&self) -> Vec<u128> {
        self.calls().windows(2).map(|two| (two[1] - two[0]).as_millis()).collect()
    }

    /// What people have read, and when.
    pub(crate) fn sent(&self) -> Vec<(Instant, String)> {
        self.0.lock().sent.clone()
    }

    pub(crate) fn send(&self, text: &str) -> Result<(), Failure> {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.calls.push(now);
        match &state.fails {
            Some(fails) => Err(fails()),
            None => {
                state.sent.push((now, text.to_owned()));
                Ok(())
            }
        }
    }

    pub(crate) fn service(&self) -> BoxCloneSyncService<Announcement, (), Failure> {
        let channel = self.clone();
        BoxCloneSyncService::new(service_fn(move |message: Announcement| {
            std::future::ready(channel.send(&message.text))
        }))
    }
}
