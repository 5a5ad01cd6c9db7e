//! `claude-code`.

use std::time::Duration;

use serde_json::Value;
use steadfast::{
    ChatRequest, Dialect, Message, Part, Preset, Reason, Role, Stack,
    failover::{Chain, WhenExhausted},
    sim::{Answer, End, Entry, ErrorKind, Fault, FaultPlan, How, Model, PlanRule, SimProvider},
};
use steadfast_tests::harness;

use crate::{
    World, agent::Agent, always, chain, error, failing_stream, fine, hinted, request, secs, sims,
    status,
};

const PRESET: Preset = Preset::ClaudeCode;

#[tokio::test(start_paused = true)]
async fn ten_retries_double_from_half_a_second_to_32_and_up_to_a_quarter_more() {
    for fault in [status(429, "slow down"), status(500, "oops"), Fault::Reset] {
        let world = World::new(PRESET, [always(fault)]);
        let _failure = world.ask().await.failure.unwrap();
        let waits = world.waits(0);
        assert_eq!(waits.len(), 10);
        for (n, wait) in waits.iter().enumerate() {
            let least = (500 << n).min(32_000);
            assert!((least..=least + least / 4).contains(wait), "retry {n}: {wait}");
        }
        assert!(!world.anything_rests());
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_provider_asks_for_goes_first() {
    for seconds in [7, 90] {
        let plan = FaultPlan::none().rule(PlanRule::new(hinted(429, seconds)).nth(1));
        let world = World::new(PRESET, [plan]);
        let got = world.ask().await;
        got.answer();
        let took = got.took.as_secs_f64() - seconds as f64;
        assert!((0.0..=0.2).contains(&took), "{took}");
    }
}

/// What the request at this position asked for: `max_tokens` of Anthropic's dialect.
fn limits(world: &World) -> Vec<u64> {
    let limit = |body: &Option<Value>| body.as_ref().unwrap()["max_tokens"].as_u64().unwrap();
    world.asked(0).iter().map(|entry| limit(&entry.json)).collect()
}

/// A provider of long answers.
fn writer(answer: impl Fn() -> Answer + Send + Sync + 'static, plan: FaultPlan) -> World {
    let answer = std::sync::Arc::new(answer);
    let sims = sims([plan], |_, provider| {
        let answer = answer.clone();
        provider.respond(move |_| Some(answer()))
    });
    World::of(&Stack::new(chain(&sims)).preset(PRESET), sims)
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_is_asked_for_once_more_with_64_000_and_nothing_of_it_is_kept() {
    for stream in [false, true] {
        let cut = FaultPlan::none().rule(PlanRule::new(Fault::OutputLimit(100)).nth(1));
        let world = writer(|| Answer::text("word ".repeat(600)), cut);
        let request = if stream { request().streaming() } else { request() };
        let got = world.send(request).await;
        assert_eq!(got.answer().text(), "word ".repeat(600));
        assert_eq!(limits(&world), [8_000, 64_000]);
        let messages = |at: usize| world.asked(0)[at].json.clone().unwrap()["messages"].clone();
        assert_eq!(messages(0), messages(1), "the same request");
    }
    // A limit of the caller's is the caller's.
    let world = writer(|| Answer::text("word ".repeat(600)), always(Fault::OutputLimit(100)));
    world.send(request().with_max_output(100)).await.answer();
    assert_eq!(limits(&world), [100]);
}

#[tokio::test(start_paused = true)]
async fn then_there_are_three_continuations() {
    let world = writer(|| Answer::text("word ".repeat(9_000)), always(Fault::OutputLimit(1_000)));
    let got = world.send(request().streaming()).await;
    assert!(got.seen.is_some());
    assert_eq!(limits(&world)[..2], [8_000, 64_000]);
    assert_eq!(world.counts(), [5], "one, one with more, and three that go on");
}

#[tokio::test(start_paused = true)]
async fn three_continuations_in_a_row_with_less_than_500_tokens_are_the_last() {
    for (tokens, calls) in [(499, 5), (500, 10)] {
        let mut policies = PRESET.policies();
        policies.continuation.as_mut().unwrap().continuations = 8;
        let sims = sims([always(Fault::OutputLimit(tokens))], |_, provider| {
            provider.respond(|_| Some(Answer::text("word ".repeat(9_000))))
        });
        let stack = Stack::new(chain(&sims)).with_policies(&policies).unwrap();
        let world = World::of(&stack, sims);
        world.ask().await;
        assert_eq!(world.counts(), [calls], "{tokens}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_withheld_until_its_end_is_known() {
    let cut = FaultPlan::none().rule(PlanRule::new(Fault::OutputLimit(50)).nth(1));
    let numbered = std::sync::atomic::AtomicU32::new(0);
    let world = writer(
        move || {
            let n = numbered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Answer::text(format!("answer {n}. ").repeat(100))
        },
        cut,
    );
    let got = world.send(request().streaming()).await;
    assert!(!got.answer().text().contains("answer 0"), "nothing of the cut answer is shown");
}

/// A refusal that comes after the answer has started: nobody has seen anything of that.
#[tokio::test(start_paused = true)]
async fn nothing_is_seen_of_a_stream_that_ends_in_a_refusal() {
    for kind in [ErrorKind::ContextOverflow, ErrorKind::PayloadTooLarge] {
        for events in [0, 9] {
            let refusal = Fault::break_after(events, How::ErrorEvent(kind.clone()));
            let world = writer(|| Answer::text("word ".repeat(200)), always(refusal));
            let got = world.send(conversation(10).streaming()).await;
            assert!(world.asked(0)[0].events >= events, "{kind:?}: it has started");
            assert!(!got.events.iter().any(steadfast::Event::is_content), "{kind:?}: {got:?}");
            let failure = got.failure.unwrap();
            assert!(!failure.is_delivered(), "{kind:?}, {events}: {failure}");
        }
    }
}

/// It is compacted like one that was refused at once.
#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_in_an_overflow_is_asked_for_again_compacted() {
    for events in [0, 9] {
        let refusal = Fault::break_after(events, How::ErrorEvent(ErrorKind::ContextOverflow));
        let once = FaultPlan::none().rule(PlanRule::new(refusal).nth(1));
        let world = writer(|| Answer::text("word ".repeat(200)), once);
        let got = world.send(conversation(10).streaming()).await;
        let answer = got.answer();
        assert_eq!(answer.text(), "word ".repeat(200), "{events}: nothing of the first answer");
        assert_eq!(answer.head.attempts, 2, "{events}");
        let sent = world.asked(0)[1].json.clone().unwrap();
        assert!(sent["messages"].as_array().unwrap().len() <= 6, "{events}: {sent}");
    }
}

/// An image that is refused, at once or in the middle of a stream, becomes a marker, and nobody sees the refusal.
#[tokio::test(start_paused = true)]
async fn a_refused_image_is_withheld_and_left_out() {
    let message = "Could not process image";
    for (stream, refusal) in [
        (false, status(400, message)),
        (true, failing_stream("", "invalid_request_error", message)),
        (true, failing_stream("It begins.", "invalid_request_error", message)),
    ] {
        let once = FaultPlan::none().rule(PlanRule::new(refusal).nth(1));
        let world = writer(|| Answer::text("word ".repeat(200)), once);
        let parts = vec![Part::text("What is this?"), Part::image("image/png", "AAAA")];
        let request = ChatRequest::new(vec![Message::new(Role::User, parts)]).with_model("any");
        let got = world.send(if stream { request.streaming() } else { request }).await;
        assert_eq!(got.answer().text(), "word ".repeat(200), "nothing of the first answer");
        let [first, second] = &world.asked(0)[..] else { panic!("{:?}", world.counts()) };
        let body = |entry: &Entry| String::from_utf8_lossy(&entry.body).into_owned();
        assert!(body(first).contains("AAAA") && !body(second).contains("AAAA"));
        assert!(body(second).contains("What is this?"), "{}", body(second));
    }
}

/// A conversation of so many turns.
fn conversation(turns: usize) -> ChatRequest {
    let messages = (0..turns).flat_map(|at| {
        let question = format!("question {at}: {}", "why ".repeat(100));
        [Message::user(question), Message::assistant(format!("answer {at}: {}", "so ".repeat(100)))]
    });
    ChatRequest::new(messages.chain([Message::user("and now?")]).collect::<Vec<_>>())
        .with_model("any")
}

#[tokio::test(start_paused = true)]
async fn an_overflow_leaves_the_last_five_messages_and_is_compacted_once() {
    let overflow = || error(ErrorKind::ContextOverflow);
    let once = FaultPlan::none().rule(PlanRule::new(overflow()).nth(1));
    let world = World::new(PRESET, [once]);
    world.send(conversation(10)).await.answer();
    let sent = world.asked(0)[1].json.clone().unwrap();
    let texts: Vec<_> =
        sent["messages"].as_array().unwrap().iter().map(|one| one["content"].to_string()).collect();
    let kept = |text: &str| texts.iter().any(|one| one.contains(&format!("{text}: ")));
    assert!(texts.last().unwrap().contains("and now?"), "{texts:?}");
    for text in ["question 8", "answer 8", "question 9", "answer 9"] {
        assert!(kept(text), "{text} in {texts:#?}");
    }
    for at in 0..7 {
        assert!(!kept(&format!("answer {at}")), "{at} in {texts:#?}");
    }

    let world = World::new(PRESET, [always(overflow())]);
    let failure = world.send(conversation(10)).await.failure.unwrap();
    assert_eq!(failure.reason(), Reason::ContextOverflow);
    assert_eq!(world.counts(), [2], "one attempt, then the failure");
}

/// One provider whose model has a smaller one beside it.
fn with_fallback(plan: FaultPlan) -> (Chain, Vec<SimProvider>) {
    let sims = sims([plan], |_, provider| {
        provider.with_model(Model::new("claude-haiku-4-5", 200_000, 64_000))
    });
    let target = harness::target(&sims[0]).with_downgrade("*", ["claude-haiku-4-5"]);
    (Chain::new([target]).unwrap(), sims)
}

#[tokio::test(start_paused = true)]
async fn three_overloads_in_a_row_go_to_the_smaller_model() {
    let asked = harness::model(steadfast::Dialect::Anthropic);
    let rule = PlanRule::new(status(529, "not now")).model(asked);
    let (chain, sims) = with_fallback(FaultPlan::none().rule(rule));
    let world = World::of(&Stack::new(chain).preset(PRESET), sims);
    let request = request().with_context(steadfast::CallContext::recording());
    let log = request.context.log.clone();
    let got = world.send(request).await;
    got.answer();
    let models: Vec<_> = world.asked(0).into_iter().map(|entry| entry.model).collect();
    assert_eq!(models, [asked, asked, asked, "claude-haiku-4-5"]);
    let notice = log.notice().unwrap();
    assert!(notice.contains("claude-haiku-4-5"), "{notice}");
    // The notice is for people who get the answer, not for the model.
    assert!(world.asked(0).iter().all(|entry| entry.end == End::Complete));
}

/// The model in the environment, in the gateway: the test runs itself with the variable.
#[cfg(feature = "gateway")]
#[tokio::test(start_paused = true)]
async fn the_model_in_the_environment_stands_in_for_an_overloaded_one() {
    use steadfast_tests::gateway::{ask, in_process::InProcess};

    const VARIABLE: &str = "FALLBACK_MODEL_ID";
    if std::env::var_os(VARIABLE).is_none() {
        let name = "claude_code::the_model_in_the_environment_stands_in_for_an_overloaded_one";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let again = again.args(["--exact", name]).env(VARIABLE, "claude-haiku-4-5");
        let output = again.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let asked = harness::model(Dialect::Anthropic);
    let rule = PlanRule::new(status(529, "not now")).model(asked);
    let (_, sims) = with_fallback(FaultPlan::none().rule(rule));
    let file = format!(
        "preset = \"claude-code\"\n[server]\nauth = \"none\"\n[[providers]]\nname = \"anthropic\"\ndialect = \"anthropic\"\n\
         base_url = \"http://anthropic\"\ncredentials = [\"env:KEY\"]\nmodels = {{ \"*\" = \"{asked}\" }}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steadfast.toml");
    std::fs::write(&path, file).unwrap();
    let gateway = InProcess::loading(&path, &sims);
    let reply = gateway.send(&ask(Dialect::Anthropic, "any", false)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let models: Vec<_> = sims[0].journal().entries().into_iter().map(|one| one.model).collect();
    assert_eq!(models, [asked, asked, asked, "claude-haiku-4-5"]);
    let notice = reply.header("x-steadfast-notice").unwrap();
    assert!(notice.contains("claude-haiku-4-5"), "{notice}");
}

/// The model that stands in gets what the overloaded one was asked, the calls and results of the caller's history
/// too, and nothing of the failed attempts.
#[tokio::test(start_paused = true)]
async fn the_smaller_model_gets_the_history_as_it_was() {
    let asked = harness::model(Dialect::Anthropic);
    let busy = failing_stream("", "overloaded_error", "Overloaded");
    let rule = PlanRule::new(busy).model(asked);
    let (chain, sims) = with_fallback(FaultPlan::none().rule(rule));
    let world = World::of(&Stack::new(chain).preset(PRESET), sims);
    let mut agent = Agent::new();
    agent.called("read_note", r#"{"note": 1}"#, "the first result");
    agent.called("read_note", r#"{"note": 2}"#, "the second result");
    world.send(agent.request("read_note").streaming()).await.answer();
    let entries = world.asked(0);
    let models: Vec<_> = entries.iter().map(|entry| entry.model.as_str()).collect();
    assert_eq!(models, [asked, asked, asked, "claude-haiku-4-5"]);
    let messages = |entry: &Entry| entry.json.clone().unwrap()["messages"].clone();
    assert_eq!(messages(&entries[3]), messages(&entries[0]));
    let sent = messages(&entries[3]).to_string();
    for text in ["the first result", "the second result", "call_0", "call_1"] {
        assert!(sent.contains(text), "{text} in {sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn overloads_that_are_not_in_a_row_do_not() {
    let plan = [1, 2, 4, 5].into_iter().fold(FaultPlan::none(), |plan, nth| {
        plan.rule(PlanRule::new(status(529, "not now")).nth(nth))
    });
    let plan = plan.rule(PlanRule::new(status(500, "oops")).nth(3));
    let (chain, sims) = with_fallback(plan);
    let world = World::of(&Stack::new(chain).preset(PRESET), sims);
    world.ask().await.answer();
    let asked = harness::model(steadfast::Dialect::Anthropic);
    assert!(world.asked(0).iter().all(|entry| entry.model == asked));
    assert_eq!(world.counts(), [6]);
}

#[test]
fn nobody_is_asked_in_further_rounds() {
    let policies = PRESET.policies();
    assert_eq!(policies.failover.when_exhausted, WhenExhausted::Fail);
    assert_eq!(policies.retry.max_wait, Duration::from_secs(600));
    let _ = (secs(1), fine());
}
