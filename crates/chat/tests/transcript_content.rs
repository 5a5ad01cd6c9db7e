//! What messages hold, and who speaks first and last: S1, S9 to S16, per dialect.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    reason = "tests"
)]

use std::sync::Arc;

use serde_json::json;
use steadfast_chat::{
    ChatRequest, Extra, Media, MediaKind, MediaSource, Message, Opaque, Part, RawJson, Role, Text,
    Thinking, ThinkingConfig, Tool, ToolCall, ToolChoice, ToolResult,
    transcript::{Place, Rule, Rules, TokenCount, Violations, repair, validate},
};
use steadfast_core::{Dialect, Profile, Reason, Target};

use Dialect::{Anthropic, Gemini, OpenAi};

fn u(text: &str) -> Message {
    Message::user(text)
}

fn a(text: &str) -> Message {
    Message::assistant(text)
}

fn model(parts: Vec<Part>) -> Message {
    Message::new(Role::Assistant, parts)
}

fn user(parts: Vec<Part>) -> Message {
    Message::new(Role::User, parts)
}

fn call(id: &str) -> Part {
    Part::tool_call(id, "tool", "{}")
}

fn result(id: &str) -> Message {
    user(vec![Part::tool_result(id, "done")])
}

fn think(text: &str) -> Part {
    Part::Thinking(Thinking { text: text.into(), signature: Some("sig".into()), extra: None })
}

fn unsigned(text: &str) -> Part {
    Part::Thinking(Thinking { text: text.into(), ..Thinking::default() })
}

fn request(messages: Vec<Message>) -> ChatRequest {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    ChatRequest::new(messages).with_tools(vec![Tool::function("tool", "does it", schema)])
}

fn thinking(messages: Vec<Message>) -> ChatRequest {
    let mut request = request(messages);
    request.params.thinking = Some(ThinkingConfig::Budget(4_000));
    request
}

#[track_caller]
fn refused(request: &ChatRequest, rules: &Rules) -> Violations {
    validate(request, rules).expect_err("it is refused")
}

/// Refused for each of these in turn; repaired to exactly `after`, which then stays as it is.
#[track_caller]
fn mends(
    mut request: ChatRequest,
    rules: &Rules,
    faults: &[(Rule, &str)],
    after: Vec<Message>,
) -> ChatRequest {
    let found = refused(&request, rules);
    assert_eq!(found.len(), faults.len(), "{found:#?}");
    for (violation, (rule, words)) in found.iter().zip(faults) {
        assert_eq!(violation.rule, *rule, "{violation}");
        assert!(violation.message.contains(words), "{violation} does not say `{words}`");
    }
    let repairs = repair(&mut request, rules);
    assert_eq!(&*request.messages, after, "{repairs:#?}");
    assert_eq!(repairs.unrepaired, []);
    let before = request.clone();
    untouched(&mut request, rules);
    assert!(request.messages.same(&before.messages));
    request
}

#[track_caller]
fn untouched(request: &mut ChatRequest, rules: &Rules) {
    let before = request.clone();
    let repairs = repair(request, rules);
    assert!(repairs.is_empty(), "{repairs:#?}");
    assert!(request.messages.same(&before.messages));
    assert!(request.tools.same(&before.tools));
    assert_eq!(request.params, before.params);
}

fn rules(dialect: Dialect) -> Rules {
    Rules::for_dialect(dialect)
}

// S1

#[test]
fn s1_the_user_opens() {
    let opener = u("[The beginning of this conversation is not included.]");
    let history = || vec![Message::system("s"), a("hello"), u("hi")];
    for (dialect, words) in [
        (Anthropic, "first message must use the \"user\" role"),
        (Gemini, "immediately after a user turn"),
    ] {
        mends(
            request(history()),
            &rules(dialect),
            &[(Rule::FirstMessage, words)],
            vec![Message::system("s"), opener.clone(), a("hello"), u("hi")],
        );
        let words =
            if dialect == Gemini { "contents is not specified" } else { "at least one message" };
        mends(
            request(vec![Message::system("s")]),
            &rules(dialect),
            &[(Rule::FirstMessage, words)],
            vec![Message::system("s"), u("Begin.")],
        );
    }
    untouched(&mut request(history()), &rules(OpenAi));
    untouched(&mut request(vec![Message::system("s")]), &rules(OpenAi));
}

#[test]
fn s1_nothing_can_not_be_mended() {
    for dialect in Dialect::ALL {
        let mut nothing = request(vec![]);
        let repairs = repair(&mut nothing, &rules(dialect));
        assert_eq!(repairs.done, []);
        assert_eq!(repairs.unrepaired[0].rule, Rule::FirstMessage);
        assert_eq!(repairs, repair(&mut nothing, &rules(dialect)));

        // White space is nothing as well, where a provider says so.
        let mut blank = request(vec![u(" \n")]);
        let repairs = repair(&mut blank, &rules(dialect));
        assert_eq!(repairs.unrepaired.is_empty(), dialect != Anthropic);
    }
}

// S9

#[test]
fn s9_anthropic_takes_no_blank_text_and_no_empty_message() {
    let nothing =
        ToolResult { id: "a".into(), content: vec![Part::text("\t")], ..ToolResult::default() };
    let emptied = ToolResult { content: vec![], ..nothing.clone() };
    let blank = (Rule::Empty, "must contain non-whitespace text");
    let empty = (Rule::Empty, "text content blocks must be non-empty");
    mends(
        request(vec![
            Message::system(" "),
            user(vec![Part::text(""), Part::text("go")]),
            model(vec![Part::text(" \n"), call("a")]),
            user(vec![Part::ToolResult(nothing)]),
            model(vec![]),
            u("\u{2003}"),
            u("x"),
        ]),
        &rules(Anthropic),
        &[
            blank,
            empty,
            blank,
            blank,
            (Rule::Empty, "messages.4: all messages must have non-empty content"),
            blank,
        ],
        vec![u("go"), model(vec![call("a")]), user(vec![Part::ToolResult(emptied)]), u("x")],
    );
}

#[test]
fn s9_openai_takes_blank_text_but_no_empty_output() {
    let silent = |content| {
        Message::new(
            Role::Tool,
            vec![Part::ToolResult(ToolResult { id: "a".into(), content, ..ToolResult::default() })],
        )
    };
    for content in [vec![], vec![Part::text("")]] {
        mends(
            request(vec![u(""), model(vec![call("a")]), silent(content)]),
            &rules(OpenAi),
            &[(Rule::Empty, "output of a tool must not be empty")],
            vec![u(""), model(vec![call("a")]), silent(vec![Part::text("(no output)")])],
        );
    }
    mends(
        request(vec![user(vec![]), u("x")]),
        &rules(OpenAi),
        &[(Rule::Empty, "Invalid 'messages[0].content': empty array")],
        vec![u("x")],
    );
    untouched(
        &mut request(vec![u("x"), model(vec![call("a")]), silent(vec![Part::text("\n")])]),
        &rules(OpenAi),
    );
}

#[test]
fn s9_gemini_keeps_an_empty_text_that_carries_a_signature() {
    let signed = Part::Text(Text { signature: Some("sig".into()), ..Text::default() });
    untouched(&mut request(vec![u("x"), model(vec![signed.clone()]), u(" ")]), &rules(Gemini));
    mends(
        request(vec![u("x"), model(vec![Part::text(""), signed.clone()]), user(vec![]), u("y")]),
        &rules(Gemini),
        &[(Rule::Empty, "empty text parameter"), (Rule::Empty, "contents.parts must not be empty")],
        vec![u("x"), model(vec![signed]), u("y")],
    );
}

#[test]
fn s9_an_empty_text_is_empty_when_its_signature_is_not_sent() {
    let signed =
        |signature: &str| Part::Text(Text { signature: Some(signature.into()), ..Text::default() });
    let history = |part| request(vec![u("x"), model(vec![part, Part::text("a")]), u("y")]);
    // A signature of no bytes is none.
    mends(
        history(signed("")),
        &rules(Gemini),
        &[(Rule::Empty, "empty text parameter")],
        vec![u("x"), a("a"), u("y")],
    );
    // One of another model is taken away, and the text with it.
    let mut other = rules(Gemini);
    other.foreign_history = true;
    let mut mended = history(signed("sig"));
    assert_eq!(repair(&mut mended, &other).unrepaired, []);
    assert_eq!(&*mended.messages, [u("x"), a("a"), u("y")]);
    untouched(&mut mended, &other);
}

// S10

#[test]
fn s10_the_user_has_the_last_word() {
    for (dialect, words) in [
        (Anthropic, "This model does not support assistant message prefill"),
        (Gemini, "multiturn requests ends with a user role or a function response"),
    ] {
        mends(
            request(vec![u("x"), a("well, ")]),
            &rules(dialect),
            &[(Rule::Tail, words)],
            vec![u("x"), a("well, "), u("Continue.")],
        );
        untouched(&mut request(vec![u("x"), model(vec![call("a")]), result("a")]), &rules(dialect));
    }
    untouched(&mut request(vec![u("x"), a("well, ")]), &rules(OpenAi));
}

#[test]
fn s10_a_prefill_ends_in_no_white_space_and_comes_without_thinking() {
    let mut old = rules(Anthropic);
    old.prefill = true;
    untouched(&mut request(vec![u("x"), a("well,")]), &old);
    untouched(&mut request(vec![u("x"), model(vec![])]), &old);
    mends(
        request(vec![u("x"), a("well, \n")]),
        &old,
        &[(Rule::Tail, "cannot end with trailing whitespace")],
        vec![u("x"), a("well,")],
    );
    mends(
        thinking(vec![u("x"), a("well, ")]),
        &old,
        &[(Rule::Tail, "not supported when thinking is enabled")],
        vec![u("x"), a("well, "), u("Continue.")],
    );
    // Thinking in the last word of a model that is to continue without.
    mends(
        request(vec![u("x"), model(vec![think("hm"), Part::text("well")])]),
        &old,
        &[(
            Rule::Thinking,
            "When thinking is disabled, an `assistant` message in the final position",
        )],
        vec![u("x"), a("well")],
    );
}

#[test]
fn s10_a_paused_turn_is_sent_back_as_it_is() {
    let paused = model(vec![Part::text("searching"), server_call("s1")]);
    untouched(&mut request(vec![u("x"), paused]), &rules(Anthropic));
}

// S11

#[test]
fn s11_valid_thinking_passes_untouched() {
    let redacted = Part::Redacted { data: "x".into() };
    let steps = || {
        vec![
            u("go"),
            model(vec![think("hm"), redacted.clone(), Part::text("so"), think(""), call("a")]),
            result("a"),
            // Without interleaving, later steps of a loop come without thinking.
            model(vec![call("b")]),
            result("b"),
        ]
    };
    untouched(&mut thinking(steps()), &rules(Anthropic));
    // Thinking of past loops may stay, and may have gone.
    let mut longer = steps();
    longer.extend([a("done"), u("more"), model(vec![think("ah"), call("c")]), result("c")]);
    untouched(&mut thinking(longer.clone()), &rules(Anthropic));
    untouched(&mut request(longer), &rules(Anthropic));
    // Other vendors do not sign.
    let plain = vec![u("x"), model(vec![unsigned("hm"), Part::text("so")]), u("y")];
    untouched(&mut request(plain.clone()), &rules(OpenAi));
    untouched(&mut request(plain), &rules(Gemini));
}

#[test]
fn s11_unsigned_thinking_goes_with_all_of_its_loop_and_no_other() {
    let kept = || model(vec![think("past"), Part::text("first")]);
    mends(
        request(vec![
            u("1"),
            kept(),
            u("2"),
            model(vec![think("hm"), call("a")]),
            result("a"),
            model(vec![unsigned("ah"), Part::text("second")]),
            u("3"),
        ]),
        &rules(Anthropic),
        &[(Rule::Thinking, "messages.5.content.0.thinking.signature: Field required")],
        vec![u("1"), kept(), u("2"), model(vec![call("a")]), result("a"), a("second"), u("3")],
    );
}

#[test]
fn s11_an_open_loop_that_lost_its_thinking_goes_on_without() {
    let headless = || vec![u("go"), model(vec![Part::text("so"), call("a")]), result("a")];
    let mended = mends(
        thinking(headless()),
        &rules(Anthropic),
        &[(
            Rule::Thinking,
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`",
        )],
        headless(),
    );
    assert_eq!(mended.params.thinking, None);
    // Words of the user's beside the results leave it open: the provider takes both for one turn.
    let spoken = || [headless(), vec![u("next")]].concat();
    assert_eq!(
        mends(
            thinking(spoken()),
            &rules(Anthropic),
            &[(Rule::Thinking, "messages.1.content.0.type: Expected `thinking`")],
            spoken(),
        )
        .params
        .thinking,
        None
    );
    // Once it is over, nobody asks.
    let mut closed = headless();
    closed.extend([a("done"), u("next")]);
    untouched(&mut thinking(closed), &rules(Anthropic));
    untouched(&mut request(headless()), &rules(Anthropic));

    // Unsigned thinking in an open loop: dropped, and then the loop has none.
    let mended = mends(
        thinking(vec![u("go"), model(vec![unsigned("hm"), call("a")]), result("a")]),
        &rules(Anthropic),
        &[(Rule::Thinking, "signature: Field required")],
        vec![u("go"), model(vec![call("a")]), result("a")],
    );
    assert_eq!(mended.params.thinking, None);
}

#[test]
fn s11_thinking_comes_first() {
    let late = |found: &'static str| {
        [
            (Rule::Thinking, "the first block must be `thinking` or `redacted_thinking`"),
            (Rule::Thinking, found),
        ]
    };
    let words = late("")[0].1;
    mends(
        request(vec![
            u("x"),
            model(vec![Part::text("so"), think("hm"), Part::text("yes")]),
            u("y"),
        ]),
        &rules(Anthropic),
        &[(Rule::Thinking, words)],
        vec![u("x"), model(vec![Part::text("so"), Part::text("yes")]), u("y")],
    );
    // Also across messages that the encoder joins, and instructions that it lifts out.
    mends(
        request(vec![
            u("x"),
            a("so"),
            Message::system("s"),
            model(vec![think("hm"), Part::text("yes")]),
            u("y"),
        ]),
        &rules(Anthropic),
        &[(Rule::Thinking, words)],
        vec![u("x"), a("so"), Message::system("s"), a("yes"), u("y")],
    );
}

#[test]
fn s11_thinking_that_led_to_nothing_goes_alone() {
    for (dialect, words) in [
        (Anthropic, "The final block in an assistant message cannot be `thinking`"),
        (OpenAi, "of type 'reasoning' was provided without its required following item"),
        (Gemini, "contents.parts must not be empty"),
    ] {
        mends(
            thinking(vec![
                u("go"),
                model(vec![think("hm"), call("a")]),
                result("a"),
                model(vec![think("cut off")]),
                u("more"),
            ]),
            &rules(dialect),
            &[(Rule::Thinking, words)],
            vec![u("go"), model(vec![think("hm"), call("a")]), result("a"), u("more")],
        );
    }
}

#[test]
fn s11_thinking_belongs_to_the_model() {
    for dialect in Dialect::ALL {
        let found =
            refused(&request(vec![user(vec![think("hm"), Part::text("x")])]), &rules(dialect));
        assert_eq!((found.len(), found[0].rule), (1, Rule::Thinking), "{found}");
        let mut history = request(vec![user(vec![think("hm"), Part::text("x")])]);
        assert_eq!(repair(&mut history, &rules(dialect)).unrepaired, []);
        assert_eq!(&*history.messages, [u("x")]);
    }
}

#[test]
fn s11_another_models_thinking_goes() {
    let mut target = Profile::new(Target::new("p"));
    target.foreign_history = true;
    for dialect in Dialect::ALL {
        let rules = Rules::for_profile(dialect, &target);
        let mut history = thinking(vec![u("go"), model(vec![think("hm"), call("a")]), result("a")]);
        let found = refused(&history, &rules);
        assert_eq!(found[0].rule, Rule::Thinking, "{found}");
        assert_eq!(repair(&mut history, &rules).unrepaired, []);
        assert_eq!(&*history.messages, [u("go"), model(vec![call("a")]), result("a")]);
    }
}

fn signed_call(id: &str, signature: Option<&str>) -> Part {
    Part::ToolCall(ToolCall {
        id: id.into(),
        name: "tool".into(),
        arguments: "{}".into(),
        signature: signature.map(str::to_owned),
        extra: None,
    })
}

#[test]
fn s11_gemini_signs_the_first_call_of_each_step_of_the_current_turn() {
    let history = |second: Option<&str>| {
        vec![
            u("1"),
            model(vec![signed_call("a", None)]),
            result("a"),
            u("2"),
            model(vec![signed_call("b", Some("sig")), signed_call("c", None)]),
            user(vec![Part::tool_result("b", "x"), Part::tool_result("c", "y")]),
            model(vec![Part::text("now"), signed_call("d", second)]),
            result("d"),
        ]
    };
    let mut rules = rules(Gemini);
    untouched(&mut request(history(None)), &rules);
    rules.signed_calls = true;
    untouched(&mut request(history(Some("sig"))), &rules);
    mends(
        request(history(None)),
        &rules,
        &[(
            Rule::Thinking,
            "function call `tool` in the 6. content block is missing a `thought_signature`",
        )],
        history(Some("skip_thought_signature_validator")),
    );
    // Another model's signatures are no better than none.
    rules.foreign_history = true;
    let mut foreign = request(history(Some("theirs")));
    assert_eq!(repair(&mut foreign, &rules).unrepaired, []);
    let signatures: Vec<_> = foreign
        .messages
        .iter()
        .flat_map(Message::tool_calls)
        .map(|c| c.signature.as_deref())
        .collect();
    let skip = Some("skip_thought_signature_validator");
    assert_eq!(signatures, [None, skip, None, skip]);
}

// S12

fn mark(ttl: Option<&str>) -> Extra {
    let mut mark = json!({"type": "ephemeral"});
    if let Some(ttl) = ttl {
        mark["ttl"] = json!(ttl);
    }
    let mut fields = serde_json::Map::new();
    fields.insert("before".into(), json!(1));
    fields.insert("cache_control".into(), mark);
    fields.insert("after".into(), json!(2));
    Some(Box::new(fields))
}

fn marked(text: &str, ttl: Option<&str>) -> Part {
    Part::Text(Text { text: text.into(), signature: None, extra: mark(ttl) })
}

/// The texts that carry a mark, with its life.
fn marks(request: &ChatRequest) -> Vec<(String, Option<String>)> {
    let parts = request.messages.iter().flat_map(Message::parts);
    parts
        .filter_map(|part| match part {
            Part::Text(text) => {
                let mark = text.extra.as_ref()?.get("cache_control")?;
                let ttl = mark.get("ttl").and_then(|ttl| ttl.as_str()).map(str::to_owned);
                Some((text.text.clone(), ttl))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn s12_four_marks_the_first_and_the_last_ones() {
    let history = |count: usize| {
        let text = |n: usize| user(vec![marked(&n.to_string(), None)]);
        request((0..count).map(text).collect())
    };
    untouched(&mut history(4), &rules(Anthropic));
    untouched(&mut history(9), &rules(OpenAi));
    untouched(&mut history(9), &rules(Gemini));

    let mut six = history(6);
    let found = refused(&six, &rules(Anthropic));
    assert_eq!(
        found[0].message,
        "A maximum of 4 blocks with cache_control may be provided. Found 6."
    );
    assert_eq!((found.len(), found[0].at), (1, Place::Request));
    let before = six.messages.clone();
    assert_eq!(repair(&mut six, &rules(Anthropic)).unrepaired, []);
    let kept: Vec<_> = marks(&six).into_iter().map(|(text, _)| text).collect();
    assert_eq!(kept, ["0", "3", "4", "5"]);
    assert!(six.messages[0].same(&before[0]) && six.messages[5].same(&before[5]));
    let Part::Text(bare) = &six.messages[1].parts()[0] else { panic!("still text") };
    let fields: Vec<_> = bare.extra.as_ref().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["before", "after"], "other fields stay, in order");
}

#[test]
fn s12_long_lived_marks_come_first_and_tools_before_all() {
    let rules = rules(Anthropic);
    let mut valid = request(vec![
        Message::new(Role::System, vec![marked("s", Some("1h"))]),
        user(vec![marked("a", Some("1h")), marked("b", None)]),
    ]);
    untouched(&mut valid, &rules);
    // Instructions are read before the conversation wherever they stand.
    let mut valid = request(vec![
        user(vec![marked("a", None)]),
        Message::new(Role::System, vec![marked("s", Some("1h"))]),
    ]);
    untouched(&mut valid, &rules);

    let tool = Tool::Function {
        name: "tool".into(),
        description: None,
        parameters: None,
        strict: None,
        extra: mark(None),
        dialect: Some(Anthropic),
    };
    let mut history = request(vec![user(vec![marked("a", Some("1h"))])]).with_tools(vec![tool]);
    let found = refused(&history, &rules);
    assert!(
        found[0].message.contains("must not come after a ttl='5m' cache_control block"),
        "{found}"
    );
    assert_eq!(repair(&mut history, &rules).unrepaired, []);
    assert_eq!(marks(&history), [("a".to_owned(), None)]);
}

#[test]
fn s12_thinking_is_not_marked() {
    let thought = |extra| {
        Part::Thinking(Thinking { text: "hm".into(), signature: Some("sig".into()), extra })
    };
    let history = |extra| vec![u("x"), model(vec![thought(extra), Part::text("so")]), u("y")];
    let mut bare = mark(None);
    bare.as_mut().unwrap().shift_remove("cache_control");
    mends(
        request(history(mark(None))),
        &rules(Anthropic),
        &[(
            Rule::CacheMarks,
            "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        )],
        history(bare),
    );
}

#[test]
fn s12_marks_inside_results_and_in_opaque_blocks_count() {
    let nested = Part::ToolResult(ToolResult {
        id: "a".into(),
        content: vec![marked("in", None), marked("side", None)],
        extra: mark(None),
        ..ToolResult::default()
    });
    let opaque = |json: &str| {
        Part::Opaque(Opaque {
            dialect: Anthropic,
            kind: "document".into(),
            json: RawJson::parse(json).unwrap(),
        })
    };
    let history = |json| {
        let last = user(vec![nested.clone(), opaque(json), marked("last", None)]);
        request(vec![u("x"), model(vec![call("a")]), last])
    };
    untouched(&mut history(r#"{"type":"document","cache_control":null}"#), &rules(Anthropic));
    let mut full = history(r#"{"type":"document","cache_control": {"type":"ephemeral"}}"#);
    assert!(refused(&full, &rules(Anthropic))[0].message.contains("Found 5"));
    let repairs = repair(&mut full, &rules(Anthropic));
    assert_eq!((repairs.done.len(), repairs.unrepaired.len()), (1, 0), "{repairs:?}");
}

// S13

fn image(data: &str) -> Part {
    Part::image("image/png", data)
}

/// The first bytes of a PNG that is as wide as it says, in base64.
fn png(width: u32) -> String {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend(width.to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0, 0]);
    let letter =
        |n: u32| b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[n as usize];
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        for shift in [18, 12, 6, 0] {
            text.push(char::from(letter(word >> shift & 63)));
        }
    }
    text
}

fn count_images(request: &ChatRequest) -> usize {
    let has_image = |part: &&Part| part.has_image();
    request.messages.iter().flat_map(Message::parts).filter(has_image).count()
}

#[test]
fn s13_a_model_without_vision_is_told_that_there_was_an_image() {
    let mut profile = Profile::new(Target::new("p"));
    profile.vision = false;
    let omitted = "[image omitted: this model does not read images]";
    let nested = |part: Part| {
        Part::ToolResult(ToolResult {
            id: "a".into(),
            content: vec![part],
            ..ToolResult::default()
        })
    };
    for dialect in Dialect::ALL {
        let history = |part: Part| {
            vec![
                user(vec![Part::text("look"), part.clone()]),
                model(vec![call("a")]),
                user(vec![nested(part)]),
            ]
        };
        let words =
            if dialect == Gemini { "not enabled for this model" } else { "remove image inputs" };
        untouched(&mut request(history(image("AAAA"))), &rules(dialect));
        mends(
            request(history(image("AAAA"))),
            &Rules::for_profile(dialect, &profile),
            &[(Rule::Images, words), (Rule::Images, words)],
            history(Part::text(omitted)),
        );
    }
}

#[test]
fn s13_type_bytes_and_sides_of_one_image() {
    let mut rules = rules(Anthropic);
    rules.images.max_base64 = Some(64);
    for (part, words) in [
        (
            Part::image("image/tiff", "AAAA"),
            "media_type: Input should be 'image/jpeg', 'image/png'",
        ),
        (image(&"A".repeat(65)), "image exceeds 0 MB maximum: 65 bytes > 64 bytes"),
        (
            image(&png(8_001)),
            "At least one of the image dimensions exceed max allowed size: 8000 pixels",
        ),
    ] {
        let mut history = request(vec![user(vec![part, Part::text("look")])]);
        let found = refused(&history, &rules);
        assert!(found[0].message.contains(words), "{found}");
        assert_eq!(repair(&mut history, &rules).unrepaired, []);
        assert!(history.messages[0].text().starts_with("[image omitted: "), "{history:?}");
        assert!(history.messages[0].text().ends_with("]look"));
    }
    for part in [image(&"A".repeat(64)), image(&png(8_000)), image("no png at all")] {
        untouched(&mut request(vec![user(vec![part])]), &rules);
    }
    // What Anthropic's real limit is.
    let data: Arc<str> = "A".repeat(5 * 1024 * 1024 + 1).into();
    let found = refused(
        &request(vec![user(vec![Part::image("image/png", data)])]),
        &self::rules(Anthropic),
    );
    assert!(found[0].message.contains("image exceeds 5 MB maximum: 5242881 bytes > 5242880 bytes"));
}

#[test]
fn s13_too_many_images_lose_the_oldest_in_steps() {
    let history = |count: usize| {
        request((0..count).map(|n| user(vec![Part::text(n.to_string()), image("AAAA")])).collect())
    };
    untouched(&mut history(100), &rules(Anthropic));
    let found = refused(&history(101), &rules(Anthropic));
    assert!(found[0].message.contains("too many images and documents: 101 + 0 > 100"));
    // The same prefix comes out while the conversation grows by a quarter of the limit.
    for (count, kept) in [(101, 76), (125, 100), (126, 76), (400, 100)] {
        let mut history = history(count);
        assert_eq!(repair(&mut history, &rules(Anthropic)).unrepaired, []);
        assert_eq!(count_images(&history), kept, "of {count}");
        let first = history.messages.iter().position(|m| m.parts()[1].has_image());
        assert_eq!(first, Some(count - kept), "the oldest went");
    }
    untouched(&mut history(400), &rules(OpenAi));
}

#[test]
fn s13_among_many_images_the_large_ones_go() {
    let history = |count: usize| {
        let mut messages = vec![user(vec![image(&png(2_001))])];
        messages.extend((1..count).map(|_| user(vec![image(&png(2_000))])));
        request(messages)
    };
    untouched(&mut history(20), &rules(Anthropic));
    let mut many = history(21);
    let found = refused(&many, &rules(Anthropic));
    assert!(found[0].message.contains("for many-image requests: 2000 pixels"), "{found}");
    assert_eq!((found.len(), found[0].at), (1, Place::Part { message: 0, part: 0 }));
    assert_eq!(repair(&mut many, &rules(Anthropic)).unrepaired, []);
    assert_eq!(count_images(&many), 20);
}

#[test]
fn s13_gemini_caps_the_bytes_of_all_together() {
    let mut rules = rules(Gemini);
    rules.images.max_total = Some(1_000);
    let history =
        |count: usize| request((0..count).map(|_| user(vec![image(&"A".repeat(200))])).collect());
    untouched(&mut history(5), &rules);
    let mut six = history(6);
    assert!(
        refused(&six, &rules)[0].message.contains("payload size exceeds the limit: 1000 bytes")
    );
    assert_eq!(repair(&mut six, &rules).unrepaired, []);
    assert_eq!(count_images(&six), 4);
    assert!(!six.messages[0].parts()[0].has_image());
}

#[test]
fn s13_media_where_none_may_be() {
    for dialect in [Anthropic, OpenAi] {
        let mut history = request(vec![u("draw"), model(vec![image("AAAA")]), u("thanks")]);
        assert_eq!(refused(&history, &rules(dialect))[0].rule, Rule::Images);
        assert_eq!(repair(&mut history, &rules(dialect)).unrepaired, []);
        assert!(history.messages[1].text().contains("media omitted"));
    }
    untouched(
        &mut request(vec![u("draw"), model(vec![image("AAAA")]), u("thanks")]),
        &rules(Gemini),
    );
    // Other media are the encoder's business, wherever the user puts them.
    let document = Part::Media(Media {
        kind: MediaKind::Document,
        source: MediaSource::Url { mime: None, url: "https://example.com/a.pdf".into() },
        extra: None,
    });
    for dialect in Dialect::ALL {
        untouched(&mut request(vec![user(vec![document.clone()])]), &rules(dialect));
    }
}

// S14

#[test]
fn s14_size_is_told_and_not_mended() {
    for (dialect, window, enough, words) in [
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
        let mut history = request(vec![u("x")]).with_max_output(500);
        untouched(&mut history, &rules); // Nobody counts.
        rules.count = Some(TokenCount::new(|_| 1_000));
        let repairs = repair(&mut history, &rules);
        assert_eq!(repairs.done, []);
        assert_eq!(repairs.unrepaired.len(), 1);
        assert!(repairs.unrepaired[0].message.contains(words), "{repairs:?}");
        let failure = refused(&history, &rules).into_failure();
        assert_eq!(failure.reason(), Reason::ContextOverflow);

        rules.window = Some(enough);
        untouched(&mut history, &rules);
        rules.reserve = 1;
        assert_eq!(refused(&history, &rules)[0].rule, Rule::Size);
    }
}

// S15

#[test]
fn s15_a_conversation_with_calls_declares_tools() {
    let history =
        || ChatRequest::new(vec![u("x"), model(vec![call("a")]), result("a"), u("sum up")]);
    for dialect in [OpenAi, Gemini] {
        untouched(&mut history(), &rules(dialect));
    }
    let mut plain = history();
    let before = plain.messages.clone();
    let found = refused(&plain, &rules(Anthropic));
    assert_eq!((found.len(), found[0].at), (1, Place::Request));
    assert!(found[0].message.contains("must define tools"));
    assert_eq!(repair(&mut plain, &rules(Anthropic)).unrepaired, []);
    assert!(plain.messages.same(&before));
    assert_eq!(plain.tools.iter().map(Tool::name).collect::<Vec<_>>(), [Some("tool")]);
    assert_eq!(plain.params.tool_choice, Some(ToolChoice::None), "nobody would run a call");
    untouched(&mut plain, &rules(Anthropic));
}

// S16

fn opaque(dialect: Dialect, kind: &str, json: serde_json::Value) -> Part {
    Part::Opaque(Opaque { dialect, kind: kind.into(), json: RawJson::from_value(&json) })
}

fn server_call(id: &str) -> Part {
    opaque(
        Anthropic,
        "server_tool_use",
        json!({"type": "server_tool_use", "id": id, "name": "web_search"}),
    )
}

fn server_result(id: &str) -> Part {
    opaque(
        Anthropic,
        "web_search_tool_result",
        json!({"type": "web_search_tool_result", "tool_use_id": id, "content": []}),
    )
}

#[test]
fn s16_foreign_blocks_go_and_the_turn_stays_valid() {
    let theirs = |dialect| if dialect == Anthropic { Gemini } else { Anthropic };
    for dialect in Dialect::ALL {
        let foreign = opaque(theirs(dialect), "executable_code", json!({"code": "1"}));
        let own = opaque(dialect, "executable_code", json!({"code": "1"}));
        untouched(
            &mut request(vec![u("x"), model(vec![own, Part::text("1")]), u("y")]),
            &rules(dialect),
        );
        mends(
            request(vec![
                u("x"),
                model(vec![foreign.clone(), Part::text("1")]),
                u("y"),
                model(vec![foreign.clone()]),
                u("z"),
            ]),
            &rules(dialect),
            &[(Rule::Opaque, "executable_code"), (Rule::Opaque, "executable_code")],
            vec![u("x"), a("1"), u("y"), u("z")],
        );
        // A tool of another provider, and the choice of it.
        let tool = Part::Opaque(match &foreign {
            Part::Opaque(opaque) => opaque.clone(),
            _ => unreachable!(),
        });
        let Part::Opaque(tool) = tool else { unreachable!() };
        let mut history = ChatRequest::new(vec![u("x")]).with_tools(vec![Tool::Opaque(tool)]);
        history.params.tool_choice = Some(ToolChoice::Required);
        assert_eq!(refused(&history, &rules(dialect))[0].at, Place::Tool(0));
        assert_eq!(repair(&mut history, &rules(dialect)).unrepaired, []);
        assert!(history.tools.is_empty() && history.params.tool_choice.is_none());
    }
}

#[test]
fn s16_a_server_tools_pair_is_whole_or_gone() {
    let rules = rules(Anthropic);
    let whole = model(vec![server_call("s1"), server_result("s1"), Part::text("found")]);
    untouched(&mut request(vec![u("x"), whole, u("y")]), &rules);
    // In two messages, after a pause.
    untouched(
        &mut request(vec![
            u("x"),
            model(vec![server_call("s1")]),
            model(vec![server_result("s1"), Part::text("1")]),
            u("y"),
        ]),
        &rules,
    );
    mends(
        request(vec![u("x"), model(vec![server_result("s1"), Part::text("found")]), u("y")]),
        &rules,
        &[(Rule::Opaque, "unexpected `tool_use_id` found in `web_search_tool_result` blocks: s1")],
        vec![u("x"), a("found"), u("y")],
    );
    mends(
        request(vec![
            u("x"),
            model(vec![Part::text("I search"), server_call("s1")]),
            u("no"),
            a("ok"),
            u("y"),
        ]),
        &rules,
        &[(Rule::Opaque, "`s1` was found without a corresponding result")],
        vec![u("x"), a("I search"), u("no"), a("ok"), u("y")],
    );
}

#[test]
fn s16_results_hold_words_and_media_alone() {
    let dirty = ToolResult {
        id: "a".into(),
        content: vec![Part::text("ok"), call("z"), think("hm"), Part::tool_result("q", "x")],
        ..ToolResult::default()
    };
    for dialect in Dialect::ALL {
        let mut history = request(vec![
            u("x"),
            model(vec![call("a")]),
            user(vec![Part::ToolResult(dirty.clone())]),
        ]);
        assert_eq!(refused(&history, &rules(dialect)).len(), 3);
        assert_eq!(repair(&mut history, &rules(dialect)).unrepaired, []);
        assert_eq!(history.messages[2].tool_results().next().unwrap().content, [Part::text("ok")]);
    }
}

// What comes with it

#[test]
fn a_repair_leaves_the_wire_text_of_everything_else() {
    let raw =
        |text: &str| RawJson::parse(&format!(r#"{{"role":"user","content":"{text}"}}"#)).unwrap();
    let read = |text: &str| {
        Message::from_wire(OpenAi, Role::User, vec![Part::text(text)], None, raw(text))
    };
    let mut history = request(vec![read("go"), model(vec![call("a")]), read("stop")]);
    assert_eq!(repair(&mut history, &rules(OpenAi)).unrepaired, []);
    assert_eq!(history.messages[0].raw(OpenAi), Some(&raw("go")));
    assert_eq!(history.messages[3].raw(OpenAi), Some(&raw("stop")));
}

#[test]
fn a_refusal_is_the_callers_and_goes_nowhere_else() {
    let failure =
        refused(&request(vec![u("x"), model(vec![call("a")])]), &rules(Anthropic)).into_failure();
    assert_eq!(failure.reason(), Reason::Format);
    assert_eq!(failure.fault(), steadfast_core::Fault::Caller);
    assert_eq!(failure.failover(), steadfast_core::Failover::Never);
    assert!(
        failure.message().contains("S3 at messages[1].parts[0]: messages.1: `tool_use` ids"),
        "{failure}"
    );
}

#[test]
fn codes_are_the_numbers_of_the_rules() {
    for (index, rule) in Rule::ALL.into_iter().enumerate() {
        assert_eq!(rule.to_string(), format!("S{}", index + 1));
    }
}
