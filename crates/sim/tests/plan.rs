//! Fault plans: reading them, the error messages of invalid ones, and what matches.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::ask;
use std::time::Duration;
use steadfast_sim::{
    Break, Dialect, ErrorKind, Fault, FaultPlan, How, PlanRule, RateLimit, SimProvider,
};

#[test]
fn every_fault_reads_from_toml_and_survives_both_formats() {
    let text = r#"
        seed = 3
        [[rules]]
        fault = "hang"
        [[rules]]
        fault = "refused"
        [[rules]]
        fault = "reset"
        [[rules]]
        fault = "close"
        [[rules]]
        fault = "half_headers"
        [[rules]]
        fault = "empty"
        [[rules]]
        fault = { error = "overloaded" }
        [[rules]]
        fault = { error = { rate_limit = { retry_after = "1.5", retry_after_ms = 1500, reset = "1.5s", retry_info = "34.4s" } } }
        [[rules]]
        fault = { error_in_ok = "insufficient_quota" }
        [[rules]]
        fault = { content_type = "text/html" }
        [[rules]]
        fault = { output_limit = 12 }
        [[rules]]
        fault = { drip = { bytes = 1 } }
        [[rules]]
        fault = { coalesce = {} }
        [[rules]]
        fault = { first_token = { after_ms = 20000, ping_every_ms = 5000 } }
        [[rules]]
        fault = { break = { after_bytes = 100, how = "garbage" } }
        [[rules]]
        fault = { many = [{ drip = { bytes = 3, every_ms = 2 } }, { break = { after_events = 2, how = { error_event = "server_error" } } }] }
        [[rules]]
        provider = "a"
        model = "gpt-4o*"
        nth = 2
        from = 1
        to = 5
        every = 2
        since_ms = 10
        until_ms = 20
        probability = 0.5
        stream = true
        [rules.fault.status]
        status = 418
        body = "short and stout"
        headers = { x-pot = "tea" }
    "#;
    let plan = FaultPlan::from_toml(text).unwrap();
    assert_eq!(plan.seed, 3);
    assert_eq!(plan.rules.len(), 17);
    assert_eq!(
        plan.rules[15].fault,
        Fault::Many(vec![
            Fault::Drip(steadfast_sim::Drip { bytes: 3, every_ms: 2 }),
            Fault::Break(Break {
                after_events: Some(2),
                after_bytes: None,
                how: How::ErrorEvent(ErrorKind::ServerError),
            }),
        ])
    );
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(FaultPlan::from_json(&json).unwrap(), plan);
    assert_eq!(FaultPlan::from_toml(&toml::to_string(&plan).unwrap()).unwrap(), plan);
}

#[test]
fn a_bad_plan_names_the_key_and_what_would_be_right() {
    let rule = |rest: &str| format!("[[rules]]\n{rest}\n");
    let cases: Vec<(String, &[&str])> = vec![
        ("sed = 1".into(), &["sed", "seed", "rules"]),
        (rule("fault = \"hang\"\nprovidr = \"a\""), &["providr", "provider"]),
        (rule("nth = 1"), &["fault"]),
        (rule("fault = \"explode\""), &["explode", "hang"]),
        (rule("fault = { error = \"overlaoded\" }"), &["overlaoded", "overloaded"]),
        (
            rule("fault = { break = { after_evnts = 3, how = \"reset\" } }"),
            &["after_evnts", "after_events"],
        ),
        (rule("fault = { break = { after_events = 3 } }"), &["how"]),
        (
            rule("fault = { error = { rate_limit = { retry_after_s = 3 } } }"),
            &["retry_after_s", "retry_after"],
        ),
        (rule("nth = \"two\"\nfault = \"hang\""), &["nth", "two"]),
        (
            rule("probability = 1.5\nfault = \"hang\""),
            &["rule 1", "probability", "between 0 and 1"],
        ),
        (rule("probability = nan\nfault = \"hang\""), &["rule 1", "probability"]),
        (rule("nth = 0\nfault = \"hang\""), &["rule 1", "nth is 0", "from 1"]),
        (rule("every = 0\nfault = \"hang\""), &["every is 0"]),
        (rule("from = 5\nto = 4\nfault = \"hang\""), &["from (5)", "to (4)"]),
        (rule("since_ms = 5\nuntil_ms = 5\nfault = \"hang\""), &["since_ms (5)", "until_ms (5)"]),
        (
            rule("fault = { status = { status = 99 } }"),
            &["fault.status.status is 99", "200 to 599"],
        ),
        (
            rule("fault = { status = { status = 500, headers = { \"a b\" = \"c\" } } }"),
            &["\"a b\"", "header name"],
        ),
        (rule("fault = { drip = { bytes = 0 } }"), &["drip.bytes is 0", "at least 1"]),
        (
            rule("fault = { break = { after_events = 1, after_bytes = 1, how = \"end\" } }"),
            &["after_events and after_bytes"],
        ),
        (rule("fault = { content_type = \"a\\nb\" }"), &["content_type"]),
        (rule("fault = { many = [{ drip = { bytes = 0 } }] }"), &["drip.bytes"]),
        ("rules = 3".into(), &["rules"]),
        ("rules = [".into(), &["line 1"]),
    ];
    for (text, words) in cases {
        let error = FaultPlan::from_toml(&text).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{text}\n--- says:\n{error}\n--- not: {word}");
        }
    }
    let error =
        FaultPlan::from_json(r#"{"rules": [{"fault": "hang", "model_": "x"}]}"#).unwrap_err();
    assert!(error.to_string().contains("model_"), "{error}");
}

/// The statuses of eight requests in a row.
async fn statuses(plan: FaultPlan) -> Vec<u16> {
    let provider = SimProvider::builder(Dialect::OpenAi).with_faults(plan).build();
    let mut statuses = Vec::new();
    for n in 0..8 {
        statuses.push(ask(&provider, n % 2 == 1).await.unwrap().status);
    }
    statuses
}

#[tokio::test]
async fn rules_match_by_number_name_and_form() {
    let e = |kind: ErrorKind| PlanRule::new(Fault::Error(kind));
    let down = || e(ErrorKind::ServerError);
    let cases = [
        (
            FaultPlan::first(2, Fault::Error(ErrorKind::ServerError)),
            [500, 500, 200, 200, 200, 200, 200, 200],
        ),
        (FaultPlan::none().rule(down().nth(3)), [200, 200, 500, 200, 200, 200, 200, 200]),
        (FaultPlan::none().rule(down().every(3)), [200, 200, 500, 200, 200, 500, 200, 200]),
        (FaultPlan::none().rule(down().from(3).to(4)), [200, 200, 500, 500, 200, 200, 200, 200]),
        (FaultPlan::none().rule(down().stream(true)), [200, 500, 200, 500, 200, 500, 200, 500]),
        (
            FaultPlan::none().rule(down().stream(false).to(3)),
            [500, 200, 500, 200, 200, 200, 200, 200],
        ),
        (FaultPlan::none().rule(down().provider("other")), [200; 8]),
        (FaultPlan::none().rule(down().provider("openai")), [500; 8]),
        (FaultPlan::none().rule(down().model("gpt-4o-mini")), [200; 8]),
        (FaultPlan::none().rule(down().model("gpt-4*")), [500; 8]),
        (
            // The first rule that matches decides.
            FaultPlan::none().rule(e(ErrorKind::Overloaded).to(2)).rule(down().to(4)),
            [503, 503, 500, 500, 200, 200, 200, 200],
        ),
        (FaultPlan::none().rule(down().probability(0.0)), [200; 8]),
        (FaultPlan::none().rule(down().probability(1.0)), [500; 8]),
    ];
    for (plan, expected) in cases {
        assert_eq!(statuses(plan.clone()).await, expected, "{plan:?}");
    }
}

#[tokio::test]
async fn probabilities_are_drawn_from_the_seed() {
    let plan = |seed| {
        FaultPlan::none()
            .seed(seed)
            .rule(PlanRule::new(Fault::Error(ErrorKind::ServerError)).probability(0.5))
    };
    assert_eq!(statuses(plan(1)).await, statuses(plan(1)).await);
    let mut draws = Vec::new();
    for seed in 0..16 {
        draws.push(statuses(plan(seed)).await);
    }
    let failures = draws.iter().flatten().filter(|status| **status == 500).count();
    // 128 draws at a half: outside of 40 to 88 is less likely than one in ten thousand.
    assert!((40..=88).contains(&failures), "{failures}");
    assert!(draws.iter().any(|d| *d != draws[0]), "seeds differ");
}

#[tokio::test(start_paused = true)]
async fn rules_match_by_time_since_the_plan_was_installed() {
    let provider = SimProvider::new(Dialect::OpenAi);
    tokio::time::advance(Duration::from_secs(100)).await;
    provider.set_faults(
        FaultPlan::none().rule(
            PlanRule::new(Fault::Error(ErrorKind::ServerError)).since_ms(1_000).until_ms(2_000),
        ),
    );
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(ask(&provider, false).await.unwrap().status);
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    assert_eq!(seen, [200, 200, 500, 500, 200]);
}

#[tokio::test]
async fn a_new_plan_replaces_the_old_one_and_restarts_the_count() {
    let provider = SimProvider::builder(Dialect::OpenAi)
        .with_faults(FaultPlan::always(Fault::rate_limit(RateLimit::after("2"))))
        .build();
    assert_eq!(ask(&provider, false).await.unwrap().status, 429);
    provider.set_faults(FaultPlan::first(1, Fault::Error(ErrorKind::ServerError)));
    assert_eq!(ask(&provider, false).await.unwrap().status, 500);
    assert_eq!(ask(&provider, false).await.unwrap().status, 200);
    assert_eq!(provider.journal().last().unwrap().number, 2);
    provider.set_faults(FaultPlan::none());
    assert_eq!(ask(&provider, false).await.unwrap().status, 200);
    assert_eq!(provider.journal().last().unwrap().number, 1);
}
