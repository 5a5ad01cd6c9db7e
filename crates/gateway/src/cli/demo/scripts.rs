//! Scripts after the load: one fault each that takes more than asking again, run against
//! the same gateway and the same providers.

use std::fmt;

use serde::Serialize;
use steadfast::{ChatRequest, Completion, Failure, Message, Part, Reason, Role, Tool};
use steadfast_sim::{Answer, ContinuationMode, Fault, FaultPlan, How, PlanRule};

use super::{Running, load};

/// A script that has run.
#[derive(Debug, Serialize)]
pub(super) struct Script {
    /// What goes wrong.
    what: &'static str,
    /// Whether it ended as it should.
    pub(super) good: bool,
    /// What was seen.
    seen: String,
}

/// Runs all of them.
pub(super) async fn run(running: &Running) -> Vec<Script> {
    // What the load has shown of the providers does not decide which of them gets a script's fault.
    running.app.gateway().handles().failover.reset_all();
    let all = vec![
        broken(running).await,
        cut(running).await,
        long(running).await,
        circles(running).await,
    ];
    running.scenario.set(&FaultPlan::none(), &[]);
    all
}

/// A text of `sentences` sentences.
fn tale(sentences: usize) -> String {
    let mut tale = String::new();
    for n in 1..=sentences {
        let end = if n == sentences { "" } else { " " };
        tale.push_str(&format!(
            "On night {n} the keeper lit lamp {} and wrote it down.{end}",
            n * 7
        ));
    }
    tale
}

/// A stream breaks in the middle of a sentence.
async fn broken(running: &Running) -> Script {
    let whole = tale(20);
    let breaks = PlanRule::new(Fault::break_after(40, How::Reset)).provider("anthropic").nth(1);
    running.scenario.set(
        &FaultPlan::none().rule(breaks),
        &[Answer::text(whole.as_str()).continuation(ContinuationMode::Faithful)],
    );
    let before = running.app.gateway().handles().resume.snapshot();
    let mut request = ChatRequest::user("Write about the lighthouse.").streaming();
    request.params.max_output = Some(4_000);
    let answer = running.load.answer_as("anthropic", "claude-sonnet-4-5", request).await;
    let after = running.app.gateway().handles().resume.snapshot();
    let (broken, resumed) = (after.broken - before.broken, after.resumed - before.resumed);
    let (good, outcome) = compare(&answer, &whole);
    Script {
        what: "a stream that breaks in the middle",
        good: good && broken == 1 && resumed == 1,
        seen: format!("{outcome}; {broken} break, {resumed} resume"),
    }
}

/// An answer three times as long as the output limit of its provider.
async fn cut(running: &Running) -> Script {
    let whole = tale(60);
    running.scenario.set(
        &FaultPlan::none().rule(PlanRule::new(Fault::OutputLimit(300))),
        &[Answer::text(whole.as_str()).continuation(ContinuationMode::Faithful)],
    );
    let before = running.app.gateway().handles().continuation.snapshot();
    let request = ChatRequest::user("Write all about the lighthouse.").streaming();
    let answer = running.load.answer_as("openai", "gpt-4o", request).await;
    let after = running.app.gateway().handles().continuation.snapshot();
    let continued = after.continued - before.continued;
    let (good, outcome) = compare(&answer, &whole);
    Script {
        what: "an answer longer than its output limit of 300",
        good: good && continued > 0,
        seen: format!("{outcome}; continued {continued} times"),
    }
}

/// A conversation of twice its model's window.
async fn long(running: &Running) -> Script {
    running.scenario.set(&FaultPlan::none(), &[Answer::text("The lens, first of all.")]);
    let mut request = ChatRequest::user("Never touch the lamp oil. What is to be done?");
    let messages = request.messages.make_mut();
    for n in 0..100 {
        messages.push(Message::assistant(format!("Day {n}. {}", tale(16))));
        messages.push(Message::user(format!("And after day {n}? {}", tale(4))));
    }
    request.params.max_output = Some(1_000);
    let before = running.app.gateway().handles().compaction.snapshot();
    let answer = running.load.answer_as("openai", "gpt-3.5-turbo", request).await;
    let after = running.app.gateway().handles().compaction.snapshot();
    let compacted = after.counts.compacted - before.counts.compacted;
    let (good, outcome) = compare(&answer, "The lens, first of all.");
    let saved = after.conversations.iter().map(|one| one.saved).max().unwrap_or(0);
    let with = match after.counts.summarised - before.counts.summarised {
        0 => "with a list of facts",
        _ => "with another model's summary",
    };
    Script {
        what: "a conversation that outgrew its model's window of 16,385 tokens",
        good: good && compacted == 1,
        seen: format!("{outcome}; compacted {with}, {saved} tokens less"),
    }
}

/// An agent that lists the same directory for ever.
async fn circles(running: &Running) -> Script {
    let mut request = ChatRequest::user("Find the configuration file.")
        .with_tools(vec![Tool::function("list_dir", "Lists a directory.", load::schema())]);
    request.params.max_output = Some(1_000);
    let (mut calls, mut advised) = (0, 0);
    let stopped = loop {
        let list = Answer::tool_call("list_dir", r#"{"what":"."}"#);
        running.scenario.set(&FaultPlan::none(), &[list]);
        let answer =
            running.load.answer_as("anthropic", "claude-sonnet-4-5", request.clone()).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => break failure,
        };
        let call = answer.tool_calls().next().cloned();
        let Some(call) = call.filter(|_| calls < 20) else {
            break Failure::new(Reason::Unknown, "the agent was not stopped");
        };
        calls += 1;
        let messages = request.messages.make_mut();
        let asked = Part::tool_call(call.id.as_str(), call.name.as_str(), "{\"what\":\".\"}");
        messages.push(Message::new(Role::Assistant, vec![asked]));
        messages.push(Message::tool(call.id.as_str(), "src  tests  README.md"));
        advised = running.app.metrics().count("guard", "advised");
    };
    let (_, stop) = stopped.message().split_once("circles: ").unwrap_or_default();
    let stop = stop.split('.').next().unwrap_or_default().to_owned();
    Script {
        what: "an agent that makes the same call for ever",
        good: stopped.message().contains("goes in circles") && advised > 0 && calls <= 5,
        seen: format!("advised after 3 calls, stopped after {calls}: {stop}"),
    }
}

fn compare(answer: &Result<Completion, Failure>, whole: &str) -> (bool, String) {
    match answer {
        Ok(answer) if answer.text() == whole => {
            (true, format!("all {} bytes arrived, once and in order", whole.len()))
        }
        Ok(answer) => {
            let got = answer.text().len();
            (false, format!("{got} of {} bytes, or others than were sent", whole.len()))
        }
        Err(failure) => (false, format!("failed: {failure}")),
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.good { "ok " } else { "NOT" };
        write!(f, "{mark} {}\n      {}", self.what, self.seen)
    }
}
