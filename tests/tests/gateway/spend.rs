//! What tenants and their keys spend: capped, counted as the providers report it, and shown.

use serde_json::{Value, json};
use steadfast::sim::{
    Answer, Dialect, Entry, ErrorKind, Fault, FaultPlan, How, PlanRule, Summaries, SummaryReply,
    Usage,
};
use steadfast_gateway::server::StateFile;
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
        assert_eq!(refused.status, 402, "{dialect}: {}", refused.text());
        assert_eq!(refused.header("x-should-retry"), Some("false"), "{dialect}");
        assert!(refused.header("retry-after").is_some(), "{dialect}: it says when there is room");
        let text = refusal(dialect, 402, &refused);
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

/// Caps of a single tenant and of a single key go before those of all, and a price before the table's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_tenants_keys_and_models_have_caps_and_prices_of_their_own() {
    let dialect = Dialect::OpenAi;
    let limits = "cost_day = 1_000_000\nunpriced = 'dearest'\n\
                  [spend_limit.tenants.other]\ntokens_hour = 5_000\n\
                  [spend_limit.keys.'acme/second']\ntokens_day = 5_000\n\
                  [spend_limit.prices.gpt-4o]\ninput = 7_000_000\noutput = 3_000_000\n";
    let rig = rig(dialect, limits, FaultPlan::none()).await;
    let answered = async |key: usize, most: u64| {
        let mut answered = 0;
        while answered < most && call(&rig, dialect, key, false).await.status == 200 {
            answered += 1;
        }
        answered
    };
    // 8,000 of a call's output are reserved.
    assert_eq!((answered(2, 9).await, answered(1, 9).await), (0, 0));
    assert_eq!(answered(0, 9).await, 9, "as all tenants");
    let spend = admin(&rig, "/admin/spend").await;
    let acme = &spend["accounts"].as_array().unwrap().iter().find(|one| one["tenant"] == "acme");
    // 900 tokens of input and 100 of output each.
    assert_eq!(acme.unwrap()["day"]["micro_dollars"], 9 * (6_300 + 300), "{spend}");
}

/// The numbers of a reload hold for what was spent before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_spent_is_spent_after_a_reload() {
    let dialect = Dialect::OpenAi;
    let rig = rig(dialect, "tokens_hour = 50_000", FaultPlan::none()).await;
    for _ in 0..3 {
        assert_eq!(call(&rig, dialect, 0, false).await.status, 200);
    }
    let reload = async |cap: &str| {
        rig.rewrite(&rig.config.replace("50_000", cap));
        let reload = HttpRequest::post("/admin/reload", "");
        let reload = reload.header("authorization", &format!("Bearer {ADMIN}"));
        assert_eq!(reload.send(rig.addr).await.status, 200);
        call(&rig, dialect, 0, false).await
    };
    let refused = reload("5_000").await;
    assert_eq!(refused.status, 402);
    assert!(refused.text().contains("is 5000: 3000 are used"), "{}", refused.text());
    assert_eq!(reload("50_000").await.status, 200);
    assert_eq!(tokens(&rig, "tenant", "acme").await, (4_000, 0));
}

/// The series of a metric that has a window of an account.
fn gauge(metrics: &str, name: &str, account: &str, whose: &str, window: &str) -> Option<u64> {
    let series =
        format!("steadfast_{name}{{account=\"{account}\",name=\"{whose}\",window=\"{window}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

/// Whatever becomes of calls: the metrics, the page of the operator and the file say the same of each account, and
/// summaries are in it, under a name of their own and in what the tenant has spent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_number_in_metrics_admin_and_ledger() {
    let dialect = Dialect::OpenAi;
    let answer =
        Answer::text("a short answer").usage(Usage { input: 900, output: 100, ..Usage::default() });
    // One stream breaks and is resumed, one call is refused, and one attempt is made again.
    let server_error = || Fault::Error(ErrorKind::ServerError);
    let plan = FaultPlan::none()
        .rule(PlanRule::new(Fault::break_after(2, How::Close)).nth(1))
        .rule(PlanRule::new(Fault::Error(ErrorKind::Format)).nth(3))
        .rule(PlanRule::new(server_error()).nth(4));
    let summaries = Summaries::to("You keep the record").then(SummaryReply::Good);
    let sim = provider(dialect).respond(move |_| Some(answer.clone())).with_faults(plan);
    let sim = sim.with_summaries(summaries).build();
    let builder = Rig::builder();
    let [first, admin_key] =
        [("first", KEYS[0].1), ("admin", ADMIN)].map(|(n, k)| builder.secret(n, k));
    let rig = builder
        .server(&format!("admin_key = \"{admin_key}\""))
        .config(&format!(
            "[[tenants]]\nname = \"acme\"\nkeys = [\"{first}\"]\n[spend_limit]\nrecord = true\n\
             [compaction.summariser]\nprovider = 'openai'\nmodel = 'gpt-4o-mini'\n"
        ))
        .provider_with(sim, "window = 12_000")
        .start()
        .await;
    assert_eq!(call(&rig, dialect, 0, true).await.status, 200);
    assert_eq!(call(&rig, dialect, 0, false).await.status, 400);
    assert_eq!(call(&rig, dialect, 0, false).await.status, 200);
    assert_eq!(rig.seen().len(), 5);
    // A conversation that outgrows the window.
    let message = |at: usize| {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": format!("{at}: {}", "and so on ".repeat(100))})
    };
    let messages: Vec<_> = (0..101).map(message).collect();
    let long = ask(dialect, model(dialect), false)
        .body(json!({"model": "gpt-4o", "max_tokens": 500, "messages": messages}).to_string())
        .header("authorization", &format!("Bearer {}", KEYS[0].1))
        .header("x-steadfast-session", "long");
    assert_eq!(long.send(rig.addr).await.status, 200);
    let is_summary = |entry: &&Entry| entry.model == "gpt-4o-mini";
    let seen = rig.seen();
    assert!(seen.iter().filter(is_summary).count() > 0, "it is summarised");

    // The file, as it is written at the end of the process.
    let path =
        std::env::temp_dir().join(format!("steadfast-one-number-{}.json", std::process::id()));
    let (stop, stopped) = tokio::sync::oneshot::channel();
    drop(stop);
    StateFile::open(&path, &rig.app).keep(rig.app.clone(), stopped).await;
    let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let saved = file["spend"].as_array().unwrap();
    let spend = admin(&rig, "/admin/spend").await;
    let shown = spend["accounts"].as_array().unwrap();
    let metrics = HttpRequest::get("/metrics").header("authorization", &format!("Bearer {ADMIN}"));
    let metrics = metrics.send(rig.addr).await.text().to_owned();
    assert_eq!((saved.len(), shown.len()), (3, 3), "{spend}");
    let mut tokens = std::collections::BTreeMap::new();
    for (kind, name) in [("tenant", "acme"), ("key", "acme/first"), ("summaries", "acme")] {
        let of = |account: &&Value| account[kind] == name;
        let shown = shown.iter().find(of).unwrap();
        let saved = saved.iter().find(|one| one["account"][kind] == name).unwrap();
        for window in ["hour", "day", "month"] {
            for (at, unit, metric) in
                [(1, "tokens", "spend_tokens"), (2, "micro_dollars", "spend_micro_dollars")]
            {
                let number = shown[window][unit].as_u64().unwrap();
                let saved = saved[window].as_array().unwrap().iter();
                let saved: u64 = saved.map(|bucket| bucket[at].as_u64().unwrap()).sum();
                let case = format!("{kind} {window} {unit}");
                assert!(number > 0, "{case}");
                assert_eq!(saved, number, "{case}");
                assert_eq!(gauge(&metrics, metric, kind, name, window), Some(number), "{case}");
            }
        }
        assert_eq!(gauge(&metrics, "spend_tokens", kind, name, "held"), Some(0));
        tokens.insert(kind, shown["hour"]["tokens"].as_u64().unwrap());
    }
    // Two whole answers, the broken stream with its resume, the answer to the compacted conversation, and summaries.
    assert_eq!(tokens["tenant"], tokens["key"]);
    let calls = tokens["tenant"] - tokens["summaries"];
    assert!((3_000..=4_000).contains(&calls), "{tokens:?}");
    // The cap on summaries goes by the same account.
    let compaction = rig.app.gateway().handles().compaction.spent(Some("acme"));
    assert_eq!(compaction.0, tokens["summaries"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_accounts_are_the_operators_alone() {
    let rig = rig(Dialect::OpenAi, "record = true", FaultPlan::none()).await;
    assert_eq!(call(&rig, Dialect::OpenAi, 0, false).await.status, 200);
    for key in [None, Some(KEYS[0].1), Some(ADMIN)] {
        let mut asked = HttpRequest::get("/metrics");
        if let Some(key) = key {
            asked = asked.header("authorization", &format!("Bearer {key}"));
        }
        let metrics = asked.send(rig.addr).await;
        assert_eq!(metrics.status, 200);
        assert_eq!(metrics.text().contains("acme"), key == Some(ADMIN), "{}", metrics.text());
    }
    for key in [None, Some(KEYS[0].1)] {
        let mut asked = HttpRequest::get("/admin/spend");
        if let Some(key) = key {
            asked = asked.header("authorization", &format!("Bearer {key}"));
        }
        assert!([401, 403].contains(&asked.send(rig.addr).await.status));
    }
}
