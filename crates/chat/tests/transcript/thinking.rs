//! Thinking and signatures: S11.

use steadfast_chat::transcript::{TranscriptRule::Thinking, TranscriptRules};
use steadfast_core::{
    Dialect::{Anthropic, Gemini, OpenAi},
    Profile, Target,
};

use crate::support::{ANTHROPIC, CASE, Case, ErrorText, GEMINI, check, thinking};

/// A model that is asked to think.
const THINKS: Case = Case { setup: thinking, ..ANTHROPIC };

const MISSING: ErrorText = ["messages.1.content.0.type: Expected `thinking` or \
                             `redacted_thinking`, but found `text`"; 3];

#[test]
fn s11_valid_thinking_is_not_changed() {
    const PAST_LOOP: &str = "user go / model think:hm + redacted:x + so + think: + call:a / \
                             user result:a / model call:b / user result:b / model done / \
                             user more / model think:ah + call:c / user result:c";
    check(&[
        Case {
            name: "later steps of a loop have no thinking without interleaving",
            before: "user go / model think:hm + redacted:x + so + think: + call:a / \
                     user result:a / model call:b / user result:b",
            ..THINKS
        },
        Case { name: "of a past loop", before: PAST_LOOP, ..THINKS },
        Case { name: "of a past loop, turned off", before: PAST_LOOP, ..ANTHROPIC },
        Case {
            name: "other vendors do not sign",
            dialects: &[OpenAi, Gemini],
            before: "user x / model unsigned:hm + so / user y",
            ..CASE
        },
    ]);
}

#[test]
fn s11_invalid_thinking_is_removed() {
    const LATE: ErrorText = ["the first block must be `thinking` or `redacted_thinking`"; 3];
    check(&[
        Case {
            name: "unsigned: with all of its loop and no other",
            before: "user 1 / model think:past + first / user 2 / model think:hm + call:a / \
                     user result:a / model unsigned:ah + second / user 3",
            refused: &[(Thinking, ["messages.5.content.0.thinking.signature: Field required"; 3])],
            after: "user 1 / model think:past + first / user 2 / model call:a / user result:a / \
                    model second / user 3",
            ..ANTHROPIC
        },
        Case {
            name: "after a text",
            before: "user x / model so + think:hm + yes / user y",
            refused: &[(Thinking, LATE)],
            after: "user x / model so + yes / user y",
            ..ANTHROPIC
        },
        Case {
            name: "after a text in a message that the encoder joins",
            before: "user x / model so / system s / model think:hm + yes / user y",
            refused: &[(Thinking, LATE)],
            after: "user x / model so / system s / model yes / user y",
            ..ANTHROPIC
        },
        Case {
            name: "that nothing follows: without the rest of its loop",
            dialects: &[Anthropic, OpenAi, Gemini],
            before: "user go / model think:hm + call:a / user result:a / model think:cut off / \
                     user more",
            refused: &[(
                Thinking,
                [
                    "The final block in an assistant message cannot be `thinking`",
                    "of type 'reasoning' was provided without its required following item",
                    "contents.parts must not be empty",
                ],
            )],
            after: "user go / model think:hm + call:a / user result:a / user more",
            ..THINKS
        },
        Case {
            name: "in the user's message",
            before: "user think:hm + x",
            refused: &[(
                Thinking,
                [
                    "`thinking` blocks can only be in `assistant` messages",
                    "reasoning is only allowed in messages of the model",
                    "reasoning is only allowed in messages of the model",
                ],
            )],
            after: "user x",
            ..CASE
        },
    ]);
}

#[test]
fn s11_thinking_is_turned_off_for_an_open_loop_without_thinking() {
    check(&[
        Case {
            name: "a loop that begins with a text",
            before: "user go / model so + call:a / user result:a",
            refused: &[(Thinking, MISSING)],
            after: "user go / model so + call:a / user result:a",
            thinking_off: true,
            ..THINKS
        },
        Case {
            name: "a text of the user after the results leaves it open",
            before: "user go / model so + call:a / user result:a / user next",
            refused: &[(Thinking, MISSING)],
            after: "user go / model so + call:a / user result:a / user next",
            thinking_off: true,
            ..THINKS
        },
        Case {
            name: "unsigned thinking is removed, so the loop has none",
            before: "user go / model unsigned:hm + call:a / user result:a",
            refused: &[(Thinking, ["signature: Field required"; 3])],
            after: "user go / model call:a / user result:a",
            thinking_off: true,
            ..THINKS
        },
        Case {
            name: "a loop that is over",
            before: "user go / model so + call:a / user result:a / model done / user next",
            ..THINKS
        },
        Case {
            name: "a model that does not think",
            before: "user go / model so + call:a / user result:a",
            ..ANTHROPIC
        },
    ]);
}

#[test]
fn s11_thinking_of_another_model_is_removed() {
    const FOREIGN: Case = Case {
        setup: |rules, request| {
            let mut target = Profile::new(Target::new("p"));
            target.foreign_history = true;
            *rules = TranscriptRules::for_profile(rules.dialect, &target);
            thinking(rules, request);
        },
        before: "user go / model think:hm + call:a / user result:a",
        refused: &[(
            Thinking,
            [
                "Invalid `signature` in `thinking` block",
                "reasoning of another model",
                "Thought signature is not valid",
            ],
        )],
        after: "user go / model call:a / user result:a",
        ..CASE
    };
    check(&[
        Case { name: "thinking goes on", dialects: &[OpenAi, Gemini], ..FOREIGN },
        Case {
            name: "the open loop has none",
            dialects: &[Anthropic],
            thinking_off: true,
            ..FOREIGN
        },
    ]);
}

#[test]
fn s11_gemini_signs_the_first_call_of_each_step_of_the_current_turn() {
    const UNSIGNED: &str = "user 1 / model call:a / user result:a / user 2 / \
                            model call:b@sig + call:c / user result:b + result:c / \
                            model now + call:d / user result:d";
    const SIGNED: &str = "user 1 / model call:a / user result:a / user 2 / \
                          model call:b@sig + call:c / user result:b + result:c / \
                          model now + call:d@sig / user result:d";
    const SIGNS: Case = Case { setup: |rules, _| rules.signed_calls = true, ..GEMINI };
    check(&[
        Case { name: "a model that does not sign", before: UNSIGNED, ..GEMINI },
        Case { name: "signed", before: SIGNED, ..SIGNS },
        Case {
            name: "unsigned",
            before: UNSIGNED,
            refused: &[(
                Thinking,
                ["function call `tool` in the 6. content block is missing a `thought_signature`";
                    3],
            )],
            after: "user 1 / model call:a / user result:a / user 2 / model call:b@sig + call:c / \
                    user result:b + result:c / \
                    model now + call:d@skip_thought_signature_validator / user result:d",
            ..SIGNS
        },
        Case {
            name: "signed by another model",
            setup: |rules, _| {
                rules.signed_calls = true;
                rules.foreign_history = true;
            },
            before: "user 1 / model call:a / user result:a / user 2 / \
                     model call:b@sig + call:c / user result:b + result:c / \
                     model now + call:d@theirs / user result:d",
            refused: &[
                (Thinking, ["contents[4].parts[0]: Thought signature is not valid"; 3]),
                (Thinking, ["contents[6].parts[1]: Thought signature is not valid"; 3]),
            ],
            after: "user 1 / model call:a / user result:a / user 2 / \
                    model call:b@skip_thought_signature_validator + call:c / \
                    user result:b + result:c / \
                    model now + call:d@skip_thought_signature_validator / user result:d",
            ..GEMINI
        },
    ]);
}
