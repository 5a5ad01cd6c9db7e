//! Ids and names of calls and results: S8.

use steadfast_chat::{
    ChatRequest, Message, Part, Role, Tool, ToolResult,
    transcript::{Position, TranscriptRule, repair, validate},
};
use steadfast_core::Dialect::{self, Anthropic, Gemini, OpenAi};

use crate::support::{Case, OPENAI, check, function, messages, refused, repaired, request, rules};

/// Every call's id with the text of its result, in order.
fn answers(request: &ChatRequest) -> Vec<(String, String)> {
    let results = || request.messages.iter().flat_map(Message::tool_results);
    let text = |r: &ToolResult| r.content.iter().filter_map(Part::as_text).collect::<String>();
    let calls = request.messages.iter().flat_map(Message::tool_calls);
    calls
        .map(|call| {
            let result = results().find(|result| result.id == call.id);
            (call.id.clone(), text(result.expect("every call is answered under its id")))
        })
        .collect()
}

fn texts(request: &ChatRequest) -> Vec<String> {
    answers(request).into_iter().map(|(_, text)| text).collect()
}

fn history(dialect: Dialect, notation: &str) -> ChatRequest {
    request(messages(dialect, notation))
}

#[test]
fn s8_an_invalid_id_is_replaced_by_the_same_one_every_time() {
    let long = |len| "x".repeat(len);
    for (dialect, id, text) in [
        (
            Anthropic,
            "functions.ls:0".to_owned(),
            "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        ),
        (Anthropic, long(65), "at most 64 characters"),
        (Anthropic, long(0), "String should match pattern"),
        (OpenAi, long(0), "Missing required parameter: 'messages[1].tool_calls[0].id'"),
        (
            OpenAi,
            long(41),
            "string too long. Expected a string with maximum length 40, but got a string with \
             length 41",
        ),
    ] {
        let case = format!("`{id}` ({dialect:?})");
        let rules = rules(dialect);
        let invalid =
            history(dialect, &format!("user go / model call:{id} / tool result:{id} / user x"));
        let found = refused(&invalid, &rules);
        assert_eq!(found[0].rule, TranscriptRule::Ids, "{case}: {found}");
        assert!(found[0].message.contains(text), "{case}: {found}");
        assert_eq!(found[0].at, Position::Part { message: 1, part: 0 }, "{case}");
        if dialect == Anthropic {
            assert_eq!(found.len(), 1, "{case}: {found}");
        }

        let (mut once, mut again) = (invalid.clone(), invalid.clone());
        assert_eq!(repair(&mut once, &rules), repair(&mut again, &rules), "{case}");
        assert_eq!(once.messages, again.messages, "{case}");
        let pairs = answers(&once);
        assert_eq!(pairs.len(), 1, "{case}");
        assert!(pairs[0].0.starts_with("call_") && pairs[0].0.len() <= 40, "{case}: {pairs:?}");
        assert_eq!(pairs[0].1, format!("of {id}"), "{case}");
        assert!(validate(&once, &rules).is_ok(), "{case}");
    }
}

#[test]
fn s8_openai_accepts_any_characters() {
    check(&[Case {
        name: "a dot and a colon",
        before: "user go / model call:functions.ls:0 / tool result:functions.ls:0",
        ..OPENAI
    }]);
}

#[test]
fn s8_a_repeated_id_keeps_its_first_use_and_pairs_are_kept() {
    let before = history(
        Anthropic,
        "user go / model call:a + call:a / tool result:a=1 / tool result:a=2 / model call:a / \
         tool result:a=3 / user x",
    );
    let rules = rules(Anthropic);
    let found = refused(&before, &rules);
    assert!(found.iter().any(|it| it.message.contains("`tool_use` ids must be unique")), "{found}");
    let after = repaired(&before, &rules);
    let pairs = answers(&after);
    assert_eq!(pairs[0], ("a".to_owned(), "1".to_owned()));
    assert_eq!(texts(&after), ["1", "2", "3"]);
    assert!(pairs[1].0 != pairs[2].0 && pairs[1].0 != "a" && pairs[2].0 != "a");
    for index in [0, 2, 6] {
        assert!(after.messages[index].same(&before.messages[index]));
    }

    // New ids are made from the call, not from its position: a shorter history has the same.
    let shorter = request(before.messages[1..].to_vec());
    assert_eq!(answers(&repaired(&shorter, &rules)), pairs);
}

#[test]
fn s8_a_new_id_is_none_of_the_request() {
    let rules = rules(Anthropic);
    let first = history(Anthropic, "user go / model call:? / tool result:?");
    let new = answers(&repaired(&first, &rules))[0].0.clone();

    let taken = format!(
        "user go / model call:? / tool result:? / model call:{new} / tool result:{new} / user x"
    );
    let pairs = answers(&repaired(&history(Anthropic, &taken), &rules));
    assert_ne!(pairs[0].0, pairs[1].0);
    assert_eq!(pairs[1].0, new, "a valid id is kept");
}

#[test]
fn s8_openai_ids_are_unique_in_a_batch_alone() {
    let rules = rules(OpenAi);
    let in_turns = history(
        OpenAi,
        "user go / model call:call_0 / tool result:call_0 / model call:call_0 / \
         tool result:call_0 / model call: / tool result:",
    );
    let after = repaired(&in_turns, &rules);
    assert!((0..5).all(|index| after.messages[index].same(&in_turns.messages[index])));

    let in_one =
        history(OpenAi, "user go / model call:a + call:a / tool result:a / tool result:a=2");
    let found = refused(&in_one, &rules);
    assert!(found[0].message.contains("Duplicate value for 'tool_call_id'"), "{found}");
    assert_eq!(texts(&repaired(&in_one, &rules))[1], "2");
}

/// A call of each name and its result, as Gemini writes them: without ids.
fn gemini(names: &[&str]) -> Vec<Message> {
    let call = |name: &&str| Part::tool_call("", *name, "{}");
    let result = |name: &&str| {
        Part::ToolResult(ToolResult {
            name: Some((*name).into()),
            content: vec![Part::text(format!("of {name}"))],
            ..ToolResult::default()
        })
    };
    vec![
        Message::user("go"),
        Message::new(Role::Assistant, names.iter().map(call).collect()),
        Message::new(Role::User, names.iter().map(result).collect()),
    ]
}

#[test]
fn s8_gemini_pairs_by_name_and_requires_declared_names() {
    let rules = rules(Gemini);
    let tools = vec![function("f"), function("g")];
    let valid = ChatRequest::new(gemini(&["f", "g", "f"])).with_tools(tools.clone());
    let mut after = valid.clone();
    assert!(repair(&mut after, &rules).is_empty());
    assert!(after.messages.same(&valid.messages));

    // A name that is not declared is declared.
    let undeclared = valid.clone().with_tools(vec![function("f")]);
    let found = refused(&undeclared, &rules);
    assert_eq!((found.len(), found[0].rule), (1, TranscriptRule::Ids));
    assert!(found[0].message.contains("`g` does not match any declared function"), "{found}");
    let after = repaired(&undeclared, &rules);
    assert_eq!(after.tools.iter().filter_map(Tool::name).collect::<Vec<_>>(), ["f", "g"]);
    assert!(after.messages.same(&valid.messages), "the conversation is not changed for it");

    // A result with another name than its call.
    let result = |name: &str| {
        let (id, name) = ("1".into(), Some(name.into()));
        let content = vec![Part::text("x")];
        Message::new(
            Role::User,
            vec![Part::ToolResult(ToolResult { id, name, content, ..ToolResult::default() })],
        )
    };
    let call = Message::new(Role::Assistant, vec![Part::tool_call("1", "f", "{}")]);
    let other = ChatRequest::new(vec![Message::user("go"), call, result("h")]).with_tools(tools);
    let found = refused(&other, &rules);
    assert!(found[0].message.contains("must be that of its function call, `f`"), "{found}");
    assert_eq!(repaired(&other, &rules).messages[2], result("f"));
}

#[test]
fn s8_a_history_without_ids_gets_them_for_a_provider_that_requires_them() {
    for dialect in [Anthropic, OpenAi] {
        let mut history = gemini(&["f", "g", "f"]);
        history.push(Message::user("x"));
        let after = repaired(&request(history), &rules(dialect));
        assert_eq!(texts(&after), ["of f", "of g", "of f"], "{dialect:?}");
    }
}

#[test]
fn s8_a_call_without_a_name_gets_one() {
    let call = Message::new(Role::Assistant, vec![Part::tool_call("a", "", "{")]);
    let history = ChatRequest::new(vec![Message::user("go"), call, Message::tool("a", "of a")]);
    for (dialect, text) in [
        (OpenAi, "tool_calls[0].function.name': empty string"),
        (Anthropic, "tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
        (Gemini, "Invalid function name"),
    ] {
        let rules = rules(dialect);
        let found = refused(&history, &rules);
        let is_expected =
            found.iter().any(|it| it.rule == TranscriptRule::Ids && it.message.contains(text));
        assert!(is_expected, "{dialect:?}: {found}");
        let after = repaired(&history, &rules);
        assert_eq!(
            after.messages[1].tool_calls().next().unwrap().name,
            "unknown_tool",
            "{dialect:?}"
        );
    }
}
