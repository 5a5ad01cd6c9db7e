//! Cache marks: S12.

use serde_json::json;
use steadfast_chat::{
    Message, Opaque, Part, RawJson, Role, Tool, ToolResult,
    transcript::{TranscriptRule::CacheMarks, repair},
};
use steadfast_core::Dialect::{Anthropic, Gemini, OpenAi};

use crate::support::{
    ANTHROPIC, CASE, Case, check, mark, messages, opaque, part, refused, repaired, request, rules,
    unchanged,
};

#[test]
fn s12_marks_are_few_and_ordered() {
    check(&[
        Case {
            name: "four marks",
            before: "user marked:0 / user marked:1 / user marked:2 / user marked:3",
            ..ANTHROPIC
        },
        Case {
            name: "others have no marks to count",
            dialects: &[OpenAi, Gemini],
            before: "user marked:0 / user marked:1 / user marked:2 / user marked:3 / \
                     user marked:4 / user marked:5 / user marked:6 / user marked:7 / user marked:8",
            ..CASE
        },
        Case {
            name: "of six, the first and the last three are kept",
            before: "user marked:0 / user marked:1 / user marked:2 / user marked:3 / \
                     user marked:4 / user marked:5",
            refused: &[(
                CacheMarks,
                ["S12 at request: A maximum of 4 blocks with cache_control may be provided. Found \
                  6."; 3],
            )],
            after: "user marked:0 / user unmarked:1 / user unmarked:2 / user marked:3 / \
                    user marked:4 / user marked:5",
            ..ANTHROPIC
        },
        Case {
            name: "long-lived marks first",
            before: "system marked_1h:s / user marked_1h:a + marked:b",
            ..ANTHROPIC
        },
        Case {
            name: "instructions are read before the conversation, wherever they are",
            before: "user marked:a / system marked_1h:s",
            ..ANTHROPIC
        },
        Case {
            name: "a long-lived mark after one of a tool",
            setup: |_, request| {
                let tool = Tool::Function {
                    name: "tool".into(),
                    description: None,
                    parameters: None,
                    strict: None,
                    custom: None,
                    extra: mark(None),
                    dialect: Some(Anthropic),
                };
                request.tools = vec![tool].into();
            },
            before: "user marked_1h:a",
            refused: &[(CacheMarks, ["must not come after a ttl='5m' cache_control block"; 3])],
            after: "user marked:a",
            ..ANTHROPIC
        },
        Case {
            name: "a mark on thinking",
            before: "user x / model marked_think:hm + so / user y",
            refused: &[(
                CacheMarks,
                ["messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"; 3],
            )],
            after: "user x / model unmarked_think:hm + so / user y",
            ..ANTHROPIC
        },
    ]);
}

#[test]
fn s12_other_fields_keep_their_order() {
    let five = "user marked:0 / user marked:1 / user marked:2 / user marked:3 / user marked:4";
    let after = repaired(&request(messages(Anthropic, five)), &rules(Anthropic));
    let Part::Text(bare) = &after.messages[1].parts()[0] else { panic!("still text") };
    let fields: Vec<_> = bare.extra.as_ref().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["before", "after"]);
}

#[test]
fn s12_marks_inside_results_and_in_opaque_blocks_count() {
    let rules = rules(Anthropic);
    let history = |json: &str| {
        let nested = Part::ToolResult(ToolResult {
            id: "a".into(),
            content: vec![part(Anthropic, "marked:in"), part(Anthropic, "marked:side")],
            extra: mark(None),
            ..ToolResult::default()
        });
        let (kind, json) = ("document".into(), RawJson::parse(json).unwrap());
        let block = Part::Opaque(Opaque { dialect: Anthropic, kind, json });
        let mut history = messages(Anthropic, "user x / model call:a / user marked:last");
        history[2].parts_mut().splice(0..0, [nested, block]);
        request(history)
    };
    let unmarked = history(r#"{"type":"document","cache_control":null}"#);
    unchanged("four marks", &unmarked, &rules);
    let mut full = history(r#"{"type":"document","cache_control": {"type":"ephemeral"}}"#);
    assert!(refused(&full, &rules)[0].message.contains("Found 5"));
    let repairs = repair(&mut full, &rules);
    assert_eq!((repairs.done.len(), repairs.unrepaired.len()), (1, 0), "{repairs:?}");
}

#[test]
fn s12_opaque_blocks_keep_their_marks() {
    let block = json!({"type": "document", "cache_control": {"type": "ephemeral"}});
    let blocks = vec![opaque(Anthropic, "document", &block); 5];
    let message = |last| [blocks.as_slice(), &[part(Anthropic, last)]].concat();
    let mut history = request(vec![Message::new(Role::User, message("marked:x"))]);
    let repairs = repair(&mut history, &rules(Anthropic));
    assert_eq!(history.messages[0].parts(), message("unmarked:x"));
    assert_eq!((repairs.done.len(), repairs.unrepaired.len()), (1, 1), "{repairs:?}");
    assert_eq!(repairs.unrepaired[0].rule, CacheMarks);
    assert!(repairs.unrepaired[0].message.contains("Found 5"), "{repairs:?}");
}
