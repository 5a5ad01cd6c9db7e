//! What a service keeps beside the gateway in a folder that `[observe]` names: dead letters, conversations, runs.

use std::{cmp::Reverse, error::Error, path::PathBuf, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use steadfast_deliver::{DeadLetter, DeliverError, LetterDrain, LetterList, OfflineLetters};
use steadfast_session::SessionStore;
use steadfast_supervise::RunRegistry;

use super::operated;
use crate::{
    escape,
    server::{App, admin::admin, chat::query, reply},
};

/// The most that are listed: as many as somebody reads.
const LISTED: usize = 200;

/// `GET /admin/letters`: the messages that could not be delivered, without their texts.
pub(super) async fn letters(State(app): State<App>, asked: Parts) -> Response {
    let folder = match folder(&app, &asked, "letters") {
        Ok(folder) => folder,
        Err(refused) => return refused,
    };
    let read = move || {
        let list = LetterList::read(folder).map_err(|error| text(&error))?;
        let all = list.waiting.iter().chain(list.ended.iter().rev());
        let shown: Vec<_> = all.take(LISTED).map(letter).collect();
        Ok(json!({ "waiting": list.waiting.len(), "letters": shown }))
    };
    shown(&app, &asked, read).await
}

fn letter(letter: &DeadLetter) -> Value {
    json!({
        "key": letter.key,
        "state": letter.state(),
        "destination": letter.destination,
        "session": letter.session,
        "kind": letter.kind.as_str(),
        "tenant": letter.tenant,
        "kept_ms": letter.kept_ms,
        "next_ms": letter.next_ms,
        "attempts": letter.attempts,
        "error": letter.error,
    })
}

/// `GET /admin/sessions`: the conversations of an agent.
pub(super) async fn sessions(State(app): State<App>, asked: Parts) -> Response {
    let folder = match folder(&app, &asked, "sessions") {
        Ok(folder) => folder,
        Err(refused) => return refused,
    };
    let read = move || {
        let mut all = SessionStore::new(folder).list().map_err(|error| text(&error))?;
        let known = all.len();
        all.sort_by(|one, other| other.last.cmp(&one.last));
        all.truncate(LISTED);
        let shown: Vec<_> = all
            .iter()
            .map(|one| {
                json!({
                    "thread": one.thread,
                    "session": one.session,
                    "turns": one.turns,
                    "messages": one.messages,
                    "last": one.last,
                })
            })
            .collect();
        Ok(json!({ "known": known, "sessions": shown }))
    };
    shown(&app, &asked, read).await
}

/// `GET /admin/runs`: the runs of agents, those that have not ended first, then the newest.
pub(super) async fn runs(State(app): State<App>, asked: Parts) -> Response {
    let folder = match folder(&app, &asked, "runs") {
        Ok(folder) => folder,
        Err(refused) => return refused,
    };
    let read = move || {
        let mut all = RunRegistry::read(folder).map_err(|error| text(&error))?;
        let known = all.len();
        all.sort_by_key(|run| (run.state.is_terminal(), Reverse(run.started_ms)));
        all.truncate(LISTED);
        Ok(json!({ "known": known, "runs": all }))
    };
    shown(&app, &asked, read).await
}

/// `POST /admin/letters/drain?key=KEY`: the letter, or without a key all that wait, is due at once, as by
/// `steadfast dead-letters drain`. 409 while a service delivers from the folder, which has to be asked itself.
pub(super) async fn drain(State(app): State<App>, asked: Parts) -> Response {
    let folder = match folder(&app, &asked, "letters") {
        Ok(folder) => folder,
        Err(refused) => return refused,
    };
    let key = query(&asked.uri, "key").map(|key| Arc::<str>::from(&*key));
    let subject = key.clone().unwrap_or_else(|| "all".into());
    let which = key.map_or(LetterDrain::All, LetterDrain::Key);
    let drained = tokio::task::spawn_blocking(move || {
        // Nothing is locked or made in a folder without letters.
        if LetterList::read(&folder)?.waiting.is_empty() && matches!(which, LetterDrain::All) {
            return Ok(0);
        }
        OfflineLetters::open(folder)?.drain(&which)
    });
    let says = |status: StatusCode, text: &str| {
        let mask = app.outgoing(&asked.headers, &asked.uri).mask;
        (status, mask.text(escape::text(text).into_owned() + "\n")).into_response()
    };
    match drained.await {
        Ok(Ok(due)) => {
            operated(&asked, "letters.drain", &subject, due > 0);
            let letters = if due == 1 { "letter is" } else { "letters are" };
            says(StatusCode::OK, &format!("{due} {letters} due"))
        }
        Ok(Err(DeliverError::Locked(_))) => says(
            StatusCode::CONFLICT,
            "a service delivers from this folder: it has to do this itself, or be stopped first",
        ),
        Ok(Err(error)) => says(StatusCode::INTERNAL_SERVER_ERROR, &text(&error)),
        Err(_) => says(StatusCode::INTERNAL_SERVER_ERROR, "the folder could not be read"),
    }
}

/// The folder that the key `name` of `[observe]` names, for an operator.
#[expect(clippy::result_large_err, reason = "it is the answer")]
fn folder(app: &App, asked: &Parts, name: &str) -> Result<PathBuf, Response> {
    admin(app, asked)?;
    let setup = app.setup();
    let observe = &setup.config.observe;
    let folder = match name {
        "letters" => &observe.letters,
        "sessions" => &observe.sessions,
        _ => &observe.runs,
    };
    folder.clone().ok_or_else(|| {
        let why = format!("`observe.{name}` names no folder\n");
        (StatusCode::NOT_FOUND, why).into_response()
    })
}

/// What `read` comes to, which reads files.
async fn shown(
    app: &App,
    asked: &Parts,
    read: impl FnOnce() -> Result<Value, String> + Send + 'static,
) -> Response {
    let mask = app.outgoing(&asked.headers, &asked.uri).mask;
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(all)) => {
            let text = mask.text(escape::json(&all.to_string()).into_owned());
            reply::ok("application/json", Body::from(text))
        }
        Ok(Err(error)) => {
            let error = mask.text(escape::text(&error).into_owned() + "\n");
            (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// `error` with its cause.
fn text(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}
