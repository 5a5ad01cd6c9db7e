//! Agents that think, against a provider that binds thinking to everything before it: whatever the layers do
//! to a conversation (compaction, advice, continuation, resume, failover and back, a retry's message), no
//! request is refused for the thinking in it.
//!
//! A failed assertion names its seed. `STEADFAST_SEEDS` runs more seeds, `STEADFAST_SEED` one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use parking_lot::Mutex;
use serde_json::{Value, json};
use steadfast::{
    ChatRequest, ChatService, Completion, Dialect, Handles, Message, Part, RawJson, Reason, Role,
    Stack, ThinkingConfig, Tool,
    client::dialect::{Caller, Route, codec},
    compact::{CompactionLayer, TargetFacts, TokenLimits},
    failover::Chain,
    recover::{ContinuationLayer, OutputLimits, ThinkingMemoryLayer, ThinkingPolicy},
    retry::RetryBackoffLayer,
    sim::{
        Answer, ContinuationMode, ErrorKind, Fault, FaultPlan, How, Model, PlanRule, SimProvider,
        SimRequest,
    },
};
use steadfast_tests::{
    harness::{CallResult, client, target},
    seeds,
};

/// Seeds of a default run: a few seconds.
const SEEDS: u64 = 200;

/// The window of the models that think, in tokens, and their longest answer.
const WINDOW: (u64, u64) = (5_000, 1_900);

/// What a world is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// Providers that fail, answers that break, agents that go round in circles.
    Rough,
    /// Nothing goes wrong; conversations only become too long.
    Fair,
}

/// So many invented words.
fn prose(rng: &mut Rng, words: usize) -> String {
    let word = |rng: &mut Rng| {
        ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti"][rng.usize(..8)].repeat(rng.usize(1..3))
    };
    (0..words).map(|_| word(rng)).collect::<Vec<_>>().join(" ") + &format!(" {}.", rng.u32(..))
}

/// What the model does next; the same for all providers of a world.
#[derive(Debug)]
struct Agent {
    rng: Rng,
    /// Steps since the user's last turn, and how many of them are to come.
    steps: (u32, u32),
    /// It makes the same call again and again.
    stuck: bool,
    weather: Weather,
}

impl Agent {
    fn answer(&mut self, asked: &SimRequest) -> Answer {
        let rng = &mut self.rng;
        if !asked.after_tool_results {
            self.steps = (0, rng.u32(..5));
            self.stuck = self.weather == Weather::Rough && rng.u8(..3) == 0;
        }
        let mut answer = Answer::default();
        if asked.thinking {
            let length = rng.usize(2..30);
            answer = match rng.u8(..8) {
                0 => answer.then(steadfast::sim::Block::RedactedThinking(prose(rng, length))),
                _ => answer.then_thinking(prose(rng, length)),
            };
        }
        if self.steps.0 < self.steps.1 && !asked.tools.is_empty() {
            self.steps.0 += 1;
            if rng.bool() {
                let length = rng.usize(3..20);
                answer = answer.then_text(prose(rng, length));
            }
            let what = if self.stuck { 0 } else { rng.u32(1..) };
            answer = answer.then_tool_call("look_up", format!(r#"{{"q":{what}}}"#));
        } else {
            let length = rng.usize(5..120);
            answer = answer.then_text(prose(rng, length));
        }
        answer.continuation(ContinuationMode::Faithful).in_chunks_of(rng.usize(5..40))
    }
}

/// Faults of a provider, the more the likelier it is to be left.
fn plan(rng: &mut Rng, share: f64) -> FaultPlan {
    let kinds = [
        (Fault::Error(ErrorKind::Overloaded), 0.06),
        (Fault::Error(ErrorKind::ServerError), 0.03),
        (Fault::Reset, 0.03),
        (Fault::OutputLimit(rng.u64(15..80)), 0.08),
        (Fault::break_after(rng.usize(1..6), How::Reset), 0.06),
        (Fault::break_after(rng.usize(4..20), How::End), 0.05),
        (Fault::break_after(rng.usize(2..12), How::ErrorEvent(ErrorKind::Overloaded)), 0.04),
    ];
    let seed = rng.u64(..);
    kinds.into_iter().fold(FaultPlan::none().seed(seed), |plan, (fault, probability)| {
        plan.rule(PlanRule::new(fault).probability(probability * share))
    })
}

struct World {
    sims: Vec<SimProvider>,
    service: ChatService,
    handles: Handles,
}

impl World {
    fn new(rng: &mut Rng, weather: Weather, memory: ThinkingMemoryLayer) -> Self {
        let own = Rng::with_seed(rng.u64(..));
        let agent = Agent { rng: own, steps: (0, 0), stuck: false, weather };
        let agent = Arc::new(Mutex::new(agent));
        let claude = || Model::new("claude-sonnet-4-5", WINDOW.0, WINDOW.1);
        let mut sims = Vec::new();
        for (name, dialect) in [
            ("anthropic", Dialect::Anthropic),
            ("resold", Dialect::Anthropic),
            ("openai", Dialect::OpenAi),
            ("google", Dialect::Gemini),
        ] {
            let share = match (weather, sims.is_empty()) {
                (Weather::Fair, _) => 0.0,
                (Weather::Rough, true) => 1.0,
                (Weather::Rough, false) => 0.4,
            };
            let (agent, plan) = (agent.clone(), plan(rng, share));
            let mut sim = SimProvider::builder(dialect)
                .with_name(name)
                .with_seed(rng.u64(..))
                .respond(move |asked| Some(agent.lock().answer(asked)))
                .with_faults(plan);
            if dialect == Dialect::Anthropic {
                sim = sim.with_models([claude()]);
            }
            sims.push(sim.build());
        }
        // Two or three of them.
        let spare = rng.usize(1..sims.len());
        let mut order = vec![target(&sims[0]), target(&sims[spare])];
        if rng.bool() {
            order.extend((1..sims.len()).filter(|at| *at != spare).map(|at| target(&sims[at])));
        }
        let compaction =
            CompactionLayer::rules_only().with_seed(rng.u64(..)).with_targets(|target| {
                let (window, output) = match target.provider() {
                    "anthropic" | "resold" => WINDOW,
                    _ => (100_000, 8_000),
                };
                TargetFacts::default().with_limits(TokenLimits::new(window).with_output(output))
            });
        let most = OutputLimits { max_output: Some(WINDOW.1), window: None };
        let continuation = ContinuationLayer::default()
            .tune(|policy| policy.when_callers_limit = true)
            .unwrap()
            .with_limits(move |_, _| most);
        let mut stack = Stack::new(Chain::new(order).unwrap())
            .with_compaction(compaction.with_deferred(rng.bool()))
            .with_continuation(continuation)
            .with_thinking(memory)
            .without_budget();
        if rng.u8(..3) == 0 {
            let nudge = |_: &steadfast::retry::Nudge| Some("Please go on with the task.".into());
            stack =
                stack.with_retry(RetryBackoffLayer::in_stack().with_nudge(nudge).without_budget());
        }
        let handles = stack.handles();
        Self { service: stack.boxed(client(&sims)), sims, handles }
    }
}

/// How a caller keeps its conversation.
enum History {
    /// In this crate's types.
    Typed(Vec<Message>),
    /// In its dialect's JSON, as it received it.
    Wire(Dialect, Vec<Value>),
}

impl History {
    fn new(rng: &mut Rng) -> Self {
        match rng.u8(..4) {
            0 => Self::Typed(Vec::new()),
            1 => Self::Wire(Dialect::OpenAi, Vec::new()),
            _ => Self::Wire(Dialect::Anthropic, Vec::new()),
        }
    }

    fn request(&self) -> ChatRequest {
        let tool = Tool::function(
            "look_up",
            "Looks up.",
            RawJson::parse(r#"{"type":"object","properties":{"q":{"type":"integer"}}}"#).unwrap(),
        );
        match self {
            Self::Typed(messages) => {
                let mut request = ChatRequest::new(messages.clone()).with_tools(vec![tool]);
                request.params.thinking = Some(ThinkingConfig::Budget(1_024));
                request.params.max_output = Some(1_600);
                request.with_model("any").streaming()
            }
            Self::Wire(Dialect::Anthropic, messages) => {
                let mut messages = messages.clone();
                // As agents do, on the last message alone.
                if let Some(block) = messages.last_mut().map(|last| &mut last["content"][0]) {
                    block["cache_control"] = json!({"type": "ephemeral"});
                }
                let tools = json!([{"name": "look_up", "description": "Looks up.", "input_schema":
                    {"type": "object", "properties": {"q": {"type": "integer"}}}}]);
                read(
                    Dialect::Anthropic,
                    &json!({
                        "model": "any", "max_tokens": 1_600, "stream": true, "system": "Be an agent.",
                        "thinking": {"type": "enabled", "budget_tokens": 1_024},
                        "tools": tools, "messages": messages,
                    }),
                )
            }
            Self::Wire(dialect, messages) => {
                let tools = json!([{"type": "function", "function": {"name": "look_up", "parameters":
                    {"type": "object", "properties": {"q": {"type": "integer"}}}}}]);
                let mut request = read(
                    *dialect,
                    &json!({
                        "model": "any", "max_completion_tokens": 1_600, "stream": true, "tools": tools,
                        "messages": messages,
                    }),
                );
                request.params.thinking = Some(ThinkingConfig::Budget(1_024));
                request
            }
        }
    }

    fn user(&mut self, text: &str) {
        match self {
            Self::Typed(messages) => messages.push(Message::user(text)),
            Self::Wire(Dialect::Anthropic, messages) => {
                messages.push(json!({"role": "user", "content": [{"type": "text", "text": text}]}));
            }
            Self::Wire(_, messages) => messages.push(json!({"role": "user", "content": text})),
        }
    }

    fn answered(&mut self, answer: Completion) {
        match self {
            Self::Typed(messages) => messages.push(answer.into_message()),
            Self::Wire(dialect, messages) => {
                let caller = Caller::new("any", true);
                let body = codec(*dialect).write_answer(&answer, &caller).unwrap();
                let mut body: Value = serde_json::from_slice(&body).unwrap();
                messages.push(match dialect {
                    Dialect::Anthropic => {
                        json!({"role": "assistant", "content": body["content"].take()})
                    }
                    _ => {
                        let mut message = body["choices"][0]["message"].take();
                        message.as_object_mut().unwrap().remove("reasoning_content");
                        message
                    }
                });
            }
        }
    }

    fn results(&mut self, results: &[(String, String)]) {
        match self {
            Self::Typed(messages) => {
                let part = |(id, text): &(String, String)| Part::tool_result(&**id, &**text);
                messages.push(Message::new(Role::User, results.iter().map(part).collect()));
            }
            Self::Wire(Dialect::Anthropic, messages) => {
                let block = |(id, text): &(String, String)| json!({"type": "tool_result", "tool_use_id": id, "content": text});
                let content: Vec<Value> = results.iter().map(block).collect();
                messages.push(json!({"role": "user", "content": content}));
            }
            Self::Wire(_, messages) => messages.extend(
                results
                    .iter()
                    .map(|(id, text)| json!({"role": "tool", "tool_call_id": id, "content": text})),
            ),
        }
    }
}

fn read(dialect: Dialect, body: &Value) -> ChatRequest {
    let body = Bytes::from(body.to_string());
    codec(dialect).decode_request(&body, Route::default()).unwrap()
}

/// The counts of a seed.
#[derive(Debug, Default)]
struct Tally {
    answered: u64,
    failed: u64,
    compacted: u64,
    advised: u64,
    resumed: u64,
    continued: u64,
    moved: u64,
    dropped: u64,
    returned: u64,
    thought: u64,
    refused: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.compacted += other.compacted;
        self.advised += other.advised;
        self.resumed += other.resumed;
        self.continued += other.continued;
        self.moved += other.moved;
        self.dropped += other.dropped;
        self.returned += other.returned;
        self.thought += other.thought;
        self.refused.extend(other.refused);
    }
}

async fn live(seed: u64, weather: Weather, memory: ThinkingMemoryLayer) -> Tally {
    let mut rng = Rng::with_seed(seed);
    let world = World::new(&mut rng, weather, memory);
    let mut tally = Tally::default();
    let mut history = History::new(&mut rng);
    let session = (rng.u8(..4) > 0).then(|| format!("session-{seed}"));
    for _ in 0..rng.u32(3..9) {
        let length = rng.usize(10..150);
        history.user(&prose(&mut rng, length));
        // A stuck agent is stopped by the guard before that.
        for _ in 0..8 {
            let mut request = history.request();
            if let Some(session) = &session {
                request.context.identity_mut().session = Some(session.as_str().into());
            }
            let got = CallResult::of(&world.service, request).await;
            let answer = match (got.failure, got.seen) {
                (None, Some(answer)) => answer,
                (failure, _) => {
                    tally.failed += 1;
                    // A caller that asks once more later, with what it had.
                    let reason = failure.map(|failure| failure.reason());
                    if reason == Some(Reason::Safety) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    continue;
                }
            };
            tally.answered += 1;
            let from = answer.head.target.as_ref().map(|target| target.provider().to_owned());
            tally.advised +=
                answer.head.log.steps().iter().filter(|step| step.action == "advised").count()
                    as u64;
            tally.moved += u64::from(from.as_deref() != Some("anthropic"));
            let calls: Vec<_> =
                answer.tool_calls().map(|call| (call.id.clone(), call.arguments.clone())).collect();
            if answer.is_empty() || (calls.is_empty() && answer.text().trim().is_empty()) {
                continue;
            }
            history.answered(answer);
            if calls.is_empty() {
                break;
            }
            let result = |(id, arguments): (String, String)| {
                let mut rng = Rng::with_seed(arguments.len() as u64);
                let length = 60 + arguments.bytes().map(usize::from).sum::<usize>() % 200;
                (id, format!("{arguments}: {}", prose(&mut rng, length)))
            };
            history.results(&calls.into_iter().map(result).collect::<Vec<_>>());
            tokio::time::sleep(Duration::from_secs(rng.u64(..20))).await;
        }
        tokio::time::sleep(Duration::from_secs(rng.u64(..600))).await;
    }
    for sim in &world.sims {
        for entry in sim.journal().entries() {
            // A provider counts other tokens than a layer's estimate: then the conversation is compacted harder.
            let is_about_size = |text: &&String| text.contains("exceed context limit");
            if let Some(refused) = entry.refused.as_ref().filter(|text| !is_about_size(text)) {
                tally.refused.push(format!("STEADFAST_SEED={seed}, {}: {refused}", sim.name()));
            }
            let thinking = entry.sent.as_ref().map_or(0, |sent| sent.signatures.len());
            tally.thought += thinking as u64;
        }
    }
    let Handles { resume, continuation, compaction, thinking, .. } = &world.handles;
    tally.resumed = resume.snapshot().resumed;
    tally.continued = continuation.snapshot().continued;
    tally.compacted = compaction.snapshot().counts.compacted;
    let memory = thinking.snapshot();
    (tally.dropped, tally.returned) = (memory.dropped, memory.returned);
    tally
}

fn all(
    seeds: std::ops::Range<u64>,
    weather: Weather,
    memory: impl Fn() -> ThinkingMemoryLayer,
) -> Tally {
    let mut all = Tally::default();
    for seed in seeds {
        let lived = live(seed, weather, memory());
        all.add(seeds::paused().build().unwrap().block_on(lived));
    }
    all
}

fn some_seeds(most: u64) -> std::ops::Range<u64> {
    match seeds::number("STEADFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..seeds::number("STEADFAST_SEEDS").map_or(most, |seeds| seeds * most / SEEDS),
    }
}

#[test]
fn invariants_hold_for_thinking() {
    let seeds = some_seeds(SEEDS);
    let many = seeds.end - seeds.start >= SEEDS;
    // A tenth of these small windows.
    let policy = ThinkingPolicy { max_returned: 2_000, ..ThinkingPolicy::default() };
    let all = all(seeds, Weather::Rough, || ThinkingMemoryLayer::new(policy));
    println!("{all:?}");
    let refused = &all.refused[..all.refused.len().min(8)];
    assert!(refused.is_empty(), "{} refused: {refused:#?}", all.refused.len());
    if many {
        // So many seeds must have all of these, often.
        assert!(all.answered > 2_000 && all.thought > 1_500, "{all:?}");
        assert!(all.compacted > 50 && all.advised > 50 && all.moved > 100, "{all:?}");
        assert!(all.resumed > 100 && all.continued > 50, "{all:?}");
        // What a provider wrote it gets back, and most of it is never lost.
        assert!(all.returned > 500 && all.dropped > 100, "{all:?}");
    }
}

/// A layer that edits a history drops what it unbinds by itself, with nothing remembered.
#[test]
fn a_compaction_unbinds_what_is_behind_it_by_itself() {
    let all = all(some_seeds(SEEDS / 2), Weather::Fair, ThinkingMemoryLayer::off);
    println!("{all:?}");
    assert!(all.refused.is_empty(), "{:#?}", &all.refused[..all.refused.len().min(8)]);
    assert!(all.compacted > 0 && all.thought > 0, "{all:?}");
}

/// Without a memory, answers made behind advice or a part of an answer come back where they are refused;
/// each such refusal is repaired at the same target, once.
#[test]
fn what_no_layer_can_know_is_repaired_where_it_is_refused() {
    let all = all(0..40, Weather::Rough, ThinkingMemoryLayer::off);
    assert!(
        all.refused.iter().any(|text| text.contains("bound to a different conversation")),
        "{all:?}"
    );
    assert!(all.failed * 5 < all.answered, "{all:?}");
}
