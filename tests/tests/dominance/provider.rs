//! A target: it answers, or does what its nature says.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::Mutex;
use steadfast::{
    Call as _, ChatRequest, ChatResponse, Delta, Dialect, Event, EventStream, Failure, Head,
    Reason, StopReason, Upstream, Usage,
};
use tokio::time::{Instant, sleep};
use tokio_stream::Stream;

use crate::{
    quota::QuotaState,
    world::{FaultPattern, Nature, World},
};

/// The targets of a world, and what they have been asked.
#[derive(Clone, Debug)]
pub(crate) struct Targets(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    first_content: Duration,
    length: Duration,
    began: Instant,
    targets: Vec<Mutex<TargetState>>,
}

#[derive(Debug)]
struct TargetState {
    nature: Nature,
    rng: Rng,
    asked: u64,
    /// Of a limit by rate: calls that it would take now, and when that was so.
    tokens: f64,
    at: Duration,
    /// Calls under way.
    busy: usize,
    quota: Option<QuotaState>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reaction {
    Answer,
    /// The stream breaks half way.
    Break,
    Fail,
    Refuse(Duration),
}

impl TargetState {
    /// What its limits say to a call.
    fn limited(&mut self, now: Duration, used: Used) -> Option<Reaction> {
        let hint = self.quota.as_mut()?.admit(now, used.input.into()).err()?;
        self.asked += 1;
        Some(Reaction::Refuse(hint))
    }

    fn reaction(&mut self, now: Duration) -> Reaction {
        self.asked += 1;
        let chance = self.rng.f64();
        let fails = match &self.nature.fault {
            FaultPattern::Chance(share) => chance < *share,
            FaultPattern::Windows(windows) => {
                windows.iter().any(|(from, until)| (*from..*until).contains(&now))
            }
            FaultPattern::Slope(from, until) => {
                let left = until.saturating_sub(now).as_secs_f64();
                now >= *from && chance < left / (*until - *from).as_secs_f64()
            }
            FaultPattern::Rate(rate, hint) => {
                let since = (now - self.at).as_secs_f64();
                self.tokens = (self.tokens + since * rate).min(*rate);
                self.at = now;
                if self.tokens < 1.0 {
                    return Reaction::Refuse(*hint);
                }
                self.tokens -= 1.0;
                false
            }
            FaultPattern::Concurrency(most, hint) => {
                if self.busy >= *most {
                    return Reaction::Refuse(*hint);
                }
                false
            }
        };
        if fails {
            Reaction::Fail
        } else if self.rng.f64() < self.nature.broken {
            Reaction::Break
        } else {
            Reaction::Answer
        }
    }
}

/// A call that is counted as under way until it is dropped.
struct Busy(Targets, usize);

impl Busy {
    fn new(targets: Targets, at: usize) -> Self {
        targets.0.targets[at].lock().busy += 1;
        Self(targets, at)
    }
}

impl Busy {
    /// An answer has ended.
    fn charge(&self, used: Used) {
        if let Some(quota) = &mut self.0.0.targets[self.1].lock().quota {
            quota.charge(used.output.into());
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.targets[self.1].lock().busy -= 1;
    }
}

impl Targets {
    /// Those of `world`; its time begins now.
    pub(crate) fn new(world: &World) -> Self {
        let targets = (0..).zip(&world.targets).map(|(at, nature)| {
            let target = TargetState {
                nature: nature.clone(),
                rng: Rng::with_seed(world.seed * 31 + at),
                asked: 0,
                tokens: match nature.fault {
                    FaultPattern::Rate(rate, _) => rate,
                    _ => 0.0,
                },
                at: Duration::ZERO,
                busy: 0,
                quota: nature.quota.clone().map(QuotaState::new),
            };
            Mutex::new(target)
        });
        Self(Arc::new(Inner {
            first_content: world.first_content,
            length: world.length,
            began: Instant::now(),
            targets: targets.collect(),
        }))
    }

    /// How often they have been asked.
    pub(crate) fn asked(&self) -> u64 {
        self.0.targets.iter().map(|target| target.lock().asked).sum()
    }

    /// Asks the target that the request names; `tN` is the `N`th.
    ///
    /// # Errors
    ///
    /// What a client makes of a refusal or an error.
    pub(crate) async fn ask(self, request: ChatRequest) -> Result<ChatResponse, Failure> {
        let target = request.context.target.as_ref().expect("a target is named").provider();
        let at: usize = target[1..].parse().expect("a number");
        let now = self.0.began.elapsed();
        let used = Used::new(&request);
        let (reaction, fails_after, headers) = {
            let mut target = self.0.targets[at].lock();
            let reaction = target.limited(now, used).unwrap_or_else(|| target.reaction(now));
            let quota = target.quota.as_mut();
            let headers = quota.map(|quota| quota.headers(now)).unwrap_or_default();
            (reaction, target.nature.fails_after, headers)
        };
        let breaks = match reaction {
            Reaction::Answer => false,
            Reaction::Break => true,
            Reaction::Fail => {
                sleep(fails_after).await;
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return Err(failure(status, Duration::ZERO, headers));
            }
            Reaction::Refuse(hint) => {
                sleep(Duration::from_millis(10)).await;
                return Err(failure(StatusCode::TOO_MANY_REQUESTS, hint, headers));
            }
        };
        let busy = Busy::new(self.clone(), at);
        let mut head = Head::new(Dialect::OpenAi);
        head.headers = headers.into();
        let Inner { first_content, length, .. } = *self.0;
        if request.stream {
            sleep(first_content).await;
            let stream = AnswerStream { step: 0, breaks, length, sleep: None, used, busy };
            let events = Box::pin(stream) as EventStream;
            return Ok(ChatResponse::new(head, events));
        }
        let whole = first_content + length;
        sleep(if breaks { whole / 2 } else { whole }).await;
        if breaks {
            return Err(Failure::new(Reason::Network, "connection reset before the end"));
        }
        busy.charge(used);
        let deltas = [text(), used.delta(), Delta::Stop(StopReason::EndTurn.into()), Delta::End];
        let events = Box::pin(tokio_stream::iter([Ok(Event::new(deltas))])) as EventStream;
        Ok(ChatResponse::new(head, events))
    }
}

/// What a call really uses, in tokens.
#[derive(Clone, Copy, Debug)]
struct Used {
    input: u32,
    output: u32,
}

impl Used {
    /// The same of the same request, whoever is asked.
    fn new(request: &ChatRequest) -> Self {
        let mut rng = Rng::with_seed(request.prompt_digest().unwrap_or(0));
        Self { input: rng.u32(200..3_000), output: rng.u32(50..1_500) }
    }

    fn delta(self) -> Delta {
        Delta::Usage(Usage::new(self.input.into(), self.output.into()))
    }
}

fn text() -> Delta {
    Delta::Text { index: 0, text: "An answer.".to_owned() }
}

fn failure(status: StatusCode, hint: Duration, mut headers: HeaderMap) -> Failure {
    if !hint.is_zero() {
        headers.insert("retry-after", HeaderValue::from(hint.as_secs()));
    }
    let kind =
        if status == StatusCode::TOO_MANY_REQUESTS { "rate_limit_error" } else { "api_error" };
    let body = format!(r#"{{"error":{{"message":"it failed","type":"{kind}"}}}}"#);
    Failure::from_upstream(Upstream::response(status, headers, body).with_dialect(Dialect::OpenAi))
}

/// A streamed answer: content, a while, and the end or a break.
struct AnswerStream {
    step: u8,
    breaks: bool,
    length: Duration,
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
    used: Used,
    busy: Busy,
}

impl Stream for AnswerStream {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.step += 1;
        match this.step {
            1 => Poll::Ready(Some(Ok(Event::new([text()])))),
            2 => {
                let length = if this.breaks { this.length / 2 } else { this.length };
                let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep(length)));
                if sleep.as_mut().poll(cx).is_pending() {
                    this.step = 1;
                    return Poll::Pending;
                }
                this.busy.charge(this.used);
                Poll::Ready(Some(if this.breaks {
                    Err(Failure::new(Reason::Network, "connection reset in the stream"))
                } else {
                    let stop = Delta::Stop(StopReason::EndTurn.into());
                    Ok(Event::new([this.used.delta(), stop, Delta::End]))
                }))
            }
            _ => Poll::Ready(None),
        }
    }
}
