//! What the layer costs, in nanoseconds: a request that needs nothing, for histories of every length,
//! and a compaction of 200,000 tokens by rule.
//!
//! `cargo bench -p steadfast-compact`. Each figure is the least of many rounds; the first lines are the
//! same calls without the layer, to be subtracted.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a bench")]

use std::{
    future::{Ready, ready},
    hint::black_box,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_core::Stream;
use steadfast_chat::{
    ChatRequest, ChatResponse, Delta, Event, Head, Message, Part, Role, transcript::TranscriptRules,
};
use steadfast_compact::{
    CompactionLayer, CompactionPolicy, CompactionTask, Compactor, CountedHistory, Counter,
    TargetFacts, Tier, TokenLimits,
};
use steadfast_core::{CallContext, Dialect, Failure, Target, Usage};
use tokio::time::Instant;
use tower::{Layer, Service};

const MODEL: &str = "claude-sonnet-4-5";

/// Answers at once, with four events.
#[derive(Clone)]
struct Bare;

struct Pieces(u8);

impl Stream for Pieces {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0 += 1;
        let delta = match self.0 {
            1 | 2 => Delta::Text { index: 0, text: String::from("a") },
            3 => Delta::Usage(Usage::new(1_000, 10)),
            4 => Delta::End,
            _ => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Event::new([delta]))))
    }
}

impl Service<ChatRequest> for Bare {
    type Response = ChatResponse<Pieces>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        drop(black_box(request));
        ready(Ok(ChatResponse::new(Head::new(Dialect::Anthropic), Pieces(0))))
    }
}

/// The least time of one of `each` calls, over many rounds.
fn least(each: u32, rounds: usize, mut run: impl FnMut()) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..rounds {
        let began = Instant::now();
        for _ in 0..each {
            run();
        }
        least = least.min(began.elapsed() / each);
    }
    least
}

/// One call, its answer read to the end.
fn call<S, E>(service: &mut S, request: &ChatRequest)
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error = Failure>,
    E: steadfast_chat::Events + Unpin,
{
    let mut cx = Context::from_waker(Waker::noop());
    let mut future = std::pin::pin!(service.call(request.clone()));
    let Poll::Ready(Ok(mut answer)) = future.as_mut().poll(&mut cx) else { return };
    while let Poll::Ready(Some(event)) = Pin::new(&mut answer).poll_next(&mut cx) {
        drop(black_box(event));
    }
}

fn history(length: usize) -> Vec<Message> {
    (0..length)
        .map(|at| match at % 2 {
            0 => Message::user(format!("question {at}")),
            _ => Message::assistant(format!("answer {at}: it is so, and was so before")),
        })
        .collect()
}

fn idle() {
    println!("a request that needs nothing        messages        ns");
    for (name, session) in [("in a session", Some("s")), ("without a name", None)] {
        for length in [1, 10, 30, 100, 350, 1_000, 2_000] {
            let mut context =
                CallContext::new().with_target(Target::new("anthropic").with_model(MODEL));
            if let Some(session) = session {
                context = context.with_tenant("t").with_session(session);
            }
            let request = ChatRequest::new(history(length)).with_model(MODEL).with_context(context);
            let layer = CompactionLayer::rules_only()
                .with_targets(|_| TargetFacts::default().with_limits(TokenLimits::new(1_000_000)));
            let mut service = layer.layer(Bare);
            let bare = least(1_000, 60, || call(&mut Bare, &request));
            let layered = least(1_000, 60, || call(&mut service, &request));
            let own = layered.saturating_sub(bare).as_nanos();
            println!("{name:<34}{length:>10}{own:>10}   ({} bare)", bare.as_nanos());
        }
    }
}

/// Steps of an agent, of 200,000 tokens in all.
fn large() -> Vec<Message> {
    let mut list = vec![Message::user("Read it all.")];
    for number in 0..100 {
        let id = format!("call_{number}");
        let arguments = format!(r#"{{"path":"src/module_{number}.rs"}}"#);
        let call = Part::tool_call(&id, "read_file", arguments);
        list.push(Message::new(Role::Assistant, vec![call]));
        let result = format!("line {number} is as long as lines are, in most files\n").repeat(112);
        list.push(Message::new(Role::User, vec![Part::tool_result(&id, result)]));
    }
    list
}

fn compaction() {
    println!("\na conversation of 200,000 tokens");
    let request = ChatRequest::new(large()).with_model(MODEL);
    let counter = Counter::default();
    let first = least(1, 1, || {
        black_box(counter.count(&mut CountedHistory::default(), &request, MODEL));
    });
    let count = counter.count(&mut CountedHistory::default(), &request, MODEL);
    println!("counted for the first time, {} tokens: {first:?}", count.tokens);
    let again = least(1, 20, || {
        black_box(counter.count(&mut CountedHistory::default(), &request, MODEL));
    });
    println!("counted again, with nothing remembered: {again:?}");

    let policy = CompactionPolicy::default();
    let compactor = Compactor::new(policy.clone()).unwrap();
    let rules = TranscriptRules::for_dialect(Dialect::Anthropic);
    let weigh = |message: &Message| counter.message(message, MODEL);
    let mut task = CompactionTask::new(&rules, &weigh);
    task.room = policy.room(TokenLimits::new(220_000), None, true);
    task.fixed = count.fixed;
    task.measured = Some(count.upper);
    let mut tier = Tier::None;
    let mut rng = fastrand::Rng::with_seed(7);
    let strip = least(1, 50, || {
        let mut request = request.clone();
        let run = compactor.run(&mut request, &task, &mut rng).unwrap();
        tier = run.map_or(Tier::None, |run| run.report.tier);
        black_box(request);
    });
    println!("tier 1 (`{}`): {strip:?}", tier.as_str());

    let list: Vec<_> = (0..2_000)
        .map(|at| match at % 2 {
            0 => Message::user(format!("question {at}: {}", "why is it so? ".repeat(16))),
            _ => Message::assistant(format!("answer {at}: {}", "it is so. ".repeat(16))),
        })
        .chain([Message::user("and now?")])
        .collect();
    let talk = ChatRequest::new(list).with_model(MODEL);
    task.measured = Some(counter.count(&mut CountedHistory::default(), &talk, MODEL).upper);
    let fallback = least(1, 10, || {
        let mut request = talk.clone();
        let run = compactor.run(&mut request, &task, &mut rng).unwrap();
        tier = run.map_or(Tier::None, |run| run.report.tier);
        black_box(request);
    });
    println!("tier 4 (`{}`), 2,000 messages: {fallback:?}", tier.as_str());
}

fn main() {
    // `cargo test --all-targets` asks for nothing.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    idle();
    compaction();
}
