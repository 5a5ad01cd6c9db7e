//! What tenants and their keys spend: capped, counted as the providers report it, and shown.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use serde_json::{Value, json};
use steadfast::sim::{Answer, Dialect, Fault, FaultPlan, How, PlanRule, Usage};
use steadfast_tests::gateway::{
    DIALECTS, Rig, RigBuilder, ask,
    http::{HttpRequest, Reply},
    model, provider,
    wire_answer::refusal,
};

const ADMIN: &str = "gw-admin-secret-7731";

/// Two keys of `acme`, one of `other`.
const KEYS: [(&str, &str); 3] =
    [("first", "gw-acme-first-01"), ("second", "gw-acme-second-2"), ("third", "gw-other-third-3")];

/// A gateway with these keys, whose provider reports 1,000 tokens an answer.
async fn rig(dialect: Dialect, limits: &str, plan: FaultPlan) -> Rig {
    let answer =
        Answer::text("a short answer").usage(Usage { input: 900, output: 100, ..Usage::default() });
    let sim = provider(dialect).respond(move |_| Some(answer.clone())).with_faults(plan).build();
    let builder: RigBuilder = Rig::builder();
    let [first, second, third] = KEYS.map(|(name, key)| builder.secret(name, key));
    let admin = builder.secret("admin", ADMIN);
    builder
        .server(&format!("admin_key = \"{admin}\""))
        .config(&format!(
            "[[tenants]]\nname = \"acme\"\nkeys = [\"{first}\", \"{second}\"]\n\
             [[tenants]]\nname = \"other\"\nkeys = [\"{third}\"]\n\
             [spend_limit]\n{limits}\n"
        ))
        .provider(sim)
        .start()
        .await
}

async fn call(rig: &Rig, dialect: Dialect, key: usize, stream: bool) -> Reply {
    let question = ask(dialect, model(dialect), stream);
    question.header("authorization", &format!("Bearer {}", KEYS[key].1)).send(rig.addr).await
}

async fn admin(rig: &Rig, path: &str) -> Value {
    let asked = HttpRequest::get(path).header("authorization", &format!("Bearer {ADMIN}"));
    asked.send(rig.addr).await.json()
}

/// The tokens of an account in the last hour, and those that are held.
async fn tokens(rig: &Rig, kind: &str, name: &str) -> (u64, u64) {
    let spend = admin(rig, "/admin/spend").await;
    let accounts = spend["accounts"].as_array().unwrap();
    let account = accounts.iter().find(|account| account[kind] == name);
    let account = account.unwrap_or_else(|| panic!("{kind} {name} in {spend}"));
    let of = |window: &str| account[window]["tokens"].as_u64().unwrap();
    assert_eq!((of("day"), of("month")), (of("hour"), of("hour")));
    (of("hour"), of("held"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_cap_is_its_own_and_final() {
    for dialect in DIALECTS {
        // A call reserves its prompt and its output limit of 8,000: two fit, and leave 18,000 of which a third takes
        // its part; after eleven calls less than one call's reservation is left.
        let rig = rig(dialect, "tokens_hour = 20_000", FaultPlan::none()).await;
        let mut answered = 0;
        let refused = loop {
            let reply = call(&rig, dialect, answered % 2, answered % 3 == 0).await;
            if reply.status != 200 {
                break reply;
            }
            answered += 1;
            assert!(answered < 20, "{dialect}: nothing is capped");
        };
        assert_eq!(tokens(&rig, "tenant", "acme").await, (1_000 * answered as u64, 0), "{dialect}");
        assert!(answered >= 11, "{dialect}: {answered}");
        assert_eq!(refused.status, 429, "{dialect}: {}", refused.text());
        assert_eq!(refused.header("x-should-retry"), Some("false"), "{dialect}");
        assert!(refused.header("retry-after").is_some(), "{dialect}: it says when there is room");
        let text = refusal(dialect, 429, &refused);
        assert!(text.contains("acme") && text.contains("hour"), "{dialect}: {text}");
        // Nobody was asked for it, and others are not concerned.
        assert_eq!(rig.seen().len(), answered, "{dialect}");
        assert_eq!(call(&rig, dialect, 2, false).await.status, 200, "{dialect}");
        assert_eq!(tokens(&rig, "tenant", "other").await, (1_000, 0), "{dialect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keys_cap_leaves_the_tenants_other_key() {
    let dialect = Dialect::OpenAi;
    let rig = rig(dialect, "key_tokens_day = 9_500", FaultPlan::none()).await;
    let mut answered = 0;
    while call(&rig, dialect, 0, false).await.status == 200 {
        answered += 1;
        assert!(answered < 10);
    }
    assert!(answered > 0);
    assert_eq!(call(&rig, dialect, 1, false).await.status, 200);
    assert_eq!(tokens(&rig, "key", "acme/first").await, (1_000 * answered, 0));
    assert_eq!(tokens(&rig, "key", "acme/second").await, (1_000, 0));
}

/// Nothing is capped: accounts are kept when the configuration asks for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_recorded_is_what_providers_report() {
    let dialect = Dialect::Anthropic;
    let off = rig(dialect, "", FaultPlan::none()).await;
    assert_eq!(call(&off, dialect, 0, false).await.status, 200);
    assert_eq!(admin(&off, "/admin/spend").await, json!({ "accounts": [] }));

    // The second answer breaks after its beginning and is resumed: both attempts are paid for.
    let broken = PlanRule::new(Fault::break_after(2, How::Close)).nth(2);
    let rig = rig(dialect, "record = true", FaultPlan::none().rule(broken)).await;
    for _ in 0..2 {
        assert_eq!(call(&rig, dialect, 0, true).await.status, 200);
    }
    assert_eq!(rig.seen().len(), 3, "one was resumed");
    let (spent, held) = tokens(&rig, "tenant", "acme").await;
    assert!((2_000..=3_000).contains(&spent) && spent > 2_900, "{spent}");
    assert_eq!(held, 0);
    assert_eq!(tokens(&rig, "key", "acme/first").await, (spent, 0));
    let spend = admin(&rig, "/admin/spend").await;
    assert!(spend["accounts"][0]["hour"]["micro_dollars"].as_u64().unwrap() > 0, "{spend}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_accounts_are_the_operators_alone() {
    let rig = rig(Dialect::OpenAi, "record = true", FaultPlan::none()).await;
    for key in [None, Some(KEYS[0].1)] {
        let mut asked = HttpRequest::get("/admin/spend");
        if let Some(key) = key {
            asked = asked.header("authorization", &format!("Bearer {key}"));
        }
        assert!([401, 403].contains(&asked.send(rig.addr).await.status));
    }
}
