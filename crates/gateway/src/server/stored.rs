//! Responses that were made before, asked for by their ids: OpenAI's Responses API.
//!
//! They are their tenant's. One that a provider keeps is asked for there; what was put together here is remembered
//! here.

use axum::{
    body::Body,
    extract::{Path, State},
    http::request::Parts,
    response::Response,
};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::json;
use steadfast_core::{Dialect, Failure, FaultSide, Reason, RecoveryLog};

use super::{
    App, chat, down,
    reply::{self, Outgoing},
};
use crate::{
    keys::Principal,
    responses::{Home, no_such_response},
};

/// The dialect of all this.
const DIALECT: Dialect = Dialect::Responses;

/// How much of a provider's error is read: 64 KiB, as of any other.
const MOST_OF_ERROR: usize = 64 * 1024;

/// What is asked of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    All,
    Deletion,
    Cancellation,
    InputItems,
}

impl What {
    fn method(self) -> Method {
        match self {
            Self::All | Self::InputItems => Method::GET,
            Self::Deletion => Method::DELETE,
            Self::Cancellation => Method::POST,
        }
    }

    /// Below the id in the address.
    fn path(self) -> &'static str {
        match self {
            Self::All | Self::Deletion => "",
            Self::Cancellation => "/cancel",
            Self::InputItems => "/input_items",
        }
    }
}

/// `GET /v1/responses/{id}`.
pub(super) async fn get(app: State<App>, id: Path<String>, asked: Parts) -> Response {
    answer(app, id, asked, What::All).await
}

/// `DELETE /v1/responses/{id}`.
pub(super) async fn delete(app: State<App>, id: Path<String>, asked: Parts) -> Response {
    answer(app, id, asked, What::Deletion).await
}

/// `POST /v1/responses/{id}/cancel`.
pub(super) async fn cancel(app: State<App>, id: Path<String>, asked: Parts) -> Response {
    answer(app, id, asked, What::Cancellation).await
}

/// `GET /v1/responses/{id}/input_items`.
pub(super) async fn input_items(app: State<App>, id: Path<String>, asked: Parts) -> Response {
    answer(app, id, asked, What::InputItems).await
}

async fn answer(
    State(app): State<App>,
    Path(id): Path<String>,
    asked: Parts,
    what: What,
) -> Response {
    let outgoing = app.outgoing(&asked.headers, &asked.uri);
    match find(&app, &id, &asked, what, &outgoing).await {
        Ok(response) => response,
        Err(failure) => reply::refused(DIALECT, &failure, &outgoing),
    }
}

async fn find(
    app: &App,
    id: &str,
    asked: &Parts,
    what: What,
    outgoing: &Outgoing,
) -> Result<Response, Failure> {
    let setup = app.setup();
    let tenant = match chat::caller(&setup, asked)? {
        Principal::Tenant(key) => Some(key.tenant.clone()),
        Principal::Anyone => None,
    };
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if id.is_empty() || id.len() > 256 || !id.bytes().all(is_id) {
        return Err(no_such_response(id));
    }
    app.responses().learn_one(tenant.as_deref(), id).await;
    let target = match app.responses().home(tenant.as_deref(), id) {
        Home::Here(json) => return here(app, tenant.as_deref(), id, &json, what),
        Home::At(target) => target,
        // One tenant alone may know what the gateway does not.
        Home::Unknown if !setup.isolates() => {
            let keeper = setup.gateway.keeper_of_responses();
            keeper.ok_or_else(|| no_such_response(id))?
        }
        Home::Unknown => return Err(no_such_response(id)),
    };
    let query = asked.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = format!("{id}{}{query}", what.path());
    let answer = setup.gateway.stored().ask(target.clone(), what.method(), path).await?;
    let (head, body) = answer.into_parts();
    if what == What::Deletion && head.status.is_success() {
        app.responses().forget(tenant.as_deref(), id);
    }
    let body = match head.status.is_success() {
        true => body,
        false => {
            let read = Limited::new(body, MOST_OF_ERROR).collect().await;
            Body::from(outgoing.mask.bytes(read.map(|all| all.to_bytes()).unwrap_or_default()))
        }
    };
    let mut response = reply::ok("application/json", body);
    *response.status_mut() = head.status;
    let headers = response.headers_mut();
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, kind.clone());
    }
    reply::stamp(headers, DIALECT, Some(&target), 0, outgoing, &RecoveryLog::disabled());
    down::add(headers, DIALECT, &head.headers, DIALECT, outgoing);
    Ok(response)
}

/// What is remembered here and nowhere else.
fn here(
    app: &App,
    tenant: Option<&str>,
    id: &str,
    response: &bytes::Bytes,
    what: What,
) -> Result<Response, Failure> {
    let body = match what {
        What::All => Body::from(response.clone()),
        What::Deletion => {
            app.responses().forget(tenant, id);
            let deleted = json!({"id": id, "object": "response", "deleted": true});
            Body::from(deleted.to_string())
        }
        What::Cancellation => {
            return Err(refused("only a response that is made in the background can be cancelled"));
        }
        What::InputItems => {
            return Err(refused("the items of a request are not kept in front of this provider"));
        }
    };
    let mut reply = reply::ok("application/json", body);
    reply.headers_mut().insert(KEPT_BY, HeaderValue::from_static("gateway"));
    Ok(reply)
}

/// Where a response was kept that no provider keeps.
const KEPT_BY: HeaderName = HeaderName::from_static("x-steadfast-kept-by");

fn refused(message: &str) -> Failure {
    Failure::refused(Reason::Unsupported, message)
        .with_status(StatusCode::BAD_REQUEST)
        .with_fault(FaultSide::Caller)
        .with_evidence("state")
}
