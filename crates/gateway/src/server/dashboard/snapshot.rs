//! What the page is fed with: one text for everybody who looks.

use axum::body::Bytes;
use serde_json::{Value, json};
use steadfast_core::time::wall;

use crate::{
    escape, logs,
    server::App,
    stack::{Attention, Severity},
};

/// How many requests are in it: of those under way, and of those that are over. The page asks for more.
const SHOWN: (usize, usize) = (20, 60);

/// `/admin/status`.
pub(in crate::server) fn status(app: &App) -> Value {
    let mut status = app.gateway().status();
    status["attempts"] = app.metrics().attempts().into();
    status["reload"] = app.0.reloads.lock().json();
    let kept = app.responses().snapshot();
    status["responses"] = json!({
        "ids": kept.ids,
        "kept": kept.responses,
        "bytes": kept.bytes,
    });
    let setup = app.setup();
    let folders = &setup.config.observe;
    status["keeps"] = json!({
        "letters": folders.letters.is_some(),
        "sessions": folders.sessions.is_some(),
        "runs": folders.runs.is_some(),
    });
    status["fleet"] = json!({ "shared": app.fleet().is_shared() });
    status["traffic"] = app.stories().traffic();
    status["attention"] = attention(app).iter().map(Attention::json).collect();
    status
}

/// What needs a person, the worst first.
fn attention(app: &App) -> Vec<Attention> {
    let mut all = app.gateway().attention();
    if let Some(error) = app.0.reloads.lock().error() {
        let first = error.lines().next().unwrap_or_default();
        let text = format!(
            "The configuration could not be read again, and the one before is in force: {first}"
        );
        all.push(Attention::new(Severity::Warn, "reload_failed", text));
    }
    all.extend(app.fleet().attention());
    let dropped = logs::dropped();
    if dropped > 0 {
        let text = format!("{dropped} lines of the log were dropped: nobody reads it fast enough.");
        all.push(Attention::new(Severity::Warn, "log_dropped", text));
    }
    all.sort_by_key(|one| one.severity);
    all
}

/// Everything, as one event.
pub(super) fn event(app: &App) -> Bytes {
    let stories = app.stories();
    let (running, remembered, _) = stories.sizes();
    let requests = stories.newest(SHOWN.0, SHOWN.1);
    let mut status = status(app);
    // The page does not show single conversations.
    if let Some(compaction) = status["compaction"].as_object_mut() {
        compaction.retain(|name, _| name != "conversations" && name != "spent");
    }
    let now = wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let all = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "at_ms": u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        "last_5_min": stories.lately(),
        "running": running,
        "remembered": remembered,
        "requests": requests.iter().map(|story| story.summary()).collect::<Vec<_>>(),
        "status": status,
    });
    let text = all.to_string();
    // Of no request: what is shown is shown to several.
    let text = app.mask().text(escape::json(&text).into_owned());
    format!("data: {text}\n\n").into()
}
