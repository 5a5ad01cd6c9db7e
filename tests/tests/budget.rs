//! What bounds a call over all layers together: the shared retry budget, the limit of attempts, the
//! deadline, and the caller's priority.

#![allow(clippy::unwrap_used)]

use std::{num::NonZeroU32, time::Duration};

use steadfast::{
    Backoff, ChatRequest, ChatService, Deadline, Dialect, Jitter, Priority, Reason, RecoveryTable,
    RetryBudget, Stack, TimeLimit,
    breaker::{BreakerPolicy, CircuitBreakerLayer},
    retry::{RetryBackoffLayer, RetryPolicy},
    sim::{Drip, End, ErrorKind, Fault, FaultPlan, How, RateLimit, SimProvider},
    timeout::{DeadlineLayer, StallPolicy, StallTimeoutLayer},
};
use steadfast_tests::harness::{self, CallResult};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const RETRIES: u32 = 2;

/// The attempts of a call whose targets all fail, when nothing else ends it.
const ATTEMPTS: usize = 10;

/// The attempts of a call at one target that the budget does not pay: the first, and two repetitions.
const FREE: usize = 3;

/// The trio, with `fault` at each of the first `down`.
fn providers(down: usize, fault: &Fault) -> Vec<SimProvider> {
    let sims = harness::trio(|_, provider| provider);
    for provider in &sims[..down] {
        provider.set_faults(FaultPlan::always(fault.clone()));
    }
    sims
}

fn stack(sims: &[SimProvider]) -> Stack {
    let backoff = Backoff::default().with_jitter(Jitter::None).unwrap();
    let policy = RetryPolicy { retries: RETRIES, backoff, ..RetryPolicy::transient() };
    let stall = StallPolicy { stall: Duration::from_secs(5), ..StallPolicy::default() };
    Stack::new(harness::chain(sims))
        .with_retry(RetryBackoffLayer::new(policy).unwrap())
        .with_stall(StallTimeoutLayer::new(stall).unwrap())
}

/// `stack` without cooldowns and with a breaker that refuses nothing, so that only the budget limits the
/// attempts of a call below ten.
fn budget_only(stack: Stack) -> Stack {
    let zero = Duration::ZERO;
    let table = [Reason::ServerError, Reason::Overloaded, Reason::Network]
        .into_iter()
        .fold(RecoveryTable::default(), |table, reason| table.with_cooldown(reason, zero));
    let observe = BreakerPolicy { observe: true, ..BreakerPolicy::default() };
    stack.with_table(table).with_breaker(CircuitBreakerLayer::new(observe).unwrap())
}

fn calls_made(sims: &[SimProvider]) -> usize {
    sims.iter().map(|provider| provider.journal().len()).sum()
}

fn ask(stream: bool) -> ChatRequest {
    let request = ChatRequest::user("hello").with_model("any").with_max_output(200);
    if stream { request.streaming() } else { request }
}

async fn all_at_once(service: &ChatService, calls: usize) {
    let mut running = JoinSet::new();
    for _ in 0..calls {
        let service = service.clone();
        running.spawn(async move { CallResult::of(&service, ask(false)).await });
    }
    while let Some(got) = running.join_next().await {
        assert!(got.unwrap().failure.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_pair_gets_what_is_free_of_each_call_and_what_the_budget_holds() {
    for (fault, cost) in [
        (Fault::Error(ErrorKind::ServerError), 14),
        (Fault::Error(ErrorKind::Overloaded), 5),
        (Fault::Reset, 5),
    ] {
        for at_once in [false, true] {
            let sims = providers(2, &fault)[..2].to_vec();
            let budget = RetryBudget::default();
            let stack = budget_only(stack(&sims)).with_budget(budget.clone());
            let service = stack.boxed(harness::client(&sims));
            let calls = 150;
            if at_once {
                all_at_once(&service, calls).await;
            } else {
                for _ in 0..calls {
                    all_at_once(&service, 1).await;
                }
            }
            let at = format!("{fault:?}, at once: {at_once}");
            assert_eq!(calls_made(&sims), calls * 2 * FREE + 500 / cost, "{at}");
            assert!((budget.remaining() as usize) < cost, "{at}: {budget:?}");

            // Healthy again: every answer puts one token back, and retries are possible again.
            sims.iter().for_each(|provider| provider.set_faults(FaultPlan::none()));
            let left = budget.remaining();
            for _ in 0..20 {
                CallResult::of(&service, ask(true)).await.answer();
            }
            assert_eq!(budget.remaining(), left + 20, "{at}");
            sims[0].set_faults(FaultPlan::first(1, fault.clone()));
            let before = calls_made(&sims);
            CallResult::of(&service, ask(true)).await.answer();
            assert_eq!(calls_made(&sims) - before, 2, "{at}");
            let now = budget.remaining();
            assert_eq!(now, left + 21, "{at}: the retry took nothing, and one for the answer");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stack_has_one_budget_and_an_answer_counts_once() {
    let fault = Fault::Error(ErrorKind::ServerError);
    let sims = providers(2, &fault)[..2].to_vec();
    let calls = 150;
    // The retry layer is given; the budget is the stack's default.
    let service = budget_only(stack(&sims)).boxed(harness::client(&sims));
    all_at_once(&service, calls).await;
    let free = calls * 2 * FREE;
    assert_eq!(calls_made(&sims), free + 35, "500 tokens are 35 retries, 10 are left");

    sims.iter().for_each(|provider| provider.set_faults(FaultPlan::none()));
    for _ in 0..20 {
        CallResult::of(&service, ask(false)).await.answer();
    }
    sims.iter().for_each(|provider| {
        provider.journal().clear();
        provider.set_faults(FaultPlan::always(fault.clone()));
    });
    all_at_once(&service, calls).await;
    assert_eq!(
        calls_made(&sims),
        free + 2,
        "20 answers put back 20 tokens: with the 10, 2 retries"
    );

    sims.iter().for_each(|provider| provider.journal().clear());
    let service = budget_only(stack(&sims)).without_budget().boxed(harness::client(&sims));
    all_at_once(&service, calls).await;
    assert_eq!(calls_made(&sims), calls * ATTEMPTS, "without one, all of them");
}

#[tokio::test(start_paused = true)]
async fn a_dead_pair_gets_each_call_once_and_then_one_a_second() {
    let sims = providers(2, &Fault::Error(ErrorKind::ServerError))[..2].to_vec();
    let service = Stack::new(harness::chain(&sims)).boxed(harness::client(&sims));
    let began = Instant::now();
    all_at_once(&service, 150).await;
    let (made, took) = (calls_made(&sims), began.elapsed());
    assert!(took <= Duration::from_secs(31), "calls waited for {took:?}");
    let turns = 2 * took.as_secs() as usize;
    assert!((300..=300 + turns).contains(&made), "{made} attempts of 150 calls in {took:?}");
    // One by one, each has all the turns.
    for _ in 0..20 {
        let before = calls_made(&sims);
        all_at_once(&service, 1).await;
        let made = calls_made(&sims) - before;
        assert!((2..=ATTEMPTS).contains(&made), "{made} attempts of one call");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_attempts_holds_over_all_layers() {
    for (stream, fault) in [
        (false, Fault::Error(ErrorKind::ServerError)),
        (true, Fault::break_after(0, How::ErrorEvent(ErrorKind::ServerError))),
    ] {
        for already in [0, 2] {
            for max in 1..=12u32 {
                let sims = providers(3, &fault);
                let service = stack(&sims).boxed(harness::client(&sims));
                let mut request = ask(stream);
                request.context.max_attempts = NonZeroU32::new(max);
                request.context.attempts = already;
                let got = CallResult::of(&service, request).await;
                let at = format!("at most {max}, {already} of them made, stream: {stream}");

                let expected = max.saturating_sub(already).min(ATTEMPTS as u32);
                assert_eq!(calls_made(&sims), expected as usize, "{at}");
                assert_eq!(got.failure.unwrap().attempts(), expected, "{at}");
                let mut numbers: Vec<u32> = sims
                    .iter()
                    .flat_map(|provider| provider.journal().entries())
                    .map(|entry| entry.header("x-steadfast-attempt").unwrap().parse().unwrap())
                    .collect();
                numbers.sort_unstable();
                let counted: Vec<u32> = (already + 1..=already + expected).collect();
                assert_eq!(numbers, counted, "{at}: the providers get the numbers of the attempts");
            }
        }
    }
}

/// Faults that keep a call from ending by itself, streamed or not.
fn endless() -> [(&'static str, Fault); 7] {
    [
        ("hang", Fault::Hang),
        ("500", Fault::Error(ErrorKind::ServerError)),
        ("reset", Fault::Reset),
        ("429", Fault::rate_limit(RateLimit::after("2"))),
        ("late", Fault::first_token_after_ms(4_000)),
        ("silent", Fault::break_after(1, How::Stall)),
        ("dripping", Fault::Drip(Drip { bytes: 3, every_ms: 700 })),
    ]
}

/// Asserts that a call ended at its deadline with a timeout, or before for a valid reason.
fn assert_ended_as_expected(got: &CallResult, name: &str, limit: Duration, at: &str) {
    let by_itself = match &got.failure {
        // It started within the limits, and continued.
        None => name == "late",
        Some(failure) if failure.time_limit() == Some(TimeLimit::Pipeline) => {
            assert_eq!((failure.reason(), got.took), (Reason::Timeout, limit), "{at}");
            return;
        }
        // Silent for the stall limit when content had been seen.
        Some(failure) if failure.is_delivered() => name == "silent",
        // No further attempt would have had the time.
        Some(_) => matches!(name, "500" | "reset" | "429" | "late"),
    };
    assert!(by_itself, "{at}: {got:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_outlives_a_deadline_by_a_tick() {
    for (name, fault) in endless() {
        for stream in [false, true] {
            for limit in [1, 499, 500, 501, 1_499, 2_000, 3_000, 4_999, 5_000, 7_003] {
                for by_layer in [false, true] {
                    let at = format!("{name}, {limit} ms, stream: {stream}, by layer: {by_layer}");
                    let limit = Duration::from_millis(limit);
                    let sims = providers(3, &fault);
                    let mut stack = stack(&sims);
                    let mut request = ask(stream);
                    if by_layer {
                        stack = stack.with_deadline(DeadlineLayer::after(limit).unwrap());
                    } else {
                        request.context.deadline = Some(Deadline::after(limit));
                    }
                    let got = CallResult::of(&stack.boxed(harness::client(&sims)), request).await;
                    assert!(got.took <= limit, "{at}: took {:?}", got.took);
                    assert_ended_as_expected(&got, name, limit, &at);
                    // All attempts end at that moment, and none follows.
                    let count = calls_made(&sims);
                    sleep(Duration::from_secs(3_600)).await;
                    assert_eq!(calls_made(&sims), count, "{at}");
                    for entry in sims.iter().flat_map(|provider| provider.journal().entries()) {
                        assert_ne!(entry.end, End::Open, "{at}");
                        assert!(entry.at < limit, "{at}: asked when it was over");
                        assert!(entry.ended_at.unwrap() <= limit, "{at}: {:?}", entry.ended_at);
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn background_calls_leave_an_overloaded_provider_alone() {
    for dialect in Dialect::ALL {
        // Attempts at the first, alone and with spares.
        for (kind, priority, attempts) in [
            (ErrorKind::Overloaded, Priority::Interactive, [3, 3]),
            (ErrorKind::Overloaded, Priority::Background, [1, 1]),
            (ErrorKind::ServerError, Priority::Interactive, [3, 2]),
            (ErrorKind::ServerError, Priority::Background, [3, 2]),
        ] {
            let mut sims = harness::trio(|_, provider| provider);
            sims.sort_by_key(|provider| provider.dialect() != dialect);
            sims[0].set_faults(FaultPlan::always(Fault::Error(kind.clone())));
            for (spares, attempts) in [0, 2].into_iter().zip(attempts) {
                let sims = &sims[..=spares];
                sims[0].journal().clear();
                let service = stack(sims).boxed(harness::client(sims));
                let mut request = ask(true);
                request.context.priority = priority;
                let got = CallResult::of(&service, request).await;
                let at = format!("{dialect}, {kind:?}, {priority:?}, {spares} spares");
                assert_eq!(sims[0].journal().len(), attempts, "{at}");
                match spares {
                    0 => assert_eq!(got.failure.unwrap().attempts() as usize, attempts, "{at}"),
                    _ => assert!(got.answer().head.target.is_some(), "{at}"),
                }
            }
        }
    }
}
