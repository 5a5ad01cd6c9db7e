//! Headers and queries, and requests that are for no model.

use steadfast::sim::{Dialect, ErrorKind, Fault, FaultPlan};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask, http::HttpRequest, model, pairs, provider, wire_answer::refusal,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beta_and_its_field_go_up_together_or_not_at_all() {
    for (caller, speaks) in pairs() {
        let rig = Rig::of(provider(speaks).build()).await;
        let request = ask(caller, model(speaks), false)
            .query("beta=true")
            .header("anthropic-beta", "context-management-2025-06-27")
            .header("anthropic-dangerous-direct-browser-access", "true")
            .header("openai-beta", "assistants=v2")
            .header("x-goog-api-client", "gl-node/22")
            .header("x-goog-user-project", "callers")
            .header("x-stainless-lang", "js");
        let mut body: serde_json::Value = serde_json::from_slice(request.sent()).unwrap();
        body["context_management"] = serde_json::json!({"edits": []});
        // Gemini's simulator is as strict as Google about fields it does not know.
        let body = if caller == Dialect::Anthropic { body.to_string() } else { String::new() };
        let request = if body.is_empty() { request } else { request.body(body) };
        let reply = request.send(rig.addr).await;
        let case = format!("{caller} -> {speaks}: {}", reply.text());
        assert_eq!(reply.status, 200, "{case}");
        let seen = rig.last();
        let same = caller == speaks;
        let goes = |dialect: Dialect| same && caller == dialect;
        let is_there = |name: &str| seen.header(name).is_some();
        assert_eq!(is_there("anthropic-beta"), goes(Dialect::Anthropic), "{case}");
        assert_eq!(
            String::from_utf8_lossy(&seen.body).contains("context_management"),
            goes(Dialect::Anthropic),
            "{case}"
        );
        let open = "anthropic-dangerous-direct-browser-access";
        assert_eq!(is_there(open), goes(Dialect::Anthropic), "{case}");
        let is_openais = goes(Dialect::OpenAi) || goes(Dialect::Responses);
        assert_eq!(is_there("openai-beta"), is_openais, "{case}");
        assert_eq!(is_there("x-goog-api-client"), goes(Dialect::Gemini), "{case}");
        assert!(!is_there("x-goog-user-project") && !is_there("x-stainless-lang"), "{case}");
        assert_eq!(seen.query.contains("beta=true"), same, "{case}: {}", seen.query);
        assert_eq!(seen.header("accept-encoding"), Some("identity"), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_and_limits_come_down_also_with_a_failure() {
    for stream in [false, true] {
        let rig = Rig::of(provider(Dialect::Anthropic).build()).await;
        let reply = ask(Dialect::Anthropic, model(Dialect::Anthropic), stream).send(rig.addr).await;
        let id = reply.header("request-id").unwrap();
        assert!(id.starts_with("req_011C"), "the provider's: {id}");
        assert_eq!(Some(id), reply.header("x-request-id"));
        assert_ne!(Some(id), reply.header("x-steadfast-request-id"), "the gateway's");
        let own = ask(Dialect::Anthropic, model(Dialect::Anthropic), stream);
        let own = own.header("x-request-id", "mine").send(rig.addr).await;
        assert_eq!(own.header("request-id"), Some("mine"), "who has chosen one gets it");
        let other = ask(Dialect::OpenAi, model(Dialect::Anthropic), stream).send(rig.addr).await;
        assert_eq!(other.header("x-steadfast-request-id"), None, "no id of that dialect");
    }
    let plan = FaultPlan::always(Fault::Error(ErrorKind::Format));
    let rig = Rig::of(provider(Dialect::Anthropic).with_faults(plan).build()).await;
    let reply = ask(Dialect::Anthropic, model(Dialect::Anthropic), false).send(rig.addr).await;
    assert_eq!(reply.status, 400);
    let id = reply.header("request-id").unwrap();
    assert_eq!(reply.json()["request_id"], id, "the provider's own body, and its id");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_asks_whether_somebody_is_there_is_answered() {
    let rig = Rig::of(provider(Dialect::OpenAi).build()).await;
    for path in ["/", "/api/hello"] {
        let reply = HttpRequest::get(path).send(rig.addr).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    }
    for path in ["/v1/messages/batches", "/api/claude_code/settings", "/x.html"] {
        let dialect =
            if path.starts_with("/v1/messages") { Dialect::Anthropic } else { Dialect::OpenAi };
        let message = refusal(dialect, 404, &HttpRequest::get(path).send(rig.addr).await);
        assert!(message.contains(path), "{message}");
    }
    let upgrade = HttpRequest::get("/v1/responses").header("upgrade", "websocket");
    let reply = upgrade.header("connection", "upgrade").send(rig.addr).await;
    assert_eq!(reply.status, 426, "{}", reply.text());
    for dialect in DIALECTS {
        assert_eq!(ask(dialect, "gpt-4o", false).send(rig.addr).await.status, 200, "{dialect}");
    }
}
