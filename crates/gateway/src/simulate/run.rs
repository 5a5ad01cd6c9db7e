//! One run: calls come, are asked, and are counted.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use fastrand::Rng;
use futures_core::Stream;
use parking_lot::Mutex;
use steadfast::{ChatRequest, ChatResponse, ChatService, Failure, Reason, Target, limit::Prices};
use steadfast_core::{AttemptsLayer, Call};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tower::{Layer, ServiceExt, util::BoxCloneSyncService};

use super::{
    Contender, Simulation, SimulationOptions,
    figures::{Figures, INTERVALS},
    replay::Recorded,
    target::Targets,
    world::Shape,
};
use crate::{
    config::ConfigErrors,
    stack::SimulatedStacks,
    stories::{Draft, Ending, Outcome, Story},
};

/// How often targets are sampled, an interval.
const SAMPLES: u32 = 10;

/// After which the official SDKs give up by default.
const SDK_TIMEOUT: Duration = Duration::from_secs(600);

/// Retries of [`Contender::Retries`].
const RETRIES: u32 = 3;

pub(super) fn run(of: &Simulation, contender: Contender) -> Result<Figures, ConfigErrors> {
    // Layers draw their jitter by the chance of the thread.
    fastrand::seed(of.options.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|error| panic!("a runtime without a driver can be made: {error}"));
    runtime.block_on(simulate(of, contender))
}

/// What answers calls.
enum Asked {
    Stack(Arc<SimulatedStacks>),
    /// The first target alone.
    Client {
        service: ChatService,
        target: Target,
        retries: u32,
    },
}

/// What all calls of a run have in common.
struct Run {
    asked: Asked,
    targets: Targets,
    began: Instant,
    length: Duration,
    model: String,
    route: Arc<str>,
    streamed: f64,
    prices: Arc<Prices>,
    figures: Mutex<Figures>,
    /// Calls under way, and whether one of them panicked.
    under_way: Mutex<(usize, bool)>,
    ended: Notify,
}

async fn simulate(of: &Simulation, contender: Contender) -> Result<Figures, ConfigErrors> {
    let targets = Targets::new(&of.world, &of.chain, &of.options).await;
    let names: Vec<String> = of.chain.iter().map(|named| named.name.clone()).collect();
    let first = names.first().map_or("", String::as_str);
    let client = |retries| Asked::Client {
        service: BoxCloneSyncService::new(
            AttemptsLayer::new().layer(targets.clone()).map_response(ChatResponse::boxed),
        ),
        target: Target::new(first).with_model(&of.model),
        retries,
    };
    let asked = match contender {
        Contender::Steadfast => {
            let stacks = SimulatedStacks::new(&of.config, &of.source, targets.clone())?;
            Asked::Stack(Arc::new(stacks))
        }
        Contender::Plain => client(0),
        Contender::Retries => client(RETRIES),
    };
    let run = Arc::new(Run {
        asked,
        targets: targets.clone(),
        began: Instant::now(),
        length: of.options.length,
        model: of.model.clone(),
        route: "default".into(),
        streamed: of.world.calls.streamed,
        prices: of.prices()?,
        figures: Mutex::new(Figures::new(contender.as_str(), &names)),
        under_way: Mutex::default(),
        ended: Notify::new(),
    });
    let sampling = tokio::spawn(run.clone().sample());
    run.clone().calls(of.world.calls.shape, &of.options).await;
    sampling.abort();
    let mut figures = std::mem::take(&mut *run.figures.lock());
    for ((_, tally), of) in figures.targets.iter_mut().zip(targets.tallies()) {
        *tally = of;
    }
    figures.attempts = figures.targets.iter().map(|(_, tally)| tally.asked).sum();
    figures.cache_lost = targets.conversations().cache_lost();
    Ok(figures)
}

impl Run {
    /// Makes the calls: those that were recorded, or a Poisson process whose rate has the shape of the world.
    async fn calls(self: Arc<Self>, shape: Shape, options: &SimulationOptions) {
        let mut rng = Rng::with_seed(options.seed ^ 0x5eed);
        if options.recorded.is_empty() {
            let most = options.rate * shape.most();
            let mut at = Duration::ZERO;
            let mut number = 0u64;
            loop {
                at += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / most);
                if at >= self.length {
                    break;
                }
                let share = at.as_secs_f64() / self.length.as_secs_f64();
                if rng.f64() >= shape.at(share) / shape.most() {
                    continue;
                }
                sleep_until(self.began + at).await;
                number += 1;
                self.begin(number, None, rng.fork());
            }
        }
        for (number, call) in (1..).zip(options.recorded.iter()) {
            sleep_until(self.began + call.at).await;
            self.begin(number, Some(call.clone()), rng.fork());
        }
        while self.under_way.lock().0 > 0 {
            self.ended.notified().await;
        }
        assert!(!self.under_way.lock().1, "a call panicked, and would be missing");
    }

    fn begin(self: &Arc<Self>, number: u64, recorded: Option<Recorded>, rng: Rng) {
        self.under_way.lock().0 += 1;
        let under_way = UnderWay(self.clone());
        // In a box: a task of a future is copied several times.
        tokio::spawn(Box::pin(async move { under_way.0.call(number, recorded, rng).await }));
    }

    async fn call(&self, number: u64, recorded: Option<Recorded>, mut rng: Rng) {
        let began = Instant::now();
        let conversation = match recorded {
            Some(_) => format!("r{}", number - 1).into(),
            None => self.targets.conversations().next(),
        };
        let by_chance = rng.f64() < self.streamed;
        let stream = recorded.as_ref().map_or(by_chance, |call| call.stream);
        let model = recorded.and_then(|call| call.model).unwrap_or_else(|| self.model.clone());
        let mut request = ChatRequest::user(number.to_string()).with_model(model.as_str());
        let log = request.context.log.clone();
        request.stream = stream;
        let context = request.context_mut();
        *context = std::mem::take(context).with_session(conversation);
        let answer = match &self.asked {
            Asked::Stack(stacks) => read(stacks.ask(request).await).await,
            Asked::Client { service, target, retries } => {
                request.context_mut().target = Some(target.clone());
                // In a box: the stack's calls have no need of its room.
                Box::pin(self.by_client(service, request, *retries, &mut rng)).await
            }
        };
        let mut ending = Ending::new(Outcome::Ok);
        ending.took = began.elapsed();
        ending.asked = log.attempts();
        match answer {
            Ok(target) => ending.target = target,
            Err(failure) => {
                ending.outcome = Outcome::Failed;
                ending.reason = Some(failure.outward_reason());
                ending.target = failure.target().cloned();
            }
        }
        let story = || {
            let mut draft = Draft::new(format!("call {number}"));
            draft.began = std::time::UNIX_EPOCH + (began - self.began);
            draft.model.clone_from(&model);
            draft.stream = stream;
            draft.route = Some(self.route.clone());
            draft.prices = Some(self.prices.clone());
            Story::new(Arc::new(draft), &log, ending.clone())
        };
        self.figures.lock().add(self.interval(began), &log, &ending, &self.prices, story);
    }

    /// As the SDKs ask.
    async fn by_client(
        &self,
        service: &ChatService,
        request: ChatRequest,
        retries: u32,
        rng: &mut Rng,
    ) -> Result<Option<Target>, Failure> {
        let mut retry = 0;
        loop {
            let answer = async { service.clone().oneshot(request.clone()).await };
            let failure = match timeout(SDK_TIMEOUT, answer).await {
                // A stream that breaks is lost.
                Ok(Ok(response)) => return read(Ok(response)).await,
                Ok(Err(failure)) => failure,
                Err(_) => Failure::new(Reason::Timeout, "no answer in ten minutes"),
            };
            let may_pass = failure.status().is_none_or(|status| {
                status.is_server_error() || [408, 409, 429].contains(&status.as_u16())
            });
            if retry == retries || !may_pass {
                return Err(failure);
            }
            let hint = failure.upstream().and_then(|upstream| {
                let hint = upstream.headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
                hint.parse().ok().filter(|hint| (1..=60).contains(hint)).map(Duration::from_secs)
            });
            let usual = Duration::from_millis(500 << retry).min(Duration::from_secs(8));
            sleep(hint.unwrap_or_else(|| usual.mul_f64(1.0 - 0.25 * rng.f64()))).await;
            retry += 1;
        }
    }

    /// Samples the targets, again and again.
    async fn sample(self: Arc<Self>) {
        let every = self.length / (INTERVALS as u32 * SAMPLES);
        loop {
            let at = self.interval(Instant::now());
            let ills = self.targets.ills();
            let resting = match &self.asked {
                Asked::Stack(stacks) => stacks.resting(),
                Asked::Client { .. } => Vec::new(),
            };
            {
                let figures = &mut *self.figures.lock();
                let interval = &mut figures.intervals[at];
                interval.samples += 1;
                for (position, ill) in ills.into_iter().enumerate() {
                    interval.ill[position] += u32::from(ill);
                    let name = figures.targets[position].0.as_str();
                    interval.resting[position] +=
                        u32::from(resting.iter().any(|target| target.provider() == name));
                }
            }
            sleep(every.max(Duration::from_millis(1))).await;
        }
    }

    fn interval(&self, at: Instant) -> usize {
        let share = (at - self.began).as_secs_f64() / self.length.as_secs_f64();
        ((share * INTERVALS as f64) as usize).min(INTERVALS - 1)
    }
}

/// A call that is under way until this is dropped.
struct UnderWay(Arc<Run>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        under_way.0 -= 1;
        under_way.1 |= std::thread::panicking();
        if under_way.0 == 0 {
            self.0.ended.notify_one();
        }
    }
}

/// Reads an answer to its end: who gave it.
async fn read(response: Result<ChatResponse, Failure>) -> Result<Option<Target>, Failure> {
    let (head, mut events) = response?.into_parts();
    while let Some(event) = poll_fn(|cx| Pin::new(&mut events).poll_next(cx)).await {
        if event?.is_end() {
            return Ok(head.target);
        }
    }
    Err(Failure::new(Reason::Network, "the answer has no end"))
}
