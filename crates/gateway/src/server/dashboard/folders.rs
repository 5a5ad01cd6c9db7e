//! What a service keeps beside the gateway in a folder that `[observe]` names: dead letters, conversations, runs; with the
//! letters and runs of the nodes that share with this one.

use std::{
    cmp::Reverse,
    error::Error,
    path::{Path, PathBuf},
};

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use steadfast::shared::SharedState;
use steadfast_deliver::{DeadLetter, DeliverError, LetterDrain, LetterList, OfflineLetters};
use steadfast_session::SessionStore;
use steadfast_supervise::RunRegistry;

use super::operated;
use crate::{
    escape,
    fleet::{
        folders::{self, NodeFolder},
        orders::{self, NotPassed, Order, OrderAnswer},
    },
    server::{App, admin::admin, chat::query, reply},
};

/// The most that are listed of one node: as many as somebody reads.
const LISTED: usize = 200;

/// What other nodes call it when letters are made due, and the log.
pub(in crate::server) const DRAIN: &str = "letters.drain";

/// Of an answer that has changed nothing.
const NONE_DUE: &str = "0 letters are due";

/// `GET /admin/letters`: the messages that could not be delivered, without their texts.
pub(super) async fn letters(State(app): State<App>, asked: Parts) -> Response {
    of_all(&app, &asked, "letters", "waiting").await
}

/// `GET /admin/runs`: the runs of agents, those that have not ended first, then the newest.
pub(super) async fn runs(State(app): State<App>, asked: Parts) -> Response {
    of_all(&app, &asked, "runs", "known").await
}

/// `GET /admin/sessions`: the conversations of an agent.
pub(super) async fn sessions(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let Some(folder) = folder(&app, "sessions") else { return no_folder("sessions") };
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

/// What the folder `name` has, here and at the nodes that share with this one, and how many there are in it, under `count`.
async fn of_all(app: &App, asked: &Parts, name: &'static str, count: &'static str) -> Response {
    if let Err(refused) = admin(app, asked) {
        return refused;
    }
    let own = folder(app, name);
    let Some(state) = app.fleet().state().cloned() else {
        let Some(own) = own else { return no_folder(name) };
        return shown(app, asked, move || read(&own, name)).await;
    };
    let others = of_others(&*state, name);
    if own.is_none() && others.is_empty() && !state.is_away() {
        return no_folder(name);
    }
    let read = move || {
        let own = own.map(|own| read(&own, name)).transpose()?;
        let own = own.map(|summary| NodeFolder { node: state.node().into(), summary });
        let all: Vec<_> = own.into_iter().chain(others).collect();
        let entries: Vec<_> = all.iter().map(|folder| folder.entries(name)).collect();
        let nodes = all.iter().zip(&entries).map(|(folder, entries)| {
            json!({ "node": folder.node, count: folder.summary[count], "shown": entries.len() })
        });
        Ok(json!({
            count: all.iter().map(|folder| folder.count(count)).sum::<u64>(),
            "nodes": nodes.collect::<Vec<_>>(),
            name: entries.concat(),
            "node": state.node(),
            "store_away": state.is_away(),
        }))
    };
    shown(app, asked, read).await
}

/// The folder `name` of the other nodes; of none while the store is away, since it may have changed.
fn of_others(state: &dyn SharedState, name: &str) -> Vec<NodeFolder> {
    if state.is_away() { Vec::new() } else { folders::of_others(state, name) }
}

/// The letters or runs in `folder`, as they are shown. Reads files.
fn read(folder: &Path, name: &str) -> Result<Value, String> {
    if name == "letters" {
        let list = LetterList::read(folder).map_err(|error| text(&error))?;
        let all = list.waiting.iter().chain(list.ended.iter().rev());
        let shown: Vec<_> = all.take(LISTED).map(letter).collect();
        return Ok(json!({ "waiting": list.waiting.len(), "letters": shown }));
    }
    let mut all = RunRegistry::read(folder).map_err(|error| text(&error))?;
    let known = all.len();
    all.sort_by_key(|run| (run.state.is_terminal(), Reverse(run.started_ms)));
    all.truncate(LISTED);
    Ok(json!({ "known": known, "runs": all }))
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

/// What the other nodes are shown of the folder `name`, if there is one.
pub(in crate::server) async fn summary(app: &App, name: &'static str) -> Option<Value> {
    let folder = folder(app, name)?;
    // What is wrong with a folder is shown by its own node.
    let found = tokio::task::spawn_blocking(move || read(&folder, name)).await.ok()?.ok()?;
    let text = app.mask().text(escape::json(&found.to_string()).into_owned());
    serde_json::from_str(&text).ok()
}

/// `POST /admin/letters/drain?key=KEY`: the letter, or without a key all that wait, is due at once, as by
/// `steadfast dead-letters drain`; with `node=NAME` at that node, without it at every node that has it. 409 while a service
/// delivers from the folder, which has to be asked itself.
pub(super) async fn drain(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let (key, node) = (query(&asked.uri, "key"), query(&asked.uri, "node"));
    let (key, node) = (key.as_deref(), node.as_deref());
    let own = folder(&app, "letters");
    let answers = match (app.fleet().state(), own) {
        (None, None) => return no_folder("letters"),
        (None, Some(own)) => vec![("".into(), drain_here(own, key).await)],
        (Some(state), own) => drain_everywhere(&**state, own, (key, node)).await,
    };
    if answers.iter().any(|(_, answer)| answer.is_done()) {
        let is_change = |answer: &OrderAnswer| answer.is_done() && answer.text != NONE_DUE;
        let changed = answers.iter().any(|(_, answer)| is_change(answer));
        operated(&asked, DRAIN, key.unwrap_or("all"), changed);
    }
    all_answers(&app, &asked, &answers)
}

/// Where letters are made due.
enum DrainTarget {
    Own(PathBuf),
    Other(Box<str>),
    /// Nowhere, and why.
    None(OrderAnswer),
}

/// The nodes that have the letter `key`, or any, as far as they have shown it; or the node that is named.
async fn targets(
    state: &dyn SharedState,
    others: &[NodeFolder],
    own: Option<PathBuf>,
    (key, node): (Option<&str>, Option<&str>),
) -> Vec<DrainTarget> {
    let has = |folder: &&NodeFolder| match (node, key) {
        (Some(node), _) => *folder.node == *node,
        (None, Some(key)) => folder.entries("letters").iter().any(|letter| letter["key"] == *key),
        (None, None) => folder.count("waiting") > 0,
    };
    let there = others.iter().filter(has).map(|folder| DrainTarget::Other(folder.node.clone()));
    let mut targets: Vec<_> = there.collect();
    if let Some(own) = own.filter(|_| node.is_none_or(|node| node == state.node())) {
        // What another node has is looked for here as well; what nobody has shown may be here.
        let is_here = match key {
            Some(key) if !targets.is_empty() => has_letter(own.clone(), key.to_owned()).await,
            _ => true,
        };
        targets.extend(is_here.then_some(DrainTarget::Own(own)));
    }
    if targets.is_empty() {
        targets.push(DrainTarget::None(match node {
            _ if state.is_away() => NotPassed::Away.answer(),
            Some(_) => OrderAnswer::new(404, "no node of this name has shown letters"),
            None if others.is_empty() => {
                OrderAnswer::new(404, "neither here nor at another node is there a folder of letters")
            }
            None => OrderAnswer::new(
                404,
                "no node has shown such a letter; of a node that has more than it shows, add &node=NAME",
            ),
        }));
    }
    targets
}

async fn has_letter(folder: PathBuf, key: String) -> bool {
    let read = tokio::task::spawn_blocking(move || LetterList::read(folder));
    let Ok(Ok(list)) = read.await else { return false };
    list.waiting.iter().chain(&list.ended).any(|letter| *letter.key == *key)
}

/// Makes letters due at all nodes that have them, or at the one that is named.
async fn drain_everywhere(
    state: &dyn SharedState,
    own: Option<PathBuf>,
    (key, node): (Option<&str>, Option<&str>),
) -> Vec<(Box<str>, OrderAnswer)> {
    let others = of_others(state, "letters");
    let targets = targets(state, &others, own, (key, node)).await;
    let answers = targets.into_iter().map(async |target| match target {
        DrainTarget::Own(folder) => (state.node().into(), drain_here(folder, key).await),
        DrainTarget::Other(node) => {
            let (subject, body) = (key.unwrap_or("all").into(), json!({ "key": key }));
            let order = Order { node: node.clone(), action: DRAIN.into(), subject, body };
            let passed = orders::pass(state, order).await;
            (node, passed.unwrap_or_else(|why| why.answer()))
        }
        DrainTarget::None(answer) => ("".into(), answer),
    });
    join_all(answers).await
}

/// Makes letters due that another node passes on.
pub(in crate::server) async fn ordered(app: &App, body: &Value) -> OrderAnswer {
    match folder(app, "letters") {
        Some(folder) => drain_here(folder, body["key"].as_str()).await,
        None => OrderAnswer::new(404, "`observe.letters` names no folder at this node"),
    }
}

/// Makes letters due in a folder of this node.
async fn drain_here(folder: PathBuf, key: Option<&str>) -> OrderAnswer {
    let which = key.map_or(LetterDrain::All, |key| LetterDrain::Key(key.into()));
    let drained = tokio::task::spawn_blocking(move || {
        // Nothing is locked or made in a folder without letters.
        if LetterList::read(&folder)?.waiting.is_empty() && matches!(which, LetterDrain::All) {
            return Ok(0);
        }
        OfflineLetters::open(folder)?.drain(&which)
    });
    match drained.await {
        Ok(Ok(0)) => OrderAnswer::new(200, NONE_DUE),
        Ok(Ok(1)) => OrderAnswer::new(200, "1 letter is due"),
        Ok(Ok(due)) => OrderAnswer::new(200, format!("{due} letters are due")),
        Ok(Err(DeliverError::Locked(_))) => OrderAnswer::new(
            409,
            "a service delivers from this folder: it has to do this itself, or be stopped first",
        ),
        Ok(Err(error)) => OrderAnswer::new(500, text(&error)),
        Err(_) => OrderAnswer::new(500, "the folder could not be read"),
    }
}

/// What became of it: a line of each node where there are several, and the status of the one that is worst off.
fn all_answers(app: &App, asked: &Parts, answers: &[(Box<str>, OrderAnswer)]) -> Response {
    let line = |(node, answer): &(Box<str>, OrderAnswer)| match answers.len() {
        1 => escape::text(&answer.text).into_owned() + "\n",
        _ => format!("{}: {}\n", escape::text(node), escape::text(&answer.text)),
    };
    let status = answers.iter().map(|(_, answer)| answer.status()).max();
    let mask = app.outgoing(&asked.headers, &asked.uri).mask;
    let text = mask.text(answers.iter().map(line).collect());
    (status.unwrap_or(StatusCode::OK), text).into_response()
}

/// The folder that the key `name` of `[observe]` names.
fn folder(app: &App, name: &str) -> Option<PathBuf> {
    let setup = app.setup();
    let observe = &setup.config.observe;
    let folder = match name {
        "letters" => &observe.letters,
        "sessions" => &observe.sessions,
        _ => &observe.runs,
    };
    folder.clone()
}

fn no_folder(name: &str) -> Response {
    (StatusCode::NOT_FOUND, format!("`observe.{name}` names no folder\n")).into_response()
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
