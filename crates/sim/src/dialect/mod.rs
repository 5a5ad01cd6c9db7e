//! The dialects: routes, keys, rules, error messages and wire formats.

pub(crate) mod anthropic;
pub(crate) mod gemini;
pub(crate) mod images;
pub(crate) mod openai;
pub(crate) mod overflow;
pub(crate) mod responses;

use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use serde_json::Value;
pub use steadfast_core::Dialect;

use crate::answer::{Answer, Sent};
use crate::clock::WallClock;
use crate::fault::ErrorKind;
use crate::hash::Signer;
use crate::hosting::Hosting;
use crate::limit::Denied;
use crate::models::Model;
use crate::provider::SimCompaction;
use crate::request::SimRequest;
use crate::wire::{FaultRender, Frame, Framing};

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// An answer. Gemini names the model and the form in the path.
    Generate {
        model: Option<String>,
        stream: Option<bool>,
    },
    /// Vectors of texts. Gemini names the model in the path, and has another one for a single text.
    Embed {
        model: Option<String>,
        single: bool,
    },
    /// A token count.
    Count {
        model: Option<String>,
    },
    /// The list of models.
    Models,
    /// One model.
    Model(String),
    /// A response that was kept; it is deleted by the second.
    Kept(String),
    Deleted(String),
    /// Whether anybody is there: asked by an agent before it has a key, and by connection checks.
    Hello,
    /// A path that this provider does not have.
    Unknown,
}

/// How streams are framed on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// The line end of Gemini's events.
    pub(crate) crlf: bool,
    /// Server-sent events, or Gemini's JSON array.
    pub(crate) sse: bool,
}

/// A refusal as the provider writes it.
#[derive(Clone, Debug)]
pub(crate) struct Refusal(Box<RefusalFields>);

/// The fields of a refusal.
#[derive(Clone, Debug)]
pub(crate) struct RefusalFields {
    pub(crate) status: u16,
    /// `error.type` (OpenAI, Anthropic), `error.status` (Gemini).
    pub(crate) kind: &'static str,
    /// `error.code` of OpenAI.
    pub(crate) code: Option<&'static str>,
    pub(crate) message: String,
    /// `error.param` of OpenAI.
    pub(crate) param: Option<String>,
    /// `error.details` of Gemini; of Anthropic's the first one.
    pub(crate) details: Vec<Value>,
    /// Fields of `error` that are not the dialect's, replacing those of the same name (OpenAI).
    pub(crate) fields: Value,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// An HTML page instead of a body of the dialect.
    pub(crate) html: Option<&'static str>,
    /// The body of whoever serves the model, instead of the dialect's.
    pub(crate) body: Option<Value>,
}

impl Refusal {
    pub(crate) fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(RefusalFields {
            status,
            kind,
            code: None,
            message: message.into(),
            param: None,
            details: Vec::new(),
            fields: Value::Null,
            headers: Vec::new(),
            html: None,
            body: None,
        }))
    }

    #[cfg(feature = "clouds")]
    pub(crate) fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn fields(mut self, fields: Value) -> Self {
        self.fields = fields;
        self
    }

    pub(crate) fn detail(mut self, detail: Value) -> Self {
        self.details.push(detail);
        self
    }

    /// The page of a proxy between the caller and the provider.
    pub(crate) fn html_502() -> Self {
        let page = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n\
                    <center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n\
                    </body>\r\n</html>\r\n";
        let mut refusal = Self::new(502, "", "502 Bad Gateway");
        refusal.html = Some(page);
        refusal
    }
}

impl Deref for Refusal {
    type Target = RefusalFields;

    fn deref(&self) -> &RefusalFields {
        &self.0
    }
}

impl DerefMut for Refusal {
    fn deref_mut(&mut self) -> &mut RefusalFields {
        &mut self.0
    }
}

/// What a provider remembers: the thinking before each tool call that it sent, for the newest calls, and responses.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) responses: responses::kept::Kept,
    thoughts: Mutex<ThinkingByCall>,
}

/// Signatures by call id, and the order in which they are evicted.
#[derive(Debug, Default)]
struct ThinkingByCall {
    by_call: HashMap<String, Vec<String>>,
    order: VecDeque<String>,
}

/// Enough for any conversation that fits a window.
const REMEMBERED: usize = 65_536;

impl Memory {
    /// The signatures of the thinking sent with the call of this id, if this provider sent it.
    pub(crate) fn thinking_before(&self, id: &str) -> Option<Vec<String>> {
        self.thoughts.lock().by_call.get(id).cloned()
    }

    pub(crate) fn remember(&self, sent: &Sent) {
        let mut thoughts = self.thoughts.lock();
        for call in sent.tool_calls.iter().filter(|call| !call.id.is_empty()) {
            if thoughts.by_call.insert(call.id.clone(), sent.signatures.clone()).is_none() {
                thoughts.order.push_back(call.id.clone());
            }
        }
        while thoughts.order.len() > REMEMBERED {
            if let Some(oldest) = thoughts.order.pop_front() {
                thoughts.by_call.remove(&oldest);
            }
        }
    }
}

/// What the rules check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check<'a> {
    pub(crate) body: &'a Value,
    pub(crate) model: &'a Model,
    pub(crate) signer: &'a Signer,
    pub(crate) refuse_unknown: bool,
    pub(crate) signatures: bool,
    /// Thinking is bound to its prefix (Anthropic).
    pub(crate) bound_thinking: bool,
    pub(crate) compacts: SimCompaction,
    /// A request to count tokens, which needs no output limit.
    pub(crate) counting: bool,
    pub(crate) memory: &'a Memory,
}

/// What rendering needs besides the answer.
#[derive(Debug)]
pub(crate) struct Render<'a> {
    pub(crate) request: &'a SimRequest,
    pub(crate) signer: &'a Signer,
    pub(crate) rng: fastrand::Rng,
    pub(crate) created: u64,
    pub(crate) form: Form,
    /// Whether function calls get a signature (Gemini).
    pub(crate) signs: bool,
    /// What stands in ids behind their prefix (Anthropic).
    pub(crate) infix: &'static str,
}

/// What rendering an error needs besides its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorContext<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) model: &'a Model,
    pub(crate) wall: &'a WallClock,
    pub(crate) request_id: &'a str,
    pub(crate) form: Form,
    pub(crate) hosting: &'a dyn Hosting,
}

macro_rules! dispatch {
    ($dialect:expr, $module:ident :: $function:ident ( $($arg:expr),* )) => {
        match $dialect {
            Dialect::OpenAi => openai::$module::$function($($arg),*),
            Dialect::Anthropic => anthropic::$module::$function($($arg),*),
            Dialect::Gemini => gemini::$module::$function($($arg),*),
            Dialect::Responses => responses::$module::$function($($arg),*),
        }
    };
}

pub(crate) fn route(dialect: Dialect, method: &Method, path: &str) -> Route {
    dispatch!(dialect, routes::route(method, path))
}

/// The credential a request carries.
pub(crate) fn key(dialect: Dialect, headers: &HeaderMap, query: &str) -> Option<String> {
    dispatch!(dialect, routes::key(headers, query))
}

/// The refusal of a missing (`None`) or wrong credential.
pub(crate) fn bad_key(dialect: Dialect, key: Option<&str>) -> Refusal {
    dispatch!(dialect, errors::bad_key(key))
}

/// Checks the headers.
pub(crate) fn check_headers(dialect: Dialect, headers: &HeaderMap) -> Result<(), Refusal> {
    dispatch!(dialect, routes::check_headers(headers))
}

pub(crate) fn no_route(dialect: Dialect, method: &Method, path: &str) -> Refusal {
    dispatch!(dialect, errors::no_route(method, path))
}

pub(crate) fn bad_json(dialect: Dialect, error: &serde_json::Error, body: &[u8]) -> Refusal {
    dispatch!(dialect, errors::bad_json(error, body))
}

pub(crate) fn no_model(dialect: Dialect, name: &str) -> Refusal {
    dispatch!(dialect, errors::no_model(name))
}

pub(crate) fn limited(dialect: Dialect, denied: &Denied, model: &str, wall: &WallClock) -> Refusal {
    dispatch!(dialect, errors::limited(denied, model, wall))
}

/// The model that a body names. Gemini names it in the path.
pub(crate) fn model_of(dialect: Dialect, body: &Value) -> Result<String, Refusal> {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => openai::rules::model_of(body),
        Dialect::Anthropic => anthropic::rules::model_of(body),
        Dialect::Gemini => Ok(String::new()),
    }
}

/// Everything a provider checks before it answers.
pub(crate) fn check(dialect: Dialect, check: &Check<'_>) -> Result<(), Refusal> {
    dispatch!(dialect, rules::check(check))
}

/// Reads a request that passed the rules.
pub(crate) fn read(dialect: Dialect, request: &mut SimRequest) {
    dispatch!(dialect, read::read(request));
}

/// How many results of tools a conversation has; readable before anything was checked.
/// The texts of the compactions in a responses body.
pub(crate) fn compacted(body: &Value, signer: &Signer) -> String {
    responses::read::compacted(body, signer)
}

pub(crate) fn tool_results(dialect: Dialect, body: &Value) -> usize {
    dispatch!(dialect, read::tool_results(body))
}

/// The schema of the JSON that a request wants instead of text.
pub(crate) fn schema(dialect: Dialect, body: &Value) -> Option<&Value> {
    dispatch!(dialect, read::schema(body)).filter(|schema| schema.is_object())
}

/// A whole answer.
pub(crate) fn whole(dialect: Dialect, answer: &Answer, render: &mut Render<'_>) -> (String, Sent) {
    dispatch!(dialect, render::whole(answer, render))
}

/// A streamed answer.
pub(crate) fn stream(
    dialect: Dialect,
    answer: &Answer,
    render: &mut Render<'_>,
) -> (Vec<Frame>, Sent) {
    dispatch!(dialect, render::stream(answer, render))
}

/// The body of a 200 stream without content.
pub(crate) fn empty_stream(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi => "data: [DONE]\n\n",
        Dialect::Anthropic | Dialect::Gemini | Dialect::Responses => "",
    }
}

pub(crate) fn models(dialect: Dialect, models: &[Model]) -> Value {
    dispatch!(dialect, render::models(models))
}

pub(crate) fn model(dialect: Dialect, model: &Model) -> Value {
    dispatch!(dialect, render::model(model))
}

pub(crate) fn count(dialect: Dialect, tokens: u64) -> Value {
    match dialect {
        Dialect::Gemini => serde_json::json!({ "totalTokens": tokens }),
        Dialect::OpenAi | Dialect::Anthropic => serde_json::json!({ "input_tokens": tokens }),
        Dialect::Responses => {
            serde_json::json!({ "object": "response.input_tokens", "input_tokens": tokens })
        }
    }
}

/// A request id of this provider and its header, where it has one.
pub(crate) fn request_id(
    dialect: Dialect,
    rng: &mut fastrand::Rng,
) -> (Option<&'static str>, String) {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => {
            (Some("x-request-id"), crate::hash::id(rng, "req_", 32))
        }
        Dialect::Anthropic => (Some("request-id"), crate::hash::id(rng, "req_011C", 20)),
        Dialect::Gemini => (None, String::new()),
    }
}

pub(crate) fn json_type(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Anthropic | Dialect::Responses => "application/json",
        Dialect::Gemini => "application/json; charset=UTF-8",
    }
}

pub(crate) fn stream_type(dialect: Dialect, sse: bool) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Anthropic | Dialect::Responses => {
            "text/event-stream; charset=utf-8"
        }
        Dialect::Gemini if sse => "text/event-stream",
        Dialect::Gemini => "application/json; charset=UTF-8",
    }
}

impl ErrorContext<'_> {
    pub(crate) fn refusal(&self, kind: &ErrorKind) -> Refusal {
        self.hosting.error(kind, self, self.own_refusal(kind))
    }

    /// The dialect's own, whoever serves the model.
    fn own_refusal(&self, kind: &ErrorKind) -> Refusal {
        dispatch!(self.dialect, errors::of_kind(kind, self))
    }

    pub(crate) fn body_of(&self, refusal: &Refusal) -> String {
        match (refusal.html, &refusal.body) {
            (Some(page), _) => page.to_owned(),
            (None, Some(body)) => body.to_string(),
            (None, None) => {
                dispatch!(self.dialect, errors::body(refusal, self.request_id)).to_string()
            }
        }
    }
}

impl FaultRender for ErrorContext<'_> {
    fn error_frame(&self, kind: &ErrorKind, behind: usize) -> Bytes {
        let refusal = self.refusal(kind);
        // In a stream the model itself speaks.
        let refusal = if refusal.body.is_some() { self.own_refusal(kind) } else { refusal };
        let body = dispatch!(self.dialect, errors::body(&refusal, self.request_id));
        let own = dispatch!(self.dialect, render::error_frame(&body, self.form, behind)).into();
        self.hosting.error_frame(kind, self, own)
    }

    fn error_body(&self, kind: &ErrorKind) -> Bytes {
        self.body_of(&self.refusal(kind)).into()
    }

    fn ping(&self) -> Bytes {
        let own = match self.dialect {
            Dialect::OpenAi | Dialect::Responses => ": keep-alive\n\n",
            Dialect::Anthropic => "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            Dialect::Gemini if !self.form.sse => "\n",
            Dialect::Gemini if self.form.crlf => ": ping\r\n\r\n",
            Dialect::Gemini => ": ping\n\n",
        };
        self.framing().wrap(own.into())
    }

    fn framing(&self) -> &dyn Framing {
        self.hosting.framing(self.dialect)
    }
}

/// The items of a list; none of what is no list.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The name of a JSON type in the providers' error messages.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) if n.is_f64() => "a decimal",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
