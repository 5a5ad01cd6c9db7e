//! The targets of a world: they answer like providers, or do what the world has for them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use futures_core::{Stream, future::BoxFuture};
use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatResponse, Delta, Event, EventStream, Failure, Head, Reason, StopReason,
    Target, Upstream, Usage,
    client::{Credential, LlmClient, Provider, Providers},
};
use steadfast_core::{Call, Dialect};
use steadfast_sim::{ErrorKind, Fault, FaultPlan, RateLimit, SimProvider};
use tokio::time::{Instant, Sleep, sleep};
use tower::{Service, ServiceExt};

use super::{
    SimulationOptions,
    conversations::Conversations,
    world::{Ill, TargetTraits, World},
};

/// What a 429 without a limit of its own asks for, in seconds.
const THROTTLED_S: u64 = 30;

/// How long a refusal takes: a round trip.
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// A provider that a configuration names.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// What it speaks.
    pub dialect: Dialect,
}

/// The targets of a world; cheap to clone. A service: it answers what the request's target is asked.
#[derive(Clone)]
pub struct Targets(Arc<Inner>);

struct Inner {
    began: Instant,
    /// In the order of the chain.
    all: Vec<SimTarget>,
    conversations: Conversations,
    output_tokens: f64,
}

struct SimTarget {
    named: Named,
    traits: TargetTraits,
    /// What is wrong with it, from when, until when.
    ills: Vec<(Duration, Duration, Spell)>,
    /// Of its dialect: what each kind of refusal says.
    refusals: Vec<(Ill, Option<Upstream>)>,
    state: Mutex<TargetState>,
}

/// What is wrong in a time.
#[derive(Clone, Copy, Debug)]
struct Spell {
    what: Ill,
    share: f64,
    factor: f64,
}

struct TargetState {
    rng: Rng,
    /// Of a limit by rate: calls that it would take now, and when that was so.
    tokens: f64,
    at: Duration,
    /// Calls under way.
    busy: u32,
    tally: TargetTally,
}

/// What a target was asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct TargetTally {
    /// How often.
    pub asked: u64,
    /// How many of these were answered whole.
    pub answered: u64,
    /// How long those who asked waited for it or read from it, in all.
    pub time: Duration,
}

/// What becomes of a call.
enum Reaction {
    Answer { first: Duration, breaks: bool },
    Hang,
    Refuse(Failure),
}

impl Targets {
    /// The providers of a chain in a world whose time begins now.
    pub async fn new(world: &World, chain: &[Named], options: &SimulationOptions) -> Self {
        let SimulationOptions { length: whole, rate, seed, recorded } = options;
        let (whole, rate, seed) = (*whole, *rate, *seed);
        let mut all = Vec::new();
        for (position, named) in (1..).zip(chain) {
            let mut traits = world.traits(position, &named.name);
            if let Some(share) = traits.requests_share {
                traits.requests_per_minute = Some(share * rate * 60.0);
            }
            let of = world.events.iter().filter(|one| one.target.takes(position, &named.name));
            let ills = of.map(|event| {
                let from = event.at.of(whole);
                let spell = Spell { what: event.what, share: event.share, factor: event.factor };
                (from, from.saturating_add(event.lasts.of(whole)), spell)
            });
            all.push(SimTarget {
                ills: ills.collect(),
                refusals: refusals(named.dialect).await,
                state: Mutex::new(TargetState {
                    rng: Rng::with_seed(seed.wrapping_mul(31).wrapping_add(position as u64)),
                    // A second's worth at once.
                    tokens: traits.requests_per_minute.unwrap_or(0.0) / 60.0,
                    at: Duration::ZERO,
                    busy: 0,
                    tally: TargetTally::default(),
                }),
                named: named.clone(),
                traits,
            });
        }
        let conversations = Conversations::new(&world.calls, rate, seed, recorded);
        let output_tokens = world.calls.output_tokens as f64;
        Self(Arc::new(Inner { began: Instant::now(), all, conversations, output_tokens }))
    }

    /// Those who ask.
    pub(super) fn conversations(&self) -> &Conversations {
        &self.0.conversations
    }

    /// What each of them was asked, in the order of the chain.
    pub fn tallies(&self) -> Vec<TargetTally> {
        self.0.all.iter().map(|target| target.state.lock().tally).collect()
    }

    /// Whether something is wrong with each of them now.
    pub(super) fn ills(&self) -> Vec<bool> {
        let now = self.0.began.elapsed();
        self.0.all.iter().map(|target| target.spells(now).next().is_some()).collect()
    }

    fn position(&self, target: Option<&Target>) -> usize {
        let name = target.map_or("", Target::provider);
        self.0.all.iter().position(|one| one.named.name == name).unwrap_or(0)
    }

    /// Asks the target that the request names, or the first.
    ///
    /// # Errors
    ///
    /// What a client makes of a refusal, an error or a connection that fails.
    pub async fn ask(self, request: ChatRequest) -> Result<ChatResponse, Failure> {
        let at = self.position(request.context.target.as_ref());
        request.context.log.count_attempt();
        let mut visit = Visit { targets: self, at, began: Instant::now(), answered: false };
        let target = &visit.targets.0.all[at];
        let began = visit.began - visit.targets.0.began;
        let reaction = target.reaction(began);
        target.enter();
        let (first, breaks) = match reaction {
            Reaction::Answer { first, breaks } => (first, breaks),
            Reaction::Hang => {
                std::future::pending::<()>().await;
                unreachable!("it is pending for ever")
            }
            Reaction::Refuse(failure) => {
                sleep(ROUND_TRIP).await;
                return Err(failure);
            }
        };
        let inner = &visit.targets.0;
        let mut usage = inner.conversations.usage(request.context.session(), at, began);
        let drawn = || target.draw(inner.output_tokens, 0.6).clamp(1.0, 32_000.0);
        let output = usage.output.map_or_else(drawn, |tokens| tokens as f64);
        usage.output = Some(output as u64);
        let length = Duration::from_secs_f64(output / target.traits.tokens_per_s);
        let model = request.context.target.as_ref().and_then(Target::model);
        let start = Delta::Start { id: None, model: model.map(str::to_owned) };
        let mut head = Head::new(target.named.dialect);
        head.target.clone_from(&request.context.target);
        head.stream = request.stream;
        if request.stream {
            sleep(first).await;
            let start = Some(start);
            let stream = Answer { start, breaks, length, usage, sleep: None, visit: Some(visit) };
            return Ok(ChatResponse::new(head, Box::pin(stream)));
        }
        let whole = first + length;
        sleep(if breaks { whole / 2 } else { whole }).await;
        if breaks {
            return Err(Failure::new(Reason::Network, "connection reset before the end"));
        }
        visit.answered = true;
        drop(visit);
        let end = [Delta::Usage(usage), Delta::Stop(StopReason::EndTurn.into()), Delta::End];
        let deltas = [start, text()].into_iter().chain(end);
        let events = Box::pin(Once(Some(Event::new(deltas)))) as EventStream;
        Ok(ChatResponse::new(head, events))
    }
}

impl Service<ChatRequest> for Targets {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = BoxFuture<'static, Result<ChatResponse, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        Box::pin(self.clone().ask(request))
    }
}

impl std::fmt::Debug for Targets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named: Vec<_> = self.0.all.iter().map(|target| &target.named).collect();
        f.debug_struct("Targets").field("all", &named).finish_non_exhaustive()
    }
}

impl SimTarget {
    /// What is wrong with it now.
    fn spells(&self, now: Duration) -> impl Iterator<Item = &Spell> {
        let at = self.ills.iter().filter(move |(from, until, _)| (*from..*until).contains(&now));
        at.map(|(.., spell)| spell)
    }

    fn enter(&self) {
        let mut state = self.state.lock();
        state.busy += 1;
        state.tally.asked += 1;
    }

    /// Around `median`; `spread` is the standard deviation of its logarithm.
    fn draw(&self, median: f64, spread: f64) -> f64 {
        let rng = &mut self.state.lock().rng;
        let (one, two) = (1.0 - rng.f64(), rng.f64());
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos();
        median * (spread * normal).exp()
    }

    fn refuse(&self, what: Ill) -> Reaction {
        let known = self.refusals.iter().find(|(ill, _)| *ill == what);
        Reaction::Refuse(match known.and_then(|(_, upstream)| upstream.clone()) {
            Some(upstream) => Failure::from_upstream(upstream),
            None => Failure::new(Reason::Network, "tcp connect error: connection refused"),
        })
    }

    fn reaction(&self, now: Duration) -> Reaction {
        let mut slower = 1.0;
        let mut breaks = 0.0;
        for spell in self.spells(now) {
            match spell.what {
                Ill::Slow => slower *= spell.factor,
                Ill::Breaks => breaks = spell.share.max(breaks),
                _ if self.chance(spell.share) => {
                    return match spell.what {
                        Ill::Hangs => Reaction::Hang,
                        what => self.refuse(what),
                    };
                }
                _ => {}
            }
        }
        if let Some(wait) = self.over_limit(now) {
            let Reaction::Refuse(failure) = self.refuse(Ill::Throttled) else {
                return Reaction::Hang;
            };
            let Some(mut upstream) = failure.upstream().cloned() else {
                return Reaction::Refuse(failure);
            };
            upstream.headers.remove(http::header::RETRY_AFTER);
            if self.traits.hints {
                let hint = (wait.as_secs_f64().ceil() as u64).max(1);
                upstream.headers.insert(http::header::RETRY_AFTER, hint.into());
            }
            return Reaction::Refuse(Failure::from_upstream(upstream));
        }
        if self.chance(self.traits.errors) {
            return self.refuse(Ill::Errors);
        }
        let first = self.draw(self.traits.first_content_ms, self.traits.spread) * slower;
        Reaction::Answer {
            first: Duration::from_secs_f64(first.min(3_600_000.0) / 1e3),
            breaks: self.chance(breaks.max(self.traits.breaks)),
        }
    }

    fn chance(&self, share: f64) -> bool {
        share > 0.0 && self.state.lock().rng.f64() < share
    }

    /// How long until it takes a call again, if it takes none now.
    fn over_limit(&self, now: Duration) -> Option<Duration> {
        let mut state = self.state.lock();
        if self.traits.concurrency.is_some_and(|most| state.busy >= most) {
            return Some(Duration::from_secs(1));
        }
        let rate = self.traits.requests_per_minute? / 60.0;
        let since = now.saturating_sub(state.at).as_secs_f64();
        // Ten seconds' worth at most.
        state.tokens = (state.tokens + since * rate).min((rate * 10.0).max(1.0));
        state.at = now;
        if state.tokens < 1.0 {
            return Some(Duration::from_secs_f64((1.0 - state.tokens) / rate));
        }
        state.tokens -= 1.0;
        None
    }
}

/// What providers of `dialect` answer when they refuse: what their simulators do.
async fn refusals(dialect: Dialect) -> Vec<(Ill, Option<Upstream>)> {
    let hint = RateLimit { retry_after: Some(THROTTLED_S.to_string()), ..RateLimit::default() };
    let kinds = [
        (Ill::Down, None),
        (Ill::Errors, Some(ErrorKind::ServerError)),
        (Ill::Overloaded, Some(ErrorKind::Overloaded)),
        (Ill::Throttled, Some(ErrorKind::RateLimit(hint))),
        (Ill::KeyRefused, Some(ErrorKind::Auth)),
        (Ill::Unpaid, Some(ErrorKind::InsufficientQuota)),
    ];
    let mut all = Vec::new();
    for (ill, kind) in kinds {
        let Some(kind) = kind else {
            all.push((ill, None));
            continue;
        };
        let faults = FaultPlan::always(Fault::Error(kind));
        let sim = SimProvider::builder(dialect).with_faults(faults).build();
        let base_url = match dialect {
            Dialect::OpenAi | Dialect::Responses => "http://simulated/v1",
            Dialect::Anthropic | Dialect::Gemini => "http://simulated",
        };
        let provider = Provider::new("simulated", dialect)
            .with_base_url(base_url)
            .with_credential(Credential::new("simulated", "a-simulated-key"));
        let Ok(providers) = Providers::new([provider]) else { continue };
        let client = LlmClient::with_service(providers, sim);
        let mut request = ChatRequest::user("hello").with_model("gpt-4o").with_max_output(9);
        request.context_mut().target = Some(Target::new("simulated"));
        let failure = client.oneshot(request).await.err();
        all.push((ill, failure.and_then(|failure| failure.upstream().cloned())));
    }
    all
}

fn text() -> Delta {
    Delta::Text { index: 0, text: "An answer.".to_owned() }
}

/// A call that is counted as under way until it is dropped.
struct Visit {
    targets: Targets,
    at: usize,
    began: Instant,
    answered: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let state = &mut *self.targets.0.all[self.at].state.lock();
        state.busy -= 1;
        state.tally.time += self.began.elapsed();
        state.tally.answered += u64::from(self.answered);
    }
}

/// One event.
struct Once(Option<Event>);

impl Stream for Once {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.take().map(Ok))
    }
}

/// A streamed answer: content, a while, and the end or a break.
struct Answer {
    /// Until the content has come.
    start: Option<Delta>,
    breaks: bool,
    length: Duration,
    usage: Usage,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Until it is over.
    visit: Option<Visit>,
}

impl Stream for Answer {
    type Item = Result<Event, Failure>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(start) = this.start.take() {
            return Poll::Ready(Some(Ok(Event::new([start, text()]))));
        }
        if this.visit.is_none() {
            return Poll::Ready(None);
        }
        let length = if this.breaks { this.length / 2 } else { this.length };
        let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep(length)));
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        let visit = this.visit.take();
        if this.breaks {
            let failure = Failure::new(Reason::Network, "connection reset in the stream");
            return Poll::Ready(Some(Err(failure)));
        }
        if let Some(mut visit) = visit {
            visit.answered = true;
        }
        let stop = Delta::Stop(StopReason::EndTurn.into());
        let end = [Delta::Usage(this.usage), stop, Delta::End];
        Poll::Ready(Some(Ok(Event::new(end))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refusals_are_those_of_the_dialect() {
        use Ill::{Errors, KeyRefused, Overloaded, Throttled, Unpaid};
        for (dialect, statuses) in [
            (Dialect::OpenAi, [500, 503, 429, 401, 429]),
            (Dialect::Responses, [500, 503, 429, 401, 429]),
            (Dialect::Anthropic, [500, 529, 429, 401, 400]),
            (Dialect::Gemini, [500, 503, 429, 400, 429]),
        ] {
            let refusals = refusals(dialect).await;
            let of = |ill| refusals.iter().find(|(one, _)| *one == ill).unwrap().1.clone();
            let found = [Errors, Overloaded, Throttled, KeyRefused, Unpaid].map(|ill| {
                let upstream: Upstream = of(ill).unwrap();
                assert!(upstream.body.starts_with(b"{"), "{dialect} {ill:?}: {upstream:?}");
                upstream.status.unwrap().as_u16()
            });
            assert_eq!(found, statuses, "{dialect}");
            assert!(of(Ill::Down).is_none(), "nobody answers");
            assert_eq!(of(Throttled).unwrap().headers[http::header::RETRY_AFTER], "30");
        }
    }
}
