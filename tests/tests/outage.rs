//! A provider goes down for ten minutes: what its callers notice of it, what it is asked meanwhile, and when
//! it is used again.
//!
//! The gateway as `steadfast serve` starts it with two keys in its environment, or one, nothing else set;
//! three models, twenty calls a second of a thousand sessions, on a paused clock and of one seed. The first
//! provider fails after some seconds, for ten minutes. `cargo xtask outage` prints the table; in a plain run
//! the outages are short.
//!
//! | variable | |
//! |---|---|
//! | `STEADFAST_OUTAGE=n` | outages of so many seconds instead of 20 |

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fmt, sync::Arc, time::Duration};

use fastrand::Rng;
use parking_lot::Mutex;
use serde_json::json;
use steadfast::{
    Dialect,
    sim::{ErrorKind, Fault, FaultPlan, RateLimit, SimProvider},
};
use steadfast_tests::{
    gateway::{
        http::HttpRequest,
        in_process::{InProcess, provider_name},
    },
    seeds,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// Calls a second.
const RATE: f64 = 20.0;

/// How long the provider is well before.
const DOWN: Duration = Duration::from_secs(5);

/// The models that callers ask for.
const MODELS: [&str; 3] = ["claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"];

/// How long an outage lasts by default, in seconds.
const SHORT: u64 = 20;

/// How long an outage lasts.
fn outage() -> Duration {
    Duration::from_secs(seeds::number("STEADFAST_OUTAGE").unwrap_or(SHORT))
}

/// Calls go on for so long after it.
fn after() -> Duration {
    outage() / 4
}

/// One call.
struct Call {
    /// When it began, since the beginning of all.
    at: Duration,
    /// The providers themselves answer at once.
    took: Duration,
    answered: bool,
    /// What the gateway says of it.
    attempts: usize,
    other: bool,
}

/// What an outage came to.
struct Outage {
    name: &'static str,
    calls: Vec<Call>,
    /// Attempts at the provider while it was down.
    attempts: usize,
    /// From the end of the outage until the provider has answered a call again.
    back_after: Option<Duration>,
}

impl Outage {
    /// The calls that began while the provider was down.
    fn meanwhile(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| !call.other && (DOWN..DOWN + outage()).contains(&call.at))
    }

    /// How many of them were answered.
    fn answered(&self) -> f64 {
        let answered = self.meanwhile().filter(|call| call.answered).count();
        answered as f64 / self.meanwhile().count() as f64
    }

    /// What those that were answered had to wait: so much or less, this share of them.
    fn quantile(&self, share: f64) -> Duration {
        let answered = self.meanwhile().filter(|call| call.answered);
        let mut added: Vec<_> = answered.map(|call| call.took).collect();
        added.sort();
        let at = (added.len() as f64 * share) as usize;
        added.get(at).or(added.last()).copied().unwrap_or_default()
    }

    /// A call's own attempt, turns, and the failures that it takes to know that nobody is there.
    fn is_asked_hardly_more_than_once_a_call(&self) -> bool {
        self.attempts as f64 <= 1.2 * self.meanwhile().count() as f64 + 20.0
    }

    /// Attempts at the provider for a call, while it was down.
    fn attempts_a_call(&self) -> f64 {
        self.attempts as f64 / self.meanwhile().count() as f64
    }
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, all] = [0.5, 0.99, 1.0].map(|share| self.quantile(share).as_secs_f64());
        let back = self
            .back_after
            .map_or("later".to_owned(), |back| format!("{:.1} s", back.as_secs_f64()));
        write!(
            f,
            "| {} | {} | {:.2} % | {half:.2} s | {most:.2} s | {all:.2} s | {} ({:.3}) | {back} |",
            self.name,
            self.meanwhile().count(),
            100.0 * self.answered(),
            self.attempts,
            self.attempts_a_call(),
        )
    }
}

const HEAD: &str = "\
| the provider is down | calls meanwhile | answered | p50 added | p99 added | most added | attempts at it (a call) | used again after |
|---|---|---|---|---|---|---|---|";

/// A question of a session of its own, of a kind that goes to the other chain where there is one.
fn question(rng: &mut Rng, other: bool) -> HttpRequest {
    let prompt = json!({"type": "text", "text": rng.u64(..).to_string()});
    let source = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="});
    let content = match other {
        true => json!([prompt, {"type": "image", "source": source}]),
        false => json!([prompt]),
    };
    let body = json!({
        "model": MODELS[rng.usize(..3)],
        "max_tokens": 1_000,
        "stream": true,
        "messages": [{"role": "user", "content": content}],
    });
    HttpRequest::post("/v1/messages", body.to_string())
        .header("anthropic-version", "2023-06-01")
        .header("x-steadfast-session", &rng.u32(..1_000).to_string())
}

/// Who else is there.
#[derive(Clone, Copy, PartialEq)]
enum Others {
    /// Nobody.
    Alone,
    /// Another provider, which takes any model.
    Spare,
    /// Another provider, in a chain of its own.
    OtherChain,
}

/// Questions with images go to a provider of their own.
const TWO_CHAINS: &str = r#"
[server]
auth = "none"
[[providers]]
name = "anthropic"
dialect = "anthropic"
credentials = ["env:FIRST"]
[[providers]]
name = "openai"
dialect = "openai"
credentials = ["env:SECOND"]
models = { "*" = "gpt-4o" }
[failover]
chain = ["anthropic"]
chains = { vision = ["openai"] }
"#;

fn run(name: &'static str, others: Others, fault: Fault) -> Outage {
    seeds::paused().build().unwrap().block_on(async move {
        let dialects = [Dialect::Anthropic, Dialect::OpenAi];
        let sims: Vec<SimProvider> = dialects
            .into_iter()
            .take(if others == Others::Alone { 1 } else { 2 })
            .map(|dialect| SimProvider::builder(dialect).with_name(provider_name(dialect)).build())
            .collect();
        let gateway = Arc::new(match others {
            Others::OtherChain => InProcess::with_file(TWO_CHAINS, &sims),
            _ => InProcess::without_file(&sims),
        });
        let began = Instant::now();
        let up = DOWN + outage();
        let dead = sims[0].clone();
        let down = tokio::spawn(async move {
            sleep_until(began + DOWN).await;
            dead.set_faults(FaultPlan::always(fault));
            sleep_until(began + up).await;
            dead.set_faults(FaultPlan::none());
        });
        let calls = Arc::new(Mutex::new(Vec::new()));
        let mut rng = Rng::with_seed(1);
        let mut running = JoinSet::new();
        let mut number = 0;
        while began.elapsed() < up + after() {
            number += 1;
            let other = others == Others::OtherChain && number % 10 == 0;
            let request = question(&mut rng, other);
            let (gateway, calls) = (gateway.clone(), calls.clone());
            running.spawn(async move {
                let at = began.elapsed();
                let reply = gateway.send(&request).await;
                let answered = reply.status == 200 && reply.text().contains("message_stop");
                let took = began.elapsed() - at;
                let attempts = reply.header("x-steadfast-attempts").unwrap().parse().unwrap();
                calls.lock().push(Call { at, took, answered, attempts, other });
            });
            sleep(Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / RATE)).await;
            while let Some(ended) = running.try_join_next() {
                ended.unwrap();
            }
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
        down.await.unwrap();
        let calls = std::mem::take(&mut *calls.lock());
        let entries = sims[0].journal().entries();
        let well = entries.iter().find(|entry| entry.at >= up && entry.sent.is_some());
        let outage = Outage {
            name,
            attempts: entries.iter().filter(|entry| (DOWN..up).contains(&entry.at)).count(),
            back_after: well.map(|entry| entry.at - up),
            calls,
        };
        // A head that is sent early knows of the attempts until then; the metric has all.
        let in_heads: usize = outage.calls.iter().map(|call| call.attempts).sum();
        let known = usize::try_from(gateway.app.metrics().attempts()).unwrap();
        assert!(in_heads <= known, "{name}: {in_heads} of {known}");
        let asked: usize = sims.iter().map(|sim| sim.journal().len()).sum();
        assert_eq!(
            known, asked,
            "{name}: attempts by the gateway's own account, and by the providers'"
        );
        outage
    })
}

/// Some seconds, with what jitter adds to them.
fn with_jitter(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds * 1.25)
}

#[test]
fn with_a_healthy_spare_callers_hardly_notice() {
    println!("{HEAD}");
    // What is added at most, how often the provider is asked in the first seconds, and how long it may not be
    // asked once it is well.
    for (name, fault, added, asked, back) in [
        ("500", Fault::Error(ErrorKind::ServerError), 0.5, 10, 60),
        ("overloaded", Fault::Error(ErrorKind::Overloaded), 1.5, 30, 120),
        ("connections refused", Fault::Refused, 0.5, 10, 30),
        ("429 without a hint", Fault::rate_limit(RateLimit::default()), 0.0, 30, 60),
        ("429, `retry-after: 20`", Fault::rate_limit(RateLimit::after("20")), 0.0, 10, 60),
        ("its key is refused", Fault::Error(ErrorKind::Auth), 0.0, 2, 600),
    ] {
        let outage = run(name, Others::Spare, fault);
        println!("{outage}");
        assert!(outage.calls.iter().all(|call| call.answered), "{name}: a call is lost");
        assert_eq!(outage.quantile(0.99), Duration::ZERO, "{name}: most callers notice nothing");
        assert!(outage.quantile(1.0) <= with_jitter(added), "{name}: {outage}");
        // Then once for each rest, which are longer and longer.
        let rests = usize::try_from(self::outage().as_secs() / 10).unwrap();
        assert!(outage.attempts <= asked + rests, "{name}: {outage}");
        if let Some(after) = outage.back_after {
            assert!(after <= Duration::from_secs(back), "{name}: {after:?}");
        } else {
            // The calls of this run end before the cooldown of a refused key.
            assert!(after() < Duration::from_secs(back), "{name}: it is not used again");
        }
    }
}

/// One caller's calls, one after the other: it pays the limit twice and then, now and then, for a probe.
#[test]
fn a_provider_that_hangs_costs_its_limit_twice_and_then_the_time_of_probes() {
    seeds::paused().build().unwrap().block_on(async {
        let sims = [Dialect::Anthropic, Dialect::OpenAi]
            .map(|dialect| SimProvider::builder(dialect).with_name(provider_name(dialect)).build());
        sims[0].set_faults(FaultPlan::always(Fault::Hang));
        let gateway = InProcess::without_file(&sims);
        let (mut rng, mut added) = (Rng::with_seed(1), Vec::new());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1_000) {
            let call = Instant::now();
            let reply = gateway.send(&question(&mut rng, false)).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            added.push(call.elapsed().as_secs());
            sleep(Duration::from_secs(1)).await;
        }
        let (limit, probe) = (180, 5);
        assert_eq!(added[..2], [limit, limit], "two in a row");
        let probes = added[2..].iter().filter(|added| **added > 0).count();
        assert!(added[2..].iter().all(|added| [0, probe].contains(added)), "{added:?}");
        assert!(probes * 10 < added.len(), "{probes} probes among {} calls", added.len());
        assert_eq!(sims[0].journal().len(), 2 + probes);
    });
}

#[test]
fn a_dead_provider_that_is_alone_is_asked_hardly_more_than_once_a_call() {
    println!("{HEAD}");
    for (name, fault) in [
        ("alone, 500", Fault::Error(ErrorKind::ServerError)),
        ("alone, overloaded", Fault::Error(ErrorKind::Overloaded)),
        ("alone, connections refused", Fault::Refused),
        ("alone, 429 without a hint", Fault::rate_limit(RateLimit::default())),
    ] {
        let outage = run(name, Others::Alone, fault);
        println!("{outage}");
        assert!(outage.is_asked_hardly_more_than_once_a_call(), "{name}: {outage}");
        assert!(outage.back_after.unwrap() < Duration::from_secs(2), "{name}");
        assert!(outage.calls.iter().all(|call| call.took < Duration::from_secs(65)), "{name}");
        let up = DOWN + self::outage();
        let lost = outage.calls.iter().filter(|call| !call.answered);
        let late = lost.map(|call| call.at).max().unwrap_or_default();
        assert!(late < up, "{name}: a call is lost {:?} after the outage", late - up);
    }
}

/// Whoever comes in the first three minutes waits out the limit, as it has not fired yet, and then all are
/// answered by the other one.
#[test]
fn nobody_is_lost_to_a_provider_that_hangs() {
    let outage = run("hang", Others::Spare, Fault::Hang);
    println!("{HEAD}\n{outage}");
    assert!(outage.calls.iter().all(|call| call.answered), "a call is lost: {outage}");
    let limit = Duration::from_secs(180);
    assert!(outage.quantile(1.0) <= limit + Duration::from_secs(6), "{outage}");
    let late = outage.meanwhile().filter(|call| call.at > DOWN + limit + Duration::from_secs(5));
    let (mut late, mut slow) = (late.peekable(), 0);
    let any = late.peek().is_some();
    let count = late.inspect(|call| slow += usize::from(call.took > Duration::ZERO)).count();
    assert!(!any || slow * 50 < count, "{slow} of {count} wait for a probe: {outage}");
}

#[test]
fn callers_that_wait_for_one_provider_do_not_delay_those_of_another() {
    let outage = run("others wait", Others::OtherChain, Fault::Error(ErrorKind::ServerError));
    println!("{HEAD}\n{outage}");
    let others: Vec<&Call> = outage.calls.iter().filter(|call| call.other).collect();
    assert!(others.len() > 40);
    for call in others {
        assert!(call.answered && call.attempts == 1, "at {:?}", call.at);
        assert_eq!(call.took, Duration::ZERO, "at {:?}", call.at);
    }
    assert!(outage.is_asked_hardly_more_than_once_a_call(), "{outage}");
}
