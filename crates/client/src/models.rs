//! The models that a provider says it has.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Body;
use http_body_util::BodyExt;
use serde::Deserialize;
use steadfast_core::{BoxError, Dialect, Failure, Reason, RecoveryLog, Target};
use tower_service::Service;

use crate::{
    ClientBody, LlmClient,
    authorize::{Access, Outgoing, Sending},
    client::USER_AGENT,
    platform::Operation,
    provider::{Endpoint, Key},
    transport_failure,
};

/// The largest list that is read: 4 MiB. That of a vendor with hundreds of models and their prices is about 1 MB.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// The most names that are taken: 2,000, several times what the largest aggregators have.
const MOST_NAMES: usize = 2_000;

/// The longest name, in bytes: 512. Vendors' are below 100.
const LONGEST: usize = 512;

/// A list of models in any of the dialects: OpenAI's and Anthropic's have `data`, Gemini's `models`.
#[derive(Deserialize)]
struct List {
    #[serde(default, alias = "models")]
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: Option<String>,
    /// Gemini's, with a folder before it; elsewhere, where there is one, a title.
    name: Option<String>,
    /// Gemini's: what the model can be asked for. Those of embeddings and of images alone have no chat.
    #[serde(default, rename = "supportedGenerationMethods")]
    methods: Option<Vec<String>>,
}

impl<S> LlmClient<S> {
    /// The names of the models that the provider `name` lists, in its order: the first page, which at the vendors is
    /// all of them, and no more than 2,000.
    ///
    /// One attempt with the first of its credentials, without a time limit; dropping the future ends it. It is no call
    /// of a model: no layer hears of it.
    ///
    /// # Errors
    ///
    /// When there is no such provider, it can not be reached, refuses, or sends no list.
    pub async fn list_models<B>(&self, name: &str) -> Result<Vec<String>, Failure>
    where
        S: Service<Request<ClientBody>, Response = Response<B>> + Clone,
        S::Error: Into<BoxError>,
        B: Body,
        B::Error: Into<BoxError>,
    {
        let request = self.list_request(name)?;
        let response = self.ask(&Target::new(name), request).await?;
        let status = response.status();
        if !status.is_success() {
            let reason = Reason::from_status(status).unwrap_or(Reason::Unknown);
            let message = format!("the provider `{name}` answered {status} for its list of models");
            return Err(Failure::new(reason, message).with_status(status));
        }
        names(&read(response.into_body()).await?).ok_or_else(|| {
            let message = format!("the provider `{name}` sent no list of models");
            Failure::new(Reason::ServerError, message).with_evidence("malformed")
        })
    }

    /// Sends a request that is no call of a model.
    pub(crate) async fn ask<B>(
        &self,
        target: &Target,
        request: Outgoing,
    ) -> Result<Response<B>, Failure>
    where
        S: Service<Request<ClientBody>, Response = Response<B>> + Clone,
        S::Error: Into<BoxError>,
    {
        let mut service = self.service.clone();
        std::future::poll_fn(|cx| service.poll_ready(cx))
            .await
            .map_err(|error| transport_failure(error.into()))?;
        let sending = Sending::new(&mut service, request, (target, &RecoveryLog::disabled()));
        sending.await.map_err(transport_failure)
    }

    fn list_request(&self, name: &str) -> Result<Outgoing, Failure> {
        let (endpoint, key) = self.providers().route(Some(&Target::new(name)), None)?;
        let facts = endpoint.codec.facts();
        let path = match facts.dialect {
            Dialect::Anthropic => "/v1/models?limit=1000",
            Dialect::Gemini => "/v1beta/models?pageSize=1000",
            Dialect::OpenAi | Dialect::Responses => "/models",
        };
        bare_request(endpoint, key, Operation::List, Method::GET, path)
    }
}

/// A request without a body to `path` below the address of `endpoint`.
pub(crate) fn bare_request(
    endpoint: &Endpoint,
    key: Option<&Key>,
    what: Operation,
    method: Method,
    path: &str,
) -> Result<Outgoing, Failure> {
    let path = endpoint.path(what, "", path.to_owned())?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = format!("{}{path}", endpoint.base_url)
        .parse()
        .map_err(|error| Failure::refused(Reason::Format, format!("no valid address: {error}")))?;
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(header::USER_AGENT, USER_AGENT);
    for (name, value) in endpoint.codec.facts().headers {
        headers.insert(name, value.clone());
    }
    for (name, value) in &endpoint.headers {
        headers.insert(name, value.clone());
    }
    if let Some(key) = key {
        key.add_to(headers);
    }
    Ok(Outgoing { request, body: Bytes::new(), access: Access::of(endpoint, key) })
}

async fn read<B>(body: B) -> Result<BytesMut, Failure>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    let mut body = std::pin::pin!(body);
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| transport_failure(error.into()))?;
        let Ok(mut data) = frame.into_data() else { continue };
        if all.len() + data.remaining() > MOST_BYTES {
            let message = format!("the list of models is larger than {MOST_BYTES} bytes");
            return Err(Failure::new(Reason::ServerError, message).with_evidence("limit:answer"));
        }
        all.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    Ok(all)
}

/// The names in a list; `None` when it is none.
fn names(body: &[u8]) -> Option<Vec<String>> {
    let list: List = serde_json::from_slice(body).ok()?;
    let chats = |entry: &Entry| {
        entry.methods.as_ref().is_none_or(|all| all.iter().any(|one| one == "generateContent"))
    };
    let usable = |name: &String| {
        !name.is_empty() && name.len() <= LONGEST && !name.contains(char::is_control)
    };
    let entries = list.data.into_iter().filter(chats);
    let names = entries.filter_map(|entry| {
        let id = entry.id.or(entry.name)?;
        Some(id.strip_prefix("models/").map(str::to_owned).unwrap_or(id))
    });
    Some(names.filter(usable).take(MOST_NAMES).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialects_list_is_read() {
        for (body, expected) in [
            (
                r#"{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"}]}"#,
                &["a", "b"][..],
            ),
            (r#"{"data":[{"type":"model","id":"c","display_name":"C"}],"has_more":false}"#, &["c"]),
            (
                r#"{"models":[{"name":"models/g","supportedGenerationMethods":["generateContent"]},
                    {"name":"models/e","supportedGenerationMethods":["embedContent"]}]}"#,
                &["g"],
            ),
            (r#"{"data":[{"id":"d/d","name":"A title"},{"id":""},{"id":"a\nb"},{}]}"#, &["d/d"]),
            ("{}", &[]),
        ] {
            assert_eq!(names(body.as_bytes()).as_deref(), Some(&*owned(expected)), "{body}");
        }
        for body in ["", "<html>", "[]x", r#"{"data":[1]}"#] {
            assert_eq!(names(body.as_bytes()), None, "{body}");
        }
        let many: Vec<_> = (0..3_000).map(|n| serde_json::json!({"id": n.to_string()})).collect();
        let many = serde_json::json!({ "data": many }).to_string();
        assert_eq!(names(many.as_bytes()).unwrap().len(), MOST_NAMES);
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}
