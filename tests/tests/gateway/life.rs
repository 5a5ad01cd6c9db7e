//! The lifecycle of requests and of the gateway: disconnects, keep-alives, shutdown, and what an
//! operator can observe.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use steadfast::sim::{
    Dialect, End, ErrorKind, Fault, FaultPlan, How, Latency, PlanRule, SimProvider,
};
use steadfast_tests::gateway::{
    DIALECTS, Rig, RigBuilder, ask,
    http::{HttpRequest, poll_until, within},
    model, pairs, path, provider, rich_answer,
    wire_answer::WireAnswer,
};
use tokio::{net::TcpStream, sync::Semaphore, task::JoinSet};

/// The samples of an exposition by their series, read strictly.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut kinds = BTreeMap::new();
    let mut samples = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            assert_eq!(lines.peek(), None, "nothing follows the end");
            return samples;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kinds.insert(name, kind), None, "{name} has two types");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(rest.split_once(' ').is_some_and(|(_, help)| !help.is_empty()), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("what is {line:?}?"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        assert!(name.starts_with("steadfast_"), "{line}");
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
        // No label here has a comma or a quote in it.
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let (_, value) = label.split_once('=').unwrap();
            assert!(value.len() >= 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
        }
        let family = ["_total", "_bucket", "_sum", "_count"]
            .into_iter()
            .find_map(|end| name.strip_suffix(end).filter(|family| kinds.contains_key(family)))
            .unwrap_or(name);
        let kind = kinds.get(family).unwrap_or_else(|| panic!("{line} before its type"));
        assert_eq!(*kind == "counter", name.ends_with("_total"), "{line}");
        assert_eq!(samples.insert(series.to_owned(), value), None, "{series} comes twice");
    }
    panic!("the exposition has no end");
}

async fn metrics(rig: &Rig) -> BTreeMap<String, f64> {
    let reply = HttpRequest::get("/metrics").send(rig.addr).await;
    assert_eq!(reply.status, 200);
    assert!(reply.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    samples(reply.text())
}

/// Waits until `holds` returns true for the metrics.
async fn until_metrics(rig: &Rig, holds: impl Fn(&BTreeMap<String, f64>) -> bool) {
    poll_until("the metrics are as expected", || async { holds(&metrics(rig).await) }).await;
}

fn in_flight(samples: &BTreeMap<String, f64>) -> f64 {
    samples["steadfast_in_flight"]
}

fn ended(dialect: Dialect, stream: bool, outcome: &str) -> String {
    format!(
        "steadfast_requests_total{{dialect=\"{dialect}\",stream=\"{stream}\",outcome=\"{outcome}\"}}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnect_before_the_answer_cancels_the_call() {
    for (caller, speaks) in pairs() {
        for stream in [false, true] {
            let case = format!("{caller} -> {speaks}, stream {stream}");
            let sim = provider(speaks).with_faults(FaultPlan::always(Fault::Hang)).build();
            let rig = Rig::of(sim).await;
            let journal = rig.sims[0].provider().journal();
            let connection = ask(caller, model(speaks), stream).start(rig.addr).await;
            within(journal.wait_for(1)).await;
            drop(connection);
            let entries = within(journal.wait_ended(1)).await;
            assert_eq!(entries[0].end, End::Dropped, "{case}");
            until_metrics(&rig, |m| in_flight(m) == 0.0).await;
            assert_eq!(metrics(&rig).await[&ended(caller, stream, "cancelled")], 1.0, "{case}");
            assert_eq!(journal.len(), 1, "{case}: no retry for a cancelled call");
            rig.assert_all_attempts(&case).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnect_in_the_middle_cancels_the_call() {
    for (caller, speaks) in pairs() {
        let plan = FaultPlan::always(Fault::break_after(10, How::Stall));
        let sim = provider(speaks).respond(|_| Some(rich_answer())).with_faults(plan).build();
        let rig = Rig::of(sim).await;
        let mut open = ask(caller, model(speaks), true).open(rig.addr).await;
        assert_eq!(open.status, 200);
        open.until(|so_far| !so_far.is_empty()).await;
        assert_eq!(in_flight(&metrics(&rig).await), 1.0);
        drop(open);
        let entries = within(rig.sims[0].provider().journal().wait_ended(1)).await;
        assert_eq!(entries[0].end, End::Dropped, "{caller} -> {speaks}");
        until_metrics(&rig, |m| in_flight(m) == 0.0).await;
        assert_eq!(metrics(&rig).await[&ended(caller, true, "cancelled")], 1.0);
        rig.assert_all_attempts(&format!("{caller} -> {speaks}")).await;
    }
}

/// A slow provider, so that an answer is in flight for a while.
fn slow(dialect: Dialect) -> SimProvider {
    let latency = Latency { per_token: Duration::from_millis(15), ..Latency::default() };
    provider(dialect).respond(|_| Some(rich_answer())).with_latency(latency).build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_lets_open_answers_end_and_accepts_no_new_connections() {
    for speaks in DIALECTS {
        let mut rig = Rig::of(slow(speaks)).await;
        let mut streams = Vec::new();
        for caller in DIALECTS {
            let mut open = ask(caller, model(speaks), true).open(rig.addr).await;
            let first = open.until(|so_far| !so_far.is_empty()).await;
            streams.push((caller, first, open));
        }
        rig.begin_stop();
        let refuses = || async { TcpStream::connect(rig.addr).await.is_err() };
        poll_until("new connections are refused", refuses).await;
        for (caller, mut all, open) in streams {
            let rest = open.rest().await;
            assert!(rest.clean, "{caller} <- {speaks}");
            all.extend(rest.body);
            let answer = WireAnswer::stream(caller, &all);
            assert_eq!(answer.text, rig.last().sent.unwrap().text, "{caller} <- {speaks}");
            assert!(!answer.ends.is_empty() && answer.errors.is_empty());
        }
        let entries = within(rig.sims[0].provider().journal().wait_ended(3)).await;
        assert!(entries.iter().all(|entry| entry.end == End::Complete));
        assert_eq!(rig.stopped().await, 0, "no connection was closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_fails_while_draining() {
    let rig = Rig::of(provider(Dialect::OpenAi).build()).await;
    let ready = || async { HttpRequest::get("/readyz").send(rig.addr).await };
    assert_eq!(HttpRequest::get("/healthz").send(rig.addr).await.status, 200);
    assert_eq!(ready().await.status, 200);
    rig.app.drain();
    let reply = ready().await;
    assert_eq!((reply.status, reply.text()), (503, "draining\n"));
    assert_eq!(HttpRequest::get("/healthz").send(rig.addr).await.status, 200, "it is still alive");
    // Requests that still arrive are answered.
    assert_eq!(ask(Dialect::OpenAi, "gpt-4o", false).send(rig.addr).await.status, 200);
}

/// Whether the last frame of a stream is a keep-alive.
fn ends_with_a_keep_alive(caller: Dialect, so_far: &[u8]) -> bool {
    let Some(frames) = so_far.strip_suffix(b"\n\n") else { return false };
    let frames = String::from_utf8_lossy(frames);
    let last = frames.rsplit("\n\n").next().unwrap();
    match caller {
        Dialect::Anthropic => last.starts_with("event: ping\ndata: {"),
        _ => last.starts_with(':'),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_filled_with_the_dialects_keep_alive() {
    let mut cases = JoinSet::new();
    // Google's own SDKs accept only data.
    for (caller, speaks) in pairs().filter(|pair| pair.0 != Dialect::Gemini) {
        cases.spawn(async move {
            let plan = FaultPlan::always(Fault::break_after(10, How::Stall));
            let sim = provider(speaks).respond(|_| Some(rich_answer())).with_faults(plan).build();
            let rig = Rig::builder()
                .provider(sim)
                .server("auth = \"none\"\nkeepalive_s = 1")
                .config("[timeout]\nstall_ms = 10000\n")
                .start()
                .await;
            let mut open = ask(caller, model(speaks), true).open(rig.addr).await;
            let so_far = open.until(|so_far| ends_with_a_keep_alive(caller, so_far)).await;
            let answer = WireAnswer::stream(caller, &so_far);
            assert!(answer.errors.is_empty() && answer.ends.is_empty(), "{caller} <- {speaks}");
            assert!(!answer.thinking.is_empty(), "{caller} <- {speaks}");
        });
    }
    while let Some(case) = cases.join_next().await {
        case.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn geminis_streams_have_only_data_during_silence() {
    let mut cases = JoinSet::new();
    for sse in [true, false] {
        cases.spawn(async move {
            let sim = provider(Dialect::OpenAi)
                .respond(|_| Some(rich_answer()))
                .with_faults(FaultPlan::always(Fault::break_after(10, How::Stall)))
                .build();
            let rig = Rig::builder()
                .provider(sim)
                .server("auth = \"none\"\nkeepalive_s = 1")
                .config("[timeout]\nstall_ms = 1300\n")
                .start()
                .await;
            let address = path(Dialect::Gemini, model(Dialect::OpenAi), true);
            let address = if sse { address } else { address.replace("?alt=sse", "") };
            let request = ask(Dialect::Gemini, model(Dialect::OpenAi), true).at(address);
            let reply = request.send(rig.addr).await;
            let answer = if sse {
                WireAnswer::stream(Dialect::Gemini, &reply.body)
            } else {
                WireAnswer::array(&reply.body)
            };
            assert_eq!((answer.errors.len(), answer.ends.len()), (1, 0));
        });
    }
    while let Some(case) = cases.join_next().await {
        case.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_count_requests_failures_and_tokens() {
    let plan = FaultPlan::none()
        .rule(PlanRule::new(Fault::Error(ErrorKind::ServerError)).nth(2))
        .rule(PlanRule::new(Fault::break_after(5, How::Reset)).nth(4));
    let sim = provider(Dialect::OpenAi).respond(|_| Some(rich_answer())).with_faults(plan).build();
    let rig = Rig::builder()
        .provider(sim)
        .config("[retry]\nbase_ms = 1\ncap_ms = 2\n[cooldown]\nnetwork = 0\n[resume]\nenabled = false\n")
        .start()
        .await;
    let before = metrics(&rig).await;
    assert_eq!(in_flight(&before), 0.0);
    assert!(!before.keys().any(|series| series.starts_with("steadfast_requests_total")));

    let openai = |stream| ask(Dialect::OpenAi, "gpt-4o", stream);
    assert_eq!(openai(false).send(rig.addr).await.status, 200);
    assert_eq!(
        openai(false).send(rig.addr).await.status,
        200,
        "the third request upstream is its retry"
    );
    assert_eq!(openai(true).send(rig.addr).await.status, 200, "and breaks in the middle");
    assert_eq!(ask(Dialect::Anthropic, "gpt-4o", true).send(rig.addr).await.status, 200);
    assert_eq!(openai(false).body("{").send(rig.addr).await.status, 400);
    until_metrics(&rig, |m| in_flight(m) == 0.0).await;

    let after = metrics(&rig).await;
    let value = |series: &str| {
        after.get(series).copied().unwrap_or_else(|| panic!("no {series} in {after:#?}"))
    };
    assert_eq!(value(&ended(Dialect::OpenAi, false, "ok")), 2.0);
    assert_eq!(value(&ended(Dialect::OpenAi, true, "failed")), 1.0);
    assert_eq!(value(&ended(Dialect::OpenAi, false, "failed")), 1.0);
    assert_eq!(value(&ended(Dialect::Anthropic, true, "ok")), 1.0);
    assert_eq!(value("steadfast_failures_total{reason=\"format\",at=\"head\"}"), 1.0);
    assert_eq!(value("steadfast_failures_total{reason=\"network\",at=\"stream\"}"), 1.0);
    let retries: f64 = after
        .iter()
        .filter(|(series, _)| series.starts_with("steadfast_steps_total{layer=\"retry\""))
        .map(|(_, times)| times)
        .sum();
    assert!(retries >= 1.0, "{after:#?}");
    // The tokens of the complete answers, streamed or not.
    let whole = rig.seen();
    let whole =
        whole.iter().filter(|entry| entry.end == End::Complete && entry.status == Some(200));
    let output: u64 = whole.map(|entry| entry.sent.as_ref().unwrap().usage.output).sum();
    #[allow(clippy::cast_precision_loss, reason = "small")]
    let output = output as f64;
    assert_eq!(value("steadfast_tokens_total{provider=\"openai\",direction=\"output\"}"), output);
    assert_eq!(value("steadfast_time_to_end_seconds_count{dialect=\"openai\"}"), 4.0);
    assert_eq!(value("steadfast_time_to_head_seconds_count{dialect=\"openai\"}"), 3.0);
    let buckets: Vec<f64> = after
        .iter()
        .filter(|(series, _)| {
            series.starts_with("steadfast_time_to_end_seconds_bucket") && series.contains("openai")
        })
        .map(|(_, value)| *value)
        .collect();
    rig.assert_all_attempts("failures, and a break in the middle").await;
    assert!(buckets.contains(&4.0) && buckets.iter().all(|count| *count <= 4.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_shows_which_target_cools_and_why() {
    let down = provider(Dialect::OpenAi)
        .with_faults(FaultPlan::always(Fault::Error(ErrorKind::Overloaded)))
        .build();
    let up = provider(Dialect::Anthropic).respond(|_| Some(rich_answer())).build();
    let rig = Rig::builder()
        .provider_with(down, "models = { \"*\" = \"gpt-4o\" }")
        .provider_with(up, "models = { \"*\" = \"claude-sonnet-4-5\" }")
        .config(
            "[retry]\nretries = 0\nretries_with_spare = 0\n[cooldown]\noverloaded = 300\n\
             [failover]\nrest_after = 1\nfirst_rest_ms = 0\n",
        )
        .start()
        .await;
    let status = || async { HttpRequest::get("/admin/status").send(rig.addr).await.json() };
    let before = status().await;
    assert_eq!(before["chain"], serde_json::json!(["openai", "anthropic"]));
    assert_eq!(ask(Dialect::Gemini, "anything", false).send(rig.addr).await.status, 200);

    let after = status().await;
    assert_eq!((&before["attempts"], &after["attempts"]), (&0.into(), &rig.asked().into()));
    let target = |name: &str| {
        let all = after["targets"].as_array().unwrap();
        let found = all.iter().find(|t| {
            t["target"].as_str().unwrap().starts_with(name) && !t["last_error"].is_null()
        });
        found.cloned()
    };
    let resting = target("openai").unwrap_or_else(|| panic!("{after:#}"));
    assert_eq!(resting["cooling"]["reason"], "overloaded", "{after:#}");
    let left = resting["cooling"]["for_s"].as_f64().unwrap();
    assert!((270.0..=300.0).contains(&left), "{left}");
    assert_eq!(resting["last_error"]["reason"], "overloaded");
    assert_eq!(target("anthropic"), None, "{after:#}");
    let metrics = metrics(&rig).await;
    let cooling: Vec<_> = metrics
        .iter()
        .filter(|(series, left)| series.starts_with("steadfast_target_cooling") && **left > 0.0)
        .map(|(series, _)| series)
        .collect();
    assert!(!cooling.is_empty() && cooling.iter().all(|series| series.contains("openai")));
    assert_eq!(HttpRequest::get("/readyz").send(rig.addr).await.status, 200, "one is enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_ready_unless_every_provider_refuses_its_keys() {
    let rig = Rig::builder()
        .provider(provider(Dialect::OpenAi).build())
        .config("[retry]\nretries = 0\n")
        .start()
        .await;
    let ready = async || HttpRequest::get("/readyz").send(rig.addr).await;
    rig.sims[0].provider().set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
    for _ in 0..3 {
        let reply = ask(Dialect::OpenAi, "gpt-4o", false).send(rig.addr).await;
        assert_eq!(reply.status, 502, "{}", reply.text());
        assert_eq!(ready().await.status, 200, "it would be asked again");
    }
    rig.sims[0].provider().set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
    let reply = ask(Dialect::OpenAi, "gpt-4o", false).send(rig.addr).await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    let reply = ready().await;
    assert_eq!((reply.status, reply.text()), (503, "every target refuses our keys\n"));
    assert_eq!(HttpRequest::get("/healthz").send(rig.addr).await.status, 200);
}

fn three(builder: RigBuilder) -> RigBuilder {
    let latency = Latency {
        headers: Duration::from_millis(2),
        per_token: Duration::from_micros(200),
        jitter: 0.5,
    };
    DIALECTS.into_iter().fold(builder, |builder, dialect| {
        let plan = FaultPlan::none()
            .rule(PlanRule::new(Fault::Error(ErrorKind::ServerError)).every(11))
            .rule(PlanRule::new(Fault::Reset).every(13));
        let sim = provider(dialect)
            .respond(|_| Some(rich_answer()))
            .with_latency(latency)
            .with_faults(plan)
            .build();
        let own = match dialect {
            Dialect::OpenAi | Dialect::Responses => "gpt-*",
            Dialect::Anthropic => "claude-*",
            Dialect::Gemini => "gemini-*",
        };
        let models = format!("models = {{ \"{own}\" = \"*\", \"*\" = \"{}\" }}", model(dialect));
        builder.provider_with(sim, &models)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_requests_at_once_leave_nothing_behind() {
    const REQUESTS: usize = 200;
    let rig = three(Rig::builder())
        .config(
            "[failover]\nown_vendor_first = true\n[retry]\nbase_ms = 1\ncap_ms = 10\nbudget = 0\n\
             [cooldown]\nserver_error = 0\nnetwork = 0\n",
        )
        .start()
        .await;
    let slots = Arc::new(Semaphore::new(32));
    let mut callers = JoinSet::new();
    for n in 0..REQUESTS {
        let (slots, addr) = (slots.clone(), rig.addr);
        callers.spawn(async move {
            let _slot = slots.acquire().await.unwrap();
            let (caller, speaks) = pairs().nth(n % 9).unwrap();
            let stream = n % 2 == 0;
            let id = format!("smoke-{n}");
            let request = ask(caller, model(speaks), stream).header("x-request-id", &id);
            let reply = request.send(addr).await;
            assert_eq!(reply.status, 200, "{n}: {}", reply.text());
            assert_eq!(reply.header("x-request-id"), Some(id.as_str()), "answers are not mixed up");
            let answer = if stream {
                WireAnswer::stream(caller, &reply.body)
            } else {
                WireAnswer::whole(caller, &reply.body)
            };
            assert!(answer.errors.is_empty() && !answer.text.is_empty(), "{n}: {answer:?}");
            answer.text
        });
    }
    let mut texts = BTreeSet::new();
    let mut answered = 0;
    while let Some(text) = callers.join_next().await {
        texts.insert(text.unwrap());
        answered += 1;
    }
    assert_eq!((answered, texts.len()), (REQUESTS, 1), "every answer is the one that was sent");
    until_metrics(&rig, |m| in_flight(m) == 0.0).await;
    let all = metrics(&rig).await;
    let ok: f64 = all
        .iter()
        .filter(|(series, _)| {
            series.starts_with("steadfast_requests_total") && series.contains("outcome=\"ok\"")
        })
        .map(|(_, times)| times)
        .sum();
    assert_eq!(ok, 200.0);
    rig.assert_all_attempts("two hundred").await;
    for sim in &rig.sims {
        let entries = sim.provider().journal().entries();
        assert!(entries.iter().all(|entry| entry.end != End::Open), "no call is open");
        assert!(entries.iter().all(|entry| entry.end != End::Dropped), "none was dropped");
    }
}
