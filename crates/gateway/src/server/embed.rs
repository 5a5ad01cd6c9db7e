//! One request for embeddings: read, asked, answered.

use std::pin::pin;

use axum::{body::Body, extract::Request, response::Response};
use http::{StatusCode, request::Parts};
use steadfast_chat::EmbedResponse;
use steadfast_client::dialect::{EmbedRoute, embed_codec, values};
use steadfast_core::{Dialect, Failure, FaultSide, Reason};
use tower::{Service, ServiceExt};

use super::{
    App, Setup,
    body::COPIED,
    chat::{self, Received},
    down,
    record::Record,
    reply::{self, Outgoing},
    unread, upward,
};
use crate::admission::SMALL;

/// Answers a request for embeddings in the caller's dialect, whatever happens.
pub(super) async fn answer(
    app: &App,
    dialect: Dialect,
    route: EmbedRoute<'_>,
    request: Request,
) -> Response {
    let (parts, mut body) = request.into_parts();
    let setup = app.setup();
    let outgoing = Outgoing::of(&setup.secrets, &parts.headers, &parts.uri);
    let mut record = app.record(dialect, &outgoing, &parts);
    record.embeds();
    let received = match chat::receive(app, &setup, &parts, &mut body).await {
        Ok(received) => received,
        Err(failure) => {
            record.failed(&failure, false);
            let refused = reply::refused(dialect, &failure, &outgoing);
            return unread::drop_rest(&parts.headers, body, refused).await;
        }
    };
    let is_large = received.body.len() > SMALL;
    let asked = {
        let asked = pin!(ask(&setup, dialect, route, &parts, received, &mut record));
        if is_large { app.heavy().run(asked).await } else { asked.await }
    };
    let EmbedResponse { head, usage, body, .. } = match asked {
        Ok(response) => response,
        Err(failure) => {
            let log = record.log();
            record.failed(&failure, false);
            return reply::failed(dialect, &failure, &outgoing, &log);
        }
    };
    record.answered(&head);
    record.used(&usage);
    let mut response = reply::ok("application/json", Body::from(body));
    let headers = response.headers_mut();
    reply::stamp(headers, dialect, head.target.as_ref(), head.attempts, &outgoing, &head.log);
    down::add(headers, dialect, head.headers.received(), head.dialect, &outgoing);
    record.done();
    response
}

/// Reads what is asked, and asks it.
async fn ask(
    setup: &Setup,
    dialect: Dialect,
    route: EmbedRoute<'_>,
    parts: &Parts,
    mut received: Received,
    record: &mut Record,
) -> Result<EmbedResponse, Failure> {
    let weighed = match received.body.len() > COPIED {
        true => received.admitted.weigh(values(&received.body)).await,
        false => Ok(()),
    };
    let held = received.admitted.held();
    record.admitted(received.admitted);
    weighed?;
    let codec = embed_codec(dialect).ok_or_else(|| nobody(dialect))?;
    let mut request = codec.decode_request(&received.body, route)?;
    chat::named(&request.model)?;
    if let Some(model) = setup.gateway.alias(&request.model) {
        request.model = model.to_owned().into();
    }
    request.context = chat::context(request.context, &parts.headers, &received.caller);
    request.context.held_bytes = held;
    request.context.trace = record.trace();
    upward::add(&mut request.headers, &mut request.query, dialect, parts, &setup.forward);
    let route = setup.gateway.route(&request);
    record.asked(&request.context, &request.model, false, route.name(), setup.gateway.prices());
    let mut service = route.embeddings(dialect).ok_or_else(|| nobody(dialect))?;
    service.ready().await?.call(request).await
}

/// No provider of the chain can be asked.
fn nobody(dialect: Dialect) -> Failure {
    let message = format!(
        "no provider of the chain speaks the {dialect} dialect, and embeddings go to providers of their caller's \
         dialect alone; many vendors have an address that speaks OpenAI's, which can be a provider of its own"
    );
    Failure::refused(Reason::Unsupported, message)
        .with_status(StatusCode::NOT_FOUND)
        .with_fault(FaultSide::Caller)
}
