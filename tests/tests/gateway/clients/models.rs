//! Lists of models that no configuration names.

use axum::{Json, Router, http::HeaderMap, routing::get};
use serde_json::{Value, json};
use steadfast::sim::Dialect;
use steadfast_gateway::{config::Source, server::App, stack::Gateway};
use steadfast_tests::gateway::{PROVIDER_KEY, Rig, http::HttpRequest, provider};
use tower::ServiceExt;

/// Where a provider listens that lists `models` for whoever has its key.
async fn lists(path: &'static str, models: Value) -> String {
    let list = move |headers: HeaderMap| async move {
        let shown = format!("{headers:?}");
        assert!(
            headers.values().any(|value| value.as_bytes().ends_with(PROVIDER_KEY.as_bytes())),
            "{shown}"
        );
        Json(models)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = axum::serve(listener, Router::new().route(path, get(list)));
    tokio::spawn(async move { server.await.unwrap() });
    format!("http://{address}")
}

/// What the gateway in front of both kinds of provider answers at `path`.
async fn asked(path: &str, headers: &[(&str, &str)]) -> Value {
    let claude =
        lists("/v1/models", json!({"data": [{"type": "model", "id": "claude-x-1"}]})).await;
    let open = lists("/v1/models", json!({"object": "list", "data": [{"id": "gpt-x"}]})).await;
    let providers =
        [("anthropic", claude), ("openai", format!("{open}/v1")), ("openai", DOWN.into())];
    let (status, body) = answer("[aliases]\nfast = 'gpt-x'\n", &providers, path, headers).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// An address where nobody listens.
const DOWN: &str = "http://127.0.0.1:9/v1";

/// What the gateway in front of these providers answers at `path`.
async fn answer(
    more: &str,
    providers: &[(&str, String)],
    path: &str,
    headers: &[(&str, &str)],
) -> (http::StatusCode, Value) {
    let key = std::env::temp_dir().join(format!("steadfast-list-{:x}", fastrand::u64(..)));
    std::fs::write(&key, PROVIDER_KEY).unwrap();
    let mut text = format!("[server]\nauth = 'none'\n{more}");
    for (n, (dialect, address)) in providers.iter().enumerate() {
        text += &format!(
            "[[providers]]\nname = 'p{n}'\ndialect = '{dialect}'\nbase_url = '{address}'\n\
             credentials = ['file:{}']\n",
            key.display()
        );
    }
    let source = Source::text(text);
    let config = source.parse().unwrap();
    let gateway = Gateway::connect(&config, &source).unwrap();
    std::fs::remove_file(&key).unwrap();
    let app = App::new(&config, &source, gateway).unwrap();
    let mut request = http::Request::get(path).header("host", "127.0.0.1");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer =
        app.router().oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn providers_lists_are_merged_in_each_shape() {
    let ids = |list: &Value, key: &str| -> Vec<String> {
        let list = list.as_array().unwrap();
        list.iter().map(|model| model[key].as_str().unwrap().to_owned()).collect()
    };
    let all = ["claude-x-1", "fast", "gpt-x"];
    assert_eq!(ids(&asked("/v1/models", &[]).await["data"], "id"), all);
    let version = [("anthropic-version", "2023-06-01")];
    let anthropic = asked("/v1/models?limit=1000", &version).await;
    assert_eq!(ids(&anthropic["data"], "id"), all);
    assert_eq!(anthropic["data"][0]["lifecycle"], "active");
    let first = asked("/v1/models?limit=2", &version).await;
    assert_eq!(ids(&first["data"], "id"), all[..2]);
    assert_eq!((&first["has_more"], &first["last_id"]), (&json!(true), &json!("fast")));
    let rest = asked("/v1/models?limit=2&after_id=fast", &version).await;
    assert_eq!(ids(&rest["data"], "id"), all[2..]);
    assert_eq!(rest["has_more"], false);
    let gemini = asked("/v1beta/models", &[]).await;
    assert_eq!(ids(&gemini["models"], "name"), all.map(|name| format!("models/{name}")));
    let first = asked("/v1beta/models?pageSize=1", &[]).await;
    assert_eq!((ids(&first["models"], "name").len(), &first["nextPageToken"]), (1, &json!(all[0])));
    let rest = asked("/v1beta/models?pageSize=50&pageToken=claude-x-1", &[]).await;
    assert_eq!((ids(&rest["models"], "name").len(), &rest["nextPageToken"]), (2, &Value::Null));
    assert_eq!(asked("/v1/models/gpt-x", &[]).await["id"], "gpt-x");
    // The provider without a list may have it.
    assert_eq!(asked("/v1/models/whatever", &[]).await["id"], "whatever");
}

/// What Codex has to know of each: its window is that of the provider which is asked for it.
#[tokio::test]
async fn codex_has_a_list_of_its_own() {
    let list =
        lists("/v1/models", json!({"data": [{"id": "gpt-x"}, {"id": "text-embed-9"}]})).await;
    let providers = [("openai", format!("{list}/v1"))];
    let more = "[aliases]\nfast = 'gpt-5-mini'\n";
    let (status, body) = answer(more, &providers, "/v1/models?client_version=0.171.0", &[]).await;
    assert_eq!(status, 200, "{body}");
    let models = body["models"].as_array().unwrap();
    let names: Vec<_> = models.iter().map(|model| model["slug"].as_str().unwrap()).collect();
    assert_eq!(names, ["fast", "gpt-5-mini", "gpt-x"], "what only embeds is none for it");
    let [fast, _, unknown] = &models[..] else { unreachable!() };
    assert_eq!(fast["description"], "gpt-5-mini of p0");
    assert_eq!(
        (&fast["context_window"], &unknown["context_window"]),
        (&json!(272_000), &json!(null))
    );
    let efforts: Vec<_> = fast["supported_reasoning_levels"].as_array().unwrap().iter().collect();
    assert!(efforts.iter().any(|level| level["effort"] == "minimal"), "{efforts:?}");
    assert_eq!(unknown["supported_reasoning_levels"], json!([]));
    for model in models {
        assert!(model["base_instructions"].as_str().unwrap().starts_with("You are a coding agent"));
    }
}

/// A list without a model would say that there is none.
#[tokio::test]
async fn where_no_provider_gives_a_list_its_failure_is_the_answer() {
    for (path, code) in [("/v1/models", "server_error"), ("/v1beta/models", "UNAVAILABLE")] {
        let (status, body) = answer("", &[("openai", DOWN.into())], path, &[]).await;
        assert!(status.is_server_error(), "{status}: {body}");
        assert!(body["error"].to_string().contains(code), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_that_says_it_all_is_the_list() {
    let rig = Rig::builder()
        .provider_with(provider(Dialect::OpenAi).build(), "models = { big = 'gpt-4o' }")
        .start()
        .await;
    let list = HttpRequest::get("/v1/models").send(rig.addr).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 2, "{list}");
    for (name, status) in [("big", 200), ("gpt-4o", 200), ("gpt-5", 404)] {
        let reply = HttpRequest::get(format!("/v1/models/{name}")).send(rig.addr).await;
        assert_eq!(reply.status, status, "{name}");
    }
    assert_eq!(rig.seen().len(), 0, "nobody was asked");
}
