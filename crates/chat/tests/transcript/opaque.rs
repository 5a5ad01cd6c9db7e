//! Blocks and tools of one dialect: S16.

use serde_json::json;
use steadfast_chat::{
    ChatRequest, Message, Part, Role, Tool, ToolChoice, ToolResult,
    transcript::{TranscriptRule::Opaque, repair},
};
use steadfast_core::Dialect;

use crate::support::{
    ANTHROPIC, CASE, Case, check, foreign, messages, opaque, part, refused, repaired, request,
    rules,
};

#[test]
fn s16_blocks_and_tools_of_another_dialect_are_left_to_who_translates() {
    check(&[Case {
        name: "foreign",
        before: "user x / model foreign:executable_code + 1 / user y / \
                 model foreign:executable_code / user z",
        ..CASE
    }]);
    for dialect in Dialect::ALL {
        let block = opaque(foreign(dialect), "executable_code", &json!({"code": "1"}));
        let Part::Opaque(tool) = block else { unreachable!() };
        let mut history = messages(dialect, "user x / model call:a");
        let content = vec![Part::text("ok"), Part::Opaque(tool.clone())];
        let result =
            Part::ToolResult(ToolResult { id: "a".into(), content, ..ToolResult::default() });
        history.push(Message::new(Role::User, vec![result]));
        let mut history = ChatRequest::new(history).with_tools(vec![Tool::Opaque(tool)]);
        history.params.tool_choice = Some(ToolChoice::Required);
        let mut after = history.clone();
        let _ = repair(&mut after, &rules(dialect));
        assert_eq!((after.tools, after.params), (history.tools, history.params), "{dialect:?}");
        let kept = |part: &&Part| matches!(part, Part::Opaque(_));
        let results = after.messages.iter().flat_map(Message::tool_results);
        assert_eq!(results.flat_map(|result| &result.content).filter(kept).count(), 1);
    }
}

#[test]
fn s16_a_server_tools_call_and_result_are_both_there_or_removed() {
    check(&[
        Case {
            name: "a pair",
            before: "user x / model server_call:s1 + server_result:s1 + found / user y",
            ..ANTHROPIC
        },
        Case {
            name: "a pair in two messages, after a pause",
            before: "user x / model server_call:s1 / model server_result:s1 + 1 / user y",
            ..ANTHROPIC
        },
        Case {
            name: "a result alone",
            before: "user x / model server_result:s1 + found / user y",
            refused: &[(
                Opaque,
                ["unexpected `tool_use_id` found in `web_search_tool_result` blocks: s1"; 3],
            )],
            after: "user x / model found / user y",
            ..ANTHROPIC
        },
        Case {
            name: "a call alone",
            before: "user x / model I search + server_call:s1 / user no / model ok / user y",
            refused: &[(Opaque, ["`s1` was found without a corresponding result"; 3])],
            after: "user x / model I search / user no / model ok / user y",
            ..ANTHROPIC
        },
    ]);
}

#[test]
fn s16_results_hold_only_text_and_media() {
    for dialect in Dialect::ALL {
        let content = ["ok", "call:z", "think:hm", "result:q=x"];
        let content = content.iter().map(|it| part(dialect, it)).collect();
        let dirty =
            Part::ToolResult(ToolResult { id: "a".into(), content, ..ToolResult::default() });
        let mut history = messages(dialect, "user x / model call:a");
        history.push(Message::new(Role::User, vec![dirty]));
        let history = request(history);
        assert_eq!(refused(&history, &rules(dialect)).len(), 3, "{dialect:?}");
        let after = repaired(&history, &rules(dialect));
        let result = after.messages[2].tool_results().next().unwrap();
        assert_eq!(result.content, [Part::text("ok")], "{dialect:?}");
    }
}
