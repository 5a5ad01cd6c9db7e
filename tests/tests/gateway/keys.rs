//! Authentication, which keys are sent where, and that no secret is ever disclosed.

use steadfast::sim::{Dialect, Fault, FaultPlan, RawResponse};
use steadfast_tests::gateway::{
    DIALECTS, PROVIDER_KEY, Rig, ask, http::HttpRequest, model, pairs, provider, rich_answer,
    wire_answer::refusal,
};

/// The key of the tenant `acme`.
const ACME: &str = "gw-acme-secret-0417";
/// The key of the operator.
const ADMIN: &str = "gw-admin-secret-7731";

/// A rig with tenants and an operator's key.
async fn keyed_rig(dialect: Dialect) -> Rig {
    let builder = Rig::builder();
    let (acme, other) = (builder.secret("acme", ACME), builder.secret("other", "gw-other-secret"));
    let admin = builder.secret("admin", ADMIN);
    let sim = provider(dialect).respond(|_| Some(rich_answer())).build();
    builder
        .server(&format!("admin_key = \"{admin}\""))
        .config(&format!(
            "[[tenants]]\nname = \"acme\"\nkeys = [\"{acme}\"]\n\
             [[tenants]]\nname = \"other\"\nkeys = [\"{other}\"]\n"
        ))
        .provider_with(sim, &format!("models = {{ \"alias\" = \"{}\" }}", model(dialect)))
        .start()
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_accepted_in_every_header_form_and_nothing_else_is() {
    for dialect in DIALECTS {
        let rig = keyed_rig(dialect).await;
        let question = ask(dialect, model(dialect), false);
        let good = [
            question.clone().header("authorization", &format!("Bearer {ACME}")),
            question.clone().header("Authorization", &format!("bearer {ACME}")),
            question.clone().header("x-api-key", ACME),
            question.clone().header("X-Goog-Api-Key", ACME),
            question.clone().query(&format!("key={ACME}")),
            question.clone().query(&format!("alt=json&key={}", ACME.replace('-', "%2D"))),
        ];
        for (n, good) in good.iter().enumerate() {
            let reply = good.send(rig.addr).await;
            assert_eq!(reply.status, 200, "{dialect} {n}: {}", reply.text());
        }
        let asked = rig.seen().len();
        let bad = [
            question.clone(),
            question.clone().header("authorization", "Bearer gw-wrong"),
            question.clone().header("authorization", &format!("Basic {ACME}")),
            question.clone().header("authorization", ACME),
            question.clone().header("x-api-key", "gw-wrong"),
            question.clone().header("x-goog-api-key", ""),
            question.clone().query("key=gw-wrong"),
            // A wrong key is refused even with a valid one beside it.
            question.clone().header("x-api-key", "gw-wrong").query(&format!("key={ACME}")),
            // Keys for other purposes are not accepted.
            question.clone().header("x-api-key", ADMIN),
            question.clone().header("x-api-key", PROVIDER_KEY),
            // The body is not read.
            question.clone().body("{"),
        ];
        for (n, bad) in bad.iter().enumerate() {
            let reply = bad.send(rig.addr).await;
            let message = refusal(dialect, 401, &reply);
            assert!(message.contains("key"), "{dialect} {n}: {message}");
            assert_eq!(reply.header("x-steadfast-reason"), Some("auth"));
            assert_eq!(reply.header("x-should-retry"), Some("false"));
        }
        assert_eq!(rig.seen().len(), asked, "no provider is called");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_listed_in_three_shapes_to_those_who_may() {
    let rig = keyed_rig(Dialect::Anthropic).await;
    let names = ["alias", model(Dialect::Anthropic)];
    let openai = HttpRequest::get("/v1/models").header("authorization", &format!("Bearer {ACME}"));
    let body = openai.send(rig.addr).await.json();
    assert_eq!(body["object"], "list");
    let ids: Vec<_> = body["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, names);
    assert!(body["data"].as_array().unwrap().iter().all(|m| m["object"] == "model"));

    let anthropic = HttpRequest::get("/v1/models").header("anthropic-version", "2023-06-01");
    let body = anthropic.clone().header("x-api-key", ACME).send(rig.addr).await.json();
    let ids: Vec<_> = body["data"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(ids, names);
    assert_eq!(body["has_more"], false);
    assert_eq!((&body["first_id"], &body["last_id"]), (&ids[0], &ids[1]));

    let gemini = HttpRequest::get("/v1beta/models");
    for good in [
        gemini.clone().header("x-goog-api-key", ACME),
        gemini.clone().query(&format!("key={ACME}")),
    ] {
        let reply = good.send(rig.addr).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let body = reply.json();
        let ids: Vec<_> =
            body["models"].as_array().unwrap().iter().map(|m| m["name"].clone()).collect();
        assert_eq!(ids, names.map(|name| format!("models/{name}")));
    }
    for (dialect, shut) in [
        (Dialect::OpenAi, HttpRequest::get("/v1/models")),
        (Dialect::Anthropic, anthropic.header("x-api-key", "gw-wrong")),
        (Dialect::Gemini, gemini.query("key=gw-wrong")),
    ] {
        refusal(dialect, 401, &shut.send(rig.addr).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_is_for_the_operator() {
    let rig = keyed_rig(Dialect::OpenAi).await;
    let status = HttpRequest::get("/admin/status");
    for shut in [
        status.clone(),
        status.clone().header("x-api-key", ACME),
        status.clone().header("authorization", "Bearer gw-wrong"),
    ] {
        let reply = shut.send(rig.addr).await;
        assert_eq!(reply.status, 401, "from this machine too: {}", reply.text());
        assert!(!reply.text().contains("chain"));
    }
    let reply = status.header("authorization", &format!("Bearer {ADMIN}")).send(rig.addr).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json()["chain"], serde_json::json!(["openai"]));
    // Without an operator's key, requests from this machine have the operator's rights.
    let rig = Rig::of(provider(Dialect::OpenAi).build()).await;
    assert_eq!(HttpRequest::get("/admin/status").send(rig.addr).await.status, 200);
}

/// Adds headers of a caller that are not meant for a provider.
fn with_private_headers(ask: HttpRequest) -> HttpRequest {
    ask.header("authorization", &format!("Bearer {ACME}"))
        .header("x-api-key", ACME)
        .header("x-goog-api-key", ACME)
        .header("api-key", ACME)
        .header("cookie", "session=caller")
        .header("proxy-authorization", "Basic Y2FsbGVy")
        .header("connection", "keep-alive, x-hop")
        .header("keep-alive", "timeout=5")
        .header("x-hop", "1")
        .header("te", "trailers")
        .header("accept-encoding", "gzip")
        .header("x-forwarded-for", "10.1.2.3")
        .header("x-private", "caller")
        .header("user-agent", "the-callers-sdk/1.0")
        .header("x-steadfast-session", "s1")
        .header("x-steadfast-priority", "background")
        .header("x-team", "blue")
        .header("anthropic-beta", "beta-one")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_listed_headers_of_a_caller_are_sent_upstream_and_no_credential_is() {
    for (caller, speaks) in pairs() {
        let case = format!("{caller} -> {speaks}");
        let builder = Rig::builder();
        let acme = builder.secret("acme", ACME);
        let rig = builder
            .server("forward_headers = [\"X-Team\", \"anthropic-beta\"]")
            .config(&format!("[[tenants]]\nname = \"acme\"\nkeys = [\"{acme}\"]\n"))
            .provider_with(
                provider(speaks).respond(|_| Some(rich_answer())).build(),
                "headers = { x-operator = \"yes\" }",
            )
            .start()
            .await;
        let request =
            with_private_headers(ask(caller, model(speaks), false)).query(&format!("key={ACME}"));
        let reply = request.send(rig.addr).await;
        assert_eq!(reply.status, 200, "{case}: {}", reply.text());
        let entry = rig.last();

        let key = match speaks {
            Dialect::OpenAi | Dialect::Responses => "authorization",
            Dialect::Anthropic => "x-api-key",
            Dialect::Gemini => "x-goog-api-key",
        };
        let mut expected =
            vec!["accept", "accept-encoding", "content-length", "content-type", "host", key];
        expected.extend(["user-agent", "x-operator", "x-steadfast-attempt"]);
        if speaks == Dialect::Anthropic {
            expected.push("anthropic-version");
        }
        if caller == speaks {
            expected.extend(["anthropic-beta", "x-team"]);
            assert_eq!(entry.header("x-team"), Some("blue"), "{case}");
            assert_eq!(entry.header("anthropic-beta"), Some("beta-one"), "{case}");
        }
        expected.sort_unstable();
        let mut names: Vec<_> = entry.headers.iter().map(|header| header.0.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{case}");
        // The provider accepts only its own key, so it received that one.
        assert!(entry.header("user-agent").unwrap().starts_with("steadfast/"), "{case}");
        assert_eq!(entry.header("x-operator"), Some("yes"));
        let all = format!("{:?} {:?} {:?}", entry.headers, entry.query, entry.body);
        assert!(!all.contains(ACME) && !entry.query.contains("key="), "{case}: {all}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_ever_disclosed() {
    for dialect in DIALECTS {
        let rig = keyed_rig(dialect).await;
        let sim = rig.sims[0].provider();
        let mut replies = Vec::new();
        let question = |stream| ask(dialect, model(dialect), stream).header("x-api-key", ACME);
        replies.push(question(false).send(rig.addr).await);
        replies.push(question(true).send(rig.addr).await);
        replies.push(question(false).body(format!("{{\"key\": \"{ACME}\"")).send(rig.addr).await);
        replies.push(
            ask(dialect, model(dialect), false)
                .header("x-api-key", "gw-wrong-secret")
                .send(rig.addr)
                .await,
        );
        replies.push(
            ask(dialect, model(dialect), false).query("key=gw-wrong-secret").send(rig.addr).await,
        );
        replies.push(HttpRequest::get("/nowhere?key=gw-wrong-secret").send(rig.addr).await);
        // A provider with the key in its error message.
        for status in [401, 403, 500] {
            let error = serde_json::json!({"type": "error", "error": {
                "message": format!("Incorrect API key provided: {PROVIDER_KEY}. Bearer {PROVIDER_KEY}"),
                "type": "authentication_error", "code": status, "status": "UNAUTHENTICATED",
            }});
            let raw = RawResponse { status, headers: [].into(), body: error.to_string() };
            sim.set_faults(FaultPlan::always(Fault::Status(raw)));
            replies.push(question(false).send(rig.addr).await);
            replies.push(question(true).send(rig.addr).await);
        }
        replies.push(HttpRequest::get("/metrics").send(rig.addr).await);
        replies.push(HttpRequest::get("/readyz").send(rig.addr).await);
        let admin =
            HttpRequest::get("/admin/status").header("x-api-key", ADMIN).send(rig.addr).await;
        assert_eq!(admin.status, 200);
        replies.push(admin);
        assert!(replies.iter().any(|reply| reply.everything().contains("Incorrect API key")));
        for reply in &replies {
            let all = reply.everything();
            for secret in [PROVIDER_KEY, ACME, ADMIN, "gw-wrong-secret", "gw-other-secret"] {
                assert!(!all.contains(secret), "{dialect}: {secret} in {all}");
            }
        }
        assert!(!format!("{:?} {:?}", rig.app, rig.app.gateway()).contains("secret"));
    }
}
