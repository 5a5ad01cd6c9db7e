//! The loop of an agent: a model's answer, its tools, the next answer.

use futures_util::StreamExt;
use steadfast::{
    Call, ChatRequest, ChatService, Completion, Delta, Failure, Message, Part, RecoveryLog, Role,
    ToolCall, ToolRequest,
    session::{SessionTurn, TurnSink},
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
        let mut log = TurnLog::new(&run.request, self.limits.most_turns, self.screen.clone());
        let ended = self.turns(run, &mut log).await;
        if let Err(failure) = &ended {
            log.fails(failure);
        }
        ended
    }

    async fn turns(&self, run: Run<'_>, log: &mut TurnLog) -> Result<SessionTurn, Failure> {
        let Run { mut request, turns: kept, heard } = run;
        let mut budget = self.limits.token_budget.map(TokenBudget::new);
        // What the user's side adds before the next answer.
        let mut pending: Vec<Message> = Vec::new();
        loop {
            pending.extend(std::iter::from_fn(heard).map(Message::user));
            log.has_image = request.messages.iter().any(has_image);
            let steps = RecoveryLog::enabled();
            let answer = self.answer(&request, &pending, steps.clone()).await;
            log.made_inside(&steps);
            let answer = answer?;
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
                turn.push(self.run_tools(&request, calls).await?);
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
    ) -> Result<Message, Failure> {
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            let shown = shorten(&call.arguments, 100);
            self.screen.aside(format_args!("> {} {shown}", call.name));
            let spinner = self.screen.spinner("working");
            let request = ToolRequest::new(request.context().clone(), call);
            let result = self.tools.clone().oneshot(request).await?;
            drop(spinner);
            if result.is_error {
                let text: String = result.content.iter().filter_map(Part::as_text).collect();
                self.screen.aside(format_args!("! {}", shorten(&text, 100)));
            }
            results.push(Part::ToolResult(result));
        }
        Ok(Message::new(Role::Tool, results))
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

/// The turns of a run, in the log. When it is dropped with a turn under way, that one was aborted.
struct TurnLog {
    turns: Turns,
    session: String,
    agent: String,
    screen: Screen,
    /// The conversation has an image in it.
    has_image: bool,
    aborted_as: Option<Transition>,
}

impl TurnLog {
    fn new(request: &ChatRequest, most: u32, screen: Screen) -> Self {
        let context = request.context();
        let name = |name: Option<&str>| name.unwrap_or_default().to_owned();
        Self {
            turns: Turns::new(most),
            session: name(context.session()),
            agent: name(context.agent()),
            screen,
            has_image: false,
            aborted_as: Some(Transition::StreamingAborted),
        }
    }

    fn ended(&self) -> u32 {
        self.turns.ended()
    }

    fn runs_tools(&mut self) {
        self.aborted_as = Some(Transition::ToolsAborted);
    }

    fn made_inside(&mut self, log: &RecoveryLog) {
        for transition in made_inside(&log.steps()) {
            if let Some(transition) = self.turns.inside(transition) {
                self.write(transition);
            }
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
        let (turn, session, agent) = (self.turns.ended(), &*self.session, &*self.agent);
        let transition = transition.as_str();
        tracing::info!(target: "agent", session, agent, turn, transition, "a turn has ended");
        if !matches!(transition, "next_turn" | "completed") {
            self.screen.aside(format_args!("= turn {turn}: {transition}"));
        }
    }
}

impl Drop for TurnLog {
    fn drop(&mut self) {
        if let Some(transition) = self.aborted_as {
            let (turn, session, agent) = (self.turns.ended() + 1, &*self.session, &*self.agent);
            let transition = transition.as_str();
            tracing::info!(target: "agent", session, agent, turn, transition, "a turn was dropped");
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
