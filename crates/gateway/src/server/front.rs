//! The way in for the requests there are most of.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{Router, response::Response};
use http::{Method, Request};
use hyper::body::Incoming;
use steadfast_core::Dialect;
use tower::Service;

use super::{App, chat};

/// The dialect of a chat, when its dialect has one address for them.
pub(super) fn chat_of<B>(request: &Request<B>) -> Option<Dialect> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, super::OPENAI) => Some(Dialect::OpenAi),
        (&Method::POST, super::ANTHROPIC) => Some(Dialect::Anthropic),
        _ => None,
    }
}

/// All endpoints: chats of the dialects that have one address for them at once, everything else by
/// way of the router.
#[derive(Clone)]
pub struct Front {
    app: App,
    router: Router,
}

impl Front {
    pub(super) fn new(app: &App) -> Self {
        Self { app: app.clone(), router: app.router() }
    }
}

impl Service<Request<Incoming>> for Front {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // The router is always ready, as axum says.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let Some(dialect) = chat_of(&request) else {
            return Box::pin(self.router.call(request));
        };
        let app = self.app.clone();
        Box::pin(async move { Ok(chat::answer(&app, dialect, None, request).await) })
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("app", &self.app).finish_non_exhaustive()
    }
}
