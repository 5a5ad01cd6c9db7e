//! The context window and the output limit.

use steadfast_core::Reason;

use super::{CEREBRAS, Pattern, exact, loose};
use crate::engine::codes::Twist;

/// The words of rate limits, which speak of tokens and limits too, and of limits on strings,
/// pictures and money.
const NOT_THE_WINDOW: &[&str] = &[
    "rate limit",
    "rate-limit",
    "rate_limit",
    "ratelimit",
    "per minute",
    "per min",
    "per day",
    "(tpm)",
    "(rpm)",
    "(tpd)",
    "tokens per",
    "throttl",
    "please wait before trying again",
    "image dimensions exceed",
    "image exceeds",
    "string too long",
    "string_above_max_length",
    "can only afford",
    "monthly limit",
    "credits",
];

pub(super) const PATTERNS: &[Pattern] = &[
    exact(
        Reason::ContextOverflow,
        &[&[
            "prompt is too long",
            "exceed context limit",
            "exceeds model context window",
            "exceeds the context window",
            "exceed context window",
            "exceed the context window",
            "exceeds context window",
            "maximum context length",
            "maximum prompt length is",
            "maximum context window",
            "maximum context size",
            "maximum sequence length",
            "maximum model length",
            "max_model_len",
            "exceeds the maximum number of tokens allowed",
            "exceeds the maximum allowed number of input tokens",
            "input token count",
            "reduce the length of the messages",
            "reduce the length of your prompt",
            "reduce your prompt",
            "reduce the length of the input",
            "input is too long",
            "input too long",
            "prompt too long",
            "prompt is longer",
            "prompt length exceeds",
            "prompt exceeds max length",
            "exceeds the maximum allowed input length",
            "longer than the model's context length",
            "longer than the maximum",
            "maximum input length is",
            "must have less than",
            "`inputs` tokens + `max_new_tokens` must be",
            "exceeds the available context size",
            "context size has been exceeded",
            "exceeds context size",
            "exceed context size",
            "exceeds the context length",
            "exceeds the context size",
            "exceeds context length",
            "exceed the context length",
            "greater than the context length",
            "larger than the context",
            "context window exceeds limit",
            "context window is full",
            "context length is only",
            "context limit exceeded",
            "ran out of room in the model's context window",
            "exceeded model token limit",
            "exceeds the model's token limit",
            "exceeds the model's context",
            "exceed the model's maximum context",
            "exceeds the model's maximum",
            "prompt token count of",
            "range of input length should be",
            "tokens in request more than max tokens allowed",
            "max_tokens must be at least 1, got -",
            "max_tokens' or 'max_completion_tokens' is too large",
            "context length exceeded",
            "context_length_exceeded",
            "context window exceeded",
            "contextwindowexceeded",
            "context_window_exceeded",
            "context-window-exceeded",
            "exceed_context_size_error",
            "too many tokens in the prompt",
            "request too large for the context",
            "conversation is too long",
            "too many input tokens",
            "上下文长度",
            "上下文过长",
            "超过最大长度",
            "超出最大长度",
            "输入过长",
            "超长",
        ]],
    )
    .veto(NOT_THE_WINDOW)
    .not(&[429]),
    exact(Reason::ContextOverflow, &[&["too large for model with"], &["context length"]])
        .veto(NOT_THE_WINDOW),
    exact(Reason::ContextOverflow, &[&["current length is"], &["while limit is"]])
        .veto(NOT_THE_WINDOW),
    // Bare refusals of one provider.
    exact(Reason::ContextOverflow, &[&[CEREBRAS], &["status code (no body)"]]).only(&[400, 413]),
    // The output limit asked for is above the model's: lower the parameter.
    exact(
        Reason::Format,
        &[&[
            "maximum allowed number of output tokens",
            "maximum tokens you requested exceed the model limit",
            "max_tokens is too large",
            "max_completion_tokens is too large",
            "max_output_tokens is too large",
            "supports at most",
            "invalid max_tokens value",
        ]],
    )
    .veto(&["context length"]),
    exact(
        Reason::Format,
        &[
            &["max_tokens", "max_completion_tokens", "maxoutputtokens", "max_output_tokens"],
            &[
                "must be less than or equal to",
                "supported range is",
                "should be [1,",
                "must be positive",
                "must be greater than",
            ],
        ],
    )
    .veto(&["budget_tokens"]),
    // The answer was cut.
    exact(
        Reason::OutputTruncated,
        &[&[
            "length limit was reached",
            "max_tokens or model output limit was reached",
            "model output limit was reached",
            "reached the maximum number of output tokens",
            "response was truncated",
            "output was truncated",
            "response exceeded the",
            "stop reason: max_tokens",
            "stop reason: length",
            "finish_reason: length",
            "finish reason: max_tokens",
            "finish reason: length",
            "finishreason: max_tokens",
        ]],
    ),
    // Any window with any way of being exceeded.
    loose(
        Reason::ContextOverflow,
        &[
            &[
                "context length",
                "context window",
                "context size",
                "context limit",
                "token limit",
                "input length",
                "sequence length",
                "input tokens",
                "prompt tokens",
                "prompt_tokens",
                "input_tokens",
                "context_length",
                "context_window",
                "max_seq_len",
                "max_input_tokens",
                "num_ctx",
                "n_ctx",
                "length of prompt",
                "prompt length",
                "number of tokens",
            ],
            &[
                "exceed",
                "too long",
                "too large",
                "longer than",
                "larger than",
                "greater than",
                "more than",
                "must be less than",
                "less than",
                "at most",
                "over the limit",
                "out of range",
                "overflow",
                "not enough",
                "too small",
                "too short",
                "shorter",
                "larger context",
                "does not fit",
                "doesn't fit",
                "truncat",
            ],
        ],
    )
    .veto(NOT_THE_WINDOW)
    .only(&[400, 403, 413, 422, 500]),
    loose(
        Reason::ContextOverflow,
        &[
            &["prompt", "input", "context", "conversation", "messages", "chat history", "对话"],
            &[
                "too long",
                "too large",
                "is full",
                "exceeds the maximum",
                "exceeded the maximum",
                "over the maximum",
                "maximum length",
                "过长",
                "太长",
            ],
        ],
    )
    .in_order(24)
    .veto(NOT_THE_WINDOW)
    .only(&[400, 413, 422, 500]),
    loose(Reason::ContextOverflow, &[&["too many tokens", "fewer inputs", "shorter inputs"]])
        .veto(NOT_THE_WINDOW)
        .only(&[400, 413, 422]),
    // Two numbers and a window, whatever stands between them.
    loose(
        Reason::ContextOverflow,
        &[
            &[
                "prompt is ",
                "prompt has ",
                "prompt contains",
                "prompt of ",
                "input is ",
                "input has ",
                "input contains",
                "input of ",
                "request has ",
                "request contains",
                "request is ",
                "messages contain",
                "conversation is ",
                "conversation has ",
                "you requested",
                "got ",
            ],
            &["token"],
            &["window", "context", "maximum", "at most", "limit is", "limit of"],
        ],
    )
    .in_order(80)
    .veto(NOT_THE_WINDOW)
    .only(&[400, 413, 422, 500]),
    loose(
        Reason::ContextOverflow,
        &[
            &["超出最大限制", "超出模型", "超过模型", "超出限制"],
            &["上下文", "token", "长度", "输入"],
        ],
    )
    .not(&[429]),
    loose(
        Reason::ContextOverflow,
        &[
            &["unhandled stop reason", "stop reason", "finish reason"],
            &["model_context_window_exceeded"],
        ],
    ),
    // Bodies.
    loose(
        Reason::PayloadTooLarge,
        &[&[
            "payload too large",
            "request entity too large",
            "request body too large",
            "body is too large",
            "body too large",
            "exceeds the request size limit",
            "request payload size exceeds the limit",
            "request exceeds the maximum size",
            "request_too_large",
            "content length exceeded",
            "file is too large",
            "image exceeds",
            "maximum allowed size",
            "mb maximum",
            "entity larger than",
            "maximum request size",
        ]],
    )
    .veto(&["timed out", "rate limit", "per minute"])
    .twist(Twist::Plain),
];
