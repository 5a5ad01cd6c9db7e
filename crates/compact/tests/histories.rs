//! The simulator, which has its own strict version of the providers' rules, accepts every request
//! that the layer sends.
//!
//! `STEADFAST_HISTORIES=100000 cargo test -p steadfast-compact --profile chaos --test histories` tries
//! more of them, `STEADFAST_HISTORY=n` one alone.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod history;
mod support;

use std::collections::BTreeMap;

use fastrand::Rng;
use history::{THOUGHT, Writer, random_stretch};
use steadfast_chat::{ChatRequest, ChatResponse, Message, Part, Role};
use steadfast_classify::ClassifyLayer;
use steadfast_client::{Credential, LlmClient, Provider, Providers};
use steadfast_compact::{
    CompactionLayer, Counter, Encoding, Notice, Scheme, TargetFacts, Tier, TokenLimits,
};
use steadfast_core::{CallContext, Dialect, Failure, Reason, Target};
use steadfast_sim::{Answer, Journal, Model, SimProvider};
use support::{Model as Summariser, say};
use tower::{Layer, Service, ServiceExt};

/// How many are tried by default.
const HISTORIES: u64 = 2_000;

const MODEL: &str = "the-model";

fn name(dialect: Dialect) -> &'static str {
    dialect.as_str()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A client of a strict provider whose window is so large.
fn client(
    dialect: Dialect,
    context: u64,
    journal: &Journal,
) -> impl Service<
    ChatRequest,
    Response = ChatResponse<impl steadfast_chat::Events + Unpin + Send + 'static>,
    Error = Failure,
    Future: Send,
> + Clone
+ Send
+ 'static {
    // OpenAI's models that think name their limits otherwise; what they thought is not sent back.
    let mut model = Model::new(MODEL, context, 8_192);
    if dialect == Dialect::OpenAi {
        model = model.without_thinking();
    }
    let sim = SimProvider::builder(dialect)
        .with_models([model.without_prefill()])
        .with_journal(journal)
        .respond(|_| Some(Answer::thinking(THOUGHT).then_text("ok")))
        .build();
    let provider = Provider::new(name(dialect), dialect)
        .with_credential(Credential::new("main", "sk-anything"));
    let client = LlmClient::with_service(Providers::new([provider]).unwrap(), sim);
    ClassifyLayer::default().layer(client)
}

fn context(dialect: Dialect) -> CallContext {
    CallContext::new()
        .with_target(Target::new(name(dialect)).with_model(MODEL))
        .with_tenant("acme")
        .with_session("s")
}

/// The signature under the thought that every history has.
async fn signature(dialect: Dialect) -> String {
    let mut request = ChatRequest::user("think").with_model(MODEL).with_max_output(2_048);
    request.params.thinking = Some(steadfast_chat::ThinkingConfig::Budget(1_024));
    let client = client(dialect, 1_000_000, &Journal::keeping(1));
    let answer = client.oneshot(request.with_context(context(dialect))).await.unwrap();
    let answer = answer.collect().await.unwrap();
    let signature = answer.parts.iter().find_map(|part| match part {
        Part::Thinking(thinking) => thinking.signature.clone(),
        _ => None,
    });
    signature.unwrap_or_default()
}

#[derive(Default)]
struct Seen {
    answers: u64,
    tiers: BTreeMap<Tier, u64>,
    too_large: u64,
    refused: u64,
    damaged: u64,
}

/// One conversation, from its first turn to its last.
async fn converse(seed: u64, signatures: &BTreeMap<&str, String>, seen: &mut Seen) {
    let mut dice = Rng::with_seed(seed);
    let dialect = dice.choice(Dialect::ALL).unwrap();
    let is_damaged = dice.u8(..5) == 0;
    let thinking = dialect != Dialect::OpenAi && dice.bool();
    let window = if dice.u8(..5) > 0 { dice.u64(4_096..6_000) } else { dice.u64(6_000..16_000) };
    // One in five has a provider that takes less than is stated.
    let context_size = if dice.u8(..5) == 0 { window * 3 / 4 } else { 100_000_000 };
    let layer = match dice.u8(..3) {
        0 => CompactionLayer::rules_only(),
        kind => {
            CompactionLayer::new(Summariser::at_once(move |number, _| match (kind, number % 3) {
                (1, _) | (2, 0) => Ok(say("This and that was asked, and much was done.")),
                (_, 1) => Ok(say("")),
                _ => Err(Failure::new(Reason::Overloaded, "busy")),
            }))
        }
    };
    let layer = layer
        .with_targets(move |_| {
            TargetFacts::default().with_limits(TokenLimits::new(window).with_output(8_192))
        })
        .with_counter(Counter::default().with_scheme(
            MODEL,
            // The scheme of the count does not matter here.
            Scheme { encoding: Encoding::Bytes(3), ..Scheme::for_model(MODEL) },
        ))
        .with_seed(seed);
    let journal = Journal::keeping(1);
    let service = layer.layer(client(dialect, context_size, &journal));

    let mut writer = Writer::new(dialect, thinking);
    writer.signatures.0.clone_from(&signatures[name(dialect)]);
    writer.signatures.1 = "skip_thought_signature_validator".into();
    for _ in 0..dice.usize(0..5) {
        writer.stretch(&random_stretch(&mut dice), false);
    }
    writer.stretch(&random_stretch(&mut dice), true);
    for turn in 0..dice.usize(1..5) {
        let mut request = writer.request().with_model(MODEL).with_context(context(dialect));
        // Thinking needs room to answer in.
        request.params.max_output = Some(if thinking { 1_100 } else { dice.u64(16..600) });
        let mut damaged = false;
        if is_damaged && turn > 0 {
            damaged = true;
            for _ in 0..dice.usize(1..4) {
                let list = request.messages.make_mut();
                let at = dice.usize(..list.len());
                if dice.bool() || list.len() < 3 {
                    let copy = list[at].clone();
                    list.insert(at, copy);
                } else {
                    list.remove(at);
                }
            }
            // This model goes on with no text of its own, and OpenAI's dialect leaves that to the
            // model: no rule repairs it.
            let list = request.messages.make_mut();
            let ends = list.last().is_some_and(|last| last.role() == Role::Assistant);
            if dialect == Dialect::OpenAi && ends {
                list.push(Message::user("Go on."));
            }
        }
        let case =
            format!("STEADFAST_HISTORY={seed} ({}, window {window}, turn {turn})", name(dialect));
        let sent = request.messages.len();
        let came = match service.clone().oneshot(request).await {
            Ok(answer) => answer.collect().await,
            Err(failure) => Err(failure),
        };
        match came {
            Ok(answer) => {
                seen.answers += 1;
                for report in Notice::of(&answer.head).iter().flat_map(|notice| &notice.reports) {
                    *seen.tiers.entry(report.tier).or_default() += 1;
                    assert!(report.after <= report.before, "{case}: {report}");
                }
                seen.damaged += u64::from(damaged);
            }
            Err(failure) if failure.reason() == Reason::ContextOverflow => {
                let is_ours = failure.attempts() == 0;
                seen.too_large += u64::from(is_ours);
                seen.refused += u64::from(!is_ours);
                assert!(is_ours || context_size < window, "{case}: {failure}");
            }
            // What is damaged and had room is the caller's to repair.
            Err(_) if damaged && !was_compacted(&journal, sent) => {}
            Err(failure) => {
                let body = journal.last().map(|entry| entry.body).unwrap_or_default();
                if let Ok(path) = std::env::var("STEADFAST_BODY") {
                    std::fs::write(path, &body).unwrap();
                }
                panic!("{case}: {failure}; STEADFAST_BODY=file keeps what was sent")
            }
        }
        if dice.bool() || dialect != Dialect::OpenAi {
            writer.messages.push(Message::assistant("An answer."));
        }
        writer.stretch(&random_stretch(&mut dice), true);
    }
}

/// Whether the provider saw a summary, or markers.
fn was_compacted(journal: &Journal, _: usize) -> bool {
    let Some(entry) = journal.last() else { return false };
    let body = String::from_utf8_lossy(&entry.body).into_owned();
    body.contains("[Summary of") || body.contains("[removed") || body.contains("removed to save")
}

#[test]
fn the_simulator_accepts_every_request() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut signatures = BTreeMap::new();
        for dialect in Dialect::ALL {
            let signature = match dialect {
                // A model of this name is not taken for one that reasons.
                Dialect::OpenAi | Dialect::Responses => String::new(),
                Dialect::Anthropic | Dialect::Gemini => signature(dialect).await,
            };
            signatures.insert(name(dialect), signature);
        }
        let mut seen = Seen::default();
        if let Some(seed) = number("STEADFAST_HISTORY") {
            converse(seed, &signatures, &mut seen).await;
            return;
        }
        let histories = number("STEADFAST_HISTORIES").unwrap_or(HISTORIES);
        for seed in 0..histories {
            converse(seed, &signatures, &mut seen).await;
        }
        println!(
            "{} answers, tiers {:?}, {} too large, {} refused, {} damaged",
            seen.answers, seen.tiers, seen.too_large, seen.refused, seen.damaged
        );
        for tier in [Tier::Strip, Tier::Summary, Tier::Fallback] {
            let count = seen.tiers.get(&tier).copied().unwrap_or(0);
            assert!(count * 20 >= histories, "{} was hardly tried: {count}", tier.as_str());
        }
        assert!(seen.answers > histories && seen.damaged * 20 > histories);
    });
}
