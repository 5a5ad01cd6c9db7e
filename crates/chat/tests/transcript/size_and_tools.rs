//! The size of a request and its declared tools: S14 and S15.

use steadfast_chat::{
    ChatRequest, Tool, ToolChoice,
    transcript::{Position, TokenCount, TranscriptRule::Size, repair},
};
use steadfast_core::{
    Dialect::{Anthropic, Gemini, OpenAi},
    Reason,
};

use crate::support::{messages, refused, repaired, request, rules, unchanged};

#[test]
fn s14_size_is_reported_and_not_repaired() {
    for (dialect, window, enough, text) in [
        (Anthropic, 999, 1_500, "prompt is too long: 1000 tokens > 999 maximum"),
        (Anthropic, 1_499, 1_500, "exceed context limit: 1000 + 500 > 1499"),
        (
            OpenAi,
            999,
            1_000,
            "maximum context length is 999 tokens. However, your messages resulted in 1000 tokens",
        ),
        (
            Gemini,
            999,
            1_000,
            "The input token count (1000) exceeds the maximum number of tokens allowed (999)",
        ),
    ] {
        let mut rules = rules(dialect);
        rules.window = Some(window);
        let mut history = request(messages(dialect, "user x")).with_max_output(500);
        unchanged("nothing counts the tokens", &history, &rules);
        rules.count = Some(TokenCount::new(|_| 1_000));
        let repairs = repair(&mut history, &rules);
        assert_eq!(repairs.done, [], "{text}");
        assert_eq!(repairs.unrepaired.len(), 1, "{text}");
        assert!(repairs.unrepaired[0].message.contains(text), "{repairs:?}");
        let failure = refused(&history, &rules).into_failure();
        assert_eq!(failure.reason(), Reason::ContextOverflow, "{text}");

        rules.window = Some(enough);
        unchanged(text, &history, &rules);
        rules.reserve = 1;
        assert_eq!(refused(&history, &rules)[0].rule, Size, "{text}");
    }
}

#[test]
fn s15_a_conversation_with_calls_declares_tools() {
    let history = |dialect| {
        ChatRequest::new(messages(
            dialect,
            "user x / model call:a / user result:a=done / user sum up",
        ))
    };
    for dialect in [OpenAi, Gemini] {
        unchanged("not required", &history(dialect), &rules(dialect));
    }
    let before = history(Anthropic);
    let found = refused(&before, &rules(Anthropic));
    assert_eq!((found.len(), found[0].at), (1, Position::Request));
    assert!(found[0].message.contains("must define tools"));
    let after = repaired(&before, &rules(Anthropic));
    assert!(after.messages.same(&before.messages));
    assert_eq!(after.tools.iter().map(Tool::name).collect::<Vec<_>>(), [Some("tool")]);
    assert_eq!(after.params.tool_choice, Some(ToolChoice::None), "the caller runs no call");
    unchanged("declared", &after, &rules(Anthropic));
}
