//! Long sessions through the layer: few compactions, a prefix that stays, windows of every size, facts
//! that survive, and counts that come close to the provider's own.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::{
    Message, Part, RawJson, Role, Tool, transcript::TranscriptRules, transcript::validate,
};
use steadfast_classify::ClassifyLayer;
use steadfast_client::{Credential, LlmClient, Provider, Providers};
use steadfast_compact::{
    CompactionLayer, Notice, SpendPolicy, SummaryPolicy, TargetFacts, Tier, TokenLimits,
};
use steadfast_core::{Dialect, Failure, Reason};
use steadfast_sim::{Answer, Journal, SimProvider, count_tokens};
use support::*;
use tower::{Layer, ServiceExt};

fn summariser() -> Model {
    Model::at_once(|_, _| Ok(say("Much was asked, and much was done; the work goes on.")))
}

/// One step of an agent: a call, and what came of it.
fn step(list: &mut Vec<Message>, number: usize, size: usize) {
    let id = format!("call_{number}");
    let arguments = format!(r#"{{"path":"src/module_{number}.rs"}}"#);
    list.push(Message::new(Role::Assistant, vec![Part::tool_call(&id, "read_file", arguments)]));
    let result = format!("line {number} of it\n").repeat(size / 16);
    list.push(Message::new(Role::User, vec![Part::tool_result(&id, result)]));
}

fn tools() -> Vec<Tool> {
    vec![Tool::function("read_file", "reads", RawJson::parse(r#"{"type":"object"}"#).unwrap())]
}

#[tokio::test(start_paused = true)]
async fn two_hundred_turns_take_at_most_six_compactions() {
    for with_summaries in [false, true] {
        let layer = match with_summaries {
            true => CompactionLayer::new(summariser()),
            false => CompactionLayer::rules_only(),
        };
        let layer = layer.with_targets(window(64_000)).with_counter(four_bytes()).with_seed(3);
        let model = Model::at_once(|_, request| {
            Ok(say_used("ok", size(&request.messages) as u64 / 4 + 600, 20))
        });
        let service = stacked(&layer, &model);
        let mut list = vec![Message::system("You are careful."), Message::user("Build it.")];
        let (mut compactions, mut changes) = (0, 0);
        let mut before: Vec<Message> = Vec::new();
        for turn in 0..200 {
            step(&mut list, turn, 200 + turn * 37 % 6_000);
            if turn % 5 == 4 {
                list.push(Message::assistant(format!("Done with {turn}.")));
                list.push(Message::user(format!("Now go on with {turn}, please.")));
            }
            let asked = request(list.clone(), session("s")).with_tools(tools());
            let answer = ask(&service, asked).await.unwrap();
            let made = Notice::of(&answer.head).map_or(0, |notice| notice.reports.len());
            compactions += made;
            let sent = model.last().messages;
            let is_changed = !sent.starts_with(&before);
            assert_eq!(is_changed, made > 0 && turn > 0, "turn {turn}");
            changes += usize::from(is_changed);
            before = sent.to_vec();
        }
        assert!((1..=6).contains(&compactions), "{compactions}");
        assert_eq!(changes, compactions);
    }
}

#[tokio::test(start_paused = true)]
async fn every_window_is_fitted_whatever_the_summariser_does() {
    let rules = TranscriptRules::for_dialect(Dialect::Anthropic);
    for (window, history) in
        [(4_096, 100_000), (16_000, 400_000), (128_000, 1_000_000), (1_000_000, 2_000_000)]
    {
        let mut list = vec![Message::system("You are careful."), Message::user("Read it all.")];
        let mut number = 0;
        let each = (window as usize / 20).min(8_000);
        while list.len() * each / 2 < history * 4 {
            step(&mut list, number, each);
            number += 1;
        }
        list.push(Message::assistant("All of it is read."));
        list.push(Message::user("And now?"));
        for (what, summariser) in [
            ("nobody", None),
            ("good", Some(summariser())),
            ("failing", Some(Model::at_once(|_, _| Err(Failure::new(Reason::Timeout, "late"))))),
        ] {
            let layer = summariser.map_or_else(CompactionLayer::rules_only, CompactionLayer::new);
            let layer = layer.with_targets(support::window(window)).with_counter(four_bytes());
            let model = Model::fine();
            let asked = request(list.clone(), session("s")).with_tools(tools());
            let answer = ask(&stacked(&layer, &model), asked).await.unwrap();
            let notice = notice(&answer);
            let case = format!("{window} of {history}, {what}: {:?}", notice.reports);
            let report = notice.reports[0];
            assert!(report.before >= history as u64 && report.after <= report.target, "{case}");
            assert!(notice.tokens + notice.reserve < window * 9 / 10, "{case}");
            assert!(validate(&model.last(), &rules).is_ok(), "{case}");
        }
    }
}

/// What has to be known afterwards.
const FACTS: [&str; 7] = [
    "src/engine/planner.rs",
    "PROJ-4711",
    "d41d8cd98f00b204",
    "48213",
    "Never delete the fixtures",
    "rename the flag",
    "Do not touch the migrations",
];

#[tokio::test(start_paused = true)]
async fn planted_facts_survive_every_tier() {
    // Which tier: no summariser, one that may be asked about all, and one about half only.
    for (tier, hour) in [(Tier::Fallback, 0), (Tier::Summary, 0), (Tier::Partial, 11_000)] {
        let layer = match tier {
            Tier::Fallback => CompactionLayer::rules_only(),
            _ => CompactionLayer::new(summariser()),
        };
        let mut policy = SummaryPolicy::default();
        policy.time = Duration::from_secs(9);
        let layer = layer
            .with_targets(window(12_000))
            .with_summaries(policy)
            .unwrap()
            .with_spend(SpendPolicy { hour, day: 0 });
        let mut list = vec![
            Message::system("You are careful."),
            Message::user(
                "Fix PROJ-4711 in src/engine/planner.rs. Never delete the fixtures. \
                 Do not touch the migrations.",
            ),
            Message::assistant(
                "The commit is d41d8cd98f00b204 and the server listens on port 48213.\n\
                 TODO: rename the flag",
            ),
        ];
        list.extend(talk(150, 20).into_iter().skip(1));
        let model = Model::fine();
        let answer =
            ask(&stacked(&layer, &model), request(list.clone(), session("s"))).await.unwrap();
        let report = notice(&answer).reports[0];
        assert_eq!(report.tier, tier, "{report}");
        let sent = model.last().messages;
        let text: String = sent.iter().map(Message::text).collect();
        for fact in FACTS {
            assert!(text.contains(fact), "{fact} is lost in {}: {text}", tier.as_str());
        }
        assert_eq!(sent[sent.len() - 4..], list[list.len() - 4..], "what is recent is as it was");
    }
}

#[tokio::test(start_paused = true)]
async fn counts_come_within_three_percent_of_the_provider_after_two_turns() {
    let mut errors = Vec::new();
    for seed in 0..4 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let journal = Journal::keeping(1);
        let sim = SimProvider::builder(steadfast_sim::Dialect::Anthropic)
            .with_models([steadfast_sim::Model::new(MODEL, 1_000_000, 8_192)])
            .with_journal(&journal)
            .respond(|_| Some(Answer::text("ok")))
            .build();
        let provider = Provider::new(PROVIDER, Dialect::Anthropic)
            .with_credential(Credential::new("main", "sk-anything"));
        let client = LlmClient::with_service(Providers::new([provider]).unwrap(), sim);
        let layer = CompactionLayer::rules_only().with_targets(|_| {
            TargetFacts::default().with_limits(TokenLimits::new(60_000).with_output(1_000))
        });
        let handle = layer.handle();
        let service = layer.layer(ClassifyLayer::default().layer(client));
        let mut list = vec![Message::system("You are careful. ".repeat(60))];
        for number in 0..20 {
            step(&mut list, number, 400);
        }
        list.insert(1, Message::user("Read them."));
        for turn in 0..12 {
            step(&mut list, 100 + turn, dice.usize(100..3_000));
            let length = dice.usize(10..300);
            list.push(Message::assistant("this and that, and more of it; ".repeat(length / 8)));
            list.push(Message::user(format!("question {turn}: {}", "why? ".repeat(length))));
            let asked = request(list.clone(), session("s")).with_tools(tools());
            let answer = service.clone().oneshot(asked).await.unwrap();
            let counted = handle.snapshot().conversations[0].tokens;
            answer.collect().await.unwrap();
            let actual = count_tokens(&journal.last().unwrap().json.unwrap()) as u64;
            if turn >= 2 {
                errors.push(counted.abs_diff(actual) as f64 / actual as f64);
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    let p95 = errors[errors.len() * 95 / 100];
    assert!(p95 <= 0.03, "{p95}");
}
