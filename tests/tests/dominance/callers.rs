//! Those who ask, and what they got.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use fastrand::Rng;
use parking_lot::Mutex;
use steadfast::{ChatRequest, ChatService, Failure, Handles, Stack, Target, failover::Chain};
use steadfast_tests::seeds;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_stream::StreamExt as _;
use tower::{ServiceExt as _, service_fn};

use crate::{
    provider::Targets,
    world::{Callers, Identity, World},
};

/// What the calls of one run came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) asked: u32,
    pub(crate) answered: u32,
    /// How often targets were asked.
    pub(crate) attempts: u64,
    /// What answered calls took beyond the answer's own time, in all.
    pub(crate) added: Duration,
}

impl Tally {
    /// The share of calls that were answered.
    pub(crate) fn share(&self) -> f64 {
        f64::from(self.answered) / f64::from(self.asked.max(1))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = f64::from(self.asked.max(1));
        write!(
            f,
            "{:.1} % of {} (+{:.2} s, {:.2} attempts)",
            100.0 * self.share(),
            self.asked,
            self.added.as_secs_f64() / f64::from(self.answered.max(1)),
            self.attempts as f64 / calls
        )
    }
}

/// The world with the default stack before its targets.
pub(crate) fn through_stack(world: &World) -> Tally {
    through_stacks(world, 1, |_| {})
}

/// The same with so many, each call by any of them; `share` sees the handles of all.
pub(crate) fn through_stacks(world: &World, nodes: usize, share: impl FnOnce(&[Handles])) -> Tally {
    run(world, |targets| {
        let names = (0..world.targets.len()).map(|at| format!("t{at}").into());
        let chain = Chain::new(names.collect::<Vec<steadfast::failover::TargetSpec>>()).unwrap();
        let stacks: Vec<_> = (0..nodes).map(|_| Stack::new(chain.clone())).collect();
        share(&stacks.iter().map(Stack::handles).collect::<Vec<_>>());
        let service = |stack: Stack<_>| {
            let targets = targets.clone();
            stack.boxed(service_fn(move |request| targets.clone().ask(request)))
        };
        let services: Arc<[ChatService]> = stacks.into_iter().map(service).collect();
        move |request, mut rng: Rng| {
            let stack = services[rng.usize(..services.len())].clone();
            async move { read(stack.oneshot(request).await).await }
        }
    })
}

/// The world with its `at`th target alone, asked as the official SDKs ask: two retries, 0.5 s
/// doubling to 8 s with jitter, a hint obeyed up to 60 s; a stream that breaks is lost.
pub(crate) fn through_target(world: &World, at: usize) -> Tally {
    run(world, |targets| {
        move |mut request: ChatRequest, mut rng: Rng| {
            request.context.target = Some(Target::new(format!("t{at}")));
            let targets = targets.clone();
            async move {
                for retry in 0..3 {
                    let failure = match targets.clone().ask(request.clone()).await {
                        Ok(response) => return read(Ok(response)).await,
                        Err(failure) => failure,
                    };
                    if retry < 2 {
                        let hint = hint(&failure);
                        let usual =
                            Duration::from_millis(500 << retry).mul_f64(1.0 - 0.25 * rng.f64());
                        sleep(hint.unwrap_or(usual)).await;
                    }
                }
                false
            }
        }
    })
}

/// What an SDK reads of the header.
fn hint(failure: &Failure) -> Option<Duration> {
    let hint = failure.upstream()?.headers.get("retry-after")?.to_str().ok()?.parse().ok()?;
    (1..=60).contains(&hint).then(|| Duration::from_secs(hint))
}

/// Whether it was answered to its end.
async fn read(response: Result<steadfast::ChatResponse, Failure>) -> bool {
    let Ok(response) = response else { return false };
    let mut events = response.into_parts().1;
    let mut ended = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => ended |= event.is_end(),
            Err(_) => return false,
        }
    }
    ended
}

impl Identity {
    fn request(self, mut rng: Rng) -> ChatRequest {
        let prompt = match self {
            Identity::OnePrompt => "hello".to_owned(),
            _ => rng.u64(..).to_string(),
        };
        let mut request = ChatRequest::user(prompt).with_model("m");
        if let Identity::Sessions(sessions) = self {
            let session = rng.u32(..sessions).to_string();
            request.context = request.context.with_session(session);
        }
        request
    }
}

/// Runs a world on a paused clock.
fn run<F, A>(world: &World, make: impl FnOnce(Targets) -> F) -> Tally
where
    F: Fn(ChatRequest, Rng) -> A + Clone + Send + 'static,
    A: Future<Output = bool> + Send + 'static,
{
    let runtime = seeds::paused().build().unwrap();
    runtime.block_on(async {
        let targets = Targets::new(world);
        let ask = make(targets.clone());
        let tally = make_calls(world, ask).await;
        Tally { attempts: targets.asked(), ..tally }
    })
}

/// Makes the calls of a world; `ask` returns whether one was answered.
pub(crate) async fn make_calls<F, A>(world: &World, ask: F) -> Tally
where
    F: Fn(ChatRequest, Rng) -> A + Clone + Send + 'static,
    A: Future<Output = bool> + Send + 'static,
{
    let tally = Arc::new(Mutex::new(Tally::default()));
    let own = world.first_content + world.length;
    let (streamed, identity, end) = (world.streamed, world.identity, world.end);
    let max_output = world.max_output;
    let one = {
        let tally = tally.clone();
        move |rng: Rng| {
            let (ask, tally) = (ask.clone(), tally.clone());
            async move {
                tally.lock().asked += 1;
                let began = Instant::now();
                let request = identity.request(rng.clone());
                let request = if streamed { request.streaming() } else { request };
                let request = match max_output {
                    Some(most) => request.with_max_output(most),
                    None => request,
                };
                if ask(request, rng).await {
                    let mut tally = tally.lock();
                    tally.answered += 1;
                    tally.added += began.elapsed().saturating_sub(own);
                }
            }
        }
    };
    let mut rng = Rng::with_seed(world.seed ^ 0x5eed);
    let began = Instant::now();
    let mut calls = JoinSet::new();
    match world.callers {
        Callers::Open(rate) => {
            while began.elapsed() < end {
                calls.spawn(one(rng.fork()));
                sleep(Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate)).await;
                while calls.try_join_next().is_some() {}
            }
        }
        Callers::Closed(callers) => {
            for _ in 0..callers {
                let (one, mut rng) = (one.clone(), rng.fork());
                calls.spawn(async move {
                    sleep(Duration::from_secs_f64(rng.f64())).await;
                    while began.elapsed() < end {
                        one(rng.fork()).await;
                        sleep(Duration::from_millis(100)).await;
                    }
                });
            }
        }
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    tally.lock().clone()
}
