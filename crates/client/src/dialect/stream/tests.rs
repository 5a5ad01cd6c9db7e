//! A frame is recognised by the one before it only where reading it would give the same.

use proptest::prelude::*;

use super::*;

/// What comes out of `input` cut at `cuts`, and how often a frame was recognised by the one before.
fn read(dialect: Dialect, input: &[u8], cuts: &[usize], templates: bool) -> (Vec<String>, usize) {
    // Ids that no provider gave are the same for the same bytes.
    fastrand::seed(1);
    let mut stream = StreamDecoder::with_limit(dialect, 4_096);
    let (mut events, mut recognised, mut from) = (Vec::new(), 0, 0);
    let show = |read: Result<Event, Failure>| match read {
        Ok(event) => format!("{event:?}"),
        Err(failure) => format!("{failure:?} {:?}", failure.upstream()),
    };
    for to in cuts.iter().copied().chain([input.len()]) {
        stream.push(Bytes::copy_from_slice(&input[from..to]));
        from = to;
        loop {
            if let Some(template) = &stream.template {
                recognised += usize::from(template.read(stream.sse.at_hand()).is_some());
            }
            if !templates {
                stream.template = None;
            }
            match stream.next_event() {
                Some(read) => events.push(show(read)),
                None => break,
            }
        }
    }
    while let Some(read) = stream.finish() {
        events.push(show(read));
    }
    events.push(format!("{:?} {}", stream.usage(), stream.is_over()));
    (events, if templates { recognised } else { 0 })
}

/// The same, whichever way; how often a frame was recognised by the one before.
fn both(dialect: Dialect, input: &[u8], cuts: &[usize]) -> usize {
    let (without, _) = read(dialect, input, cuts, false);
    let (with, recognised) = read(dialect, input, cuts, true);
    assert_eq!(with, without, "{}", String::from_utf8_lossy(input));
    recognised
}

fn openai(delta: &str, rest: &str) -> String {
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\
         \"delta\":{{{delta}}},\"finish_reason\":null}}]{rest}}}\n\n"
    )
}

fn anthropic(index: u32, delta: &str, rest: &str) -> String {
    format!(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\
         \"delta\":{{{delta}}}{rest}}}\n\n"
    )
}

fn responses(kind: &str, text: &str, count: impl std::fmt::Display, rest: &str) -> String {
    let at = if kind == "reasoning_summary_text" { "summary_index" } else { "content_index" };
    let output = u32::from(kind == "output_text");
    format!(
        "event: response.{kind}.delta\ndata: {{\"type\":\"response.{kind}.delta\",\"{at}\":0,\
         \"delta\":\"{text}\",\"item_id\":\"i\"{rest},\"output_index\":{output},\
         \"sequence_number\":{count}}}\n\n"
    )
}

/// With the number before the text.
fn responses_ahead(text: &str, count: usize, rest: &str) -> String {
    format!(
        "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\
         \"sequence_number\":{count},\"output_index\":1,\"content_index\":0,\"delta\":\"{text}\"{rest}}}\n\n"
    )
}

const ANTHROPIC: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":\
    {\"id\":\"m\",\"model\":\"x\",\"usage\":{\"input_tokens\":3}}}\n\nevent: content_block_start\n\
    data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\
    \"text\":\"\"}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\
    \"index\":1,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}\n\n";

#[test]
fn what_differs_in_its_text_alone_is_recognised_by_the_frame_before() {
    let texts = [" Hel", "lo", ", \u{e9}\u{1f600}", " a\\n\\\"b\\\"", "!", " "];
    for behind in ["", ",\"usage\":null,\"obfuscation\":\"PAD\"", ",\"x\":\"y\"    "] {
        for name in ["content", "reasoning_content", "reasoning"] {
            let frame = |(at, text): (usize, &&str)| {
                let behind = behind.replace("PAD", &"q8".repeat(at));
                openai(&format!("\"{name}\":\"{text}\""), &behind)
            };
            let input: String = texts.iter().enumerate().map(frame).collect();
            // The first has the head, the second is learned from, the fourth has an escape.
            assert_eq!(both(Dialect::OpenAi, input.as_bytes(), &[]), 3, "{input}");
        }
    }
    for (index, kind, name) in [(0, "text_delta", "text"), (1, "thinking_delta", "thinking")] {
        let mut input = ANTHROPIC.to_owned();
        for (at, text) in texts.iter().enumerate() {
            let delta = format!("\"type\":\"{kind}\",\"{name}\":\"{text}\"");
            input.push_str(&anthropic(index, &delta, &" ".repeat(at)));
        }
        assert_eq!(both(Dialect::Anthropic, input.as_bytes(), &[]), 4, "{input}");
    }
    // Their events are numbered, on either side of the text, and one digit may become two.
    for behind in ["", ",\"logprobs\":[],\"obfuscation\":\"PAD\""] {
        let behind = |at: usize| behind.replace("PAD", &"q8".repeat(at));
        let all = || texts.iter().enumerate().map(|(at, text)| (at, *text, behind(at)));
        for kind in ["output_text", "reasoning_summary_text", "reasoning_text"] {
            let frame =
                |(at, text, behind): (usize, &str, String)| responses(kind, text, at + 7, &behind);
            let input: String = all().map(frame).collect();
            assert_eq!(both(Dialect::Responses, input.as_bytes(), &[]), 4, "{input}");
        }
        let frame =
            |(at, text, behind): (usize, &str, String)| responses_ahead(text, at + 7, &behind);
        let input: String = all().map(frame).collect();
        assert_eq!(both(Dialect::Responses, input.as_bytes(), &[]), 4, "{input}");
    }
}

#[test]
fn what_differs_in_anything_else_is_read() {
    let usual = || openai("\"content\":\"a\"", "");
    let with = |delta: &str| openai(delta, "");
    for odd in [
        with("\"content\":\"\""),
        with("\"content\":\"a\",\"refusal\":\"b\""),
        with("\"content\":null"),
        with("\"content\":\"\\ud800\""),
        with("\"content\":\"a\\\""),
        with("\"content\":\"a\tb\""),
        usual().replace("c1", "c2"),
        usual().replace("null", "\"stop\""),
        usual().replace("\n\n", "\r\n\r\n"),
        usual().replace("\n\n", "\n"),
        usual().replace("}]}", "}]"),
        usual().replace("}]}", "}]},"),
        usual().replace("}]}", "}],\"usage\":{\"prompt_tokens\":1}}"),
        usual().replace("}]}", "}],\"error\":{\"message\":\"no\"}}"),
        usual().replace("data: ", "event: error\ndata: "),
        ": ping\n\n".to_owned(),
        "data: [DONE]\n\n".to_owned(),
    ] {
        let input = format!("{}{}{odd}{}", usual(), usual(), usual());
        assert!(both(Dialect::OpenAi, input.as_bytes(), &[]) <= 1, "{odd}");
    }
    // A number that is none; a count of something else.
    let text = |count: &str| responses("output_text", "a", count, "");
    for odd in ["01", "-1", "1.5", "1e3", "\"3\"", "null", ""] {
        for usual in ["2", odd] {
            let input = format!("{}{}{}", text(usual), text(odd), text("4"));
            both(Dialect::Responses, input.as_bytes(), &[]);
        }
        let input = format!("{}{}{}", text(odd), text("4"), text("5"));
        both(Dialect::Responses, input.as_bytes(), &[]);
    }
    let other =
        |index: u32| text("3").replace("\"output_index\":1", &format!("\"output_index\":{index}"));
    let input = format!("{}{}{}", text("2"), other(2), other(3));
    assert_eq!(both(Dialect::Responses, input.as_bytes(), &[]), 0);
    // The same frame does not mean the same once its block has ended.
    let text = anthropic(0, "\"type\":\"text_delta\",\"text\":\"a\"", "");
    let stop = "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n";
    let input = format!("{ANTHROPIC}{text}{text}{stop}{text}");
    assert_eq!(both(Dialect::Anthropic, input.as_bytes(), &[]), 1);
    // Nor while half of a character waits.
    let half = with("\"content\":\"\\ud83d\"");
    let input = format!("{}{}{half}{}{}", usual(), usual(), usual(), usual());
    assert_eq!(both(Dialect::OpenAi, input.as_bytes(), &[]), 0, "{input}");
    let half = text.replace("\"a\"", "\"\\ud83d\"");
    let input = format!("{ANTHROPIC}{half}{text}{text}{text}");
    assert_eq!(both(Dialect::Anthropic, input.as_bytes(), &[]), 1, "{input}");
    // A name that stands for another one.
    for name in ["te\\u0078t", "thinking"] {
        let other = if name == "thinking" { "te\\u0078t" } else { "thinking" };
        let odd = |text: &str| {
            let delta = format!("\"type\":\"text_delta\",\"{name}\":\"x\",\"{other}\":\"{text}\"");
            anthropic(0, &delta, "")
        };
        let input = format!("{ANTHROPIC}{}{}", odd("a"), odd("b"));
        assert_eq!(both(Dialect::Anthropic, input.as_bytes(), &[]), 0);
    }
}

#[test]
fn a_frame_above_the_limit_is_an_error_all_the_same() {
    let short = openai("\"content\":\"a\"", "");
    let long = openai(&format!("\"content\":\"{}\"", "a".repeat(5_000)), "");
    both(Dialect::OpenAi, format!("{short}{short}{long}").as_bytes(), &[]);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ a-z,.\u{e4}\u{4e2d}]{1,6}",
        1 => prop::sample::select(vec!["", "\\n", "\\\"", "\\ud83d\\ude00", "\\ud800", "\t", "\\x"])
            .prop_map(str::to_owned),
    ]
}

fn frame(dialect: Dialect) -> BoxedStrategy<String> {
    let behind = prop_oneof![
        6 => Just(String::new()),
        1 => " {0,4}",
        2 => "[A-Za-z]{0,5}".prop_map(|pad| format!(",\"obfuscation\":\"{pad}\"")),
        1 => Just(",\"usage\":{\"prompt_tokens\":1,\"output_tokens\":2}".to_owned()),
        1 => Just(",\"error\":{}".to_owned()),
    ];
    let odd = |all: &[&str]| {
        let all: Vec<String> = all.iter().map(|&text| text.to_owned()).collect();
        prop::sample::select(all)
    };
    if dialect == Dialect::Responses {
        let kinds = prop::sample::select(vec![
            "output_text",
            "output_text",
            "reasoning_summary_text",
            "reasoning_text",
            "refusal",
            "function_call_arguments",
        ]);
        return prop_oneof![
            8 => (kinds, text(), behind.clone(), 8..12_usize).prop_map(|(kind, text, behind, count)| {
                responses(kind, &text, count, &behind)
            }),
            3 => (text(), behind, 8..12_usize).prop_map(|(text, behind, count)| {
                responses_ahead(&text, count, &behind)
            }),
            1 => odd(&[
                ": ping\n\n",
                "data: {\"type\":\"response.output_item.added\",\"output_index\":1,\"item\":\
                 {\"type\":\"function_call\",\"call_id\":\"t\",\"name\":\"f\"}}\n\n",
                "data: {\"type\":\"response.output_item.done\",\"output_index\":1,\"item\":\
                 {\"type\":\"message\",\"content\":[]}}\n\n",
                "data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n",
            ]),
        ]
        .boxed();
    }
    if dialect == Dialect::OpenAi {
        let names = prop::sample::select(vec!["content", "content", "reasoning", "refusal"]);
        prop_oneof![
            8 => (names, text(), behind).prop_map(|(name, text, behind)| {
                openai(&format!("\"{name}\":\"{text}\""), &behind)
            }),
            1 => odd(&[
                ": ping\n\n",
                "data: [DONE]\n\n",
                "\n",
                "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
                "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"t\",\
                 \"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n",
            ]),
        ]
        .boxed()
    } else {
        let kinds = prop::sample::select(vec![
            ("text_delta", "text"),
            ("text_delta", "text"),
            ("thinking_delta", "thinking"),
            ("input_json_delta", "partial_json"),
            ("signature_delta", "signature"),
        ]);
        prop_oneof![
            8 => (0..2_u32, kinds, text(), behind).prop_map(|(at, (kind, name), text, behind)| {
                anthropic(at, &format!("\"type\":\"{kind}\",\"{name}\":\"{text}\""), &behind)
            }),
            1 => odd(&[
                "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
                "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":\
                 {\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\"}}\n\n",
                "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
                "data: {\"type\":\"message_stop\"}\n\n",
            ]),
        ]
        .boxed()
    }
}

fn stream() -> impl Strategy<Value = (Dialect, Vec<u8>)> {
    let all = vec![Dialect::OpenAi, Dialect::Anthropic, Dialect::Responses];
    prop::sample::select(all).prop_flat_map(|dialect| {
        let alike = (frame(dialect), 1..4_usize).prop_map(|(frame, times)| frame.repeat(times));
        proptest::collection::vec(alike, 0..10).prop_map(move |frames| {
            let head = if dialect == Dialect::Anthropic { ANTHROPIC } else { "" };
            (dialect, format!("{head}{}", frames.concat()).into_bytes())
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_frame_says_the_same_whichever_way_it_is_read(
        (dialect, mut input) in stream(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        damage in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        if let (Some((at, byte)), false) = (damage, input.is_empty()) {
            let at = at.index(input.len());
            input[at] = byte;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        both(dialect, &input, &cuts);
    }
}
