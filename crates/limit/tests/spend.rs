//! The spend caps as callers meet them: the whole of a call, with its attempts.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{join_all, select_ok},
    stream,
};
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, EventStream, Head, RawJson, Tool};
use steadfast_core::{
    CallContext, CallSpend, Dialect, Failure, Reason, Spend, SpendAccount, SpendCaps, SpendLedger,
    SpendTotals, Target, Usage,
};
use steadfast_limit::{ModelPrice, Prices, SpendLimitLayer, SpendLimitPolicy};
use steadfast_retry::RetryBackoffLayer;
use steadfast_testkit::{fail, secs};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};

fn acme() -> SpendAccount {
    SpendAccount::Tenant("acme".into())
}

fn totals(ledger: &SpendLedger) -> SpendTotals {
    ledger.totals(&acme(), Instant::now())
}

/// What was spent, once nothing is reserved any more.
fn spent(ledger: &SpendLedger) -> u64 {
    let totals = totals(ledger);
    assert_eq!(totals.held, Spend::ZERO, "nothing stays reserved");
    totals.hour.tokens
}

/// 400 bytes, about 100 tokens and at most 142, and an output of at most 50.
fn request() -> ChatRequest {
    ChatRequest::user("x".repeat(400))
        .with_model("gpt-4o")
        .with_max_output(50)
        .with_context(CallContext::recording().with_tenant("acme"))
}

fn hour(tokens: u64) -> SpendLimitLayer {
    SpendLimitLayer::new(SpendLimitPolicy { tokens_hour: tokens, ..SpendLimitPolicy::default() })
        .unwrap()
}

fn answer(events: Vec<Result<Event, Failure>>) -> ChatResponse {
    let events = Box::pin(stream::iter(events)) as EventStream;
    ChatResponse::new(Head::new(Dialect::OpenAi), events)
}

fn text(bytes: usize) -> Result<Event, Failure> {
    Ok(Event::new([Delta::Text { index: 0, text: "y".repeat(bytes) }]))
}

fn usage(input: u64, output: u64) -> Result<Event, Failure> {
    Ok(Event::new([Delta::Usage(Usage::new(input, output))]))
}

fn end() -> Result<Event, Failure> {
    Ok(Event::new([Delta::End]))
}

type Stack = BoxCloneService<ChatRequest, ChatResponse, Failure>;

/// `model` below the caps, with its attempts observed or not.
fn stack<S>(layer: &SpendLimitLayer, with_meter: bool, model: S) -> Stack
where
    S: Service<ChatRequest, Response = ChatResponse, Error = Failure, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let inner = match with_meter {
        true => Stack::new(layer.meter().layer(model).map_response(ChatResponse::boxed)),
        false => Stack::new(model),
    };
    Stack::new(layer.layer(inner).map_response(ChatResponse::boxed))
}

/// A whole answer with what it reports to have used.
fn whole(input: u64, output: u64) -> ChatResponse {
    answer(vec![text(40), usage(input, output), end()])
}

#[tokio::test(start_paused = true)]
async fn callers_at_the_same_time_never_exceed_a_cap_together() {
    for with_meter in [false, true] {
        let layer = hour(10_000);
        let used = Arc::new(AtomicU64::new(0));
        let (ledger, counted) = (layer.ledger().clone(), used.clone());
        let model = service_fn(move |request: ChatRequest| {
            let (ledger, counted) = (ledger.clone(), counted.clone());
            async move {
                let _ = request;
                sleep(Duration::from_millis(fastrand(&counted))).await;
                let now = totals(&ledger);
                assert!(now.hour.plus(now.held).tokens <= 10_000, "{now:?}");
                counted.fetch_add(100 + 37, Ordering::Relaxed);
                Ok::<_, Failure>(whole(100, 37))
            }
        });
        let service = stack(&layer, with_meter, model);
        let calls = (0..50).map(|_| {
            let service = service.clone();
            async move {
                let mut answered = 0;
                loop {
                    match service.clone().oneshot(request()).await {
                        Ok(answer) => {
                            answer.collect().await.unwrap();
                            answered += 1;
                        }
                        Err(failure) if failure.retry_after() == Some(secs(1)) => {
                            sleep(secs(1)).await;
                        }
                        Err(failure) => {
                            assert_eq!(failure.reason(), Reason::SpendCap);
                            return answered;
                        }
                    }
                }
            }
        });
        let answered: u64 = join_all(calls).await.into_iter().sum();
        let used = used.load(Ordering::Relaxed);
        assert_eq!(used, answered * 137);
        assert_eq!(spent(layer.ledger()), used);
        assert!((10_000 - 150..=10_000).contains(&used), "{used}: all of it is used, and no more");
    }
}

/// Some milliseconds, different for each call.
fn fastrand(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed) * 7_919 % 97
}

/// Every end of an attempt, and what is charged for it.
#[tokio::test(start_paused = true)]
async fn each_attempt_is_charged_what_it_did_cost() {
    type Attempt = fn() -> Result<ChatResponse, Failure>;
    let cases: [(&str, Attempt, u64); 9] = [
        ("reported", || Ok(whole(80, 20)), 100),
        ("not reported", || Ok(answer(vec![text(40), end()])), 110),
        ("refused", || Err(fail(Reason::ServerError)), 0),
        (
            "refused and charged",
            || Err(fail(Reason::ContentFilter).with_usage(Usage::new(70, 0))),
            70,
        ),
        ("not sent", || Err(Failure::refused(Reason::CircuitOpen, "open")), 0),
        ("broken", || Ok(answer(vec![usage(90, 1), text(80), Err(fail(Reason::Network))])), 110),
        (
            "broken, nothing reported",
            || Ok(answer(vec![text(80), Err(fail(Reason::Network))])),
            120,
        ),
        ("cut at a report", || Ok(answer(vec![usage(90, 30), Err(fail(Reason::Network))])), 120),
        (
            "timed out",
            || Err(fail(Reason::Timeout).with_time_limit(steadfast_core::TimeLimit::Stall)),
            100,
        ),
    ];
    for with_meter in [false, true] {
        for (what, attempt, expected) in cases {
            let layer = hour(10_000);
            let model = service_fn(move |_: ChatRequest| std::future::ready(attempt()));
            let service = stack(&layer, with_meter, model);
            if let Ok(answer) = service.oneshot(request()).await {
                let _ = answer.collect().await;
            }
            assert_eq!(spent(layer.ledger()), expected, "{what}, meter: {with_meter}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retries_are_charged_each() {
    let layer = hour(10_000);
    let number = Arc::new(AtomicU64::new(0));
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(RetryBackoffLayer::transient())
        .layer(layer.meter())
        .service(service_fn(move |_: ChatRequest| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            async move {
                match number {
                    0 => Err(fail(Reason::Overloaded)),
                    // Before any content, and charged.
                    1 => Ok(answer(vec![usage(90, 5), Err(fail(Reason::ServerError))])),
                    _ => Ok(whole(90, 20)),
                }
            }
        }));
    service.oneshot(request()).await.unwrap().collect().await.unwrap();
    assert_eq!(spent(layer.ledger()), 95 + 110);
}

/// Makes each call twice at the same time, and drops the one that is later, as a hedge does.
#[derive(Clone)]
struct Twice<S>(S);

impl<S> Service<ChatRequest> for Twice<S>
where
    S: Service<ChatRequest, Error = Failure, Future: Send + 'static> + Clone + Send + 'static,
    S::Response: Send + 'static,
{
    type Response = S::Response;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let first = self.0.clone().oneshot(request.clone());
        let second = self.0.clone().oneshot(request);
        Box::pin(async move {
            select_ok([Box::pin(first), Box::pin(second)]).await.map(|(answer, _)| answer)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn hedges_are_charged_and_reserve_for_both() {
    let number = Arc::new(AtomicU64::new(0));
    let model = service_fn(move |_: ChatRequest| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        async move {
            sleep(secs(number + 1)).await;
            Ok::<_, Failure>(whole(95, 20))
        }
    });
    let layer = hour(10_000);
    let service = layer.layer(Twice(layer.meter().layer(model.clone())));
    let mut call = Box::pin(service.oneshot(request()));
    assert!(call.as_mut().now_or_never().is_none());
    assert_eq!(totals(layer.ledger()).held.tokens, 2 * (142 + 50));
    call.await.unwrap().collect().await.unwrap();
    // The one that was dropped had been read by its provider.
    assert_eq!(spent(layer.ledger()), 115 + 100);
    // Where the cap leaves room for one, the other is not made.
    let layer = hour(200);
    let service = layer.layer(Twice(layer.meter().layer(model)));
    service.oneshot(request()).await.unwrap().collect().await.unwrap();
    assert_eq!(spent(layer.ledger()), 115);
}

/// 2,000 tokens of text and 20,000 of tools, as the provider counts them.
fn with_tools() -> ChatRequest {
    let mut asked = ChatRequest::user("x".repeat(8_000))
        .with_max_output(50)
        .with_context(CallContext::new().with_tenant("acme"));
    for name in ["one", "two"] {
        let schema = format!(r#"{{"type":"object","description":"{}"}}"#, "x".repeat(35_000));
        let schema = RawJson::parse(&schema).unwrap();
        asked.tools.make_mut().push(Tool::function(name, "", schema));
    }
    asked
}

/// Makes `count` calls at once, whose input is reported as `input`.
async fn ask_at_once(layer: &SpendLimitLayer, count: usize, input: u64) -> usize {
    let model = service_fn(move |_: ChatRequest| async move {
        sleep(secs(5)).await;
        Ok::<_, Failure>(whole(input, 50))
    });
    let service = stack(layer, true, model);
    let calls =
        (0..count).map(|_| async { service.clone().oneshot(with_tools()).await?.collect().await });
    let done = join_all(calls).await;
    let refused = done.iter().filter_map(|done| done.as_ref().err());
    assert!(refused.clone().all(|failure| failure.reason() == Reason::SpendCap));
    count - refused.count()
}

#[tokio::test(start_paused = true)]
async fn callers_at_once_do_not_exceed_a_cap_whatever_their_requests_are_made_of() {
    let layer = hour(1_000_000);
    let answered = ask_at_once(&layer, 200, 22_000).await;
    let spent = spent(layer.ledger());
    assert_eq!(spent, answered as u64 * 22_050);
    assert!((700_000..=1_000_000).contains(&spent), "{spent}");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_counts_more_than_can_be_is_expected_to_do_so_again() {
    let layer = hour(1_000_000);
    assert_eq!(ask_at_once(&layer, 1, 60_000).await, 1);
    let answered = ask_at_once(&layer, 200, 60_000).await;
    let spent = spent(layer.ledger());
    assert!(answered > 10 && spent <= 1_000_000, "{answered} answered for {spent}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_cap_has_no_room_for_ends_the_call() {
    let layer = hour(240);
    let number = Arc::new(AtomicU64::new(0));
    let calls = number.clone();
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(RetryBackoffLayer::transient())
        .layer(layer.meter())
        .service(service_fn(move |_: ChatRequest| {
            number.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Failure>(answer(vec![usage(100, 0), Err(fail(Reason::ServerError))])) }
        }));
    let asked = request();
    let log = asked.context.log.clone();
    let failure = service.oneshot(asked).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::SpendCap, "{failure}: {log}");
    assert_eq!(calls.load(Ordering::Relaxed), 1, "a second one might need 192 of the 140 left");
    assert_eq!(spent(layer.ledger()), 100);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_charged_what_was_read_and_written_at_every_point() {
    for with_meter in [false, true] {
        let layer = hour(10_000);
        let model = service_fn(async |_: ChatRequest| {
            sleep(secs(1)).await;
            Ok::<_, Failure>(answer(vec![text(40), text(40), end()]))
        });
        let service = stack(&layer, with_meter, model);
        // Never polled, and before the head.
        drop(service.clone().oneshot(request()));
        assert_eq!(spent(layer.ledger()), 0);
        let mut call = Box::pin(service.clone().oneshot(request()));
        assert!(call.as_mut().now_or_never().is_none());
        assert_eq!(totals(layer.ledger()).held.tokens, 142 + 50);
        drop(call);
        assert_eq!(spent(layer.ledger()), 100, "a provider may have read it");
        // After the head, and after the first content.
        let answer = service.clone().oneshot(request()).await.unwrap();
        drop(answer);
        assert_eq!(spent(layer.ledger()), 200);
        let answer = service.clone().oneshot(request()).await.unwrap();
        let mut events = answer;
        events.next().await.unwrap().unwrap();
        drop(events);
        assert_eq!(spent(layer.ledger()), 310);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_sent_costs_nothing() {
    let layer = hour(10_000);
    let model = service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(1, 1)));
    // In place of a rate limit, where it waits.
    let waiting = layer.meter().layer(model);
    let service = layer.layer(service_fn(move |request: ChatRequest| {
        let waiting = waiting.clone();
        async move {
            sleep(secs(60)).await;
            waiting.oneshot(request).await
        }
    }));
    let mut call = Box::pin(service.oneshot(request()));
    assert!(call.as_mut().now_or_never().is_none());
    drop(call);
    assert_eq!(spent(layer.ledger()), 0);
}

#[tokio::test(start_paused = true)]
async fn an_account_can_have_caps_of_its_own() {
    let layer = hour(10_000).with_caps(|account| match account {
        SpendAccount::Tenant(name) if &**name == "acme" => {
            Some(steadfast_core::SpendCaps::of_tokens(100, 0))
        }
        _ => None,
    });
    let service = layer.layer(service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(1, 1))));
    let failure = service.clone().oneshot(request()).await.unwrap_err();
    assert_eq!(
        (failure.reason(), failure.retry_after()),
        (Reason::SpendCap, None),
        "it never fits"
    );
    let mut other = request();
    other.context = CallContext::new().with_tenant("umbrella");
    drop(service.oneshot(other).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_capped_can_be_recorded() {
    let policy = SpendLimitPolicy { record: true, ..SpendLimitPolicy::default() };
    let layer = SpendLimitLayer::new(policy).unwrap();
    let service = layer.layer(service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(100, 50))));
    service.oneshot(request()).await.unwrap().collect().await.unwrap();
    assert_eq!(totals(layer.ledger()).month, Spend::new(150, 750));
}

#[tokio::test(start_paused = true)]
async fn tenants_and_keys_have_caps_of_their_own() {
    let policy = SpendLimitPolicy {
        tokens_hour: 1_000,
        key_tokens_hour: 350,
        ..SpendLimitPolicy::default()
    };
    let layer = SpendLimitLayer::new(policy).unwrap();
    let service = layer.layer(service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(100, 50))));
    let ask = async |tenant: &str, key: &str| {
        let mut request = request();
        request.context = CallContext::new().with_tenant(tenant).with_key(key);
        let answer = service.clone().oneshot(request).await?;
        answer.map(|events| Box::pin(events) as EventStream).collect().await
    };
    for _ in 0..2 {
        ask("acme", "one").await.unwrap();
    }
    let failure = ask("acme", "one").await.unwrap_err();
    assert!(failure.message().starts_with("the cap of key `one`"), "{failure}");
    for _ in 0..2 {
        ask("acme", "two").await.unwrap();
        ask("acme", "three").await.unwrap();
    }
    let failure = ask("acme", "four").await.unwrap_err();
    assert!(failure.message().starts_with("the cap of tenant `acme`"), "{failure}");
    ask("umbrella", "five").await.unwrap();
    assert_eq!(layer.ledger().snapshot(Instant::now()).len(), 6);
    assert!(layer.ledger().reset(&acme()));
    ask("acme", "four").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn money_is_counted_by_the_model_that_answers() {
    // The model that was asked for may cost 750: with 1,000 spent there is no room for it.
    let policy = SpendLimitPolicy { cost_day: 1_740, ..SpendLimitPolicy::default() };
    let prices = Prices::default().with_override("house", ModelPrice::new(1_000_000, 2_000_000));
    let layer = SpendLimitLayer::new(policy).unwrap().with_prices(prices);
    // Failover has selected another model than the one asked for.
    let select = |mut request: ChatRequest| {
        request.context.target = Some(Target::new("own").with_model("house-large"));
        request
    };
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .map_request(select)
        .layer(layer.meter())
        .service(service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(100, 50))));
    for _ in 0..5 {
        service.clone().oneshot(request()).await.unwrap().collect().await.unwrap();
    }
    let day = totals(layer.ledger()).day;
    assert_eq!(day, Spend::new(750, 1_000), "100 at $1 and 50 at $2 a million, five times");
    let failure = service.oneshot(request()).await.unwrap_err();
    assert!(
        failure.message().contains("on the cost of a day is $0.001740: $0.001000 are used"),
        "{failure}"
    );
}

/// A call of a call, such as a summary, is charged to the accounts it was given, and to no other.
#[tokio::test(start_paused = true)]
async fn a_call_that_has_reserved_in_the_ledger_passes() {
    for with_meter in [true, false] {
        let layer = hour(1_000);
        let summaries = SpendAccount::Summaries("acme".into());
        let own = [(summaries.clone(), SpendCaps::default())];
        let model = service_fn(|_: ChatRequest| async { Ok::<_, Failure>(whole(90, 5)) });
        let mut asked = request();
        let (ledger, now) = (layer.ledger().clone(), Instant::now());
        asked.context.spend = CallSpend::reserve(&ledger, own.clone(), Spend::ZERO, now).ok();
        let mut service = stack(&layer, with_meter, model);
        service.ready().await.unwrap().call(asked).await.unwrap().collect().await.unwrap();
        assert_eq!(spent(&ledger), 0);
        let charged = ledger.totals(&summaries, Instant::now()).hour.tokens;
        assert_eq!(
            charged,
            if with_meter { 95 } else { 0 },
            "attempts are charged where they are observed"
        );

        // That of another ledger's is none of this one's.
        let mut asked = request();
        asked.context.spend =
            CallSpend::reserve(&SpendLedger::default(), own, Spend::ZERO, now).ok();
        service.ready().await.unwrap().call(asked).await.unwrap().collect().await.unwrap();
        assert_eq!(spent(&ledger), 95);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restored_ledger_goes_on_where_it_was() {
    let layer = hour(400);
    let model = || service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(200, 90)));
    let answer = layer.layer(model()).oneshot(request()).await.unwrap();
    answer.map(|events| Box::pin(events) as EventStream).collect().await.unwrap();
    let record = layer.ledger().save();
    let ledger = SpendLedger::default();
    ledger.restore(&record);
    let new = hour(400).with_ledger(ledger);
    let failure = new.layer(model()).oneshot(request()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::SpendCap);
}

#[tokio::test(start_paused = true)]
async fn the_log_of_the_call_is_that_of_its_answer() {
    let layer = hour(10_000);
    let service = layer.layer(
        layer.meter().layer(service_fn(async |_: ChatRequest| Ok::<_, Failure>(whole(1, 1)))),
    );
    let asked = request();
    asked.context.log.record(|| steadfast_core::Step::new("test", "marked"));
    let answer = service.oneshot(asked).await.unwrap();
    assert_eq!(answer.recovery().to_string(), "test.marked");
    let events = answer.map(|events| Box::pin(events) as EventStream);
    assert_eq!(events.count().await, 3);
}
