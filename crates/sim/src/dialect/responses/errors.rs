//! The error messages of the responses dialect: those of the vendor's other one, but for what it names.

use serde_json::{Value, json};

pub(crate) use crate::dialect::openai::errors::{
    bad_json, bad_key, body, invalid, limited, no_model, no_route,
};
use crate::{
    dialect::{Dialect, ErrorContext, Refusal, openai, overflow},
    fault::ErrorKind,
};

pub(crate) fn of_kind(kind: &ErrorKind, context: &ErrorContext<'_>) -> Refusal {
    match kind {
        ErrorKind::ContextOverflow => {
            let window = context.model.context;
            overflow::planned(Dialect::Responses, context.model, window + window / 10)
        }
        ErrorKind::Format => invalid("Missing required parameter: 'input[0].content[0].type'.")
            .param("input[0].content[0].type")
            .code("missing_required_parameter"),
        _ => openai::errors::of_kind(kind, context),
    }
}

/// The input is beyond the window: this dialect has no numbers.
pub(crate) fn overflow() -> Refusal {
    invalid(
        "Your input exceeds the context window of this model. Please adjust your input and try \
         again.",
    )
    .param("input")
    .code("context_length_exceeded")
}

/// The event of a stream that failed behind so many others.
pub(crate) fn failed(body: &Value, behind: usize) -> Value {
    let error = &body["error"];
    let code = match &error["code"] {
        Value::Null => "server_error".into(),
        code => code.clone(),
    };
    json!({
        "type": "response.failed",
        "sequence_number": behind,
        "response": {
            "id": "resp_failed",
            "object": "response",
            "created_at": 0,
            "status": "failed",
            "error": {"code": code, "message": error["message"]},
            "incomplete_details": null,
            "output": [],
            "usage": null,
        },
    })
}
