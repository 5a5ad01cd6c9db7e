//! Counts come close to what a provider reports after two turns, whatever the text, and a message
//! is counted once.

#![allow(clippy::unwrap_used)]

mod history;

use history::{total, weigh};
use steadfast_chat::{ChatRequest, Message, Part, RawJson, Role, Tool};
use steadfast_compact::{CountedHistory, Counter, Encoding, Scheme};

const MODEL: &str = "claude-sonnet-4-5";

/// Prose, code or JSON of about so many bytes.
fn text(rng: &mut fastrand::Rng, kind: usize, bytes: usize) -> String {
    const PROSE: [&str; 16] = [
        "the",
        "conversation",
        "window",
        "is",
        "almost",
        "full",
        "and",
        "provider",
        "refuses",
        "requests",
        "which",
        "do",
        "not",
        "fit",
        "into",
        "it",
    ];
    const CODE: [&str; 8] = [
        "let mut total = 0;\n",
        "for item in &items {\n    ",
        "total += item.size();\n",
        "}\n",
        "if total > limit { return Err(TooLarge); }\n",
        "match self.state {\n",
        "    State::Open => 1,\n",
        "#[derive(Debug, Clone)]\n",
    ];
    let mut out = String::new();
    while out.len() < bytes {
        match kind {
            0 => out.extend([PROSE[rng.usize(..PROSE.len())], " "]),
            1 => out.push_str(CODE[rng.usize(..CODE.len())]),
            _ => out.push_str(&format!(r#"{{"id":{},"ok":true}},"#, rng.u32(..))),
        }
    }
    out
}

#[test]
fn within_three_percent_after_two_turns() {
    let counter = Counter::default();
    let (mut errors, mut covered) = (Vec::new(), 0);
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = CountedHistory::default();
        let mut request = ChatRequest::new(vec![Message::system(text(&mut rng, 0, 2_000))]);
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        request.tools = vec![Tool::function("run", text(&mut rng, 0, 400), schema)].into();
        for turn in 0..20 {
            let messages = request.messages.make_mut();
            let kind = rng.usize(..3);
            let bytes = rng.usize(50..1_500);
            messages.push(Message::user(text(&mut rng, kind, bytes)));
            let count = counter.count(&mut history, &request, MODEL);
            // What the provider counts: four bytes a token, and 150 for the tool.
            let actual = total(&request.messages) + 150;
            if turn >= 2 {
                errors.push(count.tokens.abs_diff(actual) as f64 / actual as f64);
                covered += usize::from(count.upper >= actual);
            }
            counter.reported(&mut history, actual);
            let messages = request.messages.make_mut();
            let kind = rng.usize(..3);
            messages.push(Message::assistant(text(&mut rng, kind, 300)));
        }
    }
    errors.sort_by(f64::total_cmp);
    let p95 = errors[errors.len() * 95 / 100];
    assert!(p95 <= 0.03, "{p95}");
    let share = covered as f64 / errors.len() as f64;
    assert!(share >= 0.9, "the upper end covers {share}");
}

/// A scheme in which a request is its bytes.
fn bytes() -> Counter {
    let flat = Scheme {
        encoding: Encoding::Bytes(1),
        factor: 1.0,
        message: 0,
        call: 0,
        tool: 0,
        tools: 0,
        request: 0,
        image: 0,
        error: 0.1,
    };
    Counter::default().with_scheme("m", flat).with_scheme("n", flat)
}

fn user(bytes: usize) -> Message {
    Message::user("x".repeat(bytes))
}

#[test]
fn a_count_is_exact_where_the_scheme_is() {
    let counter = bytes();
    let mut history = CountedHistory::default();
    let mut request = ChatRequest::new(vec![user(100), user(200)]);
    let count = counter.count(&mut history, &request, "m");
    assert_eq!((count.tokens, count.upper, count.fixed), (300, 330, 0));
    assert_eq!(history.messages(&counter.calibration("m")), [100, 200]);
    // The same messages read anew from the wire, and one changed in the middle.
    request.messages = vec![user(100), user(250), user(1)].into();
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 351);
    request.messages = vec![user(100)].into();
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 100);
}

#[test]
fn the_next_count_starts_from_reported_usage() {
    let counter = bytes();
    let mut history = CountedHistory::default();
    let mut request = ChatRequest::new(vec![user(1_000)]);
    counter.count(&mut history, &request, "m");
    counter.reported(&mut history, 1_200);
    request.messages.make_mut().push(user(100));
    let count = counter.count(&mut history, &request, "m");
    assert_eq!(count.tokens, 1_200 + 120, "the ratio is learned, too");
    assert!(count.upper < count.tokens + 20, "only what is new is unsure: {}", count.upper);

    // Another message at the front: the report is about another request.
    request.messages.make_mut()[0] = user(999);
    assert!(counter.count(&mut history, &request, "m").upper > 1_318 + 20);
}

#[test]
fn reports_from_before_a_compaction_or_of_other_models_do_not_count() {
    let counter = bytes();
    let mut history = CountedHistory::default();
    let request = ChatRequest::new(vec![user(1_000)]);
    counter.count(&mut history, &request, "m");
    counter.reported(&mut history, 0);
    assert_eq!(counter.calibration("m").seen(), 0, "zero is not known");
    counter.reported(&mut history, 1_500);
    assert_eq!(counter.calibration("n").seen(), 0, "not what was counted");
    assert_eq!(counter.count(&mut history, &request, "m").upper, 1_500);
    history.compacted();
    assert!(counter.count(&mut history, &request, "m").upper > 1_500);
    assert_eq!(counter.count(&mut history, &request, "n").tokens, 1_000);
    counter.reported(&mut history, 1_500);
    assert!(counter.count(&mut history, &request, "m").upper > 1_500, "that was for another model");
}

#[test]
fn the_ratio_is_learned_from_an_overflow() {
    let counter = bytes();
    let mut history = CountedHistory::default();
    let request = ChatRequest::new(vec![user(1_000)]);
    counter.count(&mut history, &request, "m");
    counter.overflowed(&history, 1_300);
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 1_300);
}

#[test]
fn growth_is_that_of_turns_that_add() {
    let counter = bytes();
    let mut history = CountedHistory::default();
    let mut request = ChatRequest::new(vec![user(1_000)]);
    let growth = |history: &CountedHistory| history.growth(&counter.calibration("m"));
    counter.count(&mut history, &request, "m");
    assert_eq!(growth(&history), None);
    request.messages.make_mut().push(user(300));
    counter.count(&mut history, &request, "m");
    counter.count(&mut history, &request, "m");
    assert_eq!(growth(&history), Some(300), "the same request again is no turn");
    request.messages.make_mut().push(user(800));
    counter.count(&mut history, &request, "m");
    assert_eq!(growth(&history), Some(400));
    request.messages = vec![user(10)].into();
    counter.count(&mut history, &request, "m");
    assert_eq!(growth(&history), Some(400), "a compaction is no growth");
}

#[test]
fn images_and_results_are_counted() {
    let counter = Counter::default();
    let count = |parts| {
        let request = ChatRequest::new(vec![Message::new(Role::User, parts)]);
        counter.count(&mut CountedHistory::default(), &request, MODEL).tokens
    };
    let empty = count(vec![]);
    assert_eq!(count(vec![Part::image("image/png", "AAAA")]), empty + 1_600);
    assert!(count(vec![Part::tool_result("1", "hello world")]) > empty + 2);
    assert_eq!(weigh(&Message::user("1234")), 5);
}

proptest::proptest! {
    /// However a history changes from turn to turn, a history that followed it counts what a new one
    /// does.
    #[test]
    fn a_followed_history_counts_as_a_new_one(
        turns in proptest::collection::vec(proptest::collection::vec(0_usize..6, 0..8), 1..12),
    ) {
        let counter = bytes();
        let pool: Vec<Message> = (0..6).map(|size| user(100 * size + 1)).collect();
        let mut history = CountedHistory::default();
        for turn in turns {
            let messages: Vec<Message> = turn.iter().map(|index| pool[*index].clone()).collect();
            let request = ChatRequest::new(messages);
            let followed = counter.count(&mut history, &request, "m");
            let fresh = counter.count(&mut CountedHistory::default(), &request, "m");
            proptest::prop_assert_eq!(followed, fresh);
        }
    }
}

#[test]
fn a_long_history_counts_what_is_new_and_what_was_edited() {
    let counter = bytes();
    let mut history = CountedHistory::default();
    let mut request = ChatRequest::new((0..500).map(|_| user(10)).collect::<Vec<_>>());
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 5_000);
    request.messages.make_mut().push(user(7));
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 5_007);
    assert_eq!(history.growth(&counter.calibration("m")), Some(7));

    // Wherever it is.
    request.messages.make_mut()[495] = user(110);
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 5_107);
    request.messages.make_mut()[100] = user(210);
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 5_307);

    // Another history, a shorter one, and another model are counted whole.
    request.messages = vec![user(20), user(30)].into();
    assert_eq!(counter.count(&mut history, &request, "m").tokens, 50);
    assert_eq!(counter.count(&mut history, &request, "n").tokens, 50);
    let tool = Tool::function("run", "", RawJson::parse("{}").unwrap());
    request.tools = vec![tool].into();
    assert_eq!(counter.count(&mut history, &request, "n").tokens, 55, "its name and its schema");
}
