//! The client for embeddings.

use std::{
    fmt,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use steadfast_chat::{EmbedRequest, EmbedResponse, Head};
use steadfast_core::{BoxError, Failure};
use tower_service::Service;

use crate::{
    AnswerLimits, ClientBody, LlmClient,
    authorize::{Outgoing, Sending},
    client::{Outbound, http_request, refused},
    dialect::{EmbedCodec, EmbedShape, embed_codec, unsupported},
    document::{DocumentFuture, ReadDocument},
    events::Asked,
    platform::Operation,
    transport_failure,
};

/// A client for embeddings: an [`LlmClient`] with the same providers. Its answers are whole: an answer is there
/// once all of it has come and has one vector for each input.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use steadfast_client::{Credential, LlmClient, Provider, Providers};
/// use steadfast_chat::EmbedRequest;
/// use steadfast_core::Dialect;
/// use tower_service::Service;
///
/// let providers = Providers::new([
///     Provider::new("openai", Dialect::OpenAi).with_credential(Credential::env("OPENAI_API_KEY")?),
/// ])?;
/// let mut client = LlmClient::new(providers).embeddings();
/// let answer = client.call(EmbedRequest::new(["a text"]).with_model("text-embedding-3-small")).await?;
/// println!("{:?}", answer.embeddings[0].values()?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EmbedClient<S>(LlmClient<S>);

impl<S> LlmClient<S> {
    /// The same client, for embeddings.
    pub fn embeddings(self) -> EmbedClient<S> {
        EmbedClient(self)
    }
}

impl<S> EmbedClient<S> {
    fn prepare(
        &self,
        mut request: EmbedRequest,
    ) -> Result<(Outgoing, Asked, EmbeddingsReader), Failure> {
        let target = request.context.target.clone();
        let refuse = |failure| refused(failure, target.as_ref());
        let (endpoint, key) = self.0.resolve(target.as_ref(), None, &mut request.model)?;
        let dialect = endpoint.codec.dialect();
        let codec = embed_codec(dialect)
            .ok_or_else(|| refuse(unsupported(dialect, "a request for embeddings")))?;
        let body = codec.encode_request(&request).map_err(refuse)?;
        let outbound = Outbound {
            context: &request.context,
            model: &request.model,
            dialect: request.dialect(),
            headers: &request.headers,
            query: request.query.as_deref(),
            uri: None,
            path: &|| codec.path(&request),
            what: Operation::Embed,
        };
        let http = http_request(endpoint, key, &outbound, body).map_err(refuse)?;
        let reader = EmbeddingsReader { codec, shape: EmbedShape::of(&request) };
        Ok((http, self.0.asked(endpoint, key, &outbound), reader))
    }
}

/// Reads the answer to one request.
#[derive(Debug)]
pub struct EmbeddingsReader {
    codec: &'static dyn EmbedCodec,
    shape: EmbedShape,
}

impl ReadDocument for EmbeddingsReader {
    type Output = EmbedResponse;

    fn limit(&self, limits: &AnswerLimits) -> usize {
        limits.embeddings
    }

    fn read(&self, head: Head, body: &Bytes) -> Result<EmbedResponse, Failure> {
        self.codec.decode_answer(head, self.shape, body)
    }
}

impl<S, B> Service<EmbedRequest> for EmbedClient<S>
where
    S: Service<Request<ClientBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    B: Body,
    B::Error: Into<BoxError>,
{
    type Response = EmbedResponse;
    type Error = Failure;
    type Future = DocumentFuture<Sending<S>, B, EmbeddingsReader>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.0.service.poll_ready(cx).map_err(|error| transport_failure(error.into()))
    }

    fn call(&mut self, request: EmbedRequest) -> Self::Future {
        match self.prepare(request) {
            Ok((http, asked, reader)) => {
                asked.log.count_attempt();
                DocumentFuture::calling(asked.send(&mut self.0.service, http), asked, reader)
            }
            Err(failure) => DocumentFuture::refused(failure),
        }
    }
}

impl<S> fmt::Debug for EmbedClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EmbedClient").field(&self.0).finish()
    }
}
