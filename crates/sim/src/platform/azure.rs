//! Azure: keys in a header of their own, deployments and a version in the address, filters around prompts and answers.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};

use super::{bearer, decoded, is_route, parameter, text, uuid_of};
use crate::answer::Sent;
use crate::clock::WallClock;
use crate::dialect::openai::errors::hinted;
use crate::dialect::{self, Dialect, ErrorContext, Refusal};
use crate::fault::{ErrorKind, RateLimit};
use crate::hosting::{Hosting, Received, VendorRequest};
use crate::limit::{Denied, Resource};
use crate::serve::set;
use crate::wire::{Frame, Kind};

/// What may stand behind the addresses of the newer API, where nothing has to.
const V1_VERSIONS: &[&str] = &["v1", "preview", "latest"];

/// What the messages about limits name where there is no version in the address.
const V1: &str = "v1";

/// Seconds of a limit that a plan gives no time for.
const RETRY_AFTER: u64 = 10;

/// Seconds until a quota is new.
const DAY: u64 = 86_400;

/// How Azure serves models.
#[derive(Clone, Debug)]
pub struct SimAzure {
    /// Of the older API.
    api_version: Option<String>,
}

/// An address that Azure has.
struct Address {
    /// The vendor's path.
    path: String,
    /// The deployment, where the address names it.
    deployment: Option<String>,
    /// Whether its version is one that there is.
    version: bool,
}

impl SimAzure {
    pub(super) fn new(api_version: Option<String>) -> Self {
        Self { api_version }
    }

    fn address(&self, received: &Received<'_>) -> Option<Address> {
        let path = received.path();
        let given = parameter(received.query(), "api-version");
        if received.dialect == Dialect::Anthropic {
            let path = path.strip_prefix("/anthropic")?;
            let known = matches!(path, "/v1/messages" | "/v1/messages/count_tokens");
            return known.then(|| Address { path: path.into(), deployment: None, version: true });
        }
        let Some(version) = &self.api_version else {
            let path = path.strip_prefix("/openai").filter(|path| path.starts_with("/v1/"))?;
            let version = given.is_none_or(|given| V1_VERSIONS.contains(&given));
            return Some(Address { path: path.into(), deployment: None, version });
        };
        let version = given == Some(version);
        let rest = path.strip_prefix("/openai").filter(|rest| !rest.starts_with("/v1/"))?;
        let Some(rest) = rest.strip_prefix("/deployments/") else {
            // Of the older API only these have a deployment.
            let known = !matches!(rest, "/chat/completions" | "/embeddings");
            return known.then(|| Address {
                path: format!("/v1{rest}"),
                deployment: None,
                version,
            });
        };
        let (deployment, what) = rest.split_once('/')?;
        let known = matches!(what, "chat/completions" | "embeddings");
        let deployment = decoded(deployment).filter(|name| known && !name.is_empty())?;
        Some(Address { path: format!("/v1/{what}"), deployment: Some(deployment), version })
    }

    fn version(&self) -> &str {
        self.api_version.as_deref().unwrap_or(V1)
    }

    /// A limit of requests or of tokens.
    fn exceeded(&self, dialect: Dialect, what: &str, again: &str) -> Refusal {
        let operation = match dialect {
            Dialect::Responses => "Responses_Create",
            _ => "ChatCompletions_Create",
        };
        own(
            429,
            "429",
            format!(
                "Requests to the {operation} Operation under Azure OpenAI API version {} have \
                 exceeded {what} rate limit of your current AIServices S0 pricing tier. Please \
                 retry after {again}. Please contact Azure support service if you would like to \
                 further increase the default rate limit.",
                self.version()
            ),
        )
    }

    fn rate_limit(&self, hints: &RateLimit, context: &ErrorContext<'_>) -> Refusal {
        let usual = seconds(RETRY_AFTER);
        let again = hints.in_message.as_deref().unwrap_or(&usual);
        hinted(self.exceeded(context.dialect, "call", again), hints, context.wall)
    }
}

impl Hosting for SimAzure {
    fn open(&self, received: &Received<'_>) -> VendorRequest {
        let headers = &received.head.headers;
        let key = text(headers, "api-key").or_else(|| match received.dialect {
            Dialect::Anthropic => text(headers, "x-api-key"),
            _ => None,
        });
        let token = bearer(headers);
        let accepted = key.or(token).is_some_and(|key| received.accepts(key));
        let mut request = VendorRequest {
            key: key.or(token).map(str::to_owned),
            path: String::new(),
            ..VendorRequest::of(received)
        };
        let address = self.address(received).filter(|address| is_route(received, &address.path));
        let Some(address) = address else {
            request.refused = Some(not_found());
            return request;
        };
        request.path = address.path;
        request.refused = if !accepted {
            Some(if key.is_some() { bad_key() } else { bad_token() })
        } else if !address.version {
            Some(not_found())
        } else {
            None
        };
        if let (Some(name), Ok(Value::Object(body))) = (address.deployment, &mut request.json) {
            body.insert("model".into(), name.into());
        }
        request
    }

    fn no_model(&self, _dialect: Dialect, _name: &str) -> Refusal {
        no_deployment()
    }

    fn limited(&self, dialect: Dialect, denied: &Denied, model: &str, wall: &WallClock) -> Refusal {
        if dialect == Dialect::Anthropic {
            return dialect::limited(dialect, denied, model, wall);
        }
        let what = match denied.resource {
            Resource::Requests => "call",
            Resource::Tokens => "token",
        };
        let wait = denied.wait.unwrap_or(Duration::from_secs(DAY)).as_millis().div_ceil(1_000);
        self.exceeded(dialect, what, &format!("{wait} seconds"))
            .header("retry-after", wait.to_string())
            .header("retry-after-ms", (wait * 1_000).to_string())
    }

    fn error(&self, kind: &ErrorKind, context: &ErrorContext<'_>, dialects: Refusal) -> Refusal {
        match kind {
            ErrorKind::Auth => return bad_key(),
            ErrorKind::Permission => return forbidden(),
            ErrorKind::ModelNotFound => return no_deployment(),
            _ if context.dialect == Dialect::Anthropic => return dialects,
            _ => {}
        }
        match kind {
            ErrorKind::RateLimit(hints) => self.rate_limit(hints, context),
            ErrorKind::InsufficientQuota => self
                .exceeded(context.dialect, "token", &seconds(DAY))
                .header("retry-after", DAY.to_string()),
            ErrorKind::ServerError => own(
                500,
                "InternalServerError",
                "Backend returned unexpected response. Please contact Microsoft for help.",
            ),
            ErrorKind::ContentFilter => filtered(),
            _ => dialects,
        }
    }

    fn whole(&self, dialect: Dialect, body: String) -> String {
        if dialect != Dialect::OpenAi {
            return body;
        }
        let Ok(mut document) = serde_json::from_str::<Value>(&body) else { return body };
        annotate(&mut document, true);
        if let Some(fields) = document.as_object_mut() {
            fields.insert("prompt_filter_results".into(), prompt_results());
        }
        document.to_string()
    }

    fn frames(&self, dialect: Dialect, frames: Vec<Frame>, _sent: &Sent) -> Vec<Frame> {
        if dialect != Dialect::OpenAi {
            return frames;
        }
        let first = json!({
            "choices": [],
            "created": 0,
            "id": "",
            "model": "",
            "object": "",
            "prompt_filter_results": prompt_results(),
        });
        let mut out = vec![Frame::new(Kind::Meta, format!("data: {first}\n\n"))];
        out.extend(frames.into_iter().map(|mut frame| {
            if let Some(bytes) = annotated(&frame.bytes, frame.kind == Kind::Content) {
                frame.bytes = bytes;
            }
            frame
        }));
        out
    }

    fn headers(&self, dialect: Dialect, id: &str, headers: &mut HeaderMap) {
        set(headers, HeaderName::from_static("apim-request-id"), &uuid_of(id));
        set(headers, HeaderName::from_static("x-ms-region"), "Sweden Central");
        if dialect != Dialect::Anthropic {
            set(headers, HeaderName::from_static("x-request-id"), &uuid_of(&format!("{id}/x")));
        }
    }
}

/// A refusal of Azure itself. Its code is always text.
fn own(status: u16, code: &str, message: impl Into<String>) -> Refusal {
    let message = message.into();
    let body = json!({"error": {"code": code, "message": message}});
    Refusal::new(status, "", message).body(body)
}

fn not_found() -> Refusal {
    own(404, "404", "Resource not found")
}

fn bad_key() -> Refusal {
    own(
        401,
        "401",
        "Access denied due to invalid subscription key or wrong API endpoint. Make sure to \
         provide a valid key for an active subscription and use a correct regional API endpoint \
         for your resource.",
    )
}

/// A missing or expired token; its body has a form of its own.
fn bad_token() -> Refusal {
    let message = "Unauthorized. Access token is missing, invalid, audience is incorrect \
                   (https://cognitiveservices.azure.com), or have expired.";
    Refusal::new(401, "", message).body(json!({"statusCode": 401, "message": message}))
}

fn forbidden() -> Refusal {
    own(
        401,
        "PermissionDenied",
        "The principal `00000000-0000-4000-8000-000000000000` lacks the required data action \
         `Microsoft.CognitiveServices/accounts/OpenAI/deployments/chat/completions/action` to \
         perform `POST /openai/deployments/{deployment-id}/chat/completions` operation.",
    )
}

fn no_deployment() -> Refusal {
    own(
        404,
        "DeploymentNotFound",
        "The API deployment for this resource does not exist. If you created the deployment \
         within the last 5 minutes, please wait a moment and try again.",
    )
}

/// A prompt that the filter stopped.
fn filtered() -> Refusal {
    let message = "The response was filtered due to the prompt triggering Azure OpenAI's content \
                   management policy. Please modify your prompt and retry. To learn more about our \
                   content filtering policies please read our documentation: \
                   https://go.microsoft.com/fwlink/?linkid=2198766";
    let mut results = results();
    results["sexual"] = json!({"filtered": true, "severity": "high"});
    Refusal::new(400, "", message).body(json!({"error": {
        "message": message,
        "type": null,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": results,
        },
    }}))
}

fn seconds(count: u64) -> String {
    format!("{count} seconds")
}

/// What the filter says of what is harmless.
fn results() -> Value {
    let safe = || json!({"filtered": false, "severity": "safe"});
    json!({"hate": safe(), "self_harm": safe(), "sexual": safe(), "violence": safe()})
}

fn prompt_results() -> Value {
    let mut results = results();
    results["jailbreak"] = json!({"filtered": false, "detected": false});
    json!([{"prompt_index": 0, "content_filter_results": results}])
}

/// Adds the filter's results to the choices; of those without content they are empty.
fn annotate(document: &mut Value, has_content: bool) {
    let choices = document.get_mut("choices").and_then(Value::as_array_mut);
    for one in choices.into_iter().flatten().filter_map(Value::as_object_mut) {
        let results = if has_content { results() } else { json!({}) };
        one.insert("content_filter_results".into(), results);
    }
}

/// The same for an event; `None` where it is no chunk.
fn annotated(event: &Bytes, has_content: bool) -> Option<Bytes> {
    let event = std::str::from_utf8(event).ok()?;
    let mut chunk: Value = serde_json::from_str(event.strip_prefix("data: ")?).ok()?;
    annotate(&mut chunk, has_content);
    Some(format!("data: {chunk}\n\n").into())
}
