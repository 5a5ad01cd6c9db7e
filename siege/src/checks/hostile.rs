//! Providers that mean harm: answers and streams that lie, never end, or are too much.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use steadfast_sim::{
    Break, Coalesce, Dialect, Drip, ErrorKind, Fault, FaultPlan, FirstToken, How, Journal,
    RateLimit, SimProvider,
};
use tokio::time::Instant;

use super::{hostile_raw, open};
use crate::{
    check::{Category, Check, Seen, expect},
    process::Setup,
    provider::{Part, Providers, answer, response, route, section},
    site::{Site, others},
    wire::{Client, Reply, SOON, call, chat, get, question},
};

pub(crate) const CATEGORY: Category =
    Category { name: "hostile", simulated, setup, at_once: 6, checks };

/// What has to come of a provider's answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// A typed failure: a status with the dialect's error, or an error event in a stream.
    Fails,
    /// An answer with its proper end.
    Answers,
    /// One of the two: soon, and whole.
    Any,
}

/// How long a call may take that asks for at most three seconds, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(10);

/// The memory that all of them together may take.
const MEMORY_MIB: u64 = 1024;

fn setup(providers: &Providers) -> Setup {
    let own = open(providers);
    let mut config = own.config.clone();
    for sim in &providers.more {
        let (name, dialect) = (sim.provider().name(), sim.provider().dialect());
        let models = format!("models = {{ \"*\" = \"{}\" }}", model(dialect));
        config += &section(name, dialect.as_str(), &sim.base_url(), &models);
        config += &route(name, name);
    }
    for kind in hostile_raw::kinds() {
        let name = slug(kind.name);
        providers.raw.serve(name.as_str(), kind.parts);
        config += &section(&name, "openai", &providers.raw.base_url(&name), "");
        config += &route(&name, &name);
    }
    let trap = Part::Bytes(response("200 OK", "", &answer("You followed.")));
    providers.raw.serve("trap", vec![trap]);
    Setup { config, ..own }
}

/// A provider for each of the simulator's faults.
fn simulated() -> Vec<SimProvider> {
    let each = |(n, (dialect, fault)): (usize, (Dialect, Fault))| {
        SimProvider::builder(dialect)
            .with_name(format!("sim-{n}"))
            .with_journal(&Journal::keeping(16))
            .with_faults(FaultPlan::always(fault))
            .build()
    };
    faults().into_iter().enumerate().map(each).collect()
}

/// A name that a path and a configuration can have.
pub(super) fn slug(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    format!("raw-{}", letters.collect::<String>().to_ascii_lowercase())
}

/// A model that the simulator of `dialect` has.
const fn model(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => "gpt-4o",
        Dialect::Anthropic => "claude-sonnet-4-5",
        Dialect::Gemini => "gemini-2.5-pro",
    }
}

/// Each of the simulator's faults in each dialect.
fn faults() -> Vec<(Dialect, Fault)> {
    use ErrorKind as E;
    let errors = [
        E::RateLimit(RateLimit::after("1000000000000000000")),
        E::RateLimit(RateLimit::after("-1")),
        E::RateLimit(RateLimit::after_ms(u64::MAX)),
        E::RateLimit(RateLimit::reset("99999999999h")),
        E::InsufficientQuota,
        E::Overloaded,
        E::ServerError,
        E::GatewayTimeout,
        E::Auth,
        E::Permission,
        E::ModelNotFound,
        E::ContextOverflow,
        E::Format,
        E::ContentFilter,
        E::PayloadTooLarge,
        E::BadGatewayHtml,
    ];
    let breaks = [
        How::Reset,
        How::Close,
        How::End,
        How::Stall,
        How::ErrorEvent(E::ServerError),
        How::MalformedJson,
        How::TruncatedJson,
        How::Garbage,
    ];
    let mut all: Vec<Fault> = errors.iter().cloned().map(Fault::Error).collect();
    all.extend(errors.iter().cloned().map(Fault::ErrorInOk));
    all.extend([
        Fault::Empty,
        Fault::Hang,
        Fault::Refused,
        Fault::Reset,
        Fault::Close,
        Fault::HalfHeaders,
        Fault::FirstToken(FirstToken { after_ms: 60_000, ping_every_ms: Some(1) }),
        Fault::Drip(Drip { bytes: 1, every_ms: 0 }),
        Fault::Coalesce(Coalesce { frames: 0 }),
        Fault::ContentType("text/html".into()),
        Fault::ContentType("application/octet-stream".into()),
        Fault::OutputLimit(1),
        Fault::window(1),
    ]);
    for how in breaks {
        for after in [0, 5] {
            let after_events = Some(after);
            all.push(Fault::Break(Break { after_events, after_bytes: None, how: how.clone() }));
        }
    }
    let dialects = [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini];
    let each = |dialect: Dialect| all.iter().cloned().map(move |fault| (dialect, fault));
    dialects.into_iter().flat_map(each).collect()
}

fn checks() -> Vec<Check> {
    let mut all = vec![
        Check::new("others meanwhile", |site| async move {
            let (slowest, p99) = others(site, Duration::from_secs(8)).await?;
            let seen = format!("others' p99 {p99:.0?}, at most {slowest:.0?}");
            expect(p99 < Duration::from_millis(500), seen)
        })
        .within_s(30),
        Check::new("a second answer that nobody asked for", second_answer).within_s(20),
    ];
    for kind in LONG_HINTS {
        let title = format!("{kind}: asked again within an hour");
        all.push(Check::new(title, move |site| long_hint(site, kind)).within_s(30));
    }
    for (n, (dialect, fault)) in faults().into_iter().enumerate() {
        for stream in [false, true] {
            // Once whole and once as a stream, of which a quick run takes one.
            let form = if stream { "a stream" } else { "whole" };
            let text = serde_json::to_string(&fault).unwrap_or_default();
            let check = Check::new(format!("{dialect} {text}, {form}"), move |site| async move {
                let seen = ask(&site, &format!("sim-{n}"), stream, Want::Any).await;
                let asked = site.providers.more[n].provider().journal().len();
                if asked == 0 { expect(false, "the provider was not asked") } else { seen }
            });
            all.push(if stream == (n % 2 == 0) { check } else { check.slow() });
        }
    }
    all.extend(hostile_raw::kinds().into_iter().map(|kind| {
        let check = Check::new(kind.name, move |site| async move {
            let seen = ask(&site, &slug(kind.name), kind.stream, kind.want).await;
            let asked = |name: &str| site.providers.raw.asked(name);
            match (asked(&slug(kind.name)), asked("trap")) {
                (0, _) => expect(false, "the provider was not asked"),
                (_, 0) => seen,
                _ => expect(false, "a redirect was followed"),
            }
        });
        let check = check.within_s(30);
        if kind.is_quick { check } else { check.slow() }
    }));
    all
}

/// A question to `model`, that may be asked once and for three seconds.
fn once(model: &str, stream: bool) -> Vec<u8> {
    let headers = "x-steadfast-max-attempts: 1\r\nx-steadfast-timeout-ms: 3000\r\n";
    chat(headers, &question(model, "What is it?", stream))
}

/// What comes of a question that may be asked once.
pub(super) async fn ask(site: &Site, model: &str, stream: bool, want: Want) -> Seen {
    let from = Instant::now();
    // What is large takes a while to be read, also from one that is well.
    let reply = call(site.gateway.addr, once(model, stream), Duration::from_secs(25)).await?;
    let took = from.elapsed();
    let memory = site.gateway.usage()?.rss_mib;
    let (fails, answers) = (is_failure(&reply), is_answer(&reply, stream));
    let holds = match want {
        Want::Fails => fails && !answers,
        Want::Answers => answers,
        Want::Any => fails || answers,
    };
    let after: u64 = reply.header("retry-after").and_then(|value| value.parse().ok()).unwrap_or(0);
    let is_small = reply.body.len() < 10 << 20;
    let holds = holds
        && reply.is_whole
        && after <= DAY
        && memory < MEMORY_MIB
        && (took < LIMIT || !is_small);
    let hint = if after > 0 { format!(", retry-after {after}") } else { String::new() };
    let text: String = reply.text().chars().rev().take(100).collect::<String>();
    let end: String = text.chars().rev().collect();
    expect(
        holds,
        format!(
            "{} {} bytes in {took:.1?}{hint}, memory {memory} MiB, wanted {want:?}: ...{end}",
            reply.status,
            reply.body.len()
        ),
    )
}

/// A status with an error of the dialect, or an error event as the last of a stream.
fn is_failure(reply: &Reply) -> bool {
    if reply.status != 200 {
        return reply.is_typed_error();
    }
    let text = reply.text();
    text.trim_end().rsplit("\n\n").next().is_some_and(|last| last.contains("\"error\""))
        && !text.contains("[DONE]")
}

fn is_answer(reply: &Reply, stream: bool) -> bool {
    if reply.status != 200 {
        return false;
    }
    if stream {
        return reply.text().trim_end().ends_with("data: [DONE]");
    }
    // Not by a reader of JSON: what a strict one dislikes and changes nothing is handed on as it is.
    reply.text().contains("\"choices\":[")
}

async fn second_answer(site: Arc<Site>) -> Seen {
    let mut stolen = 0;
    for _ in 0..20 {
        let request = once(&slug("a second answer behind the first"), false);
        let reply = call(site.gateway.addr, request, SOON).await?;
        stolen += usize::from(reply.text().contains("STOLEN"));
    }
    expect(stolen == 0, format!("{stolen} of 20 were given the answer that nobody asked for"))
}

/// Refusals that ask for a wait that nobody means.
const LONG_HINTS: [&str; 5] = [
    "a 429 for 10^18 seconds",
    "a 429 for 2^64 milliseconds",
    "a 429 for 1e308 seconds",
    "a 429 until the year 9999",
    "a 429 with a reset of 10^400",
];

/// The longest wait that a hint can ask for where its reason is a quota of the day or an unpaid bill, in seconds.
const DAY: u64 = 86_400;

/// And where it is any other.
const HOUR: u64 = 3_600;

/// A target that asked for longer is asked again within an hour, and callers are given no more than that.
async fn long_hint(site: Arc<Site>, kind: &'static str) -> Seen {
    let name = slug(kind);
    let mut client = Client::connect(site.gateway.addr).await?;
    let mut hints = Vec::new();
    for n in 0..3 {
        let body = question(&name, &format!("Question {n}?"), false);
        client
            .send(chat("x-steadfast-max-attempts: 1\r\nx-steadfast-timeout-ms: 3000\r\n", &body))
            .await;
        let reply = client.reply(SOON).await.ok_or("no answer")?;
        hints.push(reply.header("retry-after").and_then(|text| text.parse::<u64>().ok()));
    }
    let status = get(site.gateway.addr, "/admin/status").await?.json().unwrap_or_default();
    // The target itself, its provider and its credential: whichever of them rests.
    let targets = status["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let own = |target: &&Value| target["target"].as_str().is_some_and(|it| it.contains(&name));
    let rests = targets.iter().filter(own).filter_map(|target| target["cooling"]["for_s"].as_f64());
    let rests = rests.map(Duration::from_secs_f64).max();
    let is_hinted = hints.iter().any(Option::is_some);
    expect(
        hints.iter().flatten().all(|hint| *hint <= HOUR)
            && rests.is_some() >= is_hinted
            && rests.is_none_or(|rests| rests <= Duration::from_secs(HOUR)),
        format!("callers are given {hints:?} s, it rests for {rests:?}"),
    )
}
