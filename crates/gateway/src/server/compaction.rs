//! Conversations that a caller has compacted: OpenAI's `POST /v1/responses/compact`, and its `compaction_trigger` in
//! a request.
//!
//! The model that is asked for writes the record, through the same stack as every answer. What it is sealed in is
//! the caller's, and every provider can read it when it comes back.

use axum::{extract::Request, response::Response};
use serde_json::{Value, json};
use steadfast::{
    ChatService,
    compact::{SummaryHeader, accept, ask, chunks, render},
};
use steadfast_chat::{
    ChatRequest, ChatResponse, Delta, Event, EventStream, Head, Message, Opaque, Part, RawJson,
    Role, StopReason,
};
use steadfast_client::dialect::{Route, codec, values};
use steadfast_core::{Call, CallContext, Dialect, Failure, Reason, Usage, time::wall};
use tower::{Service, ServiceExt};

use super::{
    App, Setup, body,
    chat::{self, Received},
    record::Record,
    reply::{self, Outgoing},
    session, unread, upward,
};
use crate::{
    admission::SMALL,
    responses::{self, open, seal},
};

const DIALECT: Dialect = Dialect::Responses;

/// How much of a conversation one record is written of, in tokens: what every model of an agent has room for,
/// 100,000.
const ROOM: u64 = 100_000;

/// How many of the last messages of one part the next one has, too.
const OVERLAP: usize = 2;

/// The longest record, in tokens: 8,000, as of the summaries that are made unasked.
const MOST_OUTPUT: u64 = 8_000;

/// A record of a conversation.
struct Compacted {
    /// The item.
    item: String,
    /// Of the last answer; of all of them the usage.
    head: Head,
    usage: Usage,
}

/// Whether `request` asks for a compaction.
pub(super) fn is_asked(request: &ChatRequest) -> bool {
    request.state.as_ref().is_some_and(|state| state.asks_for_compaction)
}

/// Whether the next target of `request` may have a compaction of its own.
pub(super) fn may_be_made_there(setup: &Setup, request: &ChatRequest) -> bool {
    let next = setup.gateway.route(request).next_target(request);
    next.profile.asked_in(Some(DIALECT)) == Some(DIALECT)
}

/// The answer to a `request` that asks for a compaction: the item, as an answer. A provider that `may` have its
/// own is asked for it; not all servers with this dialect do, and whoever asks can do nothing with anything else.
pub(super) async fn respond(
    mut service: ChatService,
    request: ChatRequest,
    may: bool,
) -> Result<ChatResponse, Failure> {
    if may {
        let made = service.ready().await?.call(request.clone()).await;
        let made = match made {
            Ok(answer) => all(answer).await,
            Err(failure) => Err(failure),
        };
        match made {
            Ok((head, events)) if is_compaction(&events) => {
                let events: EventStream =
                    Box::pin(futures_util::stream::iter(events.into_iter().map(Ok)));
                return Ok(ChatResponse::new(head, events));
            }
            Err(failure) if !is_not_known(&failure) => return Err(failure),
            _ => {}
        }
    }
    let (model, stream) = (request.model.as_str().to_owned(), request.stream);
    let Compacted { item, mut head, usage } = compact(service, &request).await?;
    (head.dialect, head.stream) = (DIALECT, stream);
    let json = RawJson::parse(&item).map_err(|_| unusable("is no JSON"))?;
    let block = Opaque { dialect: DIALECT, kind: "compaction".to_owned(), json };
    let event = Event::new([
        Delta::Start { id: None, model: Some(model) },
        Delta::Opaque { index: 0, block },
        Delta::Usage(usage),
        Delta::Stop(StopReason::EndTurn.into()),
        Delta::End,
    ]);
    let events: EventStream = Box::pin(futures_util::stream::iter([Ok(event)]));
    Ok(ChatResponse::new(head, events))
}

/// An answer to its end.
async fn all(answer: ChatResponse) -> Result<(Head, Vec<Event>), Failure> {
    let (head, mut stream) = answer.into_parts();
    let mut events = Vec::new();
    while let Some(event) = chat::next(&mut stream).await {
        events.push(event?);
    }
    Ok((head, events))
}

/// Whether an answer is the one item that was asked for.
fn is_compaction(events: &[Event]) -> bool {
    let deltas = || events.iter().flat_map(|event| &event.deltas);
    let spoken = |delta: &&Delta| matches!(delta, Delta::Text { .. } | Delta::ToolCall { .. });
    let items = deltas()
        .filter(|delta| matches!(delta, Delta::Opaque { block, .. } if block.kind == "compaction"));
    items.count() == 1 && deltas().find(spoken).is_none()
}

/// Whether a provider refuses what it was asked as nothing that it has.
fn is_not_known(failure: &Failure) -> bool {
    matches!(failure.reason(), Reason::Format | Reason::Unsupported)
}

/// `POST /v1/responses/compact`.
pub(super) async fn answer(app: &App, request: Request) -> Response {
    let (parts, mut body) = request.into_parts();
    let setup = app.setup();
    let outgoing = Outgoing::of(&setup.secrets, &parts.headers, &parts.uri);
    let mut record = app.record(DIALECT, &outgoing, &parts);
    let mut received = match chat::receive(app, &setup, &parts, &mut body).await {
        Ok(received) => received,
        Err(failure) => {
            record.failed(&failure, false);
            let refused = reply::refused(DIALECT, &failure, &outgoing);
            return unread::drop_rest(&parts.headers, body, refused).await;
        }
    };
    let is_large = received.body.len() > SMALL;
    let compacted = {
        let mut work = Box::pin(async {
            if received.body.len() > body::COPIED {
                received.admitted.weigh(values(&received.body)).await?;
            }
            read_and_compact(app, &setup, &parts, received, &mut record).await
        });
        if is_large { app.heavy().run(work.as_mut()).await } else { work.as_mut().await }
    };
    match compacted {
        Ok((Compacted { head, usage, .. }, output)) => {
            record.used(&usage);
            let made =
                wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let body = json!({
                "id": format!("resp_{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)),
                "object": "response.compaction",
                "created_at": made,
                "output": output,
                "usage": usage_of(&usage),
            });
            let mut response =
                reply::ok("application/json", axum::body::Body::from(body.to_string()));
            let headers = response.headers_mut();
            let target = head.target.as_ref();
            reply::stamp(headers, DIALECT, target, head.attempts, &outgoing, &head.log);
            record.done();
            response
        }
        Err(failure) => {
            let log = record.log();
            record.failed(&failure, false);
            reply::failed(DIALECT, &failure, &outgoing, &log)
        }
    }
}

async fn read_and_compact(
    app: &App,
    setup: &Setup,
    parts: &http::request::Parts,
    Received { caller, body, admitted }: Received,
    record: &mut Record,
) -> Result<(Compacted, Vec<Value>), Failure> {
    let mut request = codec(DIALECT).decode_request(&body, Route::default())?;
    chat::named(&request.model)?;
    if let Some(model) = setup.gateway.alias(&request.model) {
        request.model = model.to_owned().into();
    }
    request.context = chat::context(request.context, &parts.headers, &caller);
    session::identify(&mut request, &parts.headers);
    request.context.held_bytes = admitted.held();
    record.admitted(admitted);
    upward::add(&mut request.headers, &mut request.query, DIALECT, parts, &setup.forward);
    let opened = opened(&request);
    app.responses().learn(&request).await;
    app.responses().fit(&mut request, setup.isolates())?;
    let route = setup.gateway.route(&request);
    record.asked(&request.context, &request.model, false, route.name(), setup.gateway.prices());
    let compacted = compact(route.service(), &request).await?;
    record.answered(&compacted.head);
    let mut output: Vec<Value> = request
        .messages
        .iter()
        .filter(|message| message.role() == Role::User && !opened.contains(&message.text()))
        .map(user_item)
        .collect();
    output.push(serde_json::from_str(&compacted.item).map_err(|_| unusable("is no JSON"))?);
    Ok((compacted, output))
}

/// What was compacted here before, and is in the new record.
fn opened(request: &ChatRequest) -> Vec<String> {
    let parts = request.messages.iter().flat_map(Message::parts);
    parts
        .filter_map(|part| match part {
            Part::Opaque(opaque) if opaque.kind == "compaction" => {
                let item: Value = serde_json::from_str(opaque.json.get()).ok()?;
                open(item["encrypted_content"].as_str()?)
            }
            _ => None,
        })
        .collect()
}

/// A message of the user, as it was written.
fn user_item(message: &Message) -> Value {
    let raw = message.raw(DIALECT).and_then(|raw| serde_json::from_str(raw.get()).ok());
    let mut item: Value = raw.filter(Value::is_object).unwrap_or_else(
        || json!({"role": "user", "content": [{"type": "input_text", "text": message.text()}]}),
    );
    item["type"] = json!("message");
    if let Some(text) = item["content"].as_str().map(str::to_owned) {
        item["content"] = json!([{"type": "input_text", "text": text}]);
    }
    item
}

/// Has the model of `request` write a record of its conversation.
///
/// # Errors
///
/// Also when it goes on from what is not known here: a record without that would lose it.
async fn compact(mut service: ChatService, request: &ChatRequest) -> Result<Compacted, Failure> {
    if let Some(failure) = responses::missing(request) {
        return Err(failure);
    }
    let is_spoken = |message: &&Message| {
        message.role() != Role::System
            && !message.parts().iter().all(
                |part| matches!(part, Part::Opaque(opaque) if opaque.kind == "compaction_trigger"),
            )
    };
    let messages: Vec<Message> = request.messages.iter().filter(is_spoken).cloned().collect();
    if messages.is_empty() {
        let message = "input: has no message that could be compacted";
        return Err(Failure::refused(Reason::Format, message).with_evidence("request"));
    }
    let size = |message: &Message| ChatRequest::new(vec![message.clone()]).needs().input_tokens;
    let sizes: Vec<u64> = messages.iter().map(size).collect();
    let mut rng = fastrand::Rng::new();
    let (mut earlier, mut all, mut last) = (None, Usage::default(), Head::new(DIALECT));
    for chunk in chunks(&sizes, ROOM, OVERLAP) {
        let mut asked = ask(&messages[chunk], earlier.as_deref(), MOST_OUTPUT, &mut rng)
            .with_model(request.model.clone());
        asked.context = context(&request.context);
        let answer = service.ready().await?.call(asked).await?.collect().await?;
        all = all.plus(&answer.usage);
        last = answer.head.clone();
        earlier = Some(accept(&answer).map_err(|why| unusable(&why.to_string()))?);
    }
    let header = SummaryHeader { messages: messages.len() as u64, is_emergency: false };
    let text = render(&header, earlier.as_deref().unwrap_or_default(), &mut rng).text();
    let item = json!({
        "type": "compaction",
        "id": format!("cmp_{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)),
        "encrypted_content": seal(&text),
    });
    Ok(Compacted { item: item.to_string(), head: last, usage: all })
}

/// Of the calls for a record: for who asked, and no part of the conversation.
fn context(of: &CallContext) -> CallContext {
    let mut context = of.clone();
    context.preference = None;
    let identity = context.identity_mut();
    (identity.session, identity.task) = (None, None);
    context
}

fn unusable(why: &str) -> Failure {
    Failure::new(
        Reason::ServerError,
        format!("the record of the conversation can not be used: {why}"),
    )
}

fn usage_of(usage: &Usage) -> Value {
    let (input, output) = (usage.input.unwrap_or(0), usage.output.unwrap_or(0));
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": usage.cache_read.unwrap_or(0)},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.thinking.unwrap_or(0)},
        "total_tokens": input.saturating_add(output),
    })
}
