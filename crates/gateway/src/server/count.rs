//! One request to count tokens: read, counted, answered. It is counted beside requests, and not among them.

use std::pin::pin;

use axum::{body::Body, extract::Request, response::Response};
use http::{HeaderName, HeaderValue, request::Parts};
use steadfast_client::dialect::{count_codec, values};
use steadfast_core::{Dialect, Failure, Reason, RecoveryLog};

use super::{
    App, Setup,
    body::COPIED,
    chat::{self, Received},
    reply::{self, Outgoing},
    session, unread, upward,
};
use crate::{admission::SMALL, stack::Counted};

/// Who has counted: `provider` or `gateway`.
const COUNTED: HeaderName = HeaderName::from_static("x-steadfast-counted");

/// Answers a request to count tokens in the caller's dialect; Gemini has the `model` in the address.
pub(super) async fn answer(
    app: &App,
    dialect: Dialect,
    model: Option<&str>,
    request: Request,
) -> Response {
    let (parts, mut body) = request.into_parts();
    let setup = app.setup();
    let outgoing = Outgoing::of(&setup.secrets, &parts.headers, &parts.uri);
    let received = match chat::receive(app, &setup, &parts, &mut body).await {
        Ok(received) => received,
        Err(failure) => {
            app.metrics().counted(dialect, "failed");
            let refused = reply::refused(dialect, &failure, &outgoing);
            return unread::drop_rest(&parts.headers, body, refused).await;
        }
    };
    let is_large = received.body.len() > SMALL;
    let counted = {
        let counted = pin!(count(app, &setup, dialect, model, &parts, received));
        if is_large { app.heavy().run(counted).await } else { counted.await }
    };
    let (by, tokens, target) = match &counted {
        Ok(Counted::ByProvider(count, target)) => ("provider", Some(count.tokens), Some(target)),
        Ok(Counted::Here(tokens)) => ("gateway", Some(*tokens), None),
        Err(_) => ("failed", None, None),
    };
    app.metrics().counted(dialect, by);
    tracing::debug!(
        name: "steadfast::gateway::counted",
        target: "steadfast::gateway",
        id = reply::text(&outgoing.id),
        dialect = dialect.as_str(),
        by,
        tokens,
        "tokens have been counted",
    );
    let body = match &counted {
        Err(failure) => return reply::refused(dialect, failure, &outgoing),
        // In the caller's own dialect the answer is the provider's.
        Ok(Counted::ByProvider(count, _)) if count.dialect == dialect => count.body.clone(),
        Ok(Counted::ByProvider(..) | Counted::Here(_)) => {
            let written = count_codec(dialect).zip(tokens);
            match written.map(|(codec, tokens)| codec.write_answer(tokens)) {
                Some(body) => body,
                None => return reply::refused(dialect, &unsupported(), &outgoing),
            }
        }
    };
    let mut response = reply::ok("application/json", Body::from(body));
    let headers = response.headers_mut();
    headers.insert(COUNTED, HeaderValue::from_static(by));
    reply::stamp(headers, dialect, target, 0, &outgoing, &RecoveryLog::disabled());
    response
}

/// Counts what was `received`, which is held until then.
async fn count(
    app: &App,
    setup: &Setup,
    dialect: Dialect,
    model: Option<&str>,
    parts: &Parts,
    mut received: Received,
) -> Result<Counted, Failure> {
    let codec = count_codec(dialect).ok_or_else(unsupported)?;
    if received.body.len() > COPIED {
        received.admitted.weigh(values(&received.body)).await?;
    }
    let mut request = codec.decode_request(&received.body, model)?;
    let chat = &mut request.chat;
    chat::named(&chat.model)?;
    if let Some(model) = setup.gateway.alias(&chat.model) {
        chat.model = model.to_owned().into();
    }
    chat.context =
        chat::context(std::mem::take(&mut chat.context), &parts.headers, &received.caller);
    session::identify(chat, &parts.headers);
    upward::add(&mut chat.headers, &mut chat.query, dialect, parts, &setup.forward);
    app.responses().learn(&request.chat).await;
    app.responses().fit(&mut request.chat, setup.isolates())?;
    let next = setup.gateway.route(&request.chat).next_target(&request.chat);
    setup.gateway.counting().count(next, request).await
}

fn unsupported() -> Failure {
    Failure::refused(Reason::Unsupported, "this dialect has no request to count tokens")
}
