//! One prompt, from the history to the saved answer.

use std::{future::poll_fn, sync::Arc};

use steadfast_chat::{
    ChatRequest, Message, Part, Role,
    transcript::{TranscriptRules, repair},
};
use steadfast_core::{Dialect, Failure, IntoFailure, RecoveryLog};
use tower_service::Service;

use crate::{
    ScopeError, SessionError, SessionPrompt, SessionReply, SessionRun, SessionThread, SessionTurn,
    TurnSink, event, keys::KeyState, layer::LayerConfig, request::no_messages, store::blocking,
};

/// Runs a prompt by a service, once that is ready.
pub(crate) async fn run<S>(
    config: Arc<LayerConfig>,
    mut inner: S,
    mut prompt: SessionPrompt,
) -> Result<SessionReply, Failure>
where
    S: Service<SessionRun, Response: Into<SessionTurn>, Error: IntoFailure>,
{
    if prompt.thread.is_empty() {
        event::refused(&ScopeError::Empty);
        return Err(SessionError::from(ScopeError::Empty).into());
    }
    let log = prompt.request.context.log.clone();
    let thread = config.store.open(&prompt.thread).await?;
    in_session(&prompt, &thread)?;
    let messages = match prompt.key.as_deref().map(|key| thread.key_state(key)) {
        Some(KeyState::Finished { first, last }) => {
            return Ok(replay(&thread, first, last, &log).await?);
        }
        Some(KeyState::Superseded) => {
            let (thread, key) = (prompt.thread, prompt.key.unwrap_or_default());
            return Err(SessionError::Superseded { thread, key }.into());
        }
        Some(KeyState::Started) => {
            event::resumed(&prompt.thread, thread.turn(), &log);
            Vec::new()
        }
        None | Some(KeyState::New) => {
            let messages: Vec<Message> = prompt
                .request
                .messages
                .iter()
                .filter(|message| !is_system(message))
                .cloned()
                .collect();
            if messages.is_empty() {
                return Err(no_messages(&prompt.thread));
            }
            messages
        }
    };

    if prompt.request.context.session().is_none() {
        prompt.request.context.identity_mut().session = Some(prompt.thread.clone());
    }
    let system = system(&config).await?;
    let history = thread.history();
    // Instructions of the prompt are for its run, and not kept.
    let own = prompt.request.messages.iter().filter(|message| is_system(message));
    let whole = system.iter().chain(own).chain(&history).chain(&messages).cloned().collect();
    // By its rules the whole history is repaired, with the prompt's tools.
    let rules = match &config.rules {
        Some(rules) => rules(&prompt),
        None => TranscriptRules::for_dialect(dialect_of(&history)),
    };
    prompt.request.messages = whole;
    repair_history(&prompt.thread, &mut prompt.request, rules, &log);

    // Now, and not when the prompt came: what is ready is held for somebody, and the thread may have been busy.
    poll_fn(|cx| inner.poll_ready(cx)).await.map_err(Into::into)?;
    let notice = thread.notice();
    let turns = TurnSink::new(thread.slot().clone(), prompt.key, messages, log);
    // Before the inner service is called, and dropped after its future, however that ends.
    let guard = turns.guard();
    let session = thread.session();
    let run = SessionRun {
        thread: prompt.thread,
        session,
        request: prompt.request,
        turns: turns.clone(),
    };
    let turn = inner.call(run).await.map_err(Into::into)?.into();
    let (saved, messages) = turns.finish(turn).await?;
    drop(guard);
    Ok(SessionReply {
        session,
        turn: saved.turn,
        messages,
        saved: saved.saved,
        replayed: false,
        notice,
    })
}

fn in_session(prompt: &SessionPrompt, thread: &SessionThread) -> Result<(), SessionError> {
    let live = thread.session();
    match prompt.session {
        Some(session) if session != live => {
            let error = ScopeError::NotLive { thread: prompt.thread.to_string(), session, live };
            event::refused(&error);
            Err(error.into())
        }
        _ => Ok(()),
    }
}

fn is_system(message: &Message) -> bool {
    message.role() == Role::System
}

/// The answer that the log has.
async fn replay(
    thread: &SessionThread,
    first: u64,
    last: u64,
    log: &RecoveryLog,
) -> Result<SessionReply, SessionError> {
    let turns = thread.turns(first, last).await?;
    // All of them, or none: a part would be taken for the answer.
    if turns.len() as u64 != last - first + 1 {
        return Err(SessionError::AnswerGone { thread: thread.id().clone(), turn: last });
    }
    event::replayed(thread.id(), last, log);
    let saved = thread.slot().memory().is_some_and(|memory| memory.is_durable());
    Ok(SessionReply {
        session: thread.session(),
        turn: last,
        messages: turns.iter().flat_map(|turn| turn.answer()).cloned().collect(),
        saved,
        replayed: true,
        notice: thread.notice_with(last),
    })
}

/// The system prompt as it is now.
async fn system(config: &Arc<LayerConfig>) -> Result<Option<Message>, SessionError> {
    if config.parts.is_empty() {
        return Ok(None);
    }
    let parts = config.parts.clone();
    let text = blocking(move || parts.assemble()).await??;
    Ok((!text.is_empty()).then(|| Message::system(text)))
}

/// Makes the history one that its target accepts. The stored one is as it was: the same damage gets the same repair each time, so
/// that prompt caches survive.
fn repair_history(
    thread: &str,
    request: &mut ChatRequest,
    mut rules: TranscriptRules,
    log: &RecoveryLog,
) {
    // Whoever runs the prompt may add tools still, and the window is a matter of compaction.
    (rules.tools_declared, rules.window) = (false, None);
    let repairs = repair(request, &rules);
    if repairs.is_empty() {
        return;
    }
    let mut codes: Vec<&str> = repairs.done.iter().map(|repair| repair.rule.code()).collect();
    codes.dedup();
    event::repaired(thread, repairs.done.len(), repairs.unrepaired.len(), &codes.join(" "), log);
}

/// The dialect that a history was read in.
fn dialect_of(history: &[Message]) -> Dialect {
    let of_part = |part: &Part| match part {
        Part::Opaque(opaque) => Some(opaque.dialect),
        _ => None,
    };
    let of =
        |message: &Message| message.dialect().or_else(|| message.parts().iter().find_map(of_part));
    history.iter().rev().find_map(of).unwrap_or(Dialect::OpenAi)
}
