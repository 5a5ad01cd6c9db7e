//! `steadfast sim --control`: what tests in other languages read of the simulated providers and
//! set.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, put},
};
use serde_json::{Map, Value, json};
use steadfast_sim::{Answer, End, Entry, FaultPlan, SimProvider, Summaries, Task};
use tokio::net::TcpListener;

type Providers = Arc<[SimProvider]>;

/// Serves the control of `providers` at `addr` until the process ends; the address it came to.
pub(super) async fn start(
    addr: SocketAddr,
    providers: impl Iterator<Item = SimProvider>,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(addr).await?;
    let addr = listener.local_addr()?;
    let router = router(providers.collect());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(addr)
}

fn router(providers: Providers) -> Router {
    Router::new()
        .route("/{provider}/journal", get(journal))
        .route("/{provider}/script", put(script))
        .route("/{provider}/faults", put(faults))
        .route("/{provider}/summaries", put(summaries))
        .route("/{provider}/task", put(task))
        .with_state(providers)
}

/// Every request the provider remembers, oldest first.
async fn journal(State(providers): State<Providers>, Path(name): Path<String>) -> Response {
    let provider = match find(&providers, &name) {
        Ok(provider) => provider,
        Err(refusal) => return refusal,
    };
    let entries: Vec<Value> = provider.journal().entries().iter().map(show).collect();
    Json(entries).into_response()
}

/// Replaces what the provider says next.
async fn script(state: State<Providers>, name: Path<String>, body: String) -> Response {
    steer(&state, &name, |provider| {
        let answers: Vec<Answer> = serde_json::from_str(&body)
            .map_err(|error| format!("not an array of answers: {error}"))?;
        provider.set_script(answers);
        Ok(())
    })
}

/// Replaces the provider's plan of faults.
async fn faults(state: State<Providers>, name: Path<String>, body: String) -> Response {
    steer(&state, &name, |provider| {
        provider.set_faults(FaultPlan::from_json(&body).map_err(|error| error.to_string())?);
        Ok(())
    })
}

/// Replaces what requests for summaries get; `null` is what all other requests get.
async fn summaries(state: State<Providers>, name: Path<String>, body: String) -> Response {
    steer(&state, &name, |provider| {
        let summaries: Option<Summaries> =
            serde_json::from_str(&body).map_err(|error| format!("no summaries: {error}"))?;
        provider.set_summaries(summaries);
        Ok(())
    })
}

/// Replaces the task that the model does; `null` is none.
async fn task(state: State<Providers>, name: Path<String>, body: String) -> Response {
    steer(&state, &name, |provider| {
        let task = match body.trim() {
            "null" => None,
            text => Some(Task::from_json(text).map_err(|error| error.to_string())?),
        };
        provider.set_task(task);
        Ok(())
    })
}

/// Sets something of the provider of this name, if it can be.
fn steer(
    providers: &Providers,
    name: &str,
    what: impl FnOnce(&SimProvider) -> Result<(), String>,
) -> Response {
    match find(providers, name) {
        Err(refusal) => refusal,
        Ok(provider) => match what(provider) {
            Ok(()) => StatusCode::NO_CONTENT.into_response(),
            Err(why) => refuse(StatusCode::BAD_REQUEST, why),
        },
    }
}

#[expect(clippy::result_large_err, reason = "a response is the point of it")]
fn find<'p>(providers: &'p Providers, name: &str) -> Result<&'p SimProvider, Response> {
    providers.iter().find(|provider| provider.name() == name).ok_or_else(|| {
        let names: Vec<&str> = providers.iter().map(SimProvider::name).collect();
        refuse(
            StatusCode::NOT_FOUND,
            format!("there is no provider `{name}`; there are {}", names.join(", ")),
        )
    })
}

fn refuse(status: StatusCode, message: String) -> Response {
    (status, message + "\n").into_response()
}

/// One request as JSON. Credentials are not in it, the journal keeps none.
fn show(entry: &Entry) -> Value {
    let mut headers = Map::new();
    for (name, value) in &entry.headers {
        headers.insert(name.clone(), value.clone().into());
    }
    json!({
        "number": entry.number,
        "method": entry.method,
        "path": entry.path,
        "query": entry.query,
        "headers": headers,
        "body": entry.json,
        "model": entry.model,
        "stream": entry.stream,
        "fault": entry.fault,
        "status": entry.status,
        "refused": entry.refused,
        "sent": entry.sent,
        "events": entry.events,
        "end": match entry.end {
            End::Open => "open",
            End::Complete => "complete",
            End::Broken => "broken",
            End::Dropped => "dropped",
            _ => "unknown",
        },
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;
    use steadfast_sim::Dialect;
    use tower::ServiceExt;

    use super::*;

    async fn asks(router: &Router, method: &str, path: &str, body: &str) -> (u16, String) {
        let request =
            http::Request::builder().method(method).uri(path).body(Body::from(body.to_owned()));
        let response = router.clone().oneshot(request.unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn ask(provider: &SimProvider) -> u16 {
        let request = http::Request::post("/v1/chat/completions")
            .header("authorization", "Bearer sk-very-secret-key-12345")
            .body(String::from(
                r#"{"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}"#,
            ));
        let response = provider.clone().oneshot(request.unwrap()).await.unwrap();
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        status
    }

    #[tokio::test]
    async fn what_is_set_is_sent_and_what_was_seen_is_shown() {
        let provider = SimProvider::new(Dialect::OpenAi);
        let router = router(Arc::from([provider.clone()]));
        let plan = r#"{"rules": [{"nth": 2, "fault": {"error": "server_error"}}]}"#;
        assert_eq!(asks(&router, "PUT", "/openai/faults", plan).await.0, 204);
        let forgotten = r#"[{"blocks": [{"text": "Not this."}]}]"#;
        assert_eq!(asks(&router, "PUT", "/openai/script", forgotten).await.0, 204);
        let answers = r#"[{"blocks": [{"text": "As set."}]}]"#;
        assert_eq!(asks(&router, "PUT", "/openai/script", answers).await.0, 204);
        assert_eq!((ask(&provider).await, ask(&provider).await), (200, 500));
        let summaries = r#"{"contains": "hi", "answers": [{"fails": "overloaded"}]}"#;
        assert_eq!(asks(&router, "PUT", "/openai/summaries", summaries).await.0, 204);
        assert_eq!(ask(&provider).await, 503);
        assert_eq!(asks(&router, "PUT", "/openai/summaries", "null").await.0, 204);
        let task = r#"{"root": "/w", "contains": "hi", "steps": [{"text": "Done."}]}"#;
        assert_eq!(asks(&router, "PUT", "/openai/task", task).await.0, 204);
        assert_eq!(asks(&router, "PUT", "/openai/task", "null").await.0, 204);
        assert_eq!(ask(&provider).await, 200);

        let (status, text) = asks(&router, "GET", "/openai/journal", "").await;
        assert_eq!(status, 200);
        assert!(!text.contains("very-secret"), "{text}");
        let seen: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(seen[0]["sent"]["text"], "As set.");
        assert_eq!(seen[0]["body"]["messages"][0]["content"], "hi");
        assert_eq!(seen[0]["end"], "complete");
        assert_eq!(seen[1]["fault"], json!({"error": "server_error"}));
        assert_eq!(seen[4], Value::Null);
    }

    #[tokio::test]
    async fn what_can_not_be_set_is_refused_with_the_reason() {
        let router = router(Arc::from([SimProvider::new(Dialect::Gemini)]));
        let (status, says) = asks(&router, "GET", "/openai/journal", "").await;
        assert_eq!(status, 404);
        assert!(says.contains("`openai`") && says.contains("gemini"), "{says}");
        let (status, says) = asks(&router, "PUT", "/gemini/script", r#"[{"text": 1}]"#).await;
        assert_eq!(status, 400);
        assert!(says.contains("unknown field `text`"), "{says}");
        let (status, says) =
            asks(&router, "PUT", "/gemini/faults", r#"{"rules": [{"fault": "fire"}]}"#).await;
        assert_eq!(status, 400);
        assert!(says.contains("unknown variant `fire`"), "{says}");
        let (status, says) = asks(&router, "PUT", "/gemini/summaries", r#"{"answers": 7}"#).await;
        assert_eq!(status, 400);
        assert!(says.starts_with("no summaries: "), "{says}");
        let (status, says) = asks(&router, "PUT", "/gemini/task", r#"{"root": "/"}"#).await;
        assert_eq!(status, 400);
        assert!(says.contains("missing field `contains`"), "{says}");
    }
}
