//! Answers that break, hang and are cut off at random points, through the whole stack: in every run
//! a caller reads the beginning of one answer, once and in order, and then its proper end or one
//! failure.
//!
//! The models are faithful: they continue what a request asks them to continue. A failed assertion
//! names its seed. `STEADFAST_SEEDS` runs more seeds, `STEADFAST_SEED` one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{num::NonZeroU32, time::Duration};

use fastrand::Rng;
use steadfast::{
    ChatRequest, Dialect, Handles, Reason, RecoveryLog, RetryBudget, Stack, StopReason, Tool,
    breaker::{BreakerPolicy, CircuitBreakerLayer},
    recover::{ContinuationLayer, OutputLimits},
    sim::{
        Answer, ContinuationMode, ErrorKind, Fault, FaultPlan, How, Latency, PlanRule, SimProvider,
        SimRequest,
    },
    timeout::{StallPolicy, StallTimeoutLayer},
};
use steadfast_tests::{
    harness::{CallResult, chain, client, trio},
    seeds,
};

/// Seeds of a default run: a few seconds.
const SEEDS: u64 = 300;

/// The answer to question `number`: the same at each provider.
fn whole(number: u64) -> Answer {
    let mut rng = Rng::with_seed(number);
    let mut answer = if rng.u8(..4) == 0 {
        Answer::thinking(prose(&mut rng, 3)).then_text(prose(&mut rng, 10))
    } else {
        let length = rng.usize(4..40);
        Answer::text(prose(&mut rng, length))
    };
    if rng.u8(..5) == 0 {
        answer =
            answer.then_tool_call("look_up", format!(r#"{{"q":"{}","n":{number}}}"#, rng.u32(..)));
    }
    answer.continuation(ContinuationMode::Faithful).in_chunks_of(rng.usize(3..20))
}

/// So many sentences of invented words, none of them twice.
fn prose(rng: &mut Rng, sentences: usize) -> String {
    let syllables =
        ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu", "fj\u{f8}", "\u{e9}l"];
    let mut text = String::new();
    for n in 0..sentences {
        for word in 0..rng.usize(4..12) {
            let letters: String =
                (0..rng.usize(1..4)).map(|_| syllables[rng.usize(..12)]).collect();
            text += if word == 0 { "" } else { " " };
            text += &letters;
        }
        text += &format!(" {}.", rng.u16(..));
        text += if n + 1 == sentences { "" } else { " " };
    }
    text
}

/// The question's number.
fn number(asked: &SimRequest) -> Option<u64> {
    let texts = asked.body.to_string();
    let (_, rest) = texts.split_once("Question ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Faults of all kinds, most of them in the middle of an answer.
fn plan(rng: &mut Rng) -> FaultPlan {
    let mut plan = FaultPlan::none().seed(rng.u64(..));
    for _ in 0..rng.usize(..4) {
        let how = match rng.u8(..8) {
            0 => How::Close,
            1 => How::End,
            2 => How::Stall,
            3 => How::TruncatedJson,
            4 => How::Garbage,
            5 => How::ErrorEvent(ErrorKind::Overloaded),
            _ => How::Reset,
        };
        let fault = match rng.u8(..10) {
            0 => Fault::Error(ErrorKind::ServerError),
            1 => Fault::Reset,
            2 => Fault::OutputLimit(rng.u64(20..200)),
            _ => Fault::break_after(rng.usize(..60), how),
        };
        let rule = PlanRule::new(fault);
        plan = plan.rule(match rng.bool() {
            true => rule.nth(rng.u64(1..6)),
            false => rule.probability(rng.f64() * 0.7),
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
    fn new(rng: &mut Rng) -> Self {
        let plans = [plan(rng), plan(rng), plan(rng)];
        let seed = rng.u64(..);
        let sims = trio(|dialect, sim| {
            let at = [Dialect::Anthropic, Dialect::OpenAi, Dialect::Gemini];
            let at = at.iter().position(|one| *one == dialect).unwrap();
            sim.with_seed(seed)
                .with_latency(Latency {
                    headers: Duration::from_millis(20),
                    per_token: Duration::from_millis(5),
                    jitter: 0.5,
                })
                .respond(|asked| number(asked).map(whole))
                .with_faults(plans[at].clone())
        });
        let stall = StallPolicy { stall: Duration::from_secs(2), ..StallPolicy::default() };
        let breaker =
            BreakerPolicy { consecutive: Some(rng.u32(2..8)), ..BreakerPolicy::default() };
        // The smallest output limit of the three models.
        let most = OutputLimits { max_output: Some(16_384), window: None };
        let continuation = ContinuationLayer::default()
            .tune(|policy| policy.when_callers_limit = true)
            .unwrap()
            .with_limits(move |_, _| most);
        let stack = Stack::new(chain(&sims))
            .with_continuation(continuation)
            .with_stall(StallTimeoutLayer::new(stall).unwrap())
            .with_breaker(CircuitBreakerLayer::new(breaker).unwrap());
        let stack = if rng.bool() {
            stack.with_budget(RetryBudget::default())
        } else {
            stack.without_budget()
        };
        let handles = stack.handles();
        Self { sims, stack, handles }
    }
}

/// The counts of a seed.
#[derive(Debug, Default)]
struct Tally {
    whole: u32,
    failed: u32,
    resumed: u64,
    continued: u64,
}

async fn live(seed: u64) -> Tally {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(&mut rng);
    let service = world.stack.boxed(client(&world.sims));
    let mut tally = Tally::default();
    for _ in 0..rng.u32(1..4) {
        let asked = rng.u64(..1 << 40);
        let mut request = ChatRequest::user(format!("Question {asked}: what of it?"))
            .with_model("any")
            .with_tools(vec![Tool::function(
                "look_up",
                "Looks up.",
                steadfast::RawJson::parse(r#"{"type":"object"}"#).unwrap(),
            )]);
        request.stream = rng.u8(..4) > 0;
        request.params.max_output = Some([300, 500, 4_000][rng.usize(..3)]);
        if rng.u8(..6) == 0 {
            request.context.max_attempts = NonZeroU32::new(rng.u32(1..6));
        }
        let most = request.context.max_attempts;
        let log = RecoveryLog::enabled();
        request.context.log = log.clone();
        let before = asked_so_far(&world);
        let got = CallResult::of(&service, request).await;
        let at = format!("STEADFAST_SEED={seed}, question {asked}");
        check(&got, &whole(asked), &at, &mut tally);
        let made = asked_so_far(&world) - before;
        assert_eq!(log.attempts() as usize, made, "{at}: attempts in the log");
        if let Some(seen) = &got.seen {
            assert!(seen.head.attempts as usize <= made, "{at}: attempts in the head");
        }
        if let Some(failure) = &got.failure {
            assert!(failure.attempts() as usize <= made, "{at}: {failure:?} of {made}");
        }
        if let Some(most) = most {
            assert!(made <= most.get() as usize, "{at}: {made} attempts of {most}");
        }
        // 3 targets, 11 attempts each, for the answer and 2 resumes, 5 pieces of it.
        assert!(made <= 3 * 11 * 3 * 5, "{at}: {made} attempts");
    }
    let (resume, cut) = (world.handles.resume.snapshot(), world.handles.continuation.snapshot());
    (tally.resumed, tally.continued) = (resume.resumed, cut.continued);
    check_at_rest(&world, seed);
    tally
}

fn asked_so_far(world: &World) -> usize {
    world.sims.iter().map(|sim| sim.journal().entries().len()).sum()
}

/// Checks that a caller got the beginning of the answer, and then its end or one failure.
fn check(got: &CallResult, whole: &Answer, at: &str, tally: &mut Tally) {
    let mut sent = whole.clone();
    sent.cut(u64::MAX);
    let (text, calls) = parts(&sent);
    let Some(seen) = &got.seen else {
        assert!(got.failure.is_some(), "{at}");
        tally.failed += 1;
        return;
    };
    let received = seen.text();
    assert!(text.starts_with(&received), "{at}: {received:?} of {text:?}");
    let received_calls: Vec<String> =
        seen.tool_calls().map(|call| call.arguments.to_string()).collect();
    if let Some(failure) = &got.failure {
        tally.failed += 1;
        assert!(!seen.ended, "{at}: an end and a failure");
        assert_ne!(
            failure.reason(),
            Reason::Format,
            "{at}: a request that no provider accepts: {failure}"
        );
        return;
    }
    assert!(seen.ended, "{at}");
    let stop = seen.stop.as_ref().map(|stop| stop.reason);
    if stop == Some(StopReason::MaxTokens) {
        assert_eq!(received_calls, Vec::<String>::new(), "{at}: a call that was cut off");
        return;
    }
    tally.whole += 1;
    assert_eq!(received, text, "{at}: an end before the end");
    assert_eq!(received_calls, calls, "{at}");
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

/// Checks that nothing is in flight.
fn check_at_rest(world: &World, seed: u64) {
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
            // Not a rate limit or a fault: a request that no provider accepts.
            assert_eq!(entry.refused, None, "STEADFAST_SEED={seed}: {entry:?}");
        }
    }
}

#[test]
fn invariants_hold_for_broken_answers() {
    let seeds = match seeds::number("STEADFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..seeds::number("STEADFAST_SEEDS").unwrap_or(SEEDS),
    };
    let many = seeds.end - seeds.start >= SEEDS;
    let mut all = Tally::default();
    for seed in seeds {
        let tally = seeds::paused().build().unwrap().block_on(live(seed));
        all.whole += tally.whole;
        all.failed += tally.failed;
        all.resumed += tally.resumed;
        all.continued += tally.continued;
    }
    println!("{all:?}");
    if many {
        // So many seeds must have all of these, often.
        assert!(all.whole > 300 && all.failed > 10, "{all:?}");
        assert!(all.resumed > 60 && all.continued > 15, "{all:?}");
    }
}
