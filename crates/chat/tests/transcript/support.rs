//! Tables of cases, and a notation for the conversations in them.

use serde_json::json;
use steadfast_chat::{
    ChatRequest, Extra, Message, Opaque, Part, RawJson, Role, Text, Thinking, ThinkingConfig, Tool,
    ToolCall, ToolResult,
    transcript::{TranscriptRule, TranscriptRules, Violations, repair, validate},
};
use steadfast_core::Dialect::{self, Anthropic, Gemini, OpenAi};

/// A conversation, what is refused of it, and what a repair makes of it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) dialects: &'static [Dialect],
    /// Changes the rules of the dialect and the request.
    pub(crate) setup: fn(&mut TranscriptRules, &mut ChatRequest),
    /// The conversation, see [`messages`].
    pub(crate) before: &'static str,
    /// Each violation: its rule, and a part of its text in each dialect. None: the request is valid
    /// and must not be changed.
    pub(crate) refused: &'static [(TranscriptRule, ErrorText)],
    /// The conversation after the repair.
    pub(crate) after: &'static str,
    /// The repair turns thinking off.
    pub(crate) thinking_off: bool,
}

/// What most cases leave out.
pub(crate) const CASE: Case = Case {
    name: "",
    dialects: &[Anthropic, OpenAi, Gemini],
    setup: |_, _| {},
    before: "",
    refused: &[],
    after: "",
    thinking_off: false,
};

/// One dialect.
pub(crate) const ANTHROPIC: Case = Case { dialects: &[Anthropic], ..CASE };
pub(crate) const OPENAI: Case = Case { dialects: &[OpenAi], ..CASE };
pub(crate) const GEMINI: Case = Case { dialects: &[Gemini], ..CASE };

/// A part of an error message of Anthropic, OpenAI and Gemini.
pub(crate) type ErrorText = [&'static str; 3];

/// Checks each case in each of its dialects.
pub(crate) fn check(cases: &[Case]) {
    for case in cases {
        for dialect in case.dialects {
            case.check(*dialect);
        }
    }
}

impl Case {
    fn check(&self, dialect: Dialect) {
        let name = format!("{} ({dialect:?})", self.name);
        let mut rules = rules(dialect);
        let mut request = request(messages(dialect, self.before));
        (self.setup)(&mut rules, &mut request);
        if self.refused.is_empty() {
            return unchanged(&name, &request, &rules);
        }

        let violations = validate(&request, &rules).expect_err(&name);
        assert_eq!(violations.len(), self.refused.len(), "{name}: {violations:#?}");
        for (violation, (rule, text)) in violations.iter().zip(self.refused) {
            let text = match dialect {
                Anthropic => text[0],
                OpenAi => text[1],
                Gemini => text[2],
                Dialect::Responses => continue,
            };
            assert_eq!(violation.rule, *rule, "{name}: {violation}");
            assert!(violation.to_string().contains(text), "{name}: {violation} has no `{text}`");
        }

        let before = request.clone();
        let repairs = repair(&mut request, &rules);
        assert_eq!(&*request.messages, messages(dialect, self.after), "{name}: {repairs:#?}");
        assert_eq!(repairs.unrepaired, [], "{name}");
        assert!(!repairs.done.is_empty(), "{name}");
        let thinking = before.params.thinking.clone().filter(|_| !self.thinking_off);
        assert_eq!(request.params.thinking, thinking, "{name}");
        for message in &before.messages {
            if request.messages.contains(message) {
                let is_same = request.messages.iter().any(|it| it.same(message));
                assert!(is_same, "{name}: a message without a fault was copied: {message:?}");
            }
        }
        unchanged(&name, &request, &rules);
    }
}

/// A valid request is not changed.
#[track_caller]
pub(crate) fn unchanged(name: &str, request: &ChatRequest, rules: &TranscriptRules) {
    let mut repaired = request.clone();
    let repairs = repair(&mut repaired, rules);
    assert!(repairs.is_empty(), "{name}: {repairs:#?}");
    assert!(repaired.messages.same(&request.messages), "{name}");
    assert!(repaired.tools.same(&request.tools), "{name}");
    assert_eq!(repaired.params, request.params, "{name}");
}

/// What is refused of the request.
#[track_caller]
pub(crate) fn refused(request: &ChatRequest, rules: &TranscriptRules) -> Violations {
    validate(request, rules).expect_err("it is refused")
}

/// Repairs the request completely.
#[track_caller]
pub(crate) fn repaired(request: &ChatRequest, rules: &TranscriptRules) -> ChatRequest {
    let mut repaired = request.clone();
    let repairs = repair(&mut repaired, rules);
    assert_eq!(repairs.unrepaired, [], "{repairs:#?}");
    repaired
}

pub(crate) fn rules(dialect: Dialect) -> TranscriptRules {
    TranscriptRules::for_dialect(dialect)
}

/// With one declared tool.
pub(crate) fn request(messages: Vec<Message>) -> ChatRequest {
    ChatRequest::new(messages).with_tools(vec![function("tool")])
}

pub(crate) fn function(name: &str) -> Tool {
    Tool::function(name, "does it", RawJson::parse(r#"{"type":"object"}"#).unwrap())
}

/// A setup: the model is asked to think.
pub(crate) fn thinking(_: &mut TranscriptRules, request: &mut ChatRequest) {
    request.params.thinking = Some(ThinkingConfig::Budget(4_000));
}

/// The conversation in a notation such as `user go / model think:hm + call:a / user result:a`:
/// messages with their role, separated by ` / `; parts separated by ` + `, see [`part`]. The role
/// `inserted` is that of results which a repair inserts.
pub(crate) fn messages(dialect: Dialect, notation: &str) -> Vec<Message> {
    let message = |text: &str| {
        let (role, parts) = match text.split_once(' ') {
            Some((role, parts)) => (role, parts.split(" + ").map(|it| part(dialect, it)).collect()),
            None => (text, Vec::new()),
        };
        let role = match role {
            "system" => Role::System,
            "user" => Role::User,
            "model" => Role::Assistant,
            "tool" => Role::Tool,
            "inserted" if dialect == OpenAi => Role::Tool,
            "inserted" => Role::User,
            other => panic!("`{other}` in `{notation}` is no role"),
        };
        Message::new(role, parts)
    };
    notation.split(" / ").filter(|text| !text.is_empty()).map(message).collect()
}

/// One part in the notation `KIND:VALUE`; without a kind, which is one word, it is a text.
pub(crate) fn part(dialect: Dialect, notation: &str) -> Part {
    let (kind, value) = notation.split_once(':').unwrap_or(("text", notation));
    let result = |id: &str, content| {
        Part::ToolResult(ToolResult { id: id.into(), content, ..ToolResult::default() })
    };
    let thinking = |signature: Option<&str>, extra| {
        let signature = signature.map(str::to_owned);
        Part::Thinking(Thinking { text: value.into(), signature, extra })
    };
    let marked = |extra| Part::Text(Text { text: value.into(), signature: None, extra });
    match kind {
        "text" => Part::text(value),
        // An empty text with this signature.
        "signature" => Part::Text(Text { signature: Some(value.to_owned()), ..Text::default() }),
        // Its id, and its signature after an `@`.
        "call" => {
            let (id, signature) = match value.split_once('@') {
                Some((id, signature)) => (id, Some(signature.to_owned())),
                None => (value, None),
            };
            let (id, name, arguments) = (id.into(), "tool".into(), "{}".into());
            Part::ToolCall(ToolCall { id, name, arguments, signature, extra: None })
        }
        // The id of its call, and its text after a `=`.
        "result" => match value.split_once('=') {
            Some((id, text)) => Part::tool_result(id, text),
            None => Part::tool_result(value, format!("of {value}")),
        },
        "empty_result" => result(value, Vec::new()),
        "image_result" => result(value, vec![Part::image("image/png", "AAAA")]),
        // The result of a call that has none.
        "failed" => Part::ToolResult(ToolResult {
            id: value.into(),
            name: Some("tool".into()),
            content: vec![Part::text(
                "No result: the call was interrupted or its result was lost. It may or may not \
                 have taken effect.",
            )],
            is_error: true,
            ..ToolResult::default()
        }),
        "think" => thinking(Some("sig"), None),
        "unsigned" => thinking(None, None),
        "redacted" => Part::Redacted { data: value.into() },
        "image" => Part::image("image/png", value),
        // With a cache mark; that lives an hour; without the mark that it had.
        "marked" => marked(mark(None)),
        "marked_1h" => marked(mark(Some("1h"))),
        "unmarked" => marked(no_mark()),
        "marked_think" => thinking(Some("sig"), mark(None)),
        "unmarked_think" => thinking(Some("sig"), no_mark()),
        // Blocks that only one dialect has.
        "own" => opaque(dialect, value, &json!({"code": "1"})),
        "foreign" => opaque(foreign(dialect), value, &json!({"code": "1"})),
        "server_call" => {
            let kind = "server_tool_use";
            opaque(Anthropic, kind, &json!({"type": kind, "id": value, "name": "web_search"}))
        }
        "server_result" => {
            let kind = "web_search_tool_result";
            opaque(Anthropic, kind, &json!({"type": kind, "tool_use_id": value, "content": []}))
        }
        _ if kind.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_')) => {
            panic!("`{kind}` in `{notation}` is no kind of part")
        }
        _ => Part::text(notation),
    }
}

/// Another dialect.
pub(crate) fn foreign(dialect: Dialect) -> Dialect {
    if dialect == Anthropic { Gemini } else { Anthropic }
}

pub(crate) fn opaque(dialect: Dialect, kind: &str, json: &serde_json::Value) -> Part {
    Part::Opaque(Opaque { dialect, kind: kind.into(), json: RawJson::from_value(json) })
}

/// A cache mark between two other fields.
pub(crate) fn mark(ttl: Option<&str>) -> Extra {
    let mut fields = json!({"before": 1, "cache_control": {"type": "ephemeral"}, "after": 2});
    if let Some(ttl) = ttl {
        fields["cache_control"]["ttl"] = json!(ttl);
    }
    fields.as_object().cloned().map(Box::new)
}

fn no_mark() -> Extra {
    json!({"before": 1, "after": 2}).as_object().cloned().map(Box::new)
}
