//! For operators: the requests that are held, and what is to be done with them.

use axum::{
    body::to_bytes,
    extract::{Path, Request, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::{
    Target,
    escalate::{DecideError, EscalationDecision, EscalationHandle, EscalationId, HeldRequest},
    shared::SharedState,
};
use tokio::time::{Instant, timeout};

use super::{
    App,
    admin::{admin, shown_to},
    dashboard::operated,
};
use crate::{
    escape,
    fleet::{
        folders::of_node,
        held::{self, Whereabouts},
        orders::{self, Order, OrderAnswer},
    },
    stack::shown,
};

/// What other nodes call a decision, and the log.
pub(super) const DECIDE: &str = "escalation.decide";

/// The largest decision: the longest answer by hand, with every byte of it escaped.
const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// A decision as it is sent.
#[derive(Clone, Debug, Deserialize, Serialize)]
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

/// A decision that another node passes on.
#[derive(Debug, Deserialize, Serialize)]
struct PassedOn {
    /// In which round it was held when that was decided.
    round: u64,
    decision: Posted,
}

/// `GET /admin/escalations`: the requests that wait for a person, here and at the nodes that share with this one, the oldest
/// first.
pub(super) async fn list(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let (now, held) = (Instant::now(), app.gateway().handles().escalation.held());
    let own = held.iter().map(|held| shown(held, now));
    let all = match app.fleet().state() {
        None => json!({ "escalations": own.collect::<Vec<_>>() }),
        Some(state) => {
            let (node, is_away) = (state.node(), state.is_away());
            let mut all: Vec<_> = own.map(|held| of_node(held, node)).collect();
            if !is_away {
                all.extend(held::of_others(&**state));
                all.sort_by_key(|held| held["since"].as_u64());
            }
            json!({ "escalations": all, "node": node, "store_away": is_away })
        }
    };
    shown_to(&app, &asked, &all)
}

/// `POST /admin/escalations/{id}`: decides about one, wherever it is held. 404 for an id that never was, 409 when the request
/// is not held any more or has been decided, 400 for a decision that is not possible; 413, 503 and 504 when it could not be
/// passed on to the node that holds it, or was not answered.
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
    let result = decide_here(&app.gateway().handles().escalation, id, posted.clone());
    let answer = match (result, app.fleet().state()) {
        (Err(DecideError::Unknown(_)), Some(state)) => decide_there(&**state, id, posted).await,
        (result, _) => answer(result),
    };
    operated(&asked, DECIDE, &id.to_string(), answer.is_done());
    says(answer.status(), &answer.text)
}

/// Decides about a request that this node holds, if it does.
fn decide_here(
    handle: &EscalationHandle,
    id: EscalationId,
    posted: Posted,
) -> Result<(), DecideError> {
    let decision = match handle.get(id) {
        Some(held) => posted.decision(&held),
        // It is gone, or decided. This finds out which, and is possible for no request: it may be held again in
        // this very moment.
        None => EscalationDecision::TryTarget(Target::new("")),
    };
    handle.decide(id, decision)
}

/// Passes a decision on to the node that holds the request.
async fn decide_there(state: &dyn SharedState, id: EscalationId, posted: Posted) -> OrderAnswer {
    let subject = id.to_string();
    let (node, round) = match held::find(state, &subject) {
        Whereabouts::Held { node, round } => (node, round),
        Whereabouts::Over => return answer(Err(DecideError::Over(id))),
        Whereabouts::Unknown if state.is_away() => {
            let text = "this node does not hold it, and can not see what others do: the store that they share can not \
                        be reached. Ask the node that holds it";
            return OrderAnswer::new(503, text);
        }
        Whereabouts::Unknown => return answer(Err(DecideError::Unknown(id))),
    };
    let body = match serde_json::to_value(PassedOn { round, decision: posted }) {
        Ok(body) => body,
        Err(error) => return OrderAnswer::new(500, error.to_string()),
    };
    let order = Order { node, action: DECIDE.into(), subject: subject.into(), body };
    orders::pass(state, order).await.unwrap_or_else(|why| why.answer())
}

/// Decides what another node has passed on.
pub(super) fn ordered(app: &App, subject: &str, body: Value) -> OrderAnswer {
    let id: EscalationId = match subject.parse() {
        Ok(id) => id,
        Err(error) => return OrderAnswer::new(404, format!("{error}")),
    };
    let passed: PassedOn = match serde_json::from_value(body) {
        Ok(passed) => passed,
        Err(error) => return OrderAnswer::new(400, error.to_string()),
    };
    let gateway = app.gateway();
    let handle = &gateway.handles().escalation;
    if handle.get(id).is_some_and(|held| u64::from(held.round) != passed.round) {
        // Whoever has decided has not seen what became of an earlier decision.
        return answer(Err(DecideError::AlreadyDecided(id)));
    }
    answer(decide_here(handle, id, passed.decision))
}

fn answer(result: Result<(), DecideError>) -> OrderAnswer {
    match result {
        Ok(()) => OrderAnswer::new(200, "decided"),
        Err(error) => OrderAnswer::new(status_of(&error), error.to_string()),
    }
}

fn status_of(error: &DecideError) -> u16 {
    match error {
        DecideError::Unknown(_) => 404,
        DecideError::Over(_) | DecideError::AlreadyDecided(_) => 409,
        _ => 400,
    }
}
