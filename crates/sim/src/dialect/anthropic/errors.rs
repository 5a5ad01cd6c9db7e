//! The error messages of Anthropic.

use http::Method;
use serde_json::{Value, json};

use crate::clock::WallClock;
use crate::dialect::openai::errors::{hinted, seconds_up};
use crate::dialect::{Dialect, ErrorContext, Refusal, overflow as beyond};
use crate::fault::ErrorKind;
use crate::limit::{Denied, Resource};

/// A 400 `invalid_request_error`.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(400, "invalid_request_error", message)
}

pub(crate) fn body(refusal: &Refusal, request_id: &str) -> Value {
    let mut error = json!({"type": refusal.kind, "message": refusal.message});
    if let Some(details) = refusal.details.first() {
        error["details"] = details.clone();
    }
    json!({"type": "error", "error": error, "request_id": request_id})
}

/// A conversation stored by the server, which the simulator does not support.
pub(crate) fn no_thread() -> Refusal {
    invalid("thread: message threads are not available for this request").detail(json!({
        "error_code": "thread_unsupported_request",
        "unsupported": ["organization"],
    }))
}

pub(crate) fn bad_key(key: Option<&str>) -> Refusal {
    let message = match key {
        None => "x-api-key header is required",
        Some(_) => "invalid x-api-key",
    };
    Refusal::new(401, "authentication_error", message)
}

pub(crate) fn no_route(_method: &Method, _path: &str) -> Refusal {
    Refusal::new(404, "not_found_error", "Not Found")
}

pub(crate) fn bad_json(error: &serde_json::Error, _body: &[u8]) -> Refusal {
    invalid(format!("The request body is not valid JSON: {error}"))
}

pub(crate) fn no_model(name: &str) -> Refusal {
    Refusal::new(404, "not_found_error", format!("model: {name}"))
}

pub(crate) fn limited(denied: &Denied, _model: &str, wall: &WallClock) -> Refusal {
    let what = match denied.resource {
        Resource::Requests => "requests",
        Resource::Tokens => "input tokens",
    };
    let refusal = Refusal::new(429, "rate_limit_error", rate_limit(denied.limit, what));
    match denied.wait {
        Some(wait) => refusal.header("retry-after", seconds_up(wait)).header(
            match denied.resource {
                Resource::Requests => "anthropic-ratelimit-requests-reset",
                Resource::Tokens => "anthropic-ratelimit-tokens-reset",
            },
            wall.rfc3339_in(wait),
        ),
        None => refusal,
    }
}

fn rate_limit(limit: u64, what: &str) -> String {
    format!(
        "This request would exceed your organization's rate limit of {} {what} per minute (org: \
         sim). For details, refer to: https://docs.claude.com/en/api/rate-limits. You can see the \
         response headers for current usage. Please reduce the prompt length or the maximum \
         tokens requested, or try again later. You may also contact sales at \
         https://claude.com/contact-sales to discuss your options for a rate limit increase.",
        thousands(limit)
    )
}

/// `30,000`.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

pub(crate) fn of_kind(kind: &ErrorKind, context: &ErrorContext<'_>) -> Refusal {
    let model = context.model;
    match kind {
        ErrorKind::RateLimit(hints) => {
            let mut message = rate_limit(50, "requests");
            if let Some(text) = &hints.in_message {
                message.push_str(&format!(" Please try again in {text}."));
            }
            hinted(Refusal::new(429, "rate_limit_error", message), hints, context.wall)
        }
        ErrorKind::InsufficientQuota => invalid(
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & \
             Billing to upgrade or purchase credits.",
        ),
        ErrorKind::Overloaded => Refusal::new(529, "overloaded_error", "Overloaded"),
        ErrorKind::ServerError | ErrorKind::ModelError => {
            Refusal::new(500, "api_error", "Internal server error")
        }
        ErrorKind::GatewayTimeout => Refusal::new(504, "timeout_error", "Request timed out"),
        ErrorKind::Auth => bad_key(Some("")),
        ErrorKind::Permission => Refusal::new(
            403,
            "permission_error",
            "Your API key does not have permission to use the specified resource.",
        ),
        ErrorKind::ModelNotFound => no_model(&model.name),
        ErrorKind::ContextOverflow => {
            beyond::planned(Dialect::Anthropic, model, model.context + model.context / 10)
        }
        ErrorKind::Format => invalid("messages.0.content.0.type: Field required"),
        ErrorKind::ContentFilter => invalid("Output blocked by content filtering policy"),
        ErrorKind::PayloadTooLarge => {
            Refusal::new(413, "request_too_large", "Request exceeds the maximum size")
        }
        ErrorKind::BadGatewayHtml => Refusal::html_502(),
    }
}

/// The prompt alone is beyond the window.
pub(crate) fn overflow(window: u64, tokens: u64) -> Refusal {
    invalid(format!("prompt is too long: {tokens} tokens > {window} maximum"))
}

/// The prompt fits, but not together with the output it reserves.
pub(crate) fn overflow_with_output(window: u64, input: u64, output: u64) -> Refusal {
    invalid(format!(
        "input length and `max_tokens` exceed context limit: {input} + {output} > {window}, \
         decrease input length or `max_tokens` and try again"
    ))
}
