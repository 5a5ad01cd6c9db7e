//! The first and the last message, and empty content: S1, S9 and S10.

use steadfast_chat::{
    Message, Part, RawJson, Role,
    transcript::{
        TranscriptRule::{Empty, FirstMessage, Tail, Thinking},
        repair,
    },
};
use steadfast_core::Dialect::{self, Anthropic, Gemini};

use crate::support::{
    ANTHROPIC, CASE, Case, GEMINI, OPENAI, check, messages, refused, repaired, request, rules,
    thinking, unchanged,
};

#[test]
fn s1_the_user_opens() {
    check(&[
        Case {
            name: "the model opens",
            dialects: &[Anthropic, Gemini],
            before: "system s / model hello / user hi",
            refused: &[(
                FirstMessage,
                ["first message must use the \"user\" role", "", "immediately after a user turn"],
            )],
            after: "system s / user [The beginning of this conversation is not included.] / \
                    model hello / user hi",
            ..CASE
        },
        Case {
            name: "only instructions",
            dialects: &[Anthropic, Gemini],
            before: "system s",
            refused: &[(FirstMessage, ["at least one message", "", "contents is not specified"])],
            after: "system s / user Begin.",
            ..CASE
        },
        Case { name: "the model opens", before: "system s / model hello / user hi", ..OPENAI },
        Case { name: "only instructions", before: "system s", ..OPENAI },
    ]);
}

#[test]
fn s1_an_empty_conversation_can_not_be_repaired() {
    for dialect in Dialect::ALL {
        let mut empty = request(vec![]);
        let repairs = repair(&mut empty, &rules(dialect));
        assert_eq!(repairs.done, [], "{dialect:?}");
        assert_eq!(repairs.unrepaired[0].rule, FirstMessage, "{dialect:?}");
        assert_eq!(repairs, repair(&mut empty, &rules(dialect)), "{dialect:?}");

        // So is white space, where the provider says so.
        let mut blank = request(messages(dialect, "user  \n"));
        let repairs = repair(&mut blank, &rules(dialect));
        assert_eq!(repairs.unrepaired.is_empty(), dialect != Anthropic, "{dialect:?}");
    }
}

#[test]
fn s9_nothing_is_empty() {
    const BLANK: &str = "must contain non-whitespace text";
    check(&[
        Case {
            name: "blank texts and empty messages",
            before: "system text:  / user text: + go / model text: \n + call:a / \
                     user result:a=\t / model / user \u{2003} / user x",
            refused: &[
                (Empty, [BLANK; 3]),
                (Empty, ["text content blocks must be non-empty"; 3]),
                (Empty, [BLANK; 3]),
                (Empty, [BLANK; 3]),
                (Empty, ["messages.4: all messages must have non-empty content"; 3]),
                (Empty, [BLANK; 3]),
            ],
            after: "user go / model call:a / user empty_result:a / user x",
            ..ANTHROPIC
        },
        Case {
            name: "a result that is an empty string",
            dialects: &[Anthropic, Gemini],
            before: "user x / model call:a / user result:a=",
            ..CASE
        },
        Case {
            name: "a result without content",
            before: "user text: / model call:a / tool empty_result:a",
            refused: &[(Empty, ["output of a tool must not be empty"; 3])],
            after: "user text: / model call:a / tool result:a=(no output)",
            ..OPENAI
        },
        Case {
            name: "a result with an empty text",
            before: "user text: / model call:a / tool result:a=",
            refused: &[(Empty, ["output of a tool must not be empty"; 3])],
            after: "user text: / model call:a / tool result:a=(no output)",
            ..OPENAI
        },
        Case {
            name: "an empty message",
            before: "user / user x",
            refused: &[(Empty, ["Invalid 'messages[0].content': empty array"; 3])],
            after: "user x",
            ..OPENAI
        },
        Case {
            name: "a blank result",
            before: "user x / model call:a / tool result:a=\n",
            ..OPENAI
        },
    ]);
}

#[test]
fn s9_an_empty_string_is_no_empty_block() {
    for (content, is_valid) in [(r#""""#, true), (r#"[{"type":"text","text":""}]"#, false)] {
        let text = format!(
            r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","content":{content},"is_error":false}}]}}"#
        );
        let (parts, raw) = (vec![Part::tool_result("a", "")], RawJson::parse(&text).unwrap());
        let mut list = messages(Anthropic, "user x / model call:a");
        list.push(Message::from_wire(Anthropic, Role::User, parts, None, raw));
        let (request, rules) = (request(list), rules(Anthropic));
        if is_valid {
            unchanged(content, &request, &rules);
        } else {
            assert_eq!(refused(&request, &rules)[0].rule, Empty, "{content}");
            let left = repaired(&request, &rules);
            assert!(left.messages[2].tool_results().next().unwrap().content.is_empty());
        }
    }
}

#[test]
fn s9_an_empty_text_with_a_signature_is_not_empty_for_gemini() {
    check(&[
        Case { name: "a signature", before: "user x / model signature:sig / user  ", ..GEMINI },
        Case {
            name: "an empty text beside it",
            before: "user x / model text: + signature:sig / user / user y",
            refused: &[
                (Empty, ["empty text parameter"; 3]),
                (Empty, ["contents.parts must not be empty"; 3]),
            ],
            after: "user x / model signature:sig / user y",
            ..GEMINI
        },
        Case {
            name: "an empty signature is none",
            before: "user x / model signature: + a / user y",
            refused: &[(Empty, ["empty text parameter"; 3])],
            after: "user x / model a / user y",
            ..GEMINI
        },
        Case {
            name: "another model's signature is removed, and the text with it",
            setup: |rules, _| rules.foreign_history = true,
            before: "user x / model signature:sig + a / user y",
            refused: &[
                (Empty, ["empty text parameter"; 3]),
                (Thinking, ["Thought signature is not valid"; 3]),
            ],
            after: "user x / model a / user y",
            ..GEMINI
        },
    ]);
}

#[test]
fn s10_the_last_message_is_the_users() {
    check(&[
        Case {
            name: "the model's",
            dialects: &[Anthropic, Gemini],
            before: "user x / model well,\x20",
            refused: &[(
                Tail,
                [
                    "This model does not support assistant message prefill",
                    "",
                    "multiturn requests ends with a user role or a function response",
                ],
            )],
            after: "user x / model well,\x20 / user Continue.",
            ..CASE
        },
        Case {
            name: "a result",
            dialects: &[Anthropic, Gemini],
            before: "user x / model call:a / user result:a",
            ..CASE
        },
        Case { name: "the model's", before: "user x / model well,\x20", ..OPENAI },
        Case {
            name: "a paused turn with a server tool's call",
            before: "user x / model searching + server_call:s1",
            ..ANTHROPIC
        },
    ]);
}

#[test]
fn s10_a_prefill_has_no_thinking_and_no_white_space_at_its_end() {
    const PREFILL: Case = Case { setup: |rules, _| rules.prefill = true, ..ANTHROPIC };
    check(&[
        Case { name: "a text", before: "user x / model well,", ..PREFILL },
        Case { name: "empty", before: "user x / model", ..PREFILL },
        Case {
            name: "white space at the end",
            before: "user x / model well, \n",
            refused: &[(Tail, ["cannot end with trailing whitespace"; 3])],
            after: "user x / model well,",
            ..PREFILL
        },
        Case {
            name: "a model that thinks",
            setup: |rules, request| {
                rules.prefill = true;
                thinking(rules, request);
            },
            before: "user x / model well,\x20",
            refused: &[(Tail, ["not supported when thinking is enabled"; 3])],
            after: "user x / model well,\x20 / user Continue.",
            ..ANTHROPIC
        },
        Case {
            name: "thinking of a model that is to continue without",
            before: "user x / model think:hm + well",
            refused: &[(
                Thinking,
                ["When thinking is disabled, an `assistant` message in the final position"; 3],
            )],
            after: "user x / model well",
            ..PREFILL
        },
    ]);
}
