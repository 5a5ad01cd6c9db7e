//! Policy, capabilities, models, and requests that are wrong.

use steadfast_core::{Reason, Retry};

use super::{Pattern, exact, loose};
use crate::engine::codes::Twist;

/// What a policy does to a request.
const REFUSED: &[&str] = &[
    "flagged",
    "blocked",
    "rejected",
    "refused",
    "filtered",
    "violat",
    "limited for",
    "not allowed by",
    "against our",
    "违反",
    "违规",
    "拒绝",
];

/// Policies.
const POLICY: &[&str] = &[
    "policy",
    "policies",
    "safety",
    "moderation",
    "harmful",
    "inappropriate",
    "guideline",
    "guardrail",
    "terms of service",
    "suspicious",
    "cybersecurity",
    "sensitive",
    "敏感",
    "审核",
    "违禁",
];

/// Refusals by other policies than those on contents.
const NO_POLICY: &[&str] = &[
    "cloudflare",
    "cors",
    "data policy",
    "control policy",
    "based policy",
    "routing",
    "privacy",
    "ip address",
    "schema",
    "rate limit",
];

/// Asked before the provider's own troubles: refusals and rules of the transcript quote words of
/// all kinds.
pub(super) const FIRST: &[Pattern] = &[
    exact(
        Reason::ContentFilter,
        &[&[
            "content management policy",
            "responsibleaipolicyviolation",
            "content_filter",
            "content filtering policy",
            "content filter",
            "content_policy_violation",
            "contentpolicyviolation",
            "content policy",
            "usage policy",
            "usage policies",
            "usage guidelines",
            "safety guidelines",
            "acceptable use policy",
            "flagged as potentially violating",
            "flagged for possible",
            "flagged by",
            "safety system",
            "limited access to this content for safety",
            "datainspectionfailed",
            "data_inspection_failed",
            "inappropriate content",
            "sensitive content",
            "sensitive words",
            "blocked due to",
            "blocked by safety",
            "blocked for reason",
            "blocked by the content",
            "block_reason",
            "blocked the response",
            "response was blocked",
            "prompt was blocked",
            "unsafe_generation",
            "unsafe request",
            "content exists risk",
            "requires moderation",
            "input was flagged",
            "prohibited_content",
            "prohibited content",
            "blocked by guardrail",
            "violated guardrail",
            "finish reason: safety",
            "unsafe content",
            "不安全或敏感",
            "敏感词",
            "敏感内容",
            "内容安全",
        ]],
    )
    .veto(&["data policy", "cloudflare", "you have been blocked"])
    .not(&[402, 429, 503]),
    // What came back was no answer: a client could not read it.
    exact(
        Reason::ServerError,
        &[&[
            "unexpected token <",
            "unexpected token '<'",
            "expecting value: line 1",
            "expected start of the object",
            "expected start of the array",
            "eof while parsing",
            "unexpected end of json",
            "unexpected end of data",
            "failed to parse response",
            "no object generated",
            "failed to parse the response",
            "failed to decode response",
            "invalid response body",
            "invalid json response",
            "invalid response from",
            "could not parse response",
            "unable to parse response",
            "jsondecodeerror",
            "invalid content-type",
        ]],
    )
    .not(&[400, 401, 402, 403, 404, 413, 422, 429])
    .veto(&["max_tokens", "context"]),
    exact(Reason::ServerError, &[&["unexpected token", "unexpected character"], &["json", "html"]])
        .not(&[400, 401, 402, 403, 404, 413, 422, 429]),
    // Rules of the transcript that every vendor has.
    exact(
        Reason::Format,
        &[&[
            "ids were found without",
            "no tool call found for",
            "no tool output found for",
            "no function call found",
            "unexpected `tool_use_id`",
            "tool_call_ids did not have response",
            "must be followed by tool messages",
            "must be a response to a preceding message with 'tool_calls'",
            "must be a response to a preceeding message with 'tool_calls'",
            "without its required following item",
            "function response parts is equal to the number of function call parts",
            "function call turn comes immediately after",
            "roles must alternate",
            "must be non-empty",
            "must have non-empty content",
            "must not be empty",
            "should not be empty",
            "contents is not specified",
            "must end with a user message",
            "does not support assistant message prefill",
            "toolresult blocks at",
            "extra inputs are not permitted",
            "field required",
            "extraneous key",
            "malformed input request",
            "invalid schema for",
            "invalid json payload",
            "could not parse the json",
            "not valid json",
            "failed to deserialize",
            "failed to parse",
            "must contain the word 'json'",
            "image dimensions exceed",
            "string too long",
            "string_above_max_length",
            "should match pattern",
            "should match '",
            "input should be",
            "input tag",
            "is required property",
            "is a required property",
            "missing required parameter",
            "missing required field",
            "error parsing grammar",
            "failed to parse grammar",
            "unable to generate parser for this template",
            "jinja",
            "prompt template",
            "chat template",
            "could not process image",
            "unable to process input image",
            "failed to decode image",
            "cannot fetch content from the provided url",
            "unable to download",
            "budget_tokens",
        ]],
    )
    .not(&[401, 402, 429]),
    // Rules of one vendor's replay: another one takes the same history.
    exact(
        Reason::Format,
        &[&[
            "thought_signature",
            "thought signature",
            "expected `thinking`",
            "`thinking` or `redacted_thinking`",
            "`redacted_thinking` blocks",
            "invalid `signature`",
            "invalid signature in",
            "thinking mode must be passed back",
            "reasoning_content",
            "encrypted content",
            "encrypted_content",
            "cache_control",
            "reasoning is mandatory",
        ]],
    )
    .not(&[401, 402, 403, 429])
    .veto(&["does not support"])
    .twist(Twist::Elsewhere),
    // The model misbehaved.
    exact(
        Reason::Format,
        &[&[
            "tool_use_failed",
            "failed to call a function",
            "malformed_function_call",
            "tool choice is required, but model did not call a tool",
            "model did not call a tool",
            "json_validate_failed",
            "failed to generate json",
            "failed to validate json",
        ]],
    )
    .retry(Retry::Yes)
    .twist(Twist::Again),
];

pub(super) const PATTERNS: &[Pattern] = &[
    // Where the vendor does not serve.
    exact(
        Reason::Unsupported,
        &[&[
            "unsupported_country_region_territory",
            "country, region, or territory not supported",
            "location is not supported for the api",
            "not available in your region",
            "not available in your country",
            "not supported in your region",
            "not supported in this region",
            "not available in this region",
            "region is not supported",
        ]],
    ),
    exact(
        Reason::Unsupported,
        &[
            &[
                "no endpoints found",
                "no endpoints available",
                "no allowed providers",
                "no providers available",
            ],
            &[
                "support",
                "data policy",
                "guardrail",
                "privacy",
                "requested parameters",
                "handle the requested",
                "matching your",
                "allowed providers",
            ],
        ],
    ),
    // Models.
    exact(
        Reason::ModelNotFound,
        &[&[
            "no endpoints found for",
            "model_not_found",
            "model not found",
            "model not exist",
            "model does not exist",
            "model doesn't exist",
            "unknown model",
            "no such model",
            "invalid model name passed in",
            "you passed in model",
            "llm provider not provided",
            "unexpected model name",
            "not a valid model",
            "not a valid model id",
            "invalid model",
            "model identifier is invalid",
            "invalid model identifier",
            "marked by provider as legacy",
            "on-demand throughput isn't supported",
            "try pulling it first",
            "model_decommissioned",
            "deployment for this resource does not exist",
            "not found for account",
            "is not a model",
            "model isn't available",
            "no available channel for model",
            "可用渠道",
            "模型不存在",
            "无效的模型",
            "model_not_supported",
            "model_not_available",
            "requested model is not available",
            "there is no model",
            "model name is invalid",
            "please specify a valid model",
            "unsupported model",
            "unrecognized model",
            "not a supported model",
            "no models loaded",
            "no model loaded",
            "model not loaded",
            "model is not loaded",
        ]],
    )
    .not(&[401, 402, 413, 429, 529])
    .veto(&["does not support", "file not found", "api version", "parameter"]),
    exact(Reason::ModelNotFound, &[&["is not found for api version"]]),
    exact(
        Reason::ModelNotFound,
        &[
            &[
                "has been decommissioned",
                "end of its life",
                "end of life",
                "end-of-life",
                "has been deprecated",
                "is deprecated",
                "has been retired",
                "was retired",
                "no longer available",
                "no longer supported",
                "has been shut down",
                "已下线",
            ],
            &["model", "模型"],
        ],
    )
    .not(&[401, 402, 413, 429, 529])
    .veto(&["parameter", "endpoint is deprecated", "does not support"])
    .twist(Twist::Permanent),
    loose(
        Reason::ModelNotFound,
        &[
            &["model", "deployment", "models/", "engine", "inference profile"],
            &[
                "not found",
                "does not exist",
                "doesn't exist",
                "not exist",
                "is not available",
                "not deployed",
                "is not supported.",
                "is unavailable",
                "not accessible",
                "could not be found",
                "not recognized",
                "has been removed",
                "is disabled",
                "not registered",
                "not installed",
                "not served",
                "not configured",
                "not loaded",
                "not valid",
                "not enabled",
            ],
        ],
    )
    .in_order(120)
    .only(&[400, 403, 404, 410, 422, 500, 503])
    .veto(&[
        "file",
        "header",
        "tool",
        "parameter",
        "does not support",
        "temporarily",
        "overloaded",
    ]),
    loose(
        Reason::ModelNotFound,
        &[&[
            "supported models are",
            "supported api model names",
            "available models:",
            "list of available models",
            "valid models are",
            "you do not have access to it",
            "not have access to model",
            "does not have access to model",
        ]],
    )
    .not(&[401, 402, 429]),
    loose(
        Reason::ModelNotFound,
        &[&["not allowed to access model", "can only access models", "key not allowed to access"]],
    ),
    // Policy, when nothing more exact is said.
    loose(
        Reason::ContentFilter,
        &[&[
            "policy violation",
            "violates our",
            "violates the",
            "violating our",
            "harmful content",
            "disallowed content",
            "nsfw",
            "high risk",
            "risk control",
            "did not pass moderation",
            "moderation guidelines",
            "content moderation",
            "not allowed by our",
        ]],
    )
    .not(&[401, 402, 404, 413, 429, 503, 529])
    .veto(&["schema", "rate limit"]),
    loose(Reason::ContentFilter, &[REFUSED, POLICY])
        .in_order(64)
        .not(&[401, 402, 404, 413, 429, 500, 502, 503, 504, 529])
        .veto(NO_POLICY),
    loose(Reason::ContentFilter, &[POLICY, REFUSED])
        .in_order(64)
        .not(&[401, 402, 404, 413, 429, 500, 502, 503, 504, 529])
        .veto(NO_POLICY),
];
