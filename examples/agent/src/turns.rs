//! The loop of an agent: a model's answer, its tools, the next answer.

use futures_util::StreamExt;
use steadfast::{
    Call, ChatRequest, ChatService, Completion, Deadline, Delta, Failure, Message, Part, Reason,
    RecoveryLog, Role, ToolCall, ToolRequest, ToolResult,
    session::{SessionTurn, TurnSink},
    supervise::TOOL_TIMEOUT,
    tool::{CommandEnd, CommandRunner, Script},
};
use tower::ServiceExt;

use crate::{
    budget::TokenBudget,
    screen::Screen,
    tools::ToolService,
    transition::{Check, Transition, TurnEnd, Turns, made_inside},
};

/// What a run may do.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// The most turns of a run.
    pub(crate) most_turns: u32,
    /// The output tokens that a prompt is worth.
    pub(crate) token_budget: Option<u64>,
    /// A command that has to succeed before the agent may be done.
    pub(crate) check: Option<(CommandRunner, String)>,
}

/// Runs prompts. Clones run independently of each other.
#[derive(Clone)]
pub(crate) struct TurnLoop {
    pub(crate) llm: ChatService,
    pub(crate) tools: ToolService,
    pub(crate) limits: Limits,
    pub(crate) screen: Screen,
}

/// The run of one prompt.
pub(crate) struct Run<'a> {
    /// Its name in the log; empty for none.
    pub(crate) name: String,
    /// The history and the prompt, with the tools that the model may call.
    pub(crate) request: ChatRequest,
    /// Where turns are kept that end before the last; without it nothing is kept.
    pub(crate) turns: Option<TurnSink>,
    /// What the user says while it runs.
    pub(crate) heard: &'a (dyn Fn() -> Option<String> + Send + Sync),
}

impl TurnLoop {
    /// Runs a prompt to its end. The turns before the last one are kept as they end.
    ///
    /// Dropped at any moment, what was kept stays, and the log says during what it was dropped.
    pub(crate) async fn run(&self, run: Run<'_>) -> Result<SessionTurn, Failure> {
        let mut log = TurnLog::new(&run, self.limits.most_turns, self.screen.clone());
        let ended = self.turns(run, &mut log).await;
        if let Err(failure) = &ended {
            log.fails(failure);
        }
        ended
    }

    async fn turns(&self, run: Run<'_>, log: &mut TurnLog) -> Result<SessionTurn, Failure> {
        let Run { mut request, turns: kept, heard, .. } = run;
        let mut budget = self.limits.token_budget.map(TokenBudget::new);
        let mut tool_timed_out = false;
        // What the user's side adds before the next answer.
        let mut pending: Vec<Message> = Vec::new();
        loop {
            pending.extend(std::iter::from_fn(heard).map(Message::user));
            log.has_image = request.messages.iter().any(has_image);
            let answer = self.answer(&request, &pending, log.asks()).await;
            log.answered();
            let answer = answer.map_err(|failure| match tool_timed_out {
                true => after_timeout(failure, &request),
                false => failure,
            })?;
            if let Some(budget) = &mut budget {
                budget.spend(answer.usage.output.unwrap_or_default());
            }
            let calls: Vec<ToolCall> = answer.tool_calls().cloned().collect();
            let mut turn = std::mem::take(&mut pending);
            turn.append(&mut SessionTurn::from_answer(answer)?.messages);

            let next = if calls.is_empty() {
                let (check, found) = self.check().await;
                let wants_more = budget.as_ref().is_some_and(TokenBudget::wants_more);
                let next = log.ends(TurnEnd::Done { check, wants_more });
                match next {
                    Transition::StopHookBlocked => pending.push(Message::user(found)),
                    Transition::TokenBudgetContinued => {
                        pending.extend(budget.as_mut().map(|budget| Message::user(budget.ask())));
                    }
                    Transition::StopHookPrevented => {
                        self.screen.aside(format_args!("! not checked: {found}"));
                    }
                    _ => {}
                }
                next
            } else {
                log.runs_tools();
                let results = self.run_tools(&request, calls).await?;
                tool_timed_out = results.iter().any(|result| user_text(result).is_some());
                let results = results.into_iter().map(Part::ToolResult).collect();
                turn.push(Message::new(Role::Tool, results));
                log.ends(TurnEnd::Called)
            };
            if !next.goes_on() {
                if next == Transition::MostTurns {
                    let text =
                        format!("I stop here, after {} turns. Tell me to go on.", log.ended());
                    self.screen.text(&text);
                    turn.push(Message::assistant(text));
                }
                return Ok(SessionTurn::new(turn));
            }
            if let Some(kept) = &kept {
                // What the disk does not take now is saved with the next turn; an event says so.
                let _ = kept.end_turn(turn.clone()).await?;
            }
            request.messages.make_mut().extend(turn);
        }
    }

    /// The model's answer, shown as it comes.
    async fn answer(
        &self,
        request: &ChatRequest,
        pending: &[Message],
        steps: RecoveryLog,
    ) -> Result<Completion, Failure> {
        let mut request = request.clone().streaming();
        request.messages.make_mut().extend(pending.iter().cloned());
        request.context_mut().log = steps;
        let is_helper = request.context().task().is_some();
        let spinner = self.screen.spinner("thinking");
        let response = self.llm.clone().oneshot(request).await?;
        let (head, mut events) = response.into_parts();
        let mut answer = Completion::new(head);
        let mut spinner = Some(spinner);
        while let Some(event) = events.next().await {
            let event = event?;
            for delta in &event.deltas {
                if let Delta::Text { text, .. } = delta
                    && !is_helper
                {
                    spinner = None;
                    self.screen.text(text);
                }
            }
            answer.push(&event);
        }
        drop(spinner);
        Ok(answer)
    }

    /// The results of the calls, in their order. One after the other: they may be about the same files.
    async fn run_tools(
        &self,
        request: &ChatRequest,
        calls: Vec<ToolCall>,
    ) -> Result<Vec<ToolResult>, Failure> {
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            let shown = shorten(&call.arguments, 100);
            self.screen.aside(format_args!("> {} {shown}", call.name));
            let spinner = self.screen.spinner("working");
            let request = ToolRequest::new(request.context().clone(), call);
            let result = self.tools.clone().oneshot(request).await?;
            drop(spinner);
            if let Some(text) = user_text(&result) {
                self.screen.aside(format_args!("! {text}"));
            } else if result.is_error {
                let text: String = result.content.iter().filter_map(Part::as_text).collect();
                self.screen.aside(format_args!("! {}", shorten(&text, 100)));
            }
            results.push(result);
        }
        Ok(results)
    }

    /// What the check says of the work, and what the model is to read of it.
    async fn check(&self) -> (Check, String) {
        let Some((runner, command)) = &self.limits.check else {
            return (Check::Passed, String::new());
        };
        match runner.run(Script::new(command.as_str())).await {
            Ok(done) if done.end == CommandEnd::Exited(0) => (Check::Passed, String::new()),
            Ok(done) => {
                let found =
                    format!("The check `{command}` fails. Make it pass.\n\n{}", done.output);
                (Check::Failed, found)
            }
            Err(error) => (Check::Broken, error.to_string()),
        }
    }
}

/// What the user is to read of a tool's result.
fn user_text(result: &ToolResult) -> Option<&'static str> {
    result.failure.as_ref()?.user_text()
}

/// A run that is out of time after a tool which was not done in time: that is what its user is to read, and not
/// that no model could answer.
fn after_timeout(failure: Failure, request: &ChatRequest) -> Failure {
    let is_over = request.context().deadline.is_some_and(Deadline::is_past);
    match is_over || failure.outward_reason() == Reason::Timeout {
        true => failure.with_evidence(TOOL_TIMEOUT),
        false => failure,
    }
}

/// The turns of a run, in the log. When it is dropped with a turn under way, that one was aborted.
struct TurnLog {
    turns: Turns,
    run: String,
    session: String,
    agent: String,
    screen: Screen,
    /// The conversation has an image in it.
    has_image: bool,
    /// What the layers do for the answer under way.
    steps: RecoveryLog,
    aborted_as: Option<Transition>,
}

impl TurnLog {
    fn new(run: &Run<'_>, most: u32, screen: Screen) -> Self {
        let context = run.request.context();
        let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
        Self {
            turns: Turns::new(most),
            run: run.name.clone(),
            session: name(context.session()),
            agent: name(context.agent()),
            screen,
            has_image: false,
            steps: RecoveryLog::default(),
            aborted_as: Some(Transition::StreamingAborted),
        }
    }

    fn ended(&self) -> u32 {
        self.turns.ended()
    }

    fn runs_tools(&mut self) {
        self.aborted_as = Some(Transition::ToolsAborted);
    }

    /// A model is asked; where its layers are to record what they do.
    fn asks(&mut self) -> RecoveryLog {
        self.steps = RecoveryLog::enabled();
        self.steps.clone()
    }

    /// There is an answer, or there will be none: the turns that layers made for it have ended.
    fn answered(&mut self) {
        for transition in made_inside(&std::mem::take(&mut self.steps).steps()) {
            self.turns.inside(transition);
            self.write(transition);
        }
    }

    fn ends(&mut self, how: TurnEnd<'_>) -> Transition {
        let next = self.turns.end(how);
        self.write(next);
        self.aborted_as = next.goes_on().then_some(Transition::StreamingAborted);
        next
    }

    /// The run has failed; unless its last turn has ended already, it ends by that.
    fn fails(&mut self, failure: &Failure) {
        if self.aborted_as.is_some() {
            self.ends(TurnEnd::Failed { failure, has_image: self.has_image });
        }
    }

    fn write(&self, transition: Transition) {
        let (session, agent, run) = (&*self.session, &*self.agent, &*self.run);
        let (turn, transition) = (self.turns.ended(), transition.as_str());
        tracing::info!(target: "agent", session, agent, run, turn, transition, "a turn has ended");
        if !matches!(transition, "next_turn" | "completed") {
            self.screen.aside(format_args!("= turn {turn}: {transition}"));
        }
    }
}

impl Drop for TurnLog {
    fn drop(&mut self) {
        if let Some(transition) = self.aborted_as {
            self.answered();
            let (session, agent, run) = (&*self.session, &*self.agent, &*self.run);
            let (turn, transition) = (self.turns.ended() + 1, transition.as_str());
            tracing::info!(target: "agent", session, agent, run, turn, transition, "a turn was dropped");
        }
    }
}

fn has_image(message: &Message) -> bool {
    message.parts().iter().any(Part::has_image)
}

/// The beginning of a text, on one line.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{} ..", &text[..end]),
        None => text,
    }
}
