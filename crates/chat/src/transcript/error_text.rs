//! The error messages of providers.
//!
//! They are the vendors' own, so that an error is found in their documentation and by `classify`;
//! where a vendor's message is not known, it is ours.

use super::turn::PartIndex;
use steadfast_core::Dialect;

use crate::Part;

/// The path of a message, as the dialect writes it.
pub(super) fn message(dialect: Dialect, index: usize) -> String {
    match dialect {
        Dialect::Anthropic => format!("messages.{index}"),
        Dialect::OpenAi => format!("messages[{index}]"),
        Dialect::Gemini => format!("contents[{index}]"),
        Dialect::Responses => format!("input[{index}]"),
    }
}

/// The path of a part, as the dialect writes it.
pub(super) fn part(dialect: Dialect, at: PartIndex) -> String {
    let PartIndex { message, part } = at;
    match dialect {
        Dialect::Anthropic => format!("messages.{message}.content.{part}"),
        Dialect::OpenAi => format!("messages[{message}].content[{part}]"),
        Dialect::Gemini => format!("contents[{message}].parts[{part}]"),
        Dialect::Responses => format!("input[{message}].content[{part}]"),
    }
}

/// S1: no message at all.
pub(super) fn no_messages(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "messages: at least one message is required",
        Dialect::OpenAi => {
            "Invalid 'messages': empty array. Expected an array with minimum \
                            length 1, but got an empty array instead."
        }
        Dialect::Gemini => "* GenerateContentRequest.contents: contents is not specified",
        Dialect::Responses => {
            "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must \
             be provided."
        }
    }
}

/// S1: the model opens the conversation.
pub(super) fn first(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Gemini => {
            "Please ensure that function call turn comes immediately after a user \
                            turn or after a function response turn."
        }
        Dialect::OpenAi | Dialect::Anthropic | Dialect::Responses => {
            "messages: first message must use the \"user\" role"
        }
    }
}

/// S3: a call without a result.
pub(super) fn unanswered(dialect: Dialect, at: usize, id: &str) -> String {
    match dialect {
        Dialect::Anthropic => format!(
            "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately \
             after: {id}. Each `tool_use` block must have a corresponding `tool_result` block in \
             the next message."
        ),
        Dialect::OpenAi => format!(
            "An assistant message with 'tool_calls' must be followed by tool messages responding \
             to each 'tool_call_id'. The following tool_call_ids did not have response messages: \
             {id}"
        ),
        Dialect::Gemini => "Please ensure that the number of function response parts is equal to \
                            the number of function call parts of the function call turn."
            .to_owned(),
        Dialect::Responses => format!("No tool output found for function call {id}."),
    }
}

/// S4 and S7: a result without a call in its turn.
pub(super) fn orphan(dialect: Dialect, at: PartIndex, id: &str) -> String {
    match dialect {
        Dialect::Anthropic => format!(
            "{}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each \
             `tool_result` block must have a corresponding `tool_use` block in the previous \
             message.",
            part(dialect, at)
        ),
        Dialect::OpenAi => "Invalid parameter: messages with role 'tool' must be a response to a \
                            preceeding message with 'tool_calls'."
            .to_owned(),
        Dialect::Gemini => "Please ensure that function response turn comes immediately after a \
                            function call turn."
            .to_owned(),
        Dialect::Responses => {
            format!("No tool call found for function call output with call_id {id}.")
        }
    }
}

/// S5: a second result of one call.
pub(super) fn duplicate(dialect: Dialect, at: PartIndex, id: &str) -> String {
    match dialect {
        Dialect::Anthropic => format!(
            "{}: each tool_use must have a single result. Found multiple `tool_result` blocks \
             with id: {id}",
            part(dialect, at)
        ),
        Dialect::OpenAi | Dialect::Responses => orphan(dialect, at, id),
        Dialect::Gemini => unanswered(dialect, at.message, id),
    }
}

/// S6: a result after something else, or out of order.
pub(super) fn disorder(dialect: Dialect, call_at: usize, at: PartIndex, id: &str) -> String {
    match dialect {
        Dialect::Gemini => format!(
            "{}: function responses must come in the order of the function calls they answer.",
            part(dialect, at)
        ),
        _ => unanswered(dialect, call_at, id),
    }
}

/// S3, S4 and S11: a part in a message of the wrong role.
pub(super) fn misplaced(dialect: Dialect, at: PartIndex, value: &Part) -> String {
    let path = part(dialect, at);
    match (dialect, value) {
        (Dialect::Anthropic, Part::ToolResult(_)) => {
            format!("{path}: `tool_result` blocks can only be in `user` messages")
        }
        (Dialect::Anthropic, Part::ToolCall(_) | Part::Thinking(_) | Part::Redacted { .. }) => {
            format!("{path}: `{}` blocks can only be in `assistant` messages", kind(value))
        }
        (Dialect::Gemini, Part::ToolCall(_)) => {
            format!("{path}: Please ensure that only model turns contain a function call.")
        }
        (_, Part::ToolCall(_)) => format!(
            "Invalid '{path}': tool calls are only allowed for messages with role 'assistant'."
        ),
        (_, Part::ToolResult(_)) => orphan(dialect, at, ""),
        (_, Part::Thinking(_) | Part::Redacted { .. }) => {
            format!("Invalid '{path}': reasoning is only allowed in messages of the model.")
        }
        _ => {
            format!("Invalid '{path}': a message with role 'tool' holds results and nothing else.")
        }
    }
}

/// S8: an id that is not accepted.
pub(super) fn bad_id(dialect: Dialect, at: PartIndex, id: &str, max: usize) -> String {
    let path = part(dialect, at);
    let PartIndex { message, part } = at;
    match dialect {
        Dialect::Anthropic if id.len() > max => {
            format!("{path}.tool_use.id: String should have at most {max} characters")
        }
        Dialect::Anthropic => {
            format!("{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        }
        _ if id.is_empty() => {
            format!("Missing required parameter: 'messages[{message}].tool_calls[{part}].id'.")
        }
        Dialect::Responses => format!(
            "Invalid 'input[{message}].call_id': string too long. Expected a string with maximum \
             length {max}, but got a string with length {} instead.",
            id.len()
        ),
        Dialect::OpenAi | Dialect::Gemini => format!(
            "Invalid 'messages[{message}].tool_calls[{part}].id': string too long. Expected a \
             string with maximum length {max}, but got a string with length {} instead.",
            id.len()
        ),
    }
}

/// S8: an id that occurs twice.
pub(super) fn repeated_id(dialect: Dialect, at: PartIndex, id: &str) -> String {
    match dialect {
        Dialect::Anthropic => {
            format!("{}: `tool_use` ids must be unique", part(dialect, at))
        }
        Dialect::OpenAi | Dialect::Gemini | Dialect::Responses => {
            format!("Duplicate value for 'tool_call_id' of '{id}' in {}.", part(dialect, at))
        }
    }
}

/// S8: a result that does not repeat its call's id.
pub(super) fn wrong_id(dialect: Dialect, at: PartIndex, id: &str) -> String {
    match dialect {
        Dialect::Anthropic | Dialect::Gemini => orphan(dialect, at, id),
        Dialect::OpenAi => {
            format!("Missing required parameter: 'messages[{}].tool_call_id'.", at.message)
        }
        Dialect::Responses => {
            format!("Missing required parameter: 'input[{}].call_id'.", at.message)
        }
    }
}

/// S8: a tool's name that is not accepted.
pub(super) fn bad_name(dialect: Dialect, at: PartIndex, max: usize) -> String {
    let PartIndex { message, part } = at;
    match dialect {
        Dialect::Anthropic => format!(
            "messages.{message}.content.{part}.tool_use.name: String should match pattern \
             '^[a-zA-Z0-9_-]{{1,{max}}}$'"
        ),
        Dialect::Responses => format!(
            "Invalid 'input[{message}].name': string does not match pattern. Expected a string that \
             matches the pattern '^[a-zA-Z0-9_-]+$'."
        ),
        Dialect::OpenAi => format!(
            "Invalid 'messages[{message}].tool_calls[{part}].function.name': empty string. \
             Expected a string with minimum length 1, but got an empty string instead."
        ),
        Dialect::Gemini => format!(
            "* GenerateContentRequest.contents[{message}].parts[{part}].function_call.name: \
             Invalid function name. Must start with a letter or an underscore and be \
             alphanumeric, with underscores, dots, colons and dashes, up to {max} long."
        ),
    }
}

/// S8: a result under another name than its call's.
pub(super) fn wrong_name(at: PartIndex, name: &str) -> String {
    format!(
        "{}: the name of the function response must be that of its function call, `{name}`.",
        part(Dialect::Gemini, at)
    )
}

/// S8: a call of a tool that is not declared.
pub(super) fn undeclared(at: PartIndex, name: &str) -> String {
    let path = part(Dialect::Gemini, at);
    format!("{path}: function call `{name}` does not match any declared function.")
}

/// S9: an empty text.
pub(super) fn blank(dialect: Dialect, empty: bool) -> &'static str {
    match dialect {
        Dialect::Gemini => {
            "Unable to submit request because it has an empty text parameter. Add \
                            a value to the parameter and try again."
        }
        _ if empty => "messages: text content blocks must be non-empty",
        _ => "messages: text content blocks must contain non-whitespace text",
    }
}

/// S9: a message without parts.
pub(super) fn empty_message(dialect: Dialect, index: usize) -> String {
    match dialect {
        Dialect::Anthropic => format!(
            "messages.{index}: all messages must have non-empty content except for the optional \
             final assistant message"
        ),
        Dialect::Responses => format!("Invalid 'input[{index}].content': empty array."),
        Dialect::OpenAi => format!(
            "Invalid 'messages[{index}].content': empty array. Expected an array with minimum \
             length 1, but got an empty array instead."
        ),
        Dialect::Gemini => format!(
            "* GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty."
        ),
    }
}

/// S9: an empty result.
pub(super) fn empty_result(dialect: Dialect, at: PartIndex) -> String {
    format!("Invalid '{}': the output of a tool must not be empty.", part(dialect, at))
}

/// S10: the last message is the model's.
pub(super) fn tail(dialect: Dialect, prefill: bool) -> &'static str {
    match dialect {
        Dialect::Gemini => {
            "Please ensure that multiturn requests ends with a user role or a \
                            function response."
        }
        _ if prefill => {
            "Expected the last message to be from the user: prefilling assistant \
                         messages is not supported when thinking is enabled."
        }
        _ => {
            "This model does not support assistant message prefill. The conversation must end \
              with a user message."
        }
    }
}

/// S10: a prefill that ends in white space.
pub(super) const TRAILING_SPACE: &str =
    "messages: final assistant content cannot end with trailing whitespace";

/// S11: thinking without a signature.
pub(super) fn unsigned(at: PartIndex) -> String {
    format!("{}.thinking.signature: Field required", part(Dialect::Anthropic, at))
}

/// S11: thinking of another model.
pub(super) fn foreign_thinking(dialect: Dialect, at: PartIndex) -> String {
    match dialect {
        Dialect::Anthropic => {
            format!("{}: Invalid `signature` in `thinking` block", part(dialect, at))
        }
        Dialect::Gemini => format!("{}: Thought signature is not valid.", part(dialect, at)),
        Dialect::OpenAi => {
            format!("Invalid '{}': reasoning of another model.", part(dialect, at))
        }
        Dialect::Responses => format!(
            "The encrypted content for item {} could not be verified.",
            message(dialect, at.message)
        ),
    }
}

/// S11: thinking after something else.
pub(super) fn thinking_late(at: PartIndex, found: &Part) -> String {
    format!(
        "messages.{}.content.0: If an assistant message contains any thinking blocks, the first \
         block must be `thinking` or `redacted_thinking`. Found `{}`.",
        at.message,
        kind(found)
    )
}

/// S11: an open tool loop that does not begin with thinking.
pub(super) fn thinking_missing(at: usize, found: &Part) -> String {
    format!(
        "messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found \
         `{}`. When `thinking` is enabled, a final `assistant` message must start with a thinking \
         block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). To avoid \
         this requirement, disable `thinking`.",
        kind(found)
    )
}

/// S11: thinking that nothing follows.
pub(super) fn thinking_last(dialect: Dialect, at: usize) -> String {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => format!(
            "Item '{}' of type 'reasoning' was provided without its required following item.",
            message(dialect, at)
        ),
        Dialect::Gemini => empty_message(dialect, at),
        Dialect::Anthropic => {
            format!("messages.{at}: The final block in an assistant message cannot be `thinking`.")
        }
    }
}

/// S11: thinking in the last message, of a model that is not asked to think.
pub(super) fn thinking_off(at: PartIndex) -> String {
    format!(
        "{}: When thinking is disabled, an `assistant` message in the final position cannot \
         contain `thinking`. To use thinking blocks, enable `thinking` in your request.",
        part(Dialect::Anthropic, at)
    )
}

/// S11: a call without a signature.
pub(super) fn unsigned_call(name: &str, at: usize) -> String {
    format!(
        "Unable to submit request because function call `{name}` in the {at}. content block is \
         missing a `thought_signature`."
    )
}

/// S12: a mark on thinking.
pub(super) fn marked_thinking(path: &str) -> String {
    format!("{path}.thinking.cache_control: Extra inputs are not permitted")
}

/// S12: a mark on an empty text.
pub(super) fn marked_empty(path: &str) -> String {
    format!("{path}.text: cache_control cannot be set for empty text blocks")
}

/// S12: a long-lived mark after a short-lived one.
pub(super) fn mark_order(path: &str) -> String {
    format!(
        "{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' \
         cache_control block. Note that blocks are processed in the following order: `tools`, \
         `system`, `messages`."
    )
}

/// S12: too many marks.
pub(super) fn mark_count(max: usize, found: usize) -> String {
    format!("A maximum of {max} blocks with cache_control may be provided. Found {found}.")
}

/// S13: the model reads no images.
pub(super) fn no_vision(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Gemini => "Image input modality is not enabled for this model.",
        _ => "The model is not multimodal. Please remove image inputs.",
    }
}

/// S13: media where there may be none.
pub(super) fn media_misplaced(dialect: Dialect, at: PartIndex) -> String {
    match dialect {
        Dialect::OpenAi | Dialect::Responses => format!(
            "Invalid '{}'. Image URLs are only allowed for messages with role 'user'.",
            message(dialect, at.message)
        ),
        Dialect::Anthropic | Dialect::Gemini => {
            format!("{}: `image` blocks can only be in `user` messages", part(dialect, at))
        }
    }
}

/// S13: a media type that is not accepted.
pub(super) fn image_type(dialect: Dialect, at: PartIndex, types: &[&str]) -> String {
    let list = types.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    format!("{}.image.source.base64.media_type: Input should be {list}", part(dialect, at))
}

/// S13: an image of too many bytes.
pub(super) fn image_bytes(dialect: Dialect, at: PartIndex, found: usize, max: usize) -> String {
    format!(
        "{}.image.source.base64: image exceeds {} MB maximum: {found} bytes > {max} bytes",
        part(dialect, at),
        max / (1024 * 1024)
    )
}

/// S13: an image of too many pixels.
pub(super) fn image_side(dialect: Dialect, at: PartIndex, max: u32, many: bool) -> String {
    let of_many = if many { " for many-image requests" } else { "" };
    format!(
        "{}.image.source.base64.data: At least one of the image dimensions exceed max allowed \
         size{of_many}: {max} pixels",
        part(dialect, at)
    )
}

/// S13: too many images.
pub(super) fn image_count(found: usize, max: usize) -> String {
    format!("messages: too many images and documents: {found} + 0 > {max}")
}

/// S13: too many bytes of images.
pub(super) fn image_total(max: usize) -> String {
    format!("Request payload size exceeds the limit: {max} bytes.")
}

/// S14: the request is larger than the window.
pub(super) fn size(dialect: Dialect, input: u64, output: u64, window: u64) -> String {
    match dialect {
        Dialect::Anthropic if input > window => {
            format!("prompt is too long: {input} tokens > {window} maximum")
        }
        Dialect::Anthropic => format!(
            "input length and `max_tokens` exceed context limit: {input} + {output} > {window}, \
             decrease input length or `max_tokens` and try again"
        ),
        Dialect::OpenAi => format!(
            "This model's maximum context length is {window} tokens. However, your messages \
             resulted in {input} tokens. Please reduce the length of the messages."
        ),
        Dialect::Responses => "Your input exceeds the context window of this model. Please adjust \
                               your input and try again."
            .to_owned(),
        Dialect::Gemini => format!(
            "The input token count ({input}) exceeds the maximum number of tokens allowed \
             ({window})."
        ),
    }
}

/// S15: calls, and no tools.
pub(super) const NO_TOOLS: &str =
    "Requests which include `tool_use` or `tool_result` blocks must define tools";

/// S16: a server tool's result without its call.
pub(super) fn unpaired_result(at: PartIndex, kind: &str, id: &str) -> String {
    format!(
        "{}: unexpected `tool_use_id` found in `{kind}` blocks: {id}. Each `{kind}` block must \
         have a corresponding `server_tool_use` block before it.",
        part(Dialect::Anthropic, at)
    )
}

/// S16: a server tool's call without its result.
pub(super) fn unpaired_call(at: PartIndex, kind: &str, id: &str) -> String {
    let path = part(Dialect::Anthropic, at);
    format!("{path}: `{kind}` with id `{id}` was found without a corresponding result block")
}

/// What Anthropic calls a part.
fn kind(part: &Part) -> &str {
    match part {
        Part::Text(_) => "text",
        Part::Thinking(_) => "thinking",
        Part::Redacted { .. } => "redacted_thinking",
        Part::Media(_) => "image",
        Part::ToolCall(_) => "tool_use",
        Part::ToolResult(_) => "tool_result",
        Part::Opaque(opaque) => &opaque.kind,
    }
}
