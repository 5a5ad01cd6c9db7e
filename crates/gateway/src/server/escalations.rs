//! For operators: the requests that are held, and what is to be done with them.

use axum::{
    body::to_bytes,
    extract::{Path, Request, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;
use steadfast::{
    Target,
    escalate::{DecideError, EscalationDecision, EscalationId, HeldRequest},
};
use tokio::time::{Instant, timeout};

use super::{
    App,
    admin::{admin, shown_to},
    dashboard::operated,
};
use crate::{escape, stack::shown};

/// The largest decision: the longest answer by hand, with every byte of it escaped.
const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// A decision as it is sent.
#[derive(Debug, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case", deny_unknown_fields)]
enum Posted {
    TryAgain,
    TryTarget { target: String },
    TryModel { model: String },
    ResetCooldown { target: String },
    Answer { text: String },
    Refuse,
}

impl Posted {
    /// For `held`, by whose targets those that are named are found.
    fn decision(self, held: &HeldRequest) -> EscalationDecision {
        match self {
            Self::TryAgain => EscalationDecision::TryAgain,
            Self::TryTarget { target } => EscalationDecision::TryTarget(find(held, &target)),
            Self::TryModel { model } => EscalationDecision::TryModel(model.into()),
            Self::ResetCooldown { target } => {
                EscalationDecision::ResetCooldown(find(held, &target))
            }
            Self::Answer { text } => EscalationDecision::Answer(text),
            Self::Refuse => EscalationDecision::Refuse,
        }
    }
}

/// The target of `held` that is written `name`, or the part of one; a name alone when there is none.
fn find(held: &HeldRequest, name: &str) -> Target {
    let parts = |target: &Target| {
        let provider = Target::new(target.provider());
        let model = target.model().map(|model| provider.with_model(model));
        let key = target.credential().map(|key| provider.with_credential(key));
        [Some(target.clone()), Some(provider), model, key]
    };
    let mut all = held.targets.iter().flat_map(|known| parts(&known.target)).flatten();
    all.find(|part| part.as_str() == name).unwrap_or_else(|| Target::new(name))
}

/// `GET /admin/escalations`: the requests that wait for a person, the oldest first.
pub(super) async fn list(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let (now, held) = (Instant::now(), app.gateway().handles().escalation.held());
    let all: Vec<_> = held.iter().map(|held| shown(held, now)).collect();
    shown_to(&app, &asked, &json!({ "escalations": all }))
}

/// `POST /admin/escalations/{id}`: decides about one. 404 for an id that never was, 409 when the request is
/// not held any more or has been decided, 400 for a decision that is not possible.
pub(super) async fn decide(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let (asked, body) = request.into_parts();
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let mask = app.outgoing(&asked.headers, &asked.uri).mask;
    let says = |status: StatusCode, text: &dyn std::fmt::Display| {
        (status, mask.text(escape::text(&format!("{text}")).into_owned() + "\n")).into_response()
    };
    let id: EscalationId = match id.parse() {
        Ok(id) => id,
        Err(error) => return says(StatusCode::NOT_FOUND, &error),
    };
    let body = match timeout(app.setup().body_timeout, to_bytes(body, BODY_LIMIT)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            return says(StatusCode::PAYLOAD_TOO_LARGE, &"the decision is too large or broke off");
        }
        Err(_) => return says(StatusCode::REQUEST_TIMEOUT, &"the decision did not come in time"),
    };
    let posted: Posted = match serde_json::from_slice(&body) {
        Ok(posted) => posted,
        Err(error) => {
            let help = "a decision is like {\"decision\": \"try_target\", \"target\": \"NAME\"}";
            return says(StatusCode::BAD_REQUEST, &format!("{error}; {help}"));
        }
    };
    let handle = app.gateway().handles().escalation.clone();
    let decision = match handle.get(id) {
        Some(held) => posted.decision(&held),
        // It is gone, or decided. This finds out which, and is possible for no request: it may be held again in
        // this very moment.
        None => EscalationDecision::TryTarget(Target::new("")),
    };
    let result = handle.decide(id, decision);
    operated(&asked, "escalation.decide", &id.to_string(), result.is_ok());
    match result {
        Ok(()) => says(StatusCode::OK, &"decided"),
        Err(error) => says(status_of(&error), &error),
    }
}

fn status_of(error: &DecideError) -> StatusCode {
    match error {
        DecideError::Unknown(_) => StatusCode::NOT_FOUND,
        DecideError::Over(_) | DecideError::AlreadyDecided(_) => StatusCode::CONFLICT,
        _ => StatusCode::BAD_REQUEST,
    }
}
