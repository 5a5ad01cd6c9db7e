//! The error messages of OpenAI.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::render::extend;
use crate::clock::{WallClock, go_duration};
use crate::dialect::{Dialect, ErrorContext, Refusal, overflow as beyond};
use crate::fault::{ErrorKind, RateLimit};
use crate::limit::{Denied, Resource};

const REQUEST: &str = "invalid_request_error";

/// A 400 `invalid_request_error`.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(400, REQUEST, message)
}

pub(crate) fn body(refusal: &Refusal, _request_id: &str) -> Value {
    let mut error = json!({
        "message": refusal.message,
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.code,
    });
    if let Some(fields) = refusal.fields.as_object() {
        extend(&mut error, fields);
    }
    json!({ "error": error })
}

pub(crate) fn bad_key(key: Option<&str>) -> Refusal {
    match key {
        None => Refusal::new(
            401,
            REQUEST,
            "You didn't provide an API key. You need to provide your API key in an Authorization \
             header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY), or as the password \
             field (with blank username) if you're accessing the API from your browser and are \
             prompted for a username and password. You can obtain an API key from \
             https://platform.openai.com/account/api-keys.",
        ),
        Some(key) => Refusal::new(
            401,
            REQUEST,
            format!(
                "Incorrect API key provided: {}. You can find your API key at \
                 https://platform.openai.com/account/api-keys.",
                masked(key)
            ),
        )
        .code("invalid_api_key"),
    }
}

/// The key with all but its ends starred, as OpenAI shows it.
fn masked(key: &str) -> String {
    let chars: Vec<char> = key.chars().collect();
    if chars.len() <= 12 {
        return "*".repeat(chars.len());
    }
    let stars = "*".repeat(chars.len() - 12);
    let (head, tail) = (&chars[..8], &chars[chars.len() - 4..]);
    format!("{}{stars}{}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

pub(crate) fn no_route(method: &Method, path: &str) -> Refusal {
    Refusal::new(404, REQUEST, format!("Invalid URL ({method} {path})"))
}

pub(crate) fn bad_json(_error: &serde_json::Error, _body: &[u8]) -> Refusal {
    invalid(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't \
         using your HTTP library correctly. The OpenAI API expects a JSON payload, but what was \
         sent was not valid JSON. If you have trouble figuring out how to fix this, please \
         contact us through our help center at help.openai.com.)",
    )
}

pub(crate) fn no_model(name: &str) -> Refusal {
    let message = format!("The model `{name}` does not exist or you do not have access to it.");
    Refusal::new(404, REQUEST, message).code("model_not_found")
}

pub(crate) fn limited(denied: &Denied, model: &str, _wall: &WallClock) -> Refusal {
    let (per, unit) = match denied.resource {
        Resource::Requests => ("requests per min (RPM)", "requests"),
        Resource::Tokens => ("tokens per min (TPM)", "tokens"),
    };
    let Denied { limit, used, requested, .. } = denied;
    let message = match denied.wait {
        Some(wait) => format!(
            "Rate limit reached for {model} in organization org-sim on {per}: Limit {limit}, \
             Used {used}, Requested {requested}. Please try again in {}. Visit \
             https://platform.openai.com/account/rate-limits to learn more.",
            go_duration(wait)
        ),
        None => format!(
            "Request too large for {model} in organization org-sim on {per}: Limit {limit}, \
             Requested {requested}. The input or output tokens must be reduced in order to run \
             successfully. Visit https://platform.openai.com/account/rate-limits to learn more."
        ),
    };
    let refusal = Refusal::new(429, unit, message).code("rate_limit_exceeded");
    match denied.wait {
        Some(wait) => refusal
            .header("retry-after-ms", wait.as_millis().to_string())
            .header("retry-after", seconds_up(wait)),
        None => refusal,
    }
}

/// Whole seconds, rounded up.
pub(crate) fn seconds_up(wait: Duration) -> String {
    wait.as_millis().div_ceil(1_000).to_string()
}

pub(crate) fn of_kind(kind: &ErrorKind, context: &ErrorContext<'_>) -> Refusal {
    let model = &context.model.name;
    match kind {
        ErrorKind::RateLimit(hints) => hinted(rate_limit(model, hints), hints, context.wall),
        ErrorKind::InsufficientQuota => Refusal::new(
            429,
            "insufficient_quota",
            "You exceeded your current quota, please check your plan and billing details. For \
             more information on this error, read the docs: \
             https://platform.openai.com/docs/guides/error-codes/api-errors.",
        )
        .code("insufficient_quota"),
        ErrorKind::Overloaded => Refusal::new(
            503,
            "service_unavailable_error",
            "The engine is currently overloaded, please try again later",
        )
        .code("server_is_overloaded"),
        ErrorKind::ServerError | ErrorKind::ModelError => Refusal::new(
            500,
            "server_error",
            "The server had an error while processing your request. Sorry about that!",
        ),
        ErrorKind::GatewayTimeout => {
            Refusal::new(504, "server_error", "The server timed out while processing the request.")
                .code("cf_gateway_timeout")
        }
        ErrorKind::Auth => bad_key(Some("sk-simulated-0000")),
        ErrorKind::Permission => Refusal::new(
            403,
            REQUEST,
            format!("Project `proj_sim` does not have access to model `{model}`"),
        )
        .code("model_not_found"),
        ErrorKind::ModelNotFound => no_model(model),
        ErrorKind::ContextOverflow => {
            let window = context.model.context;
            beyond::planned(Dialect::OpenAi, context.model, window + window / 10)
        }
        ErrorKind::Format => invalid("Missing required parameter: 'messages[0].content[0].type'.")
            .param("messages[0].content[0].type")
            .code("missing_required_parameter"),
        ErrorKind::ContentFilter => invalid(
            "Your request was rejected as a result of our safety system. Your prompt may contain \
             text that is not allowed by our safety system.",
        )
        .code("content_policy_violation"),
        ErrorKind::PayloadTooLarge => {
            Refusal::new(413, REQUEST, "Request body is too large. The limit is 32 MB.")
        }
        ErrorKind::BadGatewayHtml => Refusal::html_502(),
    }
}

/// The messages alone are beyond the window.
pub(crate) fn overflow(window: u64, tokens: u64) -> Refusal {
    invalid(format!(
        "This model's maximum context length is {window} tokens. However, your messages resulted \
         in {tokens} tokens. Please reduce the length of the messages."
    ))
    .param("messages")
    .code("context_length_exceeded")
}

/// The messages fit, but not together with the output they reserve.
pub(crate) fn overflow_with_output(window: u64, input: u64, output: u64) -> Refusal {
    invalid(format!(
        "This model's maximum context length is {window} tokens. However, you requested {} tokens \
         ({input} in the messages, {output} in the completion). Please reduce the length of the \
         messages or completion.",
        input + output
    ))
    .param("messages")
    .code("context_length_exceeded")
}

/// A refused prefill, with Mistral's message: OpenAI itself accepts prefills.
pub(crate) fn no_prefill() -> Refusal {
    invalid(
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got \
         assistant",
    )
    .fields(json!({"type": "invalid_request_message_order", "code": "3230"}))
}

fn rate_limit(model: &str, hints: &RateLimit) -> Refusal {
    let again = match &hints.in_message {
        Some(text) => format!(" Please try again in {text}."),
        None => String::new(),
    };
    let message = format!(
        "Rate limit reached for {model} in organization org-sim on requests per min (RPM): Limit \
         500, Used 500, Requested 1.{again} Visit \
         https://platform.openai.com/account/rate-limits to learn more."
    );
    Refusal::new(429, "requests", message).code("rate_limit_exceeded")
}

/// Adds the headers a plan asked for, whatever the dialect.
pub(crate) fn hinted(mut refusal: Refusal, hints: &RateLimit, wall: &WallClock) -> Refusal {
    let mut add = |name, value: Option<String>| {
        if let Some(value) = value {
            refusal.headers.push((name, value));
        }
    };
    add("retry-after", hints.retry_after.clone());
    add("retry-after", hints.retry_after_date_s.map(|s| wall.http_date_in(Duration::from_secs(s))));
    add("retry-after-ms", hints.retry_after_ms.map(|ms| ms.to_string()));
    if hints.reset.is_some() {
        add("x-ratelimit-limit-requests", Some("500".to_owned()));
        add("x-ratelimit-remaining-requests", Some("0".to_owned()));
    }
    add("x-ratelimit-reset-requests", hints.reset.clone());
    if let Some(s) = hints.anthropic_reset_s {
        add("anthropic-ratelimit-requests-limit", Some("50".to_owned()));
        add("anthropic-ratelimit-requests-remaining", Some("0".to_owned()));
        let at = wall.rfc3339_in(Duration::from_secs(s));
        add("anthropic-ratelimit-requests-reset", Some(at));
    }
    add("x-should-retry", hints.should_retry.map(|yes| yes.to_string()));
    refusal
}
