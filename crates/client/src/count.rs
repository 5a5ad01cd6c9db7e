//! The client that has tokens counted.

use std::{
    fmt,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use steadfast_chat::Head;
use steadfast_core::{BoxError, Dialect, Failure};
use tower_service::Service;

use crate::{
    AnswerLimits, ClientBody, LlmClient,
    authorize::{Outgoing, Sending},
    client::{Outbound, http_request, refused},
    dialect::{CountCodec, CountRequest, count_codec, translation, unsupported},
    document::{DocumentFuture, ReadDocument},
    events::Asked,
    platform::Operation,
    transport_failure,
};

/// How many tokens a provider says a request has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderCount {
    /// Input tokens.
    pub tokens: u64,
    /// The dialect of the provider.
    pub dialect: Dialect,
    /// Its answer.
    pub body: Bytes,
}

/// A client that has tokens counted: an [`LlmClient`] with the same providers. What is counted is no attempt of a
/// call, and is written into no recovery log.
#[derive(Clone)]
pub struct CountClient<S>(LlmClient<S>);

impl<S> LlmClient<S> {
    /// The same client, for counts of tokens.
    pub fn counting(self) -> CountClient<S> {
        CountClient(self)
    }
}

impl<S> CountClient<S> {
    fn prepare(
        &self,
        mut request: CountRequest,
    ) -> Result<(Outgoing, Asked, CountReader), Failure> {
        let target = request.chat.context.target.clone();
        let refuse = |failure| refused(failure, target.as_ref());
        let caller = request.dialect();
        let (endpoint, key) = self.0.resolve(target.as_ref(), caller, &mut request.chat.model)?;
        let dialect = endpoint.codec.dialect();
        if let Some(target) = target.as_ref().filter(|_| caller == Some(dialect)) {
            request.chat.leave_kept(target);
        }
        let codec = count_codec(dialect)
            .ok_or_else(|| refuse(unsupported(dialect, "a request to count tokens")))?;
        if request.dialect() != Some(dialect) {
            translation::check(&request.chat, dialect).map_err(refuse)?;
        }
        let body = codec.encode_request(&request, &endpoint.wire).map_err(refuse)?;
        let chat = &request.chat;
        let outbound = Outbound {
            context: &chat.context,
            model: &chat.model,
            dialect: chat.dialect(),
            headers: &chat.headers,
            query: chat.query.as_deref(),
            uri: None,
            path: &|| codec.path(&chat.model),
            what: Operation::Count,
        };
        let http = http_request(endpoint, key, &outbound, body).map_err(refuse)?;
        Ok((http, self.0.asked(endpoint, key, &outbound), CountReader { codec }))
    }
}

/// Reads one count.
#[derive(Debug)]
pub struct CountReader {
    codec: &'static dyn CountCodec,
}

impl ReadDocument for CountReader {
    type Output = ProviderCount;

    fn limit(&self, limits: &AnswerLimits) -> usize {
        limits.error
    }

    fn read(&self, head: Head, body: &Bytes) -> Result<ProviderCount, Failure> {
        let tokens = self.codec.decode_answer(body)?;
        Ok(ProviderCount { tokens, dialect: head.dialect, body: body.clone() })
    }
}

impl<S, B> Service<CountRequest> for CountClient<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Response = ProviderCount;
    type Error = Failure;
    type Future = DocumentFuture<Sending<S>, B, CountReader>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.0.service.poll_ready(cx).map_err(|error| transport_failure(error.into()))
    }

    fn call(&mut self, request: CountRequest) -> Self::Future {
        match self.prepare(request) {
            Ok((http, asked, reader)) => {
                DocumentFuture::calling(asked.send(&mut self.0.service, http), asked, reader)
            }
            Err(failure) => DocumentFuture::refused(failure),
        }
    }
}

impl<S> fmt::Debug for CountClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CountClient").field(&self.0).finish()
    }
}
