//! A conversation made of small instructions: `dialect target rules instructions`.

use steadfast_chat::{
    ChatRequest, Extra, Message, Opaque, Part, RawJson, Role, Text, Thinking, ThinkingConfig, Tool,
    ToolCall, ToolResult,
    transcript::{TranscriptRule, TranscriptRules, repair, validate},
};
use steadfast_core::Dialect;

use crate::input::Input;

const WORDS: [&str; 8] = ["", " \n", "one", "two", "three", "\u{feff}", "four\0", "five"];
const IDS: [&str; 8] = ["", "call_1", "call_2", "a.b", "call_3", "srv", "\u{e4}", "x y"];
const NAMES: [&str; 5] = ["read", "write", "", "no such tool", "functions.read"];
const ROLES: [Role; 4] = [Role::User, Role::Assistant, Role::Tool, Role::System];

fn pick<'a>(input: &mut Input<'_>, from: &[&'a str]) -> &'a str {
    from[input.below(from.len())]
}

fn id(input: &mut Input<'_>) -> String {
    match input.byte() {
        byte @ 250.. => "x".repeat(usize::from(byte) - 190),
        byte => IDS[usize::from(byte) % IDS.len()].to_owned(),
    }
}

fn extra(input: &mut Input<'_>) -> Extra {
    let ttl = match input.below(8) {
        0 => "5m",
        1 => "1h",
        _ => return None,
    };
    let fields = serde_json::json!({"cache_control": {"type": "ephemeral", "ttl": ttl}});
    fields.as_object().cloned().map(Box::new)
}

fn signature(input: &mut Input<'_>) -> Option<String> {
    [None, Some(""), Some("sig")][input.below(3)].map(str::to_owned)
}

fn part(input: &mut Input<'_>, depth: usize) -> Part {
    match input.below(10) {
        0 | 1 => Part::Text(Text {
            text: pick(input, &WORDS).to_owned(),
            signature: signature(input),
            extra: extra(input),
        }),
        2 | 3 => Part::ToolCall(ToolCall {
            id: id(input),
            name: pick(input, &NAMES).to_owned(),
            arguments: pick(input, &["{}", "{\"a\":1}", "", "{\"a\":"]).to_owned(),
            signature: signature(input),
            extra: extra(input),
        }),
        4 | 5 => Part::ToolResult(ToolResult {
            id: id(input),
            name: input.flag().then(|| pick(input, &NAMES).to_owned()),
            content: (0..input.below(3))
                .filter(|_| depth < 3)
                .map(|_| part(input, depth + 1))
                .collect(),
            is_error: input.flag(),
            failure: None,
            extra: extra(input),
        }),
        6 => Part::Thinking(Thinking {
            text: pick(input, &WORDS).to_owned(),
            signature: signature(input),
            extra: extra(input),
        }),
        7 => Part::Redacted { data: pick(input, &WORDS).to_owned() },
        8 => {
            let mime = pick(input, &["image/png", "image/bmp", "", "IMAGE/JPEG"]);
            Part::image(mime, pick(input, &["AAAA", "", "iVBORw0KGgo=", "no base64!"]))
        }
        _ => {
            let kinds = ["server_tool_use", "web_search_tool_result", "strange"];
            let id = id(input);
            let json = match input.below(3) {
                0 => serde_json::json!({"id": id}),
                1 => serde_json::json!({"tool_use_id": id}),
                _ => serde_json::json!({}),
            };
            Part::Opaque(Opaque {
                dialect: input.dialect(),
                kind: pick(input, &kinds).to_owned(),
                json: RawJson::from_value(&json),
            })
        }
    }
}

fn conversation(input: &mut Input<'_>) -> ChatRequest {
    let flags = input.byte();
    let mut messages = Vec::new();
    while !input.is_empty() {
        let byte = usize::from(input.byte());
        let parts = (0..byte / 4 % 5).map(|_| part(input, 0)).collect();
        messages.push(Message::new(ROLES[byte % 4], parts));
    }
    let mut request = ChatRequest::new(messages);
    if flags & 1 == 0 {
        let schema = RawJson::parse(r#"{"type":"object"}"#).expect("JSON");
        let tools = ["read", "write"].map(|name| Tool::function(name, "", schema.clone()));
        request = request.with_tools(tools.to_vec());
    }
    request.params.thinking = (flags & 2 != 0).then_some(ThinkingConfig::Budget(1_024));
    request
}

fn rules(input: &mut Input<'_>) -> TranscriptRules {
    let dialect = input.dialect();
    let bits = input.byte();
    let mut rules = TranscriptRules::for_dialect(dialect);
    rules.prefill = bits & 1 != 0;
    rules.images.vision = bits & 2 == 0;
    rules.signed_calls = bits & 4 != 0 && dialect == Dialect::Gemini;
    rules.foreign_history = bits & 8 != 0;
    rules
}

/// Every text of the conversation, trimmed, in order; without empty ones.
fn texts(request: &ChatRequest) -> Vec<&str> {
    let texts = request.messages.iter().flat_map(Message::parts).filter_map(Part::as_text);
    texts.map(str::trim).filter(|text| !text.is_empty()).collect()
}

/// * A valid conversation passes as the same object in memory.
/// * An invalid one becomes valid, unless nothing is left of it.
/// * A second repair changes nothing, and the same damage is repaired in the same way.
/// * No text is lost.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let rules = rules(&mut input);
    let before = conversation(&mut input);
    let mut request = before.clone();
    let valid = validate(&before, &rules).is_ok();
    let repairs = repair(&mut request, &rules);
    if valid {
        assert!(repairs.is_empty(), "{repairs:#?}");
        assert!(request.messages.same(&before.messages) && request.tools.same(&before.tools));
        return;
    }
    let shown =
        || format!("{repairs:#?}\nbefore {:#?}\nafter {:#?}", before.messages, request.messages);
    assert!(!repairs.is_empty());
    if request.messages.is_empty() {
        assert!(
            matches!(&repairs.unrepaired[..], [one] if one.rule == TranscriptRule::FirstMessage),
            "{}",
            shown()
        );
    } else {
        assert!(repairs.unrepaired.is_empty(), "{}", shown());
        assert!(validate(&request, &rules).is_ok());
    }
    for word in repairs.done.iter().map(|repair| repair.what.as_ref()) {
        assert!(!word.is_empty());
    }

    let after = texts(&request);
    let mut left = after.iter();
    for word in texts(&before) {
        assert!(left.any(|other| *other == word), "{word:?} was lost: {}", shown());
    }

    let mut again = request.clone();
    let second = repair(&mut again, &rules);
    assert!(second.done.is_empty(), "{second:#?}\n{}", shown());
    assert!(again.messages.same(&request.messages) && again.params == request.params);

    let mut twin = before.clone();
    assert_eq!(repair(&mut twin, &rules), repairs);
    assert_eq!(&*twin.messages, &*request.messages);
}
