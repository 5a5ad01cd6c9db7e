//! Thinking that an edit unbinds.

use steadfast_chat::{
    ChatRequest, Message, Part, ThinkingConfig,
    transcript::{
        TranscriptRules, keep_thinking, open_loop, repair, unbind, unbind_edited, validate,
    },
};
use steadfast_core::Dialect;

use crate::support::{mark, messages, repaired, request, rules};

const HISTORY: &str = "user 1 / model think:a + one / user 2 / model think:b + two / user 3 / \
                       model think:c + call:x / user result:x / model think:d + call:y / \
                       user result:y";

fn history(notation: &str) -> ChatRequest {
    let mut request = request(messages(Dialect::Anthropic, notation));
    request.params.thinking = Some(ThinkingConfig::Budget(2_000));
    request
}

fn thoughts(request: &ChatRequest) -> String {
    let parts = request.messages.iter().flat_map(Message::parts);
    let of = |part: &Part| match part {
        Part::Thinking(thinking) => Some(thinking.text.clone()),
        Part::Redacted { data } => Some(data.clone()),
        _ => None,
    };
    parts.filter_map(of).collect()
}

fn thinks(request: &ChatRequest) -> bool {
    request.params.thinking.is_some()
}

#[test]
fn an_edit_unbinds_what_is_behind_it_and_an_open_loop_goes_whole() {
    let rules = rules(Dialect::Anthropic);
    // The message that is edited; the thinking that is left, and whether the model thinks.
    for (edited, left, is_thinking) in [
        (0, "", false),
        (1, "", false),
        (2, "a", false),
        (4, "ab", false),
        (6, "ab", false),
        (8, "abcd", true),
    ] {
        let mut request = history(HISTORY);
        let before = request.messages.clone();
        let more = Part::text("an edit");
        request.messages.make_mut()[edited].parts_mut().push(more);
        let dropped = unbind_edited(&mut request, &rules, &before);
        assert_eq!(
            (thoughts(&request).as_str(), dropped),
            (left, 4 - left.len()),
            "message {edited}"
        );
        assert_eq!(thinks(&request), is_thinking, "message {edited}");
        assert!(
            validate(&request, &rules).is_ok(),
            "message {edited}: {:?}",
            validate(&request, &rules)
        );
        let after = request.clone();
        assert_eq!(unbind(&mut request, &rules, edited + 1..9), 0, "message {edited}");
        assert!(request.messages.same(&after.messages), "not even copied");
    }
}

#[test]
fn an_edited_message_of_the_model_loses_its_own_thinking_too() {
    // What is changed may be in front of it.
    let mut request = history(HISTORY);
    let before = request.messages.clone();
    request.messages.make_mut()[3].parts_mut().push(Part::text("more"));
    unbind_edited(&mut request, &rules(Dialect::Anthropic), &before);
    assert_eq!(thoughts(&request), "a");
}

#[test]
fn what_is_no_edit_unbinds_nothing() {
    let rules = rules(Dialect::Anthropic);
    let before = history(HISTORY).messages;
    let unchanged = |change: &dyn Fn(&mut Vec<Message>), what: &str| {
        let mut request = history(HISTORY);
        change(request.messages.make_mut());
        let sent = request.clone();
        assert_eq!(unbind_edited(&mut request, &rules, &before), 0, "{what}");
        assert!(request.messages.same(&sent.messages) && thinks(&request), "{what}");
    };
    unchanged(&|_| {}, "nothing");
    unchanged(&|list| list.push(Message::user("go on")), "a message at the end");
    unchanged(&|list| list.truncate(6), "the end is gone");
    unchanged(
        &|list| {
            let Part::Text(text) = &mut list[2].parts_mut()[0] else { panic!() };
            text.extra = mark(None);
        },
        "a cache mark",
    );
    unchanged(&|list| list[2].parts_mut().push(Part::text(" ")), "blank text, which is never sent");
    unchanged(&|list| drop(list[1].parts_mut().remove(0)), "the first thinking, which was dropped");
}

#[test]
fn only_signed_thinking_is_bound() {
    for dialect in [Dialect::OpenAi, Dialect::Gemini] {
        let mut request = request(messages(dialect, "user 1 / model unsigned:a + one / user 2"));
        let before = request.clone();
        assert_eq!(unbind(&mut request, &TranscriptRules::for_dialect(dialect), 0..9), 0);
        assert!(request.messages.same(&before.messages), "{dialect}");
    }
}

#[test]
fn a_message_that_only_thought_is_removed() {
    let mut request = history("user 1 / model think:a / user 2");
    assert_eq!(unbind(&mut request, &rules(Dialect::Anthropic), 0..3), 1);
    assert_eq!(request.messages.len(), 2);
}

#[test]
fn the_open_loop_is_what_the_model_goes_on_from() {
    let rules = rules(Dialect::Anthropic);
    for (notation, open) in [
        (HISTORY, 5..9),
        ("user 1 / model think:a + one / user 2", 0..0),
        ("user 1 / model call:x / user result:x", 1..3),
        ("user 1 / model call:x / user result:x + also / model call:y / user result:y", 1..5),
        ("user 1", 0..0),
    ] {
        assert_eq!(open_loop(&history(notation), &rules), open, "{notation}");
    }
}

#[test]
fn thinking_that_was_turned_off_for_a_loop_is_on_again_when_the_loop_has_it() {
    let rules = rules(Dialect::Anthropic);
    let mut request = history(HISTORY);
    keep_thinking(&mut request, &rules, |message, _| message < 5);
    assert!(!thinks(&request) && thoughts(&request) == "ab");
    request.messages = history(HISTORY).messages;
    assert_eq!(keep_thinking(&mut request, &rules, |_, _| true), 0);
    assert_eq!(*request.params, *history(HISTORY).params, "as it was");
    // What the caller has turned off stays off.
    let mut off = history(HISTORY);
    off.params.thinking = None;
    keep_thinking(&mut off, &rules, |_, _| true);
    assert!(!thinks(&off));
}

#[test]
fn a_repair_unbinds_what_is_behind_its_own_edits() {
    let rules = rules(Dialect::Anthropic);
    let broken = history(
        "user 1 / model think:a + one / user 2 / model think:b + call:x / user stop / \
         model think:c + three / user 4",
    );
    let fixed = repaired(&broken, &rules);
    assert_eq!(thoughts(&fixed), "ab", "a failed result is new in front of the rest");
    // Tools are in front of everything.
    let mut undeclared = history(HISTORY);
    undeclared.tools = Vec::new().into();
    let _ = repair(&mut undeclared, &rules);
    assert_eq!(thoughts(&undeclared), "");
    // What is appended is not.
    let ends =
        repaired(&history("user 1 / model think:a + one / user 2 / model think:b + two"), &rules);
    assert_eq!(thoughts(&ends), "ab");
}
