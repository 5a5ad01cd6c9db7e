//! A conversation stays where a failover took it, by what its client sends.

use serde_json::{Value, json};
use steadfast::sim::{Dialect, ErrorKind, Fault, FaultPlan};
use steadfast_tests::gateway::{Rig, ask, http::HttpRequest, model, provider};

/// Two providers, the first of which fails once and is well again at once.
async fn rig(dialect: Dialect) -> Rig {
    let fails = FaultPlan::first(1, Fault::Error(ErrorKind::Auth));
    Rig::builder()
        .config("[cooldown]\nauth = 0\n")
        .provider(provider(dialect).with_name("one").with_faults(fails).build())
        .provider(provider(dialect).with_name("two").build())
        .start()
        .await
}

async fn targets(rig: &Rig, turns: [HttpRequest; 2]) -> [String; 2] {
    let mut targets = Vec::new();
    for turn in turns {
        let reply = turn.send(rig.addr).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let target = reply.header("x-steadfast-target").unwrap();
        targets.push(target.split('/').next().unwrap().to_owned());
    }
    targets.try_into().unwrap()
}

fn with(dialect: Dialect, headers: &[(&str, &str)], more: &Value) -> HttpRequest {
    let request = ask(dialect, model(dialect), false);
    let mut body: Value = serde_json::from_slice(request.sent()).unwrap();
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    headers
        .iter()
        .fold(request.body(body.to_string()), |request, (name, value)| request.header(name, value))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_turns_of_each_client_land_on_one_provider_after_a_failover() {
    let claude = json!({"metadata": {"user_id":
        r#"{"device_id":"d","account_uuid":"a","session_id":"5f0c"}"#}});
    for (client, dialect, headers, more) in [
        ("any", Dialect::Gemini, &[("x-steadfast-session", "s")][..], json!({})),
        ("Claude Code", Dialect::Anthropic, &[("x-claude-code-session-id", "s")], json!({})),
        ("Claude Code, by its body", Dialect::Anthropic, &[], claude),
        ("Codex", Dialect::OpenAi, &[("session-id", "s"), ("thread-id", "t")], json!({})),
        ("opencode", Dialect::OpenAi, &[("x-session-affinity", "ses_1")], json!({})),
        ("a cache key", Dialect::OpenAi, &[], json!({"prompt_cache_key": "k"})),
        ("a user", Dialect::OpenAi, &[], json!({"user": "u"})),
    ] {
        let turn = || with(dialect, headers, &more);
        assert_eq!(
            targets(&rig(dialect).await, [turn(), turn()]).await,
            ["two", "two"],
            "{client}"
        );
    }
    // Nothing says that these are one conversation: they begin differently.
    let say = |text: &str| {
        let messages = json!([{"role": "user", "content": text}]);
        with(Dialect::OpenAi, &[], &json!({"user": "app", "messages": messages}))
    };
    let turns = [say("one thing"), say("another")];
    assert_eq!(targets(&rig(Dialect::OpenAi).await, turns).await, ["two", "one"]);
}

/// Gemini CLI, pi and aider say nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_nobody_names_is_known_by_how_it_begins() {
    let say = |texts: &[&str]| {
        let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
        let messages: Vec<Value> = texts
            .iter()
            .enumerate()
            .map(|(at, text)| json!({"role": role(at), "content": text}))
            .collect();
        with(Dialect::OpenAi, &[], &json!({"messages": messages}))
    };
    let rig = rig(Dialect::OpenAi).await;
    let first = say(&["Mend it."]);
    let next = || say(&["Mend it.", "Where?", "Here."]);
    assert_eq!(targets(&rig, [first, next()]).await, ["two", "two"]);
    let others = [say(&["Explain it."]), say(&["Explain it.", "Like so.", "And that?"])];
    assert_eq!(targets(&rig, others).await, ["one", "one"], "which nobody has moved");
    assert_eq!(targets(&rig, [next(), next()]).await, ["two", "two"]);
    // Another conversation begins likewise, where everything is well: who goes on is taken for that one.
    assert_eq!(targets(&rig, [say(&["Mend it."]), next()]).await, ["one", "one"]);
}
