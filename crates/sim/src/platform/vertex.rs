//! Vertex AI: everything is below a project and a location, for who has an access token.

use http::Method;
use serde_json::{Value, json};

use super::{bearer, decoded, is_date, is_route, parameter, take, text, vendor_version};
use crate::clock::WallClock;
use crate::dialect::openai::errors::hinted;
use crate::dialect::{self, Dialect, ErrorContext, Refusal, anthropic, gemini, items};
use crate::fault::ErrorKind;
use crate::hash;
use crate::hosting::{Hosting, Received, VendorRequest};
use crate::limit::{Denied, Resource};

/// The version of Anthropic's API that the body names, besides dates.
const VERSION: &str = "vertex-2023-10-16";

const SERVICE: &str = "aiplatform.googleapis.com";

/// The fields of a request to count Gemini's tokens: fewer than at the vendor.
const COUNTED: &[&str] = &[
    "contents",
    "generationConfig",
    "generation_config",
    "instances",
    "model",
    "systemInstruction",
    "system_instruction",
    "tools",
];

/// How Vertex AI serves models.
#[derive(Clone, Debug)]
pub struct SimVertex {
    project: String,
    location: String,
}

/// An address that Vertex AI has.
struct Address {
    project: String,
    location: String,
    /// What is called below them.
    resource: String,
    /// The vendor's path.
    path: String,
    call: Call,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    /// Gemini's, and those of OpenAI's dialects.
    Plain,
    /// A count of Gemini's tokens.
    Count,
    /// Anthropic's model, whole or as a stream.
    Predict { model: String, stream: bool },
    /// A count of Anthropic's tokens.
    PredictCount,
}

impl SimVertex {
    pub(super) fn new(project: String, location: String) -> Self {
        Self { project, location }
    }

    fn refusal(&self, received: &Received<'_>, address: &Address) -> Option<Refusal> {
        let headers = &received.head.headers;
        let Some(token) = bearer(headers) else {
            let has_key = text(headers, "x-goog-api-key").is_some()
                || parameter(received.query(), "key").is_some();
            return Some(if has_key { api_key() } else { no_token() });
        };
        if !received.accepts(token) {
            return Some(bad_token());
        }
        (address.project != self.project).then(|| {
            let Address { project, location, resource, .. } = address;
            forbidden(&format!("projects/{project}/locations/{location}/{resource}"))
        })
    }

    /// Why the model is not there, in the words of the platform.
    fn missing(location: &str, project: &str, dialect: Dialect, name: &str) -> Refusal {
        let (publisher, name) = match (dialect, name.split_once('/')) {
            (Dialect::OpenAi, Some(parts)) => parts,
            (Dialect::Anthropic, _) => ("anthropic", name),
            (Dialect::Responses, _) => ("openai", name),
            (Dialect::Gemini | Dialect::OpenAi, _) => ("google", name),
        };
        Refusal::new(
            404,
            "NOT_FOUND",
            format!(
                "Publisher Model `projects/{project}/locations/{location}/publishers/{publisher}/\
                 models/{name}` was not found or your project does not have access to it. Please \
                 ensure you are using a valid model version. For more information, see: \
                 https://cloud.google.com/vertex-ai/generative-ai/docs/learn/model-versions"
            ),
        )
    }
}

impl Hosting for SimVertex {
    fn open(&self, received: &Received<'_>) -> VendorRequest {
        let dialect = received.dialect;
        let mut request = VendorRequest {
            key: bearer(&received.head.headers).map(str::to_owned),
            path: String::new(),
            ..VendorRequest::of(received)
        };
        let Some(address) = address(received) else {
            let refused = dialect::no_route(Dialect::Gemini, received.method(), received.path());
            request.refused = Some(google(dialect, refused));
            return request;
        };
        let mut refused = self.refusal(received, &address);
        if address.location != self.location && refused.is_none() {
            let Address { location, project, resource, .. } = &address;
            let named = resource.split_once("/models/").map(|(_, call)| call);
            let named = named.and_then(|call| call.split(':').next());
            let inside = request.json.as_ref().ok().and_then(|body| body["model"].as_str());
            let name = named.or(inside).unwrap_or_default();
            refused = Some(Self::missing(location, project, dialect, name));
        }
        let refused = refused.map(|refused| google(dialect, refused));
        vendor_version(&mut request.headers);
        let opened = unwrap(&mut request.json, &address.call);
        request.refused = refused.or(opened.err());
        request.path = address.path;
        request
    }

    fn request_id(
        &self,
        dialect: Dialect,
        rng: &mut fastrand::Rng,
    ) -> (Option<&'static str>, String) {
        match dialect {
            Dialect::Anthropic => (Some("request-id"), hash::id(rng, "req_vrtx_011C", 20)),
            _ => (None, String::new()),
        }
    }

    fn id_infix(&self) -> &'static str {
        "vrtx_"
    }

    fn no_model(&self, dialect: Dialect, name: &str) -> Refusal {
        google(dialect, Self::missing(&self.location, &self.project, dialect, name))
    }

    fn bad_json(&self, dialect: Dialect, error: &serde_json::Error, body: &[u8]) -> Refusal {
        google(dialect, dialect::bad_json(Dialect::Gemini, error, body))
    }

    fn limited(
        &self,
        dialect: Dialect,
        denied: &Denied,
        model: &str,
        _wall: &WallClock,
    ) -> Refusal {
        let what = match denied.resource {
            Resource::Requests => "online_prediction_requests_per_base_model",
            Resource::Tokens => "online_prediction_input_tokens_per_minute_per_base_model",
        };
        google(dialect, exhausted(dialect, what, model))
    }

    fn refused(&self, dialect: Dialect, refusal: Refusal, _counting: bool) -> Refusal {
        // There it is Google that translates.
        if dialect != Dialect::OpenAi || refusal.html.is_some() || refusal.body.is_some() {
            return refusal;
        }
        let kind = match refusal.status {
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "NOT_FOUND",
            429 => "RESOURCE_EXHAUSTED",
            503 => "UNAVAILABLE",
            504 => "DEADLINE_EXCEEDED",
            status if status >= 500 => "INTERNAL",
            _ => "INVALID_ARGUMENT",
        };
        google(dialect, Refusal::new(refusal.status, kind, refusal.message.clone()))
    }

    fn error(&self, kind: &ErrorKind, context: &ErrorContext<'_>, own: Refusal) -> Refusal {
        let dialect = context.dialect;
        let model = &context.model.name;
        let refusal = match kind {
            ErrorKind::RateLimit(hints) => {
                let what = "online_prediction_requests_per_base_model";
                hinted(exhausted(dialect, what, model), hints, context.wall)
            }
            ErrorKind::InsufficientQuota => no_billing(&self.project),
            ErrorKind::Auth => bad_token(),
            ErrorKind::Permission => {
                let Self { project, location } = self;
                forbidden(&format!("projects/{project}/locations/{location}/endpoints/openapi"))
            }
            ErrorKind::ModelNotFound => return self.no_model(dialect, model),
            ErrorKind::GatewayTimeout => Refusal::new(
                504,
                "DEADLINE_EXCEEDED",
                "Deadline expired before operation could complete.",
            ),
            _ => return self.refused(dialect, own, false),
        };
        google(dialect, refusal)
    }

    fn shows_limits(&self) -> bool {
        false
    }
}

fn address(received: &Received<'_>) -> Option<Address> {
    let (version, rest) = received.path().strip_prefix('/')?.split_once('/')?;
    let (project, rest) = rest.strip_prefix("projects/")?.split_once('/')?;
    let (location, resource) = rest.strip_prefix("locations/")?.split_once('/')?;
    let (path, call) = match (received.dialect, version) {
        (Dialect::Gemini, "v1" | "v1beta1") => {
            let call = resource.strip_prefix("publishers/google/models/")?;
            let (model, method) = call.rsplit_once(':')?;
            let call = match method {
                "generateContent" | "streamGenerateContent" => Call::Plain,
                "countTokens" => Call::Count,
                _ => return None,
            };
            (format!("/v1beta/models/{}:{method}", decoded(model)?), call)
        }
        (Dialect::Anthropic, "v1") => {
            let call = resource.strip_prefix("publishers/anthropic/models/")?;
            let (model, method) = call.rsplit_once(':')?;
            let model = decoded(model).filter(|model| !model.is_empty())?;
            match (&*model, method) {
                ("count-tokens", "rawPredict") => {
                    ("/v1/messages/count_tokens".to_owned(), Call::PredictCount)
                }
                (_, "rawPredict" | "streamRawPredict") => {
                    let stream = method == "streamRawPredict";
                    ("/v1/messages".to_owned(), Call::Predict { model, stream })
                }
                _ => return None,
            }
        }
        (Dialect::OpenAi, "v1") => {
            let path = resource.strip_prefix("endpoints/openapi/")?;
            (path == "chat/completions").then(|| (format!("/v1/{path}"), Call::Plain))?
        }
        (Dialect::Responses, "v1") => {
            let path = resource.strip_prefix("publishers/openai")?;
            path.starts_with("/v1/responses").then(|| (path.to_owned(), Call::Plain))?
        }
        _ => return None,
    };
    let is_post = received.dialect == Dialect::Responses || received.method() == Method::POST;
    (is_post && is_route(received, &path)).then_some(())?;
    let (project, location) = (decoded(project)?, decoded(location)?);
    Some(Address { project, location, resource: resource.to_owned(), path, call })
}

/// Makes what was called the vendor's request.
fn unwrap(json: &mut Result<Value, serde_json::Error>, call: &Call) -> Result<(), Refusal> {
    let Ok(body) = json else { return Ok(()) };
    if !body.is_object() {
        return Ok(());
    }
    match call {
        Call::Plain => contents(body),
        Call::Count => {
            let fields = body.as_object().into_iter().flat_map(|fields| fields.keys());
            match fields.map(String::as_str).find(|name| !COUNTED.contains(name)) {
                Some(name) => Err(gemini::errors::unknown_name(name, None)),
                None => contents(body),
            }
        }
        Call::PredictCount => anthropic_version(body),
        Call::Predict { model, stream } => {
            anthropic_version(body)?;
            if body.get("model").is_some() {
                return Err(anthropic::errors::invalid("model: Extra inputs are not permitted"));
            }
            if (body["stream"] == true) != *stream {
                let (method, wants) =
                    if *stream { ("streamRawPredict", "true") } else { ("rawPredict", "false") };
                let message = format!("{method} needs a request whose `stream` is {wants}.");
                return Err(google(Dialect::Anthropic, gemini::errors::invalid(message)));
            }
            body["model"] = model.clone().into();
            Ok(())
        }
    }
}

/// Every turn of Gemini's has to say whose it is.
fn contents(body: &Value) -> Result<(), Refusal> {
    let has_role = |content: &Value| content["role"].as_str().is_some_and(|role| !role.is_empty());
    if items(&body["contents"]).iter().all(has_role) {
        return Ok(());
    }
    Err(gemini::errors::invalid(
        "Unable to submit request because Please use a valid role: user, model.. Learn more: \
         https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/gemini",
    ))
}

/// Takes the version of Anthropic's API out of the body.
fn anthropic_version(body: &mut Value) -> Result<(), Refusal> {
    match take(body, "anthropic_version") {
        Some(Value::String(version)) if version == VERSION || is_date(&version) => Ok(()),
        None | Some(Value::Null) => {
            Err(anthropic::errors::invalid("anthropic_version: Field required"))
        }
        Some(_) => Err(anthropic::errors::invalid(format!(
            "anthropic_version: Input should be '{VERSION}'"
        ))),
    }
}

/// A refusal of Google's, whatever the dialect. Where OpenAI's is translated it comes in a list.
fn google(dialect: Dialect, refusal: Refusal) -> Refusal {
    let body = gemini::errors::body(&refusal, "");
    match dialect {
        Dialect::Gemini => refusal,
        Dialect::OpenAi => refusal.body(json!([body])),
        Dialect::Anthropic | Dialect::Responses => refusal.body(body),
    }
}

fn info(reason: &str, domain: &str, metadata: &Value) -> Value {
    json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": domain,
        "metadata": metadata,
    })
}

fn unauthenticated(message: &str, reason: &str) -> Refusal {
    Refusal::new(401, "UNAUTHENTICATED", message)
        .detail(info(reason, "googleapis.com", &json!({ "service": SERVICE })))
        .header("www-authenticate", "Bearer realm=\"https://accounts.google.com/\"")
}

fn no_token() -> Refusal {
    unauthenticated(
        "Request is missing required authentication credential. Expected OAuth 2 access token, \
         login cookie or other valid authentication credential. See \
         https://developers.google.com/identity/sign-in/web/devconsole-project.",
        "CREDENTIALS_MISSING",
    )
}

fn bad_token() -> Refusal {
    unauthenticated(
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login \
         cookie or other valid authentication credential. See \
         https://developers.google.com/identity/sign-in/web/devconsole-project.",
        "ACCESS_TOKEN_TYPE_UNSUPPORTED",
    )
}

/// A key where only tokens are taken.
fn api_key() -> Refusal {
    unauthenticated(
        "API keys are not supported by this API. Expected OAuth2 access token or other \
         authentication credentials that assert a principal. See \
         https://cloud.google.com/docs/authentication",
        "CREDENTIALS_MISSING",
    )
}

fn forbidden(resource: &str) -> Refusal {
    let permission = "aiplatform.endpoints.predict";
    Refusal::new(
        403,
        "PERMISSION_DENIED",
        format!(
            "Permission '{permission}' denied on resource '//{SERVICE}/{resource}' (or it may not \
             exist)."
        ),
    )
    .detail(info(
        "IAM_PERMISSION_DENIED",
        SERVICE,
        &json!({"permission": permission, "resource": resource}),
    ))
}

fn no_billing(project: &str) -> Refusal {
    Refusal::new(
        403,
        "PERMISSION_DENIED",
        format!(
            "This API method requires billing to be enabled. Please enable billing on project \
             #{project} by visiting \
             https://console.developers.google.com/billing/enable?project={project} then retry. If \
             you enabled billing for this project recently, wait a few minutes for the action to \
             propagate to our systems and retry."
        ),
    )
    .detail(info(
        "BILLING_DISABLED",
        "googleapis.com",
        &json!({"service": SERVICE, "consumer": format!("projects/{project}")}),
    ))
}

/// A limit: of Google's own models they are shared, of others each has its own.
fn exhausted(dialect: Dialect, what: &str, model: &str) -> Refusal {
    let message = match dialect {
        Dialect::Gemini | Dialect::OpenAi | Dialect::Responses => {
            "Resource exhausted. Please try again later. Please refer to \
             https://cloud.google.com/vertex-ai/generative-ai/docs/error-code-429 for more details."
                .to_owned()
        }
        Dialect::Anthropic => format!(
            "Quota exceeded for {SERVICE}/{what} with base model: anthropic-{model}. Please submit \
             a quota increase request. \
             https://cloud.google.com/vertex-ai/docs/generative-ai/quotas-genai."
        ),
    };
    Refusal::new(429, "RESOURCE_EXHAUSTED", message)
}
