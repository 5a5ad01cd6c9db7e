//! Calls and their results: S3 to S7.

use steadfast_chat::{
    Message, Part, Role, ToolResult,
    transcript::TranscriptRule::{self, Answered, Batch, Duplicate, Orphan},
};
use steadfast_core::Dialect::{self, Anthropic, Gemini, OpenAi};

use crate::support::{
    ANTHROPIC, CASE, Case, ErrorText, GEMINI, OPENAI, check, repaired, request, rules,
};

/// The call `b` has no result.
const UNANSWERED: ErrorText = [
    "`tool_use` ids were found without `tool_result` blocks immediately after: b",
    "must be followed by tool messages responding to each 'tool_call_id'. The following \
     tool_call_ids did not have response messages: b",
    "number of function response parts is equal to the number of function",
];

/// The result `x` has no call.
const ORPHAN: ErrorText = [
    "unexpected `tool_use_id` found in `tool_result` blocks: x. Each",
    "messages with role 'tool' must be a response",
    "function response turn comes immediately after a function call turn",
];

/// A result is in the wrong turn.
const MOVED: ErrorText = [
    "unexpected `tool_use_id`",
    "messages with role 'tool' must be a response",
    "immediately after a function call turn",
];

#[test]
fn valid_pairs_are_not_changed() {
    check(&[
        Case {
            name: "a message for each result",
            before: "user go / model call:a + call:b / tool result:a / tool result:b / model done \
                     / user thanks",
            ..CASE
        },
        Case {
            name: "one message for both results",
            before: "user go / model call:a + call:b / user result:a + result:b",
            ..CASE
        },
        Case {
            name: "two messages of the user",
            before: "user go / model call:a + call:b / user result:a / user result:b / user and",
            ..CASE
        },
        Case {
            name: "neighbours of one role, which the encoder joins (S2)",
            before: "user one / user two / model yes / model no / user three",
            ..CASE
        },
        Case {
            name: "instructions after the results",
            before: "system s / user go / model well / model call:a / tool result:a / system s / \
                     user x",
            ..CASE
        },
        Case {
            name: "results in another order",
            dialects: &[Anthropic, OpenAi],
            before: "user go / model call:a + call:b / user result:b + result:a",
            ..CASE
        },
        Case {
            name: "a batch in two messages that the encoder joins",
            dialects: &[Anthropic, Gemini],
            before: "user go / model call:a / model call:b / user result:a + result:b",
            ..CASE
        },
    ]);
}

#[test]
fn s3_an_unanswered_call_gets_a_failed_result() {
    check(&[
        Case {
            name: "before the user's next message",
            before: "user go / model call:b / user stop",
            refused: &[(Answered, UNANSWERED)],
            after: "user go / model call:b / inserted failed:b / user stop",
            ..CASE
        },
        Case {
            name: "at the end",
            before: "user go / model call:b",
            refused: &[(Answered, UNANSWERED)],
            after: "user go / model call:b / inserted failed:b",
            ..CASE
        },
        Case {
            name: "half of a batch (S7)",
            before: "user go / model call:a + call:b / tool result:a / user next",
            refused: &[(Answered, UNANSWERED)],
            after: "user go / model call:a + call:b / tool result:a / inserted failed:b / user next",
            ..CASE
        },
        Case {
            name: "in the order of the calls",
            before: "user go / model call:b + call:a + call:c / user result:a + result:c / \
                     user next",
            refused: &[(Answered, UNANSWERED)],
            after: "user go / model call:b + call:a + call:c / user failed:b / \
                    user result:a + result:c / user next",
            ..GEMINI
        },
        Case {
            name: "before a text in the message of the results",
            before: "user go / model call:a + call:b / user result:a + next",
            refused: &[(Answered, UNANSWERED)],
            after: "user go / model call:a + call:b / user result:a / user failed:b / user next",
            ..ANTHROPIC
        },
        Case {
            name: "a message for each result",
            before: "user go / model call:b + call:c / user next",
            refused: &[
                (Answered, UNANSWERED),
                (Answered, ["did not have response messages: c"; 3]),
            ],
            after: "user go / model call:b + call:c / tool failed:b / tool failed:c / user next",
            ..OPENAI
        },
    ]);
}

#[test]
fn s4_an_orphan_is_removed_and_the_text_beside_it_stays() {
    check(&[
        Case {
            name: "alone in its message",
            before: "user go / model ok / tool result:x / user next",
            refused: &[(Orphan, ORPHAN)],
            after: "user go / model ok / user next",
            ..CASE
        },
        Case {
            name: "beside a text",
            before: "user go / model ok / user result:x + mine",
            refused: &[(Orphan, ORPHAN)],
            after: "user go / model ok / user mine",
            ..CASE
        },
        Case {
            name: "at the beginning: compaction removed its call",
            before: "tool result:x / user go",
            refused: &[(Orphan, ORPHAN)],
            after: "user go",
            ..CASE
        },
        Case {
            name: "beside a result with a call",
            before: "user go / model call:a / user result:a + result:x",
            refused: &[(Orphan, ORPHAN)],
            after: "user go / model call:a / user result:a",
            ..CASE
        },
    ]);
}

#[test]
fn s4_parts_in_messages_of_the_wrong_role() {
    check(&[
        Case {
            name: "a result in the model's message is moved to the reply",
            before: "user go / model call:b + result:b / user x",
            refused: &[
                (Answered, UNANSWERED),
                (Orphan, ["`tool_result` blocks can only be in `user` messages"; 3]),
            ],
            after: "user go / model call:b / user result:b / user x",
            ..ANTHROPIC
        },
        Case {
            name: "a tool's message with a text becomes the user's",
            before: "user go / model call:a / tool result:a / tool words",
            refused: &[(Orphan, ["holds results and nothing else"; 3])],
            after: "user go / model call:a / tool result:a / user words",
            ..OPENAI
        },
        Case {
            name: "a call in the user's message is removed with its result",
            before: "user go + call:a / model no / user result:a / user x",
            refused: &[
                (Answered, ["`tool_use` blocks can only be in `assistant` messages"; 3]),
                (Orphan, ["unexpected `tool_use_id`"; 3]),
            ],
            after: "user go / model no / user x",
            ..ANTHROPIC
        },
    ]);
}

#[test]
fn s5_the_first_result_is_kept() {
    const SECOND: ErrorText = [
        "each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
        ORPHAN[1],
        UNANSWERED[2],
    ];
    check(&[
        Case {
            name: "in messages",
            before: "user go / model call:a / tool result:a / tool result:a=another answer / user x",
            refused: &[(Duplicate, SECOND)],
            after: "user go / model call:a / tool result:a / user x",
            ..CASE
        },
        Case {
            name: "in one message",
            before: "user go / model call:a / user result:a + result:a=another answer + x",
            refused: &[(Duplicate, SECOND)],
            after: "user go / model call:a / user result:a + x",
            ..CASE
        },
    ]);
}

#[test]
fn s6_results_come_first() {
    check(&[
        Case {
            name: "before a text in their message",
            dialects: &[Anthropic, OpenAi],
            before: "user go / model call:b / user x + result:b",
            refused: &[(TranscriptRule::Order, UNANSWERED)],
            after: "user go / model call:b / user result:b + x",
            ..CASE
        },
        Case {
            name: "before other messages",
            dialects: &[Anthropic, OpenAi],
            before: "user go / model call:a + call:b / tool result:a / user x / tool result:b / \
                     user y",
            refused: &[(TranscriptRule::Order, UNANSWERED)],
            after: "user go / model call:a + call:b / tool result:a / tool result:b / user x / \
                    user y",
            ..CASE
        },
        Case {
            name: "before instructions",
            dialects: &[Anthropic, OpenAi],
            before: "user go / model call:b / system be brief / tool result:b",
            refused: &[(TranscriptRule::Order, UNANSWERED)],
            after: "user go / model call:b / tool result:b / system be brief",
            ..CASE
        },
        Case {
            name: "in any order",
            before: "user go / model call:b / user x / user result:b",
            ..GEMINI
        },
    ]);
}

#[test]
fn s6_gemini_requires_the_order_of_the_calls() {
    const ORDER: (TranscriptRule, ErrorText) =
        (TranscriptRule::Order, ["order of the function calls"; 3]);
    check(&[
        Case {
            name: "in one message",
            before: "user go / model call:a + call:b / user result:b + result:a / user x",
            refused: &[ORDER],
            after: "user go / model call:a + call:b / user result:a + result:b / user x",
            ..GEMINI
        },
        Case {
            name: "in messages",
            before: "user go / model call:a + call:b + call:c / tool result:c / tool result:a / \
                     tool result:b",
            refused: &[ORDER],
            after: "user go / model call:a + call:b + call:c / tool result:a / tool result:b / \
                    tool result:c",
            ..GEMINI
        },
    ]);
}

#[test]
fn s7_a_result_in_another_turn_is_moved_to_its_call() {
    check(&[
        Case {
            name: "a message of its own",
            before: "user go / model call:a + call:b / tool result:a / model wait / tool result:b \
                     / user x",
            refused: &[(Answered, UNANSWERED), (Batch, MOVED)],
            after: "user go / model call:a + call:b / tool result:a / tool result:b / model wait / \
                    user x",
            ..CASE
        },
        Case {
            name: "beside a text",
            before: "user go / model call:b / user hm / model wait / user result:b + x",
            refused: &[(Answered, UNANSWERED), (Batch, MOVED)],
            after: "user go / model call:b / inserted result:b / user hm / model wait / user x",
            ..CASE
        },
        Case {
            name: "before its call",
            before: "user go / tool result:b / model call:b / user x",
            refused: &[(Orphan, MOVED), (Answered, UNANSWERED)],
            after: "user go / model call:b / tool result:b / user x",
            ..CASE
        },
        Case {
            name: "a batch in two messages that the encoder does not join",
            before: "user go / model call:b / model call:c / tool result:b / tool result:c",
            refused: &[(Answered, UNANSWERED), (Batch, MOVED)],
            after: "user go / model call:b / tool result:b / model call:c / tool result:c",
            ..OPENAI
        },
    ]);
}

#[test]
fn s7_ids_that_are_used_again_in_each_turn_are_not_mixed_up() {
    check(&[
        Case {
            name: "local models count their calls from 0 in each turn",
            before: "user go / model call:call_0 / tool result:call_0 / model call:call_0 / \
                     tool result:call_0=second / user x",
            ..OPENAI
        },
        Case {
            name: "a second result is not moved to another call of the same id",
            before: "user go / model call:call_0 / user again / model call:call_0 / \
                     tool result:call_0 / tool result:call_0=second",
            refused: &[
                (Answered, ["did not have response messages: call_0"; 3]),
                (Duplicate, ORPHAN),
            ],
            after: "user go / model call:call_0 / tool failed:call_0 / user again / \
                    model call:call_0 / tool result:call_0",
            ..OPENAI
        },
    ]);
}

#[test]
fn large_batches_in_the_worst_order_are_repaired_in_linear_time() {
    // Quadratic work would take minutes here.
    let count = 10_000;
    let calls = |id: fn(usize) -> String, name: &str| {
        let call = |n| Part::tool_call(id(n), name, "{}");
        Message::new(Role::Assistant, (0..count).map(call).collect())
    };
    let results = |id: fn(usize) -> String, name: Option<&str>| {
        let result = |n: usize| {
            let content = vec![Part::text(format!("of {}", name.unwrap_or(&id(n))))];
            let name = name.map(str::to_owned);
            Part::ToolResult(ToolResult { id: id(n), name, content, ..ToolResult::default() })
        };
        Message::new(Role::User, (0..count).map(result).collect())
    };
    for dialect in Dialect::ALL {
        let history = request(vec![
            Message::user("go"),
            calls(|n| format!("id{n}"), "tool"),
            results(|n| format!("id{}", 9_999 - n), None),
            calls(|_| "same".into(), "tool"),
            results(|_| "same".into(), None),
            calls(|_| String::new(), "f"),
            results(|_| String::new(), Some("g")),
        ]);
        repaired(&history, &rules(dialect));
    }
}
