//! What a check and a repair report, and what a repair does not touch.

use steadfast_chat::{
    Message, Part, RawJson, Role,
    transcript::{
        Position,
        TranscriptRule::{self, Answered, Duplicate, Orphan},
        repair,
    },
};
use steadfast_core::{
    Dialect::{Anthropic, OpenAi},
    Failover, FaultSide, Reason,
};

use crate::support::{messages, part, refused, repaired, request, rules};

#[test]
fn positions_are_those_before_the_repair() {
    let mut history = request(messages(
        OpenAi,
        "tool result:x / user go / model call:a / user no / model call:b / tool result:b / \
         tool result:b",
    ));
    let repairs = repair(&mut history, &rules(OpenAi));
    let done: Vec<_> = repairs.done.iter().map(|it| (it.rule, it.at)).collect();
    let part = |message, part| Position::Part { message, part };
    assert_eq!(done, [(Orphan, part(0, 0)), (Duplicate, part(6, 0)), (Answered, part(2, 0))]);
    assert_eq!(
        repairs.done[2].to_string(),
        "S3 at messages[2].parts[0]: answered with a failed result"
    );
    assert!(repairs.touched(Orphan) && !repairs.touched(TranscriptRule::Order));
}

#[test]
fn a_repair_keeps_the_wire_text_of_everything_else() {
    let raw =
        |text: &str| RawJson::parse(&format!(r#"{{"role":"user","content":"{text}"}}"#)).unwrap();
    let read = |text: &str| {
        Message::from_wire(OpenAi, Role::User, vec![Part::text(text)], None, raw(text))
    };
    let call = Message::new(Role::Assistant, vec![part(OpenAi, "call:a")]);
    let after = repaired(&request(vec![read("go"), call, read("stop")]), &rules(OpenAi));
    assert_eq!(after.messages[0].raw(OpenAi), Some(&raw("go")));
    assert_eq!(after.messages[3].raw(OpenAi), Some(&raw("stop")));
}

#[test]
fn a_refusal_is_the_callers_fault_and_is_not_failed_over() {
    let history = request(messages(Anthropic, "user x / model call:a"));
    let failure = refused(&history, &rules(Anthropic)).into_failure();
    assert_eq!(failure.reason(), Reason::Format);
    assert_eq!(failure.fault(), FaultSide::Caller);
    assert_eq!(failure.failover(), Failover::Never);
    assert!(
        failure.message().contains("S3 at messages[1].parts[0]: messages.1: `tool_use` ids"),
        "{failure}"
    );
}

#[test]
fn codes_are_the_numbers_of_the_rules() {
    for (index, rule) in TranscriptRule::ALL.into_iter().enumerate() {
        assert_eq!(rule.to_string(), format!("S{}", index + 1));
    }
}
