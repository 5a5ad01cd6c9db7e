//! The error messages of Gemini.

use http::Method;
use serde_json::{Value, json};

use crate::clock::WallClock;
use crate::dialect::openai::errors::hinted;
use crate::dialect::{Dialect, ErrorContext, Refusal, overflow as beyond};
use crate::fault::ErrorKind;
use crate::limit::{Denied, Resource};

const HOST: &str = "generativelanguage.googleapis.com";

/// A 400 `INVALID_ARGUMENT`.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(400, "INVALID_ARGUMENT", message)
}

/// The violation of a single field.
pub(crate) fn violation(path: &str, message: &str) -> Refusal {
    invalid(format!("* GenerateContentRequest.{path}: {message}\n"))
}

/// JSON that does not match the schema.
pub(crate) fn bad_payload(message: String) -> Refusal {
    let violation = json!({"description": message});
    invalid(message).detail(bad_request(&violation))
}

/// A field that the request does not have, or an object of it.
pub(crate) fn unknown_name(name: &str, object: Option<&str>) -> Refusal {
    let at = object.map(|object| format!(" at '{object}'")).unwrap_or_default();
    let message =
        format!("Invalid JSON payload received. Unknown name \"{name}\"{at}: Cannot find field.");
    let violation = json!({"field": object, "description": message});
    invalid(message).detail(bad_request(&violation))
}

fn bad_request(violation: &Value) -> Value {
    json!({
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [violation],
    })
}

pub(crate) fn body(refusal: &Refusal, _request_id: &str) -> Value {
    let mut error = json!({
        "code": refusal.status,
        "message": refusal.message,
        "status": refusal.kind,
    });
    if !refusal.details.is_empty() {
        error["details"] = Value::Array(refusal.details.clone());
    }
    json!({ "error": error })
}

pub(crate) fn bad_key(key: Option<&str>) -> Refusal {
    match key {
        None => Refusal::new(
            403,
            "PERMISSION_DENIED",
            "Method doesn't allow unregistered callers (callers without established identity). \
             Please use API Key or other form of API consumer identity to call this API.",
        ),
        Some(_) => {
            let message = "API key not valid. Please pass a valid API key.";
            invalid(message)
                .detail(json!({
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "API_KEY_INVALID",
                    "domain": "googleapis.com",
                    "metadata": {"service": HOST},
                }))
                .detail(json!({
                    "@type": "type.googleapis.com/google.rpc.LocalizedMessage",
                    "locale": "en-US",
                    "message": message,
                }))
        }
    }
}

pub(crate) fn no_route(_method: &Method, path: &str) -> Refusal {
    let message = format!("The requested URL {path} was not found on this server.");
    Refusal::new(404, "NOT_FOUND", message)
}

pub(crate) fn bad_json(error: &serde_json::Error, body: &[u8]) -> Refusal {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
    let snippet: String = line.chars().take(60).collect();
    let what = if error.is_eof() { "Unexpected end of string" } else { "Unexpected token" };
    bad_payload(format!("Invalid JSON payload received. {what}.\n{snippet}\n^"))
}

pub(crate) fn no_model(name: &str) -> Refusal {
    Refusal::new(
        404,
        "NOT_FOUND",
        format!(
            "models/{name} is not found for API version v1beta, or is not supported for \
             generateContent. Call ModelService.ListModels to see the list of available models \
             and their supported methods."
        ),
    )
}

fn quota(metric: &str, id: &str, value: u64, model: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{
            "quotaMetric": format!("{HOST}/{metric}"),
            "quotaId": id,
            "quotaDimensions": {"model": model, "location": "global"},
            "quotaValue": value.to_string(),
        }],
    })
}

fn help() -> Value {
    json!({
        "@type": "type.googleapis.com/google.rpc.Help",
        "links": [{
            "description": "Learn more about Gemini API quotas",
            "url": "https://ai.google.dev/gemini-api/docs/rate-limits",
        }],
    })
}

fn retry_info(delay: &str) -> Value {
    json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
}

fn exhausted(metric: &str, limit: u64, again: Option<&str>) -> Refusal {
    let mut message = format!(
        "You exceeded your current quota, please check your plan and billing details. For more \
         information on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits. \
         \n* Quota exceeded for metric: {HOST}/{metric}, limit: {limit}"
    );
    if let Some(again) = again {
        message.push_str(&format!("\nPlease retry in {again}."));
    }
    Refusal::new(429, "RESOURCE_EXHAUSTED", message)
}

pub(crate) fn limited(denied: &Denied, model: &str, _wall: &WallClock) -> Refusal {
    let (metric, id) = match denied.resource {
        Resource::Requests => (
            "generate_content_paid_tier_requests",
            "GenerateRequestsPerMinutePerProjectPerModel-PaidTier",
        ),
        Resource::Tokens => (
            "generate_content_paid_tier_input_token_count",
            "GenerateContentPaidTierInputTokensPerModelPerMinute",
        ),
    };
    let again = denied.wait.map(|wait| format!("{}s", wait.as_secs_f64()));
    let refusal = exhausted(metric, denied.limit, again.as_deref())
        .detail(quota(metric, id, denied.limit, model))
        .detail(help());
    match again {
        Some(delay) => refusal.detail(retry_info(&delay)),
        None => refusal,
    }
}

pub(crate) fn of_kind(kind: &ErrorKind, context: &ErrorContext<'_>) -> Refusal {
    let model = context.model;
    match kind {
        ErrorKind::RateLimit(hints) => {
            let metric = "generate_content_free_tier_requests";
            let id = "GenerateRequestsPerMinutePerProjectPerModel-FreeTier";
            let again = hints.in_message.as_deref().or(hints.retry_info.as_deref());
            let mut refusal = exhausted(metric, 10, again)
                .detail(quota(metric, id, 10, &model.name))
                .detail(help());
            if let Some(delay) = &hints.retry_info {
                refusal = refusal.detail(retry_info(delay));
            }
            hinted(refusal, hints, context.wall)
        }
        ErrorKind::InsufficientQuota => {
            let metric = "generate_requests_per_model_per_day";
            let id = "GenerateRequestsPerDayPerProjectPerModel";
            exhausted(metric, 250, None).detail(quota(metric, id, 250, &model.name)).detail(help())
        }
        ErrorKind::Overloaded => {
            Refusal::new(503, "UNAVAILABLE", "The model is overloaded. Please try again later.")
        }
        ErrorKind::ServerError | ErrorKind::ModelError => Refusal::new(
            500,
            "INTERNAL",
            "An internal error has occurred. Please retry or report in \
             https://developers.generativeai.google/guide/troubleshooting",
        ),
        ErrorKind::GatewayTimeout => Refusal::new(
            504,
            "DEADLINE_EXCEEDED",
            "Deadline expired before operation could complete.",
        ),
        ErrorKind::Auth => bad_key(Some("")),
        ErrorKind::Permission => {
            Refusal::new(403, "PERMISSION_DENIED", "The caller does not have permission")
        }
        ErrorKind::ModelNotFound => no_model(&model.name),
        ErrorKind::ContextOverflow => beyond::planned(Dialect::Gemini, model, model.context + 1),
        ErrorKind::Format => violation("contents[0].parts", "contents.parts must not be empty."),
        ErrorKind::ContentFilter => invalid(
            "Request contains content that violates the usage policy: blocked due to SAFETY",
        ),
        ErrorKind::PayloadTooLarge => {
            invalid("Request payload size exceeds the limit: 20971520 bytes.")
        }
        ErrorKind::BadGatewayHtml => Refusal::html_502(),
    }
}

/// The input is beyond the model's limit.
pub(crate) fn overflow(limit: u64, tokens: u64) -> Refusal {
    invalid(format!(
        "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit})."
    ))
}
