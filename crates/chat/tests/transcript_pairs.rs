//! Calls and their results: S3 to S8, per dialect. Each row says what is refused, in which words,
//! and what comes out, message for message; what comes out is the valid twin, and must pass
//! untouched.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    reason = "tests"
)]

use steadfast_chat::{
    ChatRequest, Message, Part, RawJson, Role, Tool, ToolCall, ToolResult,
    transcript::{Place, Rule, Rules, repair, validate},
};
use steadfast_core::Dialect;

use Dialect::{Anthropic, Gemini, OpenAi};

const LOST: &str = "No result: the call was interrupted or its result was lost. It may or may not \
                    have taken effect.";

fn u(text: &str) -> Message {
    Message::user(text)
}

fn a(text: &str) -> Message {
    Message::assistant(text)
}

/// The model calls `tool` under each id.
fn calls(ids: &[&str]) -> Message {
    Message::new(Role::Assistant, ids.iter().map(|id| Part::tool_call(*id, "tool", "{}")).collect())
}

/// Results in the user's name.
fn results(ids: &[&str]) -> Message {
    Message::new(
        Role::User,
        ids.iter().map(|id| Part::tool_result(*id, format!("of {id}"))).collect(),
    )
}

/// A result in the tool's name.
fn t(id: &str) -> Message {
    Message::tool(id, format!("of {id}"))
}

fn lost_part(id: &str) -> Part {
    Part::ToolResult(ToolResult {
        id: id.into(),
        name: Some("tool".into()),
        content: vec![Part::text(LOST)],
        is_error: true,
        extra: None,
    })
}

/// The result that is made for a call nobody answered.
fn lost(role: Role, ids: &[&str]) -> Message {
    Message::new(role, ids.iter().map(|id| lost_part(id)).collect())
}

/// The parts of several messages in one.
fn join(role: Role, messages: &[Message]) -> Message {
    Message::new(role, messages.iter().flat_map(|m| m.parts().to_vec()).collect())
}

fn request(messages: Vec<Message>) -> ChatRequest {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    ChatRequest::new(messages).with_tools(vec![Tool::function("tool", "does it", schema)])
}

/// What goes in, what is refused, what comes out.
#[track_caller]
fn mends(dialect: Dialect, before: Vec<Message>, refused: &[(Rule, &str)], after: Vec<Message>) {
    let rules = Rules::for_dialect(dialect);
    let mut request = request(before.clone());
    let violations = validate(&request, &rules).expect_err("it is refused");
    let found: Vec<_> = violations.iter().map(|v| (v.rule, v.message.as_str())).collect();
    assert_eq!(found.len(), refused.len(), "{found:#?}");
    for ((rule, words), (expected, part)) in found.iter().zip(refused) {
        assert_eq!(rule, expected, "{words}");
        assert!(words.contains(part), "`{words}` does not say `{part}`");
    }

    let repairs = repair(&mut request, &rules);
    assert_eq!(&*request.messages, after, "{repairs:#?}");
    assert_eq!(repairs.unrepaired, []);
    assert!(!repairs.done.is_empty());
    // What was not at fault is the same message still.
    for message in &before {
        if request.messages.contains(message) {
            assert!(request.messages.iter().any(|m| m.same(message)), "{message:?} was copied");
        }
    }
    untouched(dialect, after);
}

#[track_caller]
fn untouched(dialect: Dialect, messages: Vec<Message>) {
    let mut request = request(messages);
    let before = request.clone();
    assert!(repair(&mut request, &Rules::for_dialect(dialect)).is_empty());
    assert!(request.messages.same(&before.messages));
    assert!(request.tools.same(&before.tools));
    assert_eq!(request.params, before.params);
}

const OPENAI_OPEN: &str = "must be followed by tool messages responding to each 'tool_call_id'. \
                           The following tool_call_ids did not have response messages: b";
const OPENAI_ORPHAN: &str = "messages with role 'tool' must be a response";
const ANTHROPIC_OPEN: &str =
    "`tool_use` ids were found without `tool_result` blocks immediately after: b";
const GEMINI_COUNT: &str = "number of function response parts is equal to the number of function";

#[test]
fn valid_pairs_pass_untouched() {
    let both = [Anthropic, OpenAi, Gemini];
    for dialect in both {
        untouched(
            dialect,
            vec![u("go"), calls(&["a", "b"]), t("a"), t("b"), a("done"), u("thanks")],
        );
        untouched(dialect, vec![u("go"), calls(&["a", "b"]), results(&["a", "b"])]);
        untouched(
            dialect,
            vec![u("go"), calls(&["a", "b"]), results(&["a"]), results(&["b"]), u("and")],
        );
        // Neighbours of one role are the encoder's business (S2).
        untouched(dialect, vec![u("one"), u("two"), a("yes"), a("no"), u("three")]);
        untouched(
            dialect,
            vec![
                Message::system("s"),
                u("go"),
                a("well"),
                calls(&["a"]),
                t("a"),
                Message::system("s"),
            ]
            .into_iter()
            .chain([u("x")])
            .collect(),
        );
    }
    // Results in any order, but for Gemini.
    for dialect in [Anthropic, OpenAi] {
        untouched(dialect, vec![u("go"), calls(&["a", "b"]), results(&["b", "a"])]);
    }
    // One batch in two messages is one turn where neighbours are joined.
    for dialect in [Anthropic, Gemini] {
        untouched(dialect, vec![u("go"), calls(&["a"]), calls(&["b"]), results(&["a", "b"])]);
    }
}

#[test]
fn s3_an_unanswered_call_is_answered_with_a_failure() {
    for (dialect, words, role) in [
        (OpenAi, OPENAI_OPEN, Role::Tool),
        (Anthropic, ANTHROPIC_OPEN, Role::User),
        (Gemini, GEMINI_COUNT, Role::User),
    ] {
        let refused = [(Rule::Answered, words)];
        // In the middle: before what the user says next.
        mends(
            dialect,
            vec![u("go"), calls(&["b"]), u("stop")],
            &refused,
            vec![u("go"), calls(&["b"]), lost(role, &["b"]), u("stop")],
        );
        // At the end.
        mends(
            dialect,
            vec![u("go"), calls(&["b"])],
            &refused,
            vec![u("go"), calls(&["b"]), lost(role, &["b"])],
        );
        // Half of a batch (S7): the answered half stays as it is.
        mends(
            dialect,
            vec![u("go"), calls(&["a", "b"]), t("a"), u("next")],
            &refused,
            vec![u("go"), calls(&["a", "b"]), t("a"), lost(role, &["b"]), u("next")],
        );
    }
}

#[test]
fn s3_a_failed_result_goes_where_its_call_stands() {
    // Gemini wants the order of the calls.
    mends(
        Gemini,
        vec![u("go"), calls(&["b", "a", "c"]), results(&["a", "c"]), u("next")],
        &[(Rule::Answered, GEMINI_COUNT)],
        vec![
            u("go"),
            calls(&["b", "a", "c"]),
            lost(Role::User, &["b"]),
            results(&["a", "c"]),
            u("next"),
        ],
    );
    // The user's words in the message of the results stay behind the failed one.
    mends(
        Anthropic,
        vec![u("go"), calls(&["a", "b"]), join(Role::User, &[results(&["a"]), u("next")])],
        &[(Rule::Answered, ANTHROPIC_OPEN)],
        vec![u("go"), calls(&["a", "b"]), results(&["a"]), lost(Role::User, &["b"]), u("next")],
    );
    // OpenAI: one message a result.
    mends(
        OpenAi,
        vec![u("go"), calls(&["b", "c"]), u("next")],
        &[(Rule::Answered, OPENAI_OPEN), (Rule::Answered, "did not have response messages: c")],
        vec![
            u("go"),
            calls(&["b", "c"]),
            lost(Role::Tool, &["b"]),
            lost(Role::Tool, &["c"]),
            u("next"),
        ],
    );
}

#[test]
fn s4_an_orphan_goes_and_the_users_words_beside_it_stay() {
    for (dialect, words) in [
        (OpenAi, OPENAI_ORPHAN),
        (Anthropic, "unexpected `tool_use_id` found in `tool_result` blocks: x. Each"),
        (Gemini, "function response turn comes immediately after a function call turn"),
    ] {
        let refused = [(Rule::Orphan, words)];
        mends(
            dialect,
            vec![u("go"), a("ok"), t("x"), u("next")],
            &refused,
            vec![u("go"), a("ok"), u("next")],
        );
        mends(
            dialect,
            vec![u("go"), a("ok"), join(Role::User, &[results(&["x"]), u("mine")])],
            &refused,
            vec![u("go"), a("ok"), u("mine")],
        );
        // A result of a call that compaction took away, in front of everything.
        mends(dialect, vec![t("x"), u("go")], &refused, vec![u("go")]);
        // Beside a result that is wanted.
        mends(
            dialect,
            vec![u("go"), calls(&["a"]), results(&["a", "x"])],
            &refused,
            vec![u("go"), calls(&["a"]), results(&["a"])],
        );
    }
}

#[test]
fn s4_results_and_words_in_the_wrong_message() {
    // A result among the model's words goes back to its call.
    mends(
        Anthropic,
        vec![u("go"), join(Role::Assistant, &[calls(&["b"]), results(&["b"])]), u("x")],
        &[
            (Rule::Answered, ANTHROPIC_OPEN),
            (Rule::Orphan, "`tool_result` blocks can only be in `user` messages"),
        ],
        vec![u("go"), calls(&["b"]), results(&["b"]), u("x")],
    );
    // A tool's message that holds words is the user's.
    mends(
        OpenAi,
        vec![u("go"), calls(&["a"]), t("a"), Message::new(Role::Tool, vec![Part::text("words")])],
        &[(Rule::Orphan, "holds results and nothing else")],
        vec![u("go"), calls(&["a"]), t("a"), u("words")],
    );
    // The user can not call, and the result of such a call answers nothing.
    mends(
        Anthropic,
        vec![join(Role::User, &[u("go"), calls(&["a"])]), a("no"), results(&["a"]), u("x")],
        &[
            (Rule::Answered, "`tool_use` blocks can only be in `assistant` messages"),
            (Rule::Orphan, "unexpected `tool_use_id`"),
        ],
        vec![u("go"), a("no"), u("x")],
    );
}

#[test]
fn s5_the_first_result_wins() {
    let second = || Message::tool("a", "another answer");
    for (dialect, words) in [
        (OpenAi, OPENAI_ORPHAN),
        (
            Anthropic,
            "each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
        ),
        (Gemini, GEMINI_COUNT),
    ] {
        let refused = [(Rule::Duplicate, words)];
        mends(
            dialect,
            vec![u("go"), calls(&["a"]), t("a"), second(), u("x")],
            &refused,
            vec![u("go"), calls(&["a"]), t("a"), u("x")],
        );
        mends(
            dialect,
            vec![u("go"), calls(&["a"]), join(Role::User, &[results(&["a"]), second(), u("x")])],
            &refused,
            vec![u("go"), calls(&["a"]), join(Role::User, &[results(&["a"]), u("x")])],
        );
    }
}

#[test]
fn s6_results_come_before_words() {
    for (dialect, words) in [(OpenAi, OPENAI_OPEN), (Anthropic, ANTHROPIC_OPEN)] {
        let refused = [(Rule::Order, words)];
        mends(
            dialect,
            vec![u("go"), calls(&["b"]), join(Role::User, &[u("x"), results(&["b"])])],
            &refused,
            vec![u("go"), calls(&["b"]), join(Role::User, &[results(&["b"]), u("x")])],
        );
        mends(
            dialect,
            vec![u("go"), calls(&["a", "b"]), t("a"), u("x"), t("b"), u("y")],
            &refused,
            vec![u("go"), calls(&["a", "b"]), t("a"), t("b"), u("x"), u("y")],
        );
        // Instructions too.
        mends(
            dialect,
            vec![u("go"), calls(&["b"]), Message::system("be brief"), t("b")],
            &refused,
            vec![u("go"), calls(&["b"]), t("b"), Message::system("be brief")],
        );
    }
    // Gemini does not mind.
    untouched(Gemini, vec![u("go"), calls(&["b"]), u("x"), results(&["b"])]);
}

#[test]
fn s6_gemini_wants_the_order_of_the_calls() {
    let refused = [(Rule::Order, "order of the function calls")];
    mends(
        Gemini,
        vec![u("go"), calls(&["a", "b"]), results(&["b", "a"]), u("x")],
        &refused,
        vec![u("go"), calls(&["a", "b"]), results(&["a", "b"]), u("x")],
    );
    mends(
        Gemini,
        vec![u("go"), calls(&["a", "b", "c"]), t("c"), t("a"), t("b")],
        &refused,
        vec![u("go"), calls(&["a", "b", "c"]), t("a"), t("b"), t("c")],
    );
}

#[test]
fn s7_a_result_that_strayed_goes_back_to_its_batch() {
    for (dialect, words, orphan) in [
        (OpenAi, OPENAI_OPEN, OPENAI_ORPHAN),
        (Anthropic, ANTHROPIC_OPEN, "unexpected `tool_use_id`"),
        (Gemini, GEMINI_COUNT, "immediately after a function call turn"),
    ] {
        mends(
            dialect,
            vec![u("go"), calls(&["a", "b"]), t("a"), a("wait"), t("b"), u("x")],
            &[(Rule::Answered, words), (Rule::Batch, orphan)],
            vec![u("go"), calls(&["a", "b"]), t("a"), t("b"), a("wait"), u("x")],
        );
        // Out of a message that says more.
        let beside = join(Role::User, &[results(&["b"]), u("x")]);
        mends(
            dialect,
            vec![u("go"), calls(&["b"]), u("hm"), a("wait"), beside],
            &[(Rule::Answered, words), (Rule::Batch, orphan)],
            vec![
                u("go"),
                calls(&["b"]),
                if dialect == OpenAi { t("b") } else { results(&["b"]) },
                u("hm"),
                a("wait"),
                u("x"),
            ],
        );
        // A result before its call.
        mends(
            dialect,
            vec![u("go"), t("b"), calls(&["b"]), u("x")],
            &[(Rule::Orphan, orphan), (Rule::Answered, words)],
            vec![u("go"), calls(&["b"]), t("b"), u("x")],
        );
    }
    // A batch cut in two messages, for a provider that takes each alone.
    mends(
        OpenAi,
        vec![u("go"), calls(&["b"]), calls(&["c"]), t("b"), t("c")],
        &[(Rule::Answered, OPENAI_OPEN), (Rule::Batch, OPENAI_ORPHAN)],
        vec![u("go"), calls(&["b"]), t("b"), calls(&["c"]), t("c")],
    );
}

#[test]
fn s7_ids_that_come_again_in_every_turn_are_not_mixed_up() {
    // Local models count their calls from 0 in each turn.
    let history = vec![
        u("go"),
        calls(&["call_0"]),
        t("call_0"),
        calls(&["call_0"]),
        Message::tool("call_0", "second"),
        u("x"),
    ];
    untouched(OpenAi, history);
}

#[test]
fn s7_a_second_result_is_not_given_to_another_call_of_the_same_id() {
    mends(
        OpenAi,
        vec![
            u("go"),
            calls(&["call_0"]),
            u("again"),
            calls(&["call_0"]),
            t("call_0"),
            Message::tool("call_0", "second"),
        ],
        &[
            (Rule::Answered, "did not have response messages: call_0"),
            (Rule::Duplicate, OPENAI_ORPHAN),
        ],
        vec![
            u("go"),
            calls(&["call_0"]),
            lost(Role::Tool, &["call_0"]),
            u("again"),
            calls(&["call_0"]),
            t("call_0"),
        ],
    );
}

/// Every call's id with the words of its answer, in order.
fn answers(request: &ChatRequest) -> Vec<(String, String)> {
    let parts = || request.messages.iter().flat_map(Message::parts);
    let calls = parts().filter_map(Part::as_tool_call);
    let text = |r: &ToolResult| r.content.iter().filter_map(Part::as_text).collect::<String>();
    let answer = |call: &ToolCall| {
        let result = parts().filter_map(Part::as_tool_result).find(|r| r.id == call.id);
        text(result.expect("every call is answered under its id"))
    };
    calls.map(|call| (call.id.clone(), answer(call))).collect()
}

#[test]
fn s8_anthropic_ids_are_unique_words() {
    let long = "x".repeat(65);
    let broken = [
        ("functions.ls:0", "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"),
        (long.as_str(), "at most 64 characters"),
        ("", "String should match pattern"),
    ];
    for (id, words) in broken {
        let mut history = request(vec![u("go"), calls(&[id]), t(id), u("x")]);
        let rules = Rules::for_dialect(Anthropic);
        let found = validate(&history, &rules).unwrap_err();
        assert_eq!((found.len(), found[0].rule), (1, Rule::Ids), "{found}");
        assert!(found[0].message.contains(words), "{found}");
        assert_eq!(found[0].at, Place::Part { message: 1, part: 0 });

        let mut again = history.clone();
        assert_eq!(repair(&mut history, &rules), repair(&mut again, &rules));
        assert_eq!(history.messages, again.messages, "the same id every time");
        let pairs = answers(&history);
        assert_eq!(pairs.len(), 1);
        assert!(pairs[0].0.starts_with("call_") && pairs[0].0.len() <= 64, "{pairs:?}");
        assert_eq!(pairs[0].1, format!("of {id}"));
        assert!(validate(&history, &rules).is_ok());
    }
}

#[test]
fn s8_a_repeated_id_keeps_its_first_use_and_pairs_stay_together() {
    let mut history = request(vec![
        u("go"),
        calls(&["a", "a"]),
        Message::tool("a", "1"),
        Message::tool("a", "2"),
        calls(&["a"]),
        Message::tool("a", "3"),
        u("x"),
    ]);
    let before = history.messages.clone();
    let rules = Rules::for_dialect(Anthropic);
    let found = validate(&history, &rules).unwrap_err();
    assert!(found.iter().any(|v| v.message.contains("`tool_use` ids must be unique")), "{found}");
    let repairs = repair(&mut history, &rules);
    assert_eq!(repairs.unrepaired, []);
    let pairs = answers(&history);
    assert_eq!(pairs[0], ("a".to_owned(), "1".to_owned()));
    assert_eq!(pairs.iter().map(|pair| &*pair.1).collect::<Vec<_>>(), ["1", "2", "3"]);
    assert!(pairs[1].0 != pairs[2].0 && pairs[1].0 != "a" && pairs[2].0 != "a");
    for index in [0, 2, 6] {
        assert!(history.messages[index].same(&before[index]));
    }

    // The new ids hang on what was called, not on where: what is cut off in front changes nothing.
    let mut shorter = request(before[1..].to_vec());
    assert_eq!(repair(&mut shorter, &rules).unrepaired, []);
    assert_eq!(answers(&shorter), pairs);
}

#[test]
fn s8_a_made_id_avoids_those_that_are_there() {
    let rules = Rules::for_dialect(Anthropic);
    let mut first = request(vec![u("go"), calls(&["?"]), t("?")]);
    assert_eq!(repair(&mut first, &rules).unrepaired, []);
    let made = answers(&first)[0].0.clone();

    let mut history =
        request(vec![u("go"), calls(&["?"]), t("?"), calls(&[&made]), t(&made), u("x")]);
    assert_eq!(repair(&mut history, &rules).unrepaired, []);
    let pairs = answers(&history);
    assert_ne!(pairs[0].0, pairs[1].0);
    assert_eq!(pairs[1].0, made, "an id that is in order stays");
}

#[test]
fn s8_openai_takes_any_characters_and_wants_ids() {
    untouched(OpenAi, vec![u("go"), calls(&["functions.ls:0"]), t("functions.ls:0")]);
    let rules = Rules::for_dialect(OpenAi);
    let long = "x".repeat(41);
    for (id, words) in [
        ("", "Missing required parameter: 'messages[1].tool_calls[0].id'"),
        (
            long.as_str(),
            "string too long. Expected a string with maximum length 40, but got a string with length 41",
        ),
    ] {
        let mut history = request(vec![u("go"), calls(&[id]), t(id)]);
        let found = validate(&history, &rules).unwrap_err();
        assert!(found[0].rule == Rule::Ids && found[0].message.contains(words), "{found}");
        assert_eq!(repair(&mut history, &rules).unrepaired, []);
        assert_eq!(answers(&history)[0].1, format!("of {id}"));
    }
    // Ids that come again in another turn are in order, also beside one that is not.
    let mut history = request(vec![
        u("go"),
        calls(&["call_0"]),
        t("call_0"),
        calls(&["call_0"]),
        t("call_0"),
        calls(&[""]),
        t(""),
    ]);
    let before = history.messages.clone();
    assert_eq!(repair(&mut history, &rules).unrepaired, []);
    assert!((0..5).all(|index| history.messages[index].same(&before[index])));
    // Twice in one batch.
    let mut history = request(vec![u("go"), calls(&["a", "a"]), t("a"), Message::tool("a", "2")]);
    let found = validate(&history, &rules).unwrap_err();
    assert!(found[0].message.contains("Duplicate value for 'tool_call_id'"), "{found}");
    assert_eq!(repair(&mut history, &rules).unrepaired, []);
    assert_eq!(answers(&history)[1].1, "2");
}

/// A call, and a response, the way Gemini writes them: without ids.
fn gemini(names: &[&str]) -> (Message, Message) {
    let call = |name: &&str| Part::tool_call("", *name, "{}");
    let result = |name: &&str| {
        Part::ToolResult(ToolResult {
            name: Some((*name).into()),
            content: vec![Part::text(format!("of {name}"))],
            ..ToolResult::default()
        })
    };
    (
        Message::new(Role::Assistant, names.iter().map(call).collect()),
        Message::new(Role::User, names.iter().map(result).collect()),
    )
}

#[test]
fn s8_gemini_pairs_by_name_and_wants_declared_names() {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let declared = |name: &str| Tool::function(name, "does it", schema.clone());
    let (call, reply) = gemini(&["f", "g", "f"]);
    let rules = Rules::for_dialect(Gemini);

    let tools = vec![declared("f"), declared("g")];
    let mut valid = ChatRequest::new(vec![u("go"), call, reply]).with_tools(tools.clone());
    let before = valid.messages.clone();
    assert!(repair(&mut valid, &rules).is_empty());
    assert!(valid.messages.same(&before));

    // A name that is not declared is declared.
    let mut history = valid.clone().with_tools(vec![declared("f")]);
    let found = validate(&history, &rules).unwrap_err();
    assert_eq!((found.len(), found[0].rule), (1, Rule::Ids));
    assert!(found[0].message.contains("`g` does not match any declared function"), "{found}");
    assert_eq!(repair(&mut history, &rules).unrepaired, []);
    assert_eq!(history.tools.iter().filter_map(Tool::name).collect::<Vec<_>>(), ["f", "g"]);
    assert!(history.messages.same(&before), "the conversation is not touched for it");

    // A response under another name than its call's.
    let wrong = Message::new(
        Role::User,
        vec![Part::ToolResult(ToolResult {
            id: "1".into(),
            name: Some("h".into()),
            content: vec![Part::text("x")],
            ..ToolResult::default()
        })],
    );
    let call = Message::new(Role::Assistant, vec![Part::tool_call("1", "f", "{}")]);
    let mut history = ChatRequest::new(vec![u("go"), call, wrong]).with_tools(tools);
    let found = validate(&history, &rules).unwrap_err();
    assert!(found[0].message.contains("must be that of its function call, `f`"), "{found}");
    assert_eq!(repair(&mut history, &rules).unrepaired, []);
    let result = history.messages[2].tool_results().next().unwrap();
    assert_eq!(result.name.as_deref(), Some("f"));
}

#[test]
fn s8_a_history_without_ids_gets_them_for_a_provider_that_wants_them() {
    let (call, reply) = gemini(&["f", "g", "f"]);
    for dialect in [Anthropic, OpenAi] {
        let rules = Rules::for_dialect(dialect);
        let mut history = request(vec![u("go"), call.clone(), reply.clone(), u("x")]);
        assert_eq!(repair(&mut history, &rules).unrepaired, []);
        let texts: Vec<_> = answers(&history).into_iter().map(|pair| pair.1).collect();
        assert_eq!(texts, ["of f", "of g", "of f"]);
    }
}

#[test]
fn s8_a_call_without_a_name_gets_one() {
    let nameless = Message::new(Role::Assistant, vec![Part::tool_call("a", "", "{")]);
    for (dialect, words) in [
        (OpenAi, "tool_calls[0].function.name': empty string"),
        (Anthropic, "tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"),
        (Gemini, "Invalid function name"),
    ] {
        let rules = Rules::for_dialect(dialect);
        let mut history = ChatRequest::new(vec![u("go"), nameless.clone(), t("a")]);
        let found = validate(&history, &rules).unwrap_err();
        assert!(found.iter().any(|v| v.rule == Rule::Ids && v.message.contains(words)), "{found}");
        assert_eq!(repair(&mut history, &rules).unrepaired, []);
        assert_eq!(history.messages[1].tool_calls().next().unwrap().name, "unknown_tool");
    }
}

#[test]
fn places_are_those_of_the_request_as_it_came() {
    let mut history =
        request(vec![t("x"), u("go"), calls(&["a"]), u("no"), calls(&["b"]), t("b"), t("b")]);
    let repairs = repair(&mut history, &Rules::for_dialect(OpenAi));
    let done: Vec<_> = repairs.done.iter().map(|r| (r.rule, r.at)).collect();
    let part = |message, part| Place::Part { message, part };
    assert_eq!(
        done,
        [(Rule::Orphan, part(0, 0)), (Rule::Duplicate, part(6, 0)), (Rule::Answered, part(2, 0)),]
    );
    assert_eq!(
        repairs.done[2].to_string(),
        "S3 at messages[2].parts[0]: answered with a failed result"
    );
    assert!(repairs.touched(Rule::Orphan) && !repairs.touched(Rule::Order));
}

#[test]
fn large_batches_in_the_worst_order_take_no_time_to_speak_of() {
    // Quadratic work would take minutes here.
    let ids: Vec<String> = (0..10_000).map(|n| format!("id{n}")).collect();
    let forward: Vec<&str> = ids.iter().map(String::as_str).collect();
    let backward: Vec<&str> = forward.iter().rev().copied().collect();
    let same = vec!["same"; 10_000];
    let (nameless, _) = gemini(&vec!["f"; 10_000]);
    let (_, strangers) = gemini(&vec!["g"; 10_000]);
    for dialect in Dialect::ALL {
        let mut history = request(vec![
            u("go"),
            calls(&forward),
            results(&backward),
            calls(&same),
            results(&same),
            nameless.clone(),
            strangers.clone(),
        ]);
        assert_eq!(repair(&mut history, &Rules::for_dialect(dialect)).unrepaired, []);
    }
}
