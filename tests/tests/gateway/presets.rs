//! Presets in the gateway's file, over sockets. Their numbers are tested on a paused clock (`presets`); here
//! it is that the file sets them, and that its own keys override them.

use serde_json::Value;
use steadfast::sim::{Answer, Dialect, ErrorKind, Fault, FaultPlan, PlanRule};
use steadfast_tests::gateway::{
    Rig, ask, http::HttpRequest, model, path, provider, question, rich_answer,
};

fn models(dialect: Dialect) -> String {
    format!("models = {{ \"*\" = \"{}\" }}", model(dialect))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codebuddy_retries_with_a_nudge_rests_at_once_and_its_waits_are_overridden() {
    let down = provider(Dialect::Anthropic)
        .with_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)))
        .build();
    let fine = provider(Dialect::OpenAi).respond(|_| Some(rich_answer())).build();
    let rig = Rig::builder()
        .top("preset = \"codebuddy\"")
        .config("[retry]\nbase_ms = 20\n")
        .provider_with(down, &models(Dialect::Anthropic))
        .provider_with(fine, &models(Dialect::OpenAi))
        .start()
        .await;
    for (calls, attempts) in [(1, "4"), (2, "1")] {
        let reply = ask(Dialect::OpenAi, "any", false).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-steadfast-attempts"), Some(attempts));
        let asked = rig.sims[0].provider().journal().entries();
        assert_eq!(asked.len(), 3, "it rests since the first call failed");
        assert!(String::from_utf8_lossy(&asked[1].body).contains("technical problem"));
        assert_eq!(rig.sims[1].provider().journal().len(), calls);
    }
    rig.assert_all_attempts("codebuddy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_code_asks_for_8000_tokens_and_then_for_64000() {
    let cut = FaultPlan::none().rule(PlanRule::new(Fault::OutputLimit(20)).nth(1));
    let sim = provider(Dialect::Anthropic)
        .with_faults(cut)
        .respond(|_| Some(Answer::text("one two three four five ".repeat(30))))
        .build();
    let rig = Rig::builder()
        .top("preset = \"claude-code\"")
        .provider_with(sim, &models(Dialect::Anthropic))
        .start()
        .await;
    let mut body = question(Dialect::OpenAi, "any", true);
    body.as_object_mut().unwrap().remove("max_tokens");
    let request = HttpRequest::post(path(Dialect::OpenAi, "any", true), body.to_string());
    let reply = request.send(rig.addr).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let limits: Vec<_> = rig.sims[0]
        .provider()
        .journal()
        .entries()
        .iter()
        .map(|entry| entry.json.as_ref().and_then(|body| body["max_tokens"].as_u64()))
        .collect();
    assert_eq!(limits, [Some(8_000), Some(64_000)]);
    // The head is sent when the first answer starts, so that the caller knows that somebody answers.
    assert_eq!(reply.header("x-steadfast-attempts"), Some("1"));
    rig.assert_all_attempts("claude-code").await;
    let text: String = reply
        .text()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok())
        .filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!(text, "one two three four five ".repeat(30), "nothing of the cut answer");
}
