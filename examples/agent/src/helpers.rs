//! Helpers: sub-agents under a watchdog, whose results are announced when nobody waits for them.

use std::num::NonZeroU32;

use serde::Deserialize;
use steadfast::{
    Call, ChatRequest, Failure, Message, ToolCall, ToolFailureKind, ToolRequest, ToolResult,
    deliver::Announcement,
    supervise::{AgentRun, RunId, RunRegistry, WatchdogLayer},
};
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::{
    announce::Announcing,
    tools::{HELPER, declarations},
    turns::{Limits, Run, TurnLoop},
};

/// What a helper may take, in turns.
const STEPS: NonZeroU32 = NonZeroU32::new(12).unwrap();

const INSTRUCTIONS: &str = "You are a helper. You find out what you are asked, with your tools, and answer with the result alone. \
                            You can't ask back.";

/// Runs helpers. Clones share what runs.
#[derive(Clone)]
pub(crate) struct Helpers {
    watched: BoxCloneSyncService<AgentRun<Task>, String, Failure>,
    background: TaskTracker,
    stopped: CancellationToken,
}

/// What a helper is to do.
struct Task {
    text: String,
    /// The result is announced, and this learns that it has been promised: the run is in the registry, so that after a crash there is
    /// a notice. Else its caller waits for it.
    promised: Option<oneshot::Sender<()>>,
}

#[derive(Deserialize)]
struct Arguments {
    task: String,
    #[serde(default)]
    background: bool,
}

/// The key of a result's announcement.
pub(crate) fn result_key(run: &RunId) -> String {
    format!("result:{run}")
}

impl Helpers {
    /// Helpers that work with `turns`, are registered in `runs`, and have results announced by `announcing`.
    pub(crate) fn new(turns: TurnLoop, runs: RunRegistry, announcing: Announcing) -> Self {
        let limits = Limits { most_turns: STEPS.get(), token_budget: None, check: None };
        let turns = TurnLoop { limits, ..turns };
        let help =
            service_fn(move |run: AgentRun<Task>| help(turns.clone(), announcing.clone(), run));
        let watched = WatchdogLayer::default().with_registry(runs).layer(help);
        Self {
            watched: BoxCloneSyncService::new(watched),
            background: TaskTracker::new(),
            stopped: CancellationToken::new(),
        }
    }

    /// Runs the tool `delegate` in a conversation.
    pub(crate) async fn call(&self, request: ToolRequest) -> ToolResult {
        let call = &request.call;
        let Arguments { task, background } = match serde_json::from_str(&call.arguments) {
            Ok(arguments) => arguments,
            Err(error) => {
                let text = format!("The arguments of `delegate` can not be used: {error}.");
                return ToolResult::failed(call, ToolFailureKind::Arguments, text);
            }
        };
        let session = request.context().session().unwrap_or_default().to_owned();
        let (sender, registered) = oneshot::channel();
        let run = AgentRun::new(Task { text: task, promised: background.then_some(sender) })
            .with_context(request.context().clone())
            .with_max_steps(Some(STEPS));
        if background {
            self.in_background(call, session, run, registered).await
        } else {
            self.waited_for(call, run).await
        }
    }

    /// The user hears of it later: its deadline is its own, not that of the prompt that it comes from.
    async fn in_background(
        &self,
        call: &ToolCall,
        session: String,
        mut run: AgentRun<Task>,
        registered: oneshot::Receiver<()>,
    ) -> ToolResult {
        run.context.deadline = None;
        let (run, stopped) = (run.with_destination(session), self.stopped.clone());
        let watched = self.watched.clone();
        let text = format!("The helper works on it as {}. The user hears of the result.", run.id());
        self.background.spawn(async move {
            tokio::select! {
                // How it ended is in the registry, and the user has the result or a notice.
                _ = watched.oneshot(run) => {}
                () = stopped.cancelled() => {}
            }
        });
        match registered.await {
            Ok(()) => ToolResult::of(call, text),
            Err(_) => {
                let text = "The helper could not be started.";
                ToolResult::failed(call, ToolFailureKind::Failed, text)
            }
        }
    }

    async fn waited_for(&self, call: &ToolCall, run: AgentRun<Task>) -> ToolResult {
        match self.watched.clone().oneshot(run).await {
            Ok(text) => ToolResult::of(call, text),
            Err(failure) => {
                let text = format!("The helper did not succeed ({}).", failure.outward_reason());
                ToolResult::failed(call, ToolFailureKind::Failed, text)
            }
        }
    }

    /// How many work in the background.
    pub(crate) fn in_the_background(&self) -> usize {
        self.background.len()
    }

    /// Waits until none works in the background any more.
    pub(crate) async fn done(&self) {
        self.background.close();
        self.background.wait().await;
        self.background.reopen();
    }

    /// Drops those that still work. The next start finds them in the registry, once that is closed.
    pub(crate) async fn stop(&self) {
        self.stopped.cancel();
        self.background.close();
        self.background.wait().await;
    }
}

/// One helper: a conversation of its own, in memory. The result is delivered, or kept for delivery, before the run counts as completed.
async fn help(
    turns: TurnLoop,
    announcing: Announcing,
    mut run: AgentRun<Task>,
) -> Result<String, Failure> {
    let key = result_key(run.id());
    let promised = run.input.promised.take().map(|promised| promised.send(()));
    let context = run.context.clone().with_agent(HELPER).with_task(run.id().as_str());
    let messages = vec![Message::system(INSTRUCTIONS), Message::user(run.input.text.as_str())];
    let name = run.id().to_string();
    let request = ChatRequest::new(messages).with_tools(declarations(true)).with_context(context);
    let done = turns.run(Run { name, request, turns: None, heard: &|| None }).await?;
    let text = done.messages.last().map(Message::text).unwrap_or_default();
    if promised.is_some() {
        let session = run.destination().unwrap_or_default();
        let result = format!("The helper has finished. {text}");
        let announcement = Announcement::new(key, session, result).with_session(session);
        announcing.announce(announcement).await?;
    }
    Ok(text)
}
