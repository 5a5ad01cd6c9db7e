//! What presets make of conversations that fill their window.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use steadfast::{
    CallContext, ChatRequest, ChatResponse, Delta, Dialect, Event, EventStream, Failure, Head,
    Message, Policies, Preset, Reason, Stack, Usage,
    compact::{CompactionLayer, Models, Notice, TargetFacts, Tier, TokenLimits},
    sim::{ErrorKind, FaultPlan, Model, PlanRule, SimProvider},
};

use crate::{World, chain, error, fine, secs, sims};

/// The window of the model, in tokens.
const WINDOW: u64 = 14_000;

/// A summariser, and how often it was asked.
#[derive(Clone)]
struct Summariser {
    works: bool,
    hangs: Arc<AtomicBool>,
    /// The tokens that it reports for each; 0 for no report.
    usage: u64,
    asked: Arc<AtomicUsize>,
}

impl Summariser {
    fn new(works: bool) -> Self {
        Self { works, hangs: Arc::default(), usage: 0, asked: Arc::default() }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// A compaction that asks it.
    fn layer(&self) -> CompactionLayer {
        let Self { works, hangs, usage, asked } = self.clone();
        let service = tower::service_fn(move |_: ChatRequest| {
            asked.fetch_add(1, Ordering::Relaxed);
            let hangs = hangs.load(Ordering::Relaxed);
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                match works {
                    true => Ok(record(usage)),
                    false => Err(Failure::new(Reason::Overloaded, "busy")),
                }
            }
        });
        CompactionLayer::new(service).with_targets(|_| {
            TargetFacts::default()
                .with_dialect(Dialect::Anthropic)
                .with_limits(TokenLimits::new(WINDOW).with_output(1_000))
        })
    }
}

fn record(usage: u64) -> ChatResponse {
    let text = Delta::Text { index: 0, text: "The record of it all.".into() };
    let reported = (usage > 0).then(|| {
        let mut all = Usage::default();
        (all.input, all.output) = (Some(usage - 1_000), Some(1_000));
        Delta::Usage(all)
    });
    let deltas = [Some(text), reported, Some(Delta::End)].into_iter().flatten();
    let events = tokio_stream::iter([Ok(Event::new(deltas))]);
    ChatResponse::new(Head::new(Dialect::Anthropic), Box::pin(events) as EventStream)
}

fn world(policies: &Policies, layer: CompactionLayer, plan: FaultPlan) -> World {
    let sims: Vec<SimProvider> = sims([plan], |_, provider| provider);
    let stack = Stack::new(chain(&sims)).with_compaction(layer).with_policies(policies).unwrap();
    World::of(&stack, sims)
}

/// A conversation of so many turns of about a hundred tokens.
fn talk(turns: usize) -> ChatRequest {
    let messages = (0..turns).flat_map(|at| {
        let question = format!("question {at}: {}", "why so? ".repeat(20));
        let answer = format!("answer {at}: {}", "that is so. ".repeat(20));
        [Message::user(question), Message::assistant(answer)]
    });
    ChatRequest::new(messages.chain([Message::user("and now?")]).collect::<Vec<_>>())
        .with_model("any")
        .with_max_output(500)
        .with_context(CallContext::recording().with_session("s"))
}

/// The least turns with which what is sent takes this share of the window.
async fn turns_for(policies: &Policies, share: f64) -> usize {
    for turns in (10..).step_by(2) {
        let world = world(policies, Summariser::new(true).layer(), fine());
        let got = world.send(talk(turns)).await;
        if let Some(notice) = Notice::of(&got.answer().head)
            && (notice.warning || !notice.reports.is_empty())
        {
            let before = notice.reports.first().map_or(notice.tokens, |report| report.before);
            if (before + notice.reserve) as f64 >= share * WINDOW as f64 {
                return turns;
            }
        }
    }
    unreachable!()
}

fn texts(world: &World, request: usize) -> Vec<String> {
    let body = world.asked(0)[request].json.clone().unwrap();
    body["messages"].as_array().unwrap().iter().map(|one| one["content"].to_string()).collect()
}

fn has(texts: &[String], text: &str) -> bool {
    texts.iter().any(|one| one.contains(text))
}

#[tokio::test(start_paused = true)]
async fn codebuddy_warns_at_80_percent_prepares_in_the_background_and_compacts_at_90() {
    let policies = Preset::Codebuddy.policies();
    let summariser = Summariser::new(true);
    let world = world(&policies, summariser.layer(), fine());
    let mut warned = 0;
    for (request, turns) in (10..).enumerate() {
        let got = world.send(talk(turns)).await;
        tokio::time::sleep(secs(1)).await;
        let sent = texts(&world, request);
        let notice = Notice::of(&got.answer().head);
        if has(&sent, "The record of it all.") {
            // Due, and nobody waited for it.
            assert!(notice.is_none_or(|notice| notice.reports.is_empty() && !notice.deferred));
            assert!(!has(&sent, "question 0:"), "{sent:#?}");
            assert!(has(&sent, "and now?") && has(&sent, &format!("answer {}:", turns - 1)));
            break;
        }
        assert!(has(&sent, "question 0:"), "all of it is sent");
        let Some(notice) = notice else {
            assert_eq!((summariser.asked(), warned), (0, 0));
            continue;
        };
        let share = (notice.tokens + notice.reserve) as f64 / WINDOW as f64;
        assert!(notice.warning && (0.8..0.9).contains(&share), "{share}");
        assert_eq!(notice.deferred, warned == 0, "prepared in the background, once");
        assert_eq!(summariser.asked(), 1);
        warned += 1;
    }
    assert!(warned > 2, "{warned}");
    assert_eq!((summariser.asked(), world.handles.compaction.snapshot().counts.warned), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn codebuddy_strips_results_above_200_characters_first_and_keeps_the_last_four() {
    let policies = Preset::Codebuddy.policies();
    let long = |at: usize| format!("result {at}: {}", "x y ".repeat(400));
    let mut agent = crate::agent::Agent::new();
    for at in 0..60 {
        let result = if at % 2 == 0 { long(at) } else { format!("short {at}") };
        agent.called("read_note", &format!(r#"{{"note": {at}}}"#), &result);
    }
    let summariser = Summariser::new(true);
    let world = world(&policies, summariser.layer(), fine());
    let got = world.send(agent.request("read_note").with_max_output(500)).await;
    let report = Notice::of(&got.answer().head).unwrap().reports[0];
    assert_eq!((report.tier, summariser.asked()), (Tier::Strip, 0), "{report}");
    let sent = texts(&world, 0);
    assert!(!has(&sent, "result 0:") && has(&sent, "short 1"), "{sent:#?}");
    assert!(has(&sent, &long(58)), "one of the last four");
}

#[tokio::test(start_paused = true)]
async fn codebuddy_summarises_no_conversation_of_less_than_six_messages() {
    let policies = Preset::Codebuddy.policies();
    // The first message alone takes most of the window.
    let asked = |turns: usize| {
        let mut request = talk(turns);
        let long = Message::user("why so? ".repeat(3_000));
        let others = request.messages.iter().skip(1).cloned();
        request.messages = [long].into_iter().chain(others).collect::<Vec<_>>().into();
        request
    };
    for (turns, summarised) in [(2, false), (3, true)] {
        let summariser = Summariser::new(true);
        let world = world(&policies, summariser.layer(), fine());
        assert_eq!(asked(turns).messages.len(), 2 * turns + 1);
        world.send(asked(turns)).await.answer();
        assert_eq!(summariser.asked(), usize::from(summarised), "{turns} turns");
        assert_eq!(has(&texts(&world, 0), "The record of it all."), summarised, "{turns} turns");
    }
}

#[tokio::test(start_paused = true)]
async fn comis_leaves_a_conversation_alone_after_three_internal_errors() {
    let policies = Preset::Comis.policies();
    let due = turns_for(&policies, 0.92).await * 5 / 2;
    let summariser = Summariser::new(true);
    let layer = summariser.layer().with_pins(|_| panic!("a pin that can not be decided"));
    let world = world(&policies, layer, fine());
    for turn in 1..=5 {
        let got = world.send(talk(due)).await;
        let off = Notice::of(&got.answer().head).is_some_and(|notice| notice.switched_off);
        assert_eq!(off, turn >= 3, "{turn}");
        assert!(has(&texts(&world, turn - 1), "question 0:"), "it goes as it is");
    }
    let conversations = world.handles.compaction.snapshot().conversations;
    assert_eq!((conversations[0].throws, conversations[0].is_off), (3, true));
    // Others are not.
    let mut other = talk(2);
    other.context = CallContext::recording().with_session("another");
    let got = world.send(other).await;
    assert!(Notice::of(&got.answer().head).is_none_or(|notice| !notice.switched_off));
}

#[tokio::test(start_paused = true)]
async fn codebuddy_has_its_documents_windows() {
    let windows = Preset::Codebuddy.policies().compaction.unwrap().windows;
    for (model, window) in [
        ("claude-sonnet-4", 200_000),
        ("claude-opus-4", 200_000),
        ("gpt-4o", 128_000),
        ("gpt-4", 8_000),
        ("gemini-1.5-pro", 2_100_000),
        ("deepseek-chat", 64_000),
        ("qwen-plus", 131_000),
    ] {
        assert_eq!(windows[model], window);
        // The provider that has this model.
        let known = Model::new(model, window, window / 50);
        let sims = sims([fine()], |_, provider| provider.with_model(known.clone()));
        let target = steadfast::failover::TargetSpec::new(sims[0].name());
        let chain = steadfast::failover::Chain::new([target]).unwrap();
        let world = World::of(&Stack::new(chain).preset(Preset::Codebuddy), sims);
        // A notice comes at 80 % of it, by the model's tokenizer.
        let mut notice = None;
        for tenths in 6..=9 {
            let words = "word ".repeat(usize::try_from(window).unwrap() * tenths / 10);
            let asked = ChatRequest::user(words).with_model(model).with_max_output(window / 100);
            notice = Notice::of(&world.send(asked).await.answer().head).cloned();
            if notice.is_some() {
                break;
            }
        }
        let notice = notice.unwrap_or_else(|| panic!("{model}: no notice"));
        assert!(notice.warning, "{model}: {notice:?}");
        assert_eq!(notice.window, window, "{model}");
    }
    assert!(Models::default().get("gpt-4").is_some());
}

#[tokio::test(start_paused = true)]
async fn guppy_leaves_the_conversation_as_it_is_when_its_summary_fails() {
    let policies = Preset::Guppy.policies();
    let due = turns_for(&policies, 0.92).await;
    for works in [true, false] {
        let summariser = Summariser::new(works);
        let world = world(&policies, summariser.layer(), fine());
        world.send(talk(due)).await.answer();
        assert_eq!(summariser.asked(), 1);
        let sent = texts(&world, 0);
        assert_eq!(has(&sent, "question 0:"), !works, "{sent:#?}");
        assert_eq!(sent.len() == 2 * due + 1, !works);
    }
    // By default the older messages become a list of facts then.
    let world = world(&Policies::default(), Summariser::new(false).layer(), fine());
    world.send(talk(due)).await.answer();
    assert!(!has(&texts(&world, 0), "question 0:"));
}

#[tokio::test(start_paused = true)]
async fn guppy_compacts_an_overflow_and_never_retries_it() {
    let overflow = PlanRule::new(error(ErrorKind::ContextOverflow)).nth(1);
    let summariser = Summariser::new(true);
    let plan = FaultPlan::none().rule(overflow);
    let world = world(&Preset::Guppy.policies(), summariser.layer(), plan);
    let got = world.send(talk(20)).await;
    got.answer();
    assert_eq!(world.counts(), [2]);
    assert_eq!(got.took, secs(0), "no backoff");
    assert!(texts(&world, 1).len() < texts(&world, 0).len());
}

#[tokio::test(start_paused = true)]
async fn comis_rests_a_summariser_after_five_failures_for_a_minute() {
    let policies = Preset::Comis.policies();
    let due = turns_for(&policies, 0.92).await * 5 / 2;
    let summariser = Summariser::new(false);
    let world = world(&policies, summariser.layer(), fine());
    // Whether the turn of another conversation asks it.
    let asks_for = async |tenant: &str, number: usize| {
        let before = summariser.asked();
        let mut request = talk(due);
        let session = format!("s{number}");
        request.context = CallContext::recording().with_tenant(tenant).with_session(session);
        world.send(request).await.answer();
        summariser.asked() > before
    };
    let asks = async |number| asks_for("acme", number).await;
    for number in 1..=5 {
        assert!(asks(number).await, "{number}");
    }
    assert!(!asks(6).await, "it rests");
    assert!(asks_for("other", 1).await, "for one tenant");
    tokio::time::advance(secs(58)).await;
    assert!(!asks(7).await);
    tokio::time::advance(secs(3)).await;
    assert!(asks(8).await, "tried again after a minute");
    assert!(!asks(9).await);
}

/// The one compaction that finds out whether it is back has half a minute.
#[tokio::test(start_paused = true)]
async fn comis_tries_a_summariser_again_for_half_a_minute() {
    let policies = Preset::Comis.policies();
    let due = turns_for(&policies, 0.92).await * 5 / 2;
    let summariser = Summariser::new(false);
    let world = world(&policies, summariser.layer(), fine());
    let turn = async |number: usize| {
        let mut request = talk(due);
        request.context = CallContext::recording().with_session(format!("s{number}"));
        world.send(request).await.answer();
    };
    for number in 1..=5 {
        turn(number).await;
    }
    summariser.hangs.store(true, Ordering::Relaxed);
    tokio::time::advance(secs(61)).await;
    let before = summariser.asked();
    let began = tokio::time::Instant::now();
    let probes = async {
        turn(10).await;
        assert_eq!(began.elapsed(), secs(30), "and not the minute of other compactions");
    };
    let others = async {
        tokio::time::sleep(secs(29)).await;
        let probing = summariser.asked();
        assert!(probing > before, "it is tried");
        turn(11).await;
        assert_eq!((began.elapsed(), summariser.asked()), (secs(29), probing), "by one alone");
        // It has failed, and rests for a minute again.
        tokio::time::sleep(secs(60)).await;
        turn(12).await;
        assert_eq!(summariser.asked(), probing);
        summariser.hangs.store(false, Ordering::Relaxed);
        tokio::time::sleep(secs(2)).await;
        turn(13).await;
        assert!(summariser.asked() > probing);
    };
    tokio::join!(probes, others);
}

/// Half a million in an hour and five in a day; 0 is no cap.
#[tokio::test(start_paused = true)]
async fn comis_spends_five_million_a_day_on_summaries_and_zero_is_no_cap() {
    let mut policies = Preset::Comis.policies();
    let due = turns_for(&policies, 0.92).await * 5 / 2;
    // Whether the turn of another conversation is summarised, which costs 490,000 by the provider's account.
    let summarised = async |world: &World, summariser: &Summariser| {
        let before = summariser.asked();
        let mut request = talk(due);
        let session = format!("s{}", world.counts()[0]);
        request.context = CallContext::recording().with_session(session);
        world.send(request).await.answer();
        summariser.asked() > before
    };
    let expensive = || {
        let summariser = Summariser { usage: 490_000, ..Summariser::new(true) };
        let layer = summariser.layer();
        (summariser, layer)
    };
    let (summariser, layer) = expensive();
    let capped = world(&policies, layer, fine());
    // The eleventh hour begins with 100,000 left.
    for hour in 1..=11 {
        assert!(summarised(&capped, &summariser).await, "{hour}");
        assert!(!summarised(&capped, &summariser).await, "{hour}: no more in the hour");
        tokio::time::advance(secs(3_700)).await;
    }
    for hour in 12..=23 {
        assert!(!summarised(&capped, &summariser).await, "{hour}: no more in the day");
        tokio::time::advance(secs(3_700)).await;
    }
    tokio::time::advance(secs(3_700)).await;
    assert!(summarised(&capped, &summariser).await, "the first hours are a day ago");

    (policies.spend.hour, policies.spend.day) = (0, 0);
    let (summariser, layer) = expensive();
    let free = world(&policies, layer, fine());
    for number in 1..=20 {
        assert!(summarised(&free, &summariser).await, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn comis_spends_its_documented_tokens_on_summaries() {
    let policies = Preset::Comis.policies();
    let due = turns_for(&policies, 0.92).await * 5 / 2;
    let summariser = Summariser::new(true);
    let world = world(&policies, summariser.layer(), fine());
    let mut asked = 0;
    // Each is shown most of the window and reports no usage, so that what was reserved is spent.
    for number in 0..200 {
        let mut request = talk(due);
        request.context = CallContext::recording().with_session(format!("s{number}"));
        world.send(request).await.answer();
        let now = summariser.asked();
        if now == asked {
            break;
        }
        asked = now;
    }
    let handle = &world.handles.compaction;
    let spent = handle.snapshot().spent.first().map(|(_, hour, _)| *hour).unwrap();
    assert!(spent <= 500_000 && spent > 480_000, "{spent} after {asked}");
    tokio::time::advance(secs(3_700)).await;
    let mut request = talk(due);
    request.context = CallContext::recording().with_session("later");
    world.send(request).await.answer();
    assert!(summariser.asked() > asked, "an hour later there is more");
}
