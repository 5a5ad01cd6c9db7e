//! Answers that break, hang and are cut off at random, in the middle of anything, through the whole
//! stack: whatever happens, a caller has read the beginning of one answer, once and in order, and
//! then its proper end or one failure.
//!
//! The models are faithful: what they are asked to go on with, they go on with. A seed is a world;
//! one that fails says which. `STEADFAST_SEEDS` runs more of them, `STEADFAST_SEED` one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{env, num::NonZeroU32, time::Duration};

use fastrand::Rng;
use steadfast::{
    ChatRequest, Dialect, Handles, Reason, RetryBudget, Stack, StopReason, Tool,
    breaker::{BreakerPolicy, CircuitBreakerLayer},
    recover::{ContinuationLayer, OutputLimits},
    sim::{Answer, Asked, ErrorKind, Fault, FaultPlan, GoesOn, How, Latency, Rule, SimProvider},
    timeout::{StallPolicy, StallTimeoutLayer},
};
use steadfast_tests::harness::{Got, chain, client, trio};

/// Seeds of a usual run: a few seconds.
const SEEDS: u64 = 300;

/// What a provider says to question `number`: the same at each of them.
fn whole(number: u64) -> Answer {
    let mut dice = Rng::with_seed(number);
    let mut answer = if dice.u8(..4) == 0 {
        Answer::thinking(prose(&mut dice, 3)).then_text(prose(&mut dice, 10))
    } else {
        let length = dice.usize(4..40);
        Answer::text(prose(&mut dice, length))
    };
    if dice.u8(..5) == 0 {
        answer =
            answer.then_tool_call("look_up", format!(r#"{{"q":"{}","n":{number}}}"#, dice.u32(..)));
    }
    answer.goes_on(GoesOn::Faithful).in_chunks_of(dice.usize(3..20))
}

/// So many sentences of invented words, none of them twice.
fn prose(dice: &mut Rng, sentences: usize) -> String {
    let syllables =
        ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu", "fj\u{f8}", "\u{e9}l"];
    let mut text = String::new();
    for n in 0..sentences {
        for word in 0..dice.usize(4..12) {
            let letters: String =
                (0..dice.usize(1..4)).map(|_| syllables[dice.usize(..12)]).collect();
            text += if word == 0 { "" } else { " " };
            text += &letters;
        }
        text += &format!(" {}.", dice.u16(..));
        text += if n + 1 == sentences { "" } else { " " };
    }
    text
}

/// The question's number.
fn number(asked: &Asked) -> Option<u64> {
    let texts = asked.body.to_string();
    let (_, rest) = texts.split_once("Question ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Faults of all kinds, most of them in the middle.
fn plan(dice: &mut Rng) -> FaultPlan {
    let mut plan = FaultPlan::none().seed(dice.u64(..));
    for _ in 0..dice.usize(..4) {
        let how = match dice.u8(..8) {
            0 => How::Close,
            1 => How::End,
            2 => How::Stall,
            3 => How::TruncatedJson,
            4 => How::Garbage,
            5 => How::ErrorEvent(ErrorKind::Overloaded),
            _ => How::Reset,
        };
        let fault = match dice.u8(..10) {
            0 => Fault::Error(ErrorKind::ServerError),
            1 => Fault::Reset,
            2 => Fault::OutputLimit(dice.u64(20..200)),
            _ => Fault::break_after(dice.usize(..60), how),
        };
        let rule = Rule::new(fault);
        plan = plan.rule(match dice.bool() {
            true => rule.nth(dice.u64(1..6)),
            false => rule.probability(dice.f64() * 0.7),
        });
    }
    plan
}

struct World {
    sims: Vec<SimProvider>,
    stack: Stack,
    handles: Handles,
}

impl World {
    fn new(dice: &mut Rng) -> Self {
        let plans = [plan(dice), plan(dice), plan(dice)];
        let seed = dice.u64(..);
        let sims = trio(|dialect, sim| {
            let at = [Dialect::Anthropic, Dialect::OpenAi, Dialect::Gemini];
            let at = at.iter().position(|one| *one == dialect).unwrap();
            sim.seed(seed)
                .latency(Latency {
                    headers: Duration::from_millis(20),
                    per_token: Duration::from_millis(5),
                    jitter: 0.5,
                })
                .respond(|asked| number(asked).map(whole))
                .faults(plans[at].clone())
        });
        let stall = StallPolicy { stall: Duration::from_secs(2), ..StallPolicy::default() };
        let breaker =
            BreakerPolicy { consecutive: Some(dice.u32(2..8)), ..BreakerPolicy::default() };
        // What the least of them writes at most.
        let most = OutputLimits { max_output: Some(16_384), window: None };
        let stack = Stack::new(chain(&sims))
            .continuation(ContinuationLayer::default().limits(move |_, _| most))
            .stall(StallTimeoutLayer::new(stall).unwrap())
            .breaker(CircuitBreakerLayer::new(breaker).unwrap());
        let stack =
            if dice.bool() { stack.budget(RetryBudget::default()) } else { stack.without_budget() };
        let handles = stack.handles();
        Self { sims, stack, handles }
    }
}

/// What came of a seed, for those who count.
#[derive(Debug, Default)]
struct Tally {
    whole: u32,
    failed: u32,
    resumed: u64,
    continued: u64,
}

async fn live(seed: u64) -> Tally {
    let mut dice = Rng::with_seed(seed);
    let world = World::new(&mut dice);
    let service = world.stack.boxed(client(&world.sims));
    let mut tally = Tally::default();
    for _ in 0..dice.u32(1..4) {
        let asked = dice.u64(..1 << 40);
        let mut request = ChatRequest::user(format!("Question {asked}: what of it?"))
            .with_model("any")
            .with_tools(vec![Tool::function(
                "look_up",
                "Looks up.",
                steadfast::RawJson::parse(r#"{"type":"object"}"#).unwrap(),
            )]);
        request.stream = dice.u8(..4) > 0;
        request.params.max_output = Some([300, 500, 4_000][dice.usize(..3)]);
        if dice.u8(..6) == 0 {
            request.context.max_attempts = NonZeroU32::new(dice.u32(1..6));
        }
        let most = request.context.max_attempts;
        let before = asked_so_far(&world);
        let got = Got::of(&service, request).await;
        let at = format!("STEADFAST_SEED={seed}, question {asked}");
        check(&got, &whole(asked), &at, &mut tally);
        let made = asked_so_far(&world) - before;
        if let Some(most) = most {
            assert!(made <= most.get() as usize, "{at}: {made} attempts of {most}");
        }
        // 3 targets, 11 attempts each, for the answer and 2 resumes, 5 pieces of it.
        assert!(made <= 3 * 11 * 3 * 5, "{at}: {made} attempts");
    }
    let (resume, cut) = (world.handles.resume.snapshot(), world.handles.continuation.snapshot());
    (tally.resumed, tally.continued) = (resume.resumed, cut.continued);
    left(&world, seed);
    tally
}

fn asked_so_far(world: &World) -> usize {
    world.sims.iter().map(|sim| sim.journal().entries().len()).sum()
}

/// What one caller got: the beginning of the answer, and then its end or one failure.
fn check(got: &Got, whole: &Answer, at: &str, tally: &mut Tally) {
    let mut sent = whole.clone();
    sent.cut(u64::MAX);
    let (text, calls) = parts(&sent);
    let Some(seen) = &got.seen else {
        assert!(got.failure.is_some(), "{at}");
        tally.failed += 1;
        return;
    };
    let told = seen.text();
    assert!(text.starts_with(&told), "{at}: told {told:?} of {text:?}");
    let told_calls: Vec<String> =
        seen.tool_calls().map(|call| call.arguments.to_string()).collect();
    if let Some(failure) = &got.failure {
        tally.failed += 1;
        assert!(!seen.ended, "{at}: an end and a failure");
        assert_ne!(
            failure.reason(),
            Reason::Format,
            "{at}: a request that nobody takes: {failure}"
        );
        return;
    }
    assert!(seen.ended, "{at}");
    let stop = seen.stop.as_ref().map(|stop| stop.reason);
    if stop == Some(StopReason::MaxTokens) {
        assert_eq!(told_calls, Vec::<String>::new(), "{at}: a call that was cut off is nobody's");
        return;
    }
    tally.whole += 1;
    assert_eq!(told, text, "{at}: an end before the end");
    assert_eq!(told_calls, calls, "{at}");
}

fn parts(answer: &Answer) -> (String, Vec<String>) {
    use steadfast::sim::Block;
    let (mut text, mut calls) = (String::new(), Vec::new());
    for block in &answer.blocks {
        match block {
            Block::Text(more) => text += more,
            Block::ToolCall { arguments, .. } => calls.push(arguments.clone()),
            _ => {}
        }
    }
    (text, calls)
}

/// Nothing is left of what is over.
fn left(world: &World, seed: u64) {
    for breaker in world.handles.breaker.snapshot() {
        assert_eq!(
            (breaker.circuit.probes, breaker.circuit.lone),
            (0, 0),
            "STEADFAST_SEED={seed}: {breaker:?}"
        );
    }
    for health in world.handles.failover.snapshot().targets() {
        assert!(!health.probing, "STEADFAST_SEED={seed}: {health:?}");
    }
    for sim in &world.sims {
        for entry in sim.journal().entries() {
            assert!(entry.ended_at.is_some(), "STEADFAST_SEED={seed}: left open: {entry:?}");
            // A rate limit or a fault is no refusal: this is what no provider takes.
            assert_eq!(entry.refused, None, "STEADFAST_SEED={seed}: {entry:?}");
        }
    }
}

#[test]
fn whatever_happens_nothing_is_lost_and_nothing_comes_twice() {
    let number = |name: &str| env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let seeds = match number("STEADFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("STEADFAST_SEEDS").unwrap_or(SEEDS),
    };
    let many = seeds.end - seeds.start >= SEEDS;
    let mut all = Tally::default();
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let tally = runtime.block_on(live(seed));
        all.whole += tally.whole;
        all.failed += tally.failed;
        all.resumed += tally.resumed;
        all.continued += tally.continued;
    }
    println!("{all:?}");
    if many {
        // The faults are such that all of it happens, often.
        assert!(all.whole > 300 && all.failed > 10, "{all:?}");
        assert!(all.resumed > 60 && all.continued > 15, "{all:?}");
    }
}
