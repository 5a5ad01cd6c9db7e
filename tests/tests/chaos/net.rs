//! A network with faults: late headers, duplicated frames.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response};
use http_body::{Body, Frame};
use parking_lot::Mutex;
use steadfast::{
    client::ClientBody,
    sim::{SimBody, SimError},
};
use steadfast_tests::{harness::Net, seeds::chance};
use tower_service::Service;

use crate::{
    ms,
    timeline::{Timeline, TraceEvent},
};

/// Between the client and [`Net`]. While `faulty`, some answers are held back before their headers
/// arrive, and some frames without content arrive twice.
#[derive(Clone)]
pub(crate) struct FaultyNetwork {
    net: Net,
    timeline: Timeline,
    faulty: Arc<AtomicBool>,
    rng: Arc<Mutex<Rng>>,
}

impl FaultyNetwork {
    pub(crate) fn around(net: Net, timeline: &Timeline, rng: Rng) -> Self {
        let faulty = Arc::new(AtomicBool::new(true));
        Self { net, timeline: timeline.clone(), faulty, rng: Arc::new(Mutex::new(rng)) }
    }

    /// From now on it has no faults.
    pub(crate) fn stop_faults(&self) {
        self.faulty.store(false, Ordering::Relaxed);
    }
}

impl Service<Request<ClientBody>> for FaultyNetwork {
    type Response = Response<DuplicatingBody>;
    type Error = SimError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, SimError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SimError>> {
        self.net.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let (mut held, mut twice) = (Duration::ZERO, false);
        if self.faulty.load(Ordering::Relaxed) {
            let mut rng = self.rng.lock();
            if chance(&mut rng, 0.06) {
                held = ms(&mut rng, 0..50_000);
            }
            twice = chance(&mut rng, 0.15);
        }
        let (call, timeline) = (self.net.call(request), self.timeline.clone());
        Box::pin(async move {
            let response = call.await?;
            if !held.is_zero() {
                timeline.note(TraceEvent::Network("holds an answer back"));
                tokio::time::sleep(held).await;
            }
            let twice = twice.then_some(timeline);
            Ok(response.map(|body| DuplicatingBody { body, twice, again: None }))
        })
    }
}

/// A body that may repeat frames without content.
#[derive(Debug)]
pub(crate) struct DuplicatingBody {
    body: SimBody,
    /// Set if it repeats them; each repetition is recorded here.
    twice: Option<Timeline>,
    again: Option<Bytes>,
}

impl Body for DuplicatingBody {
    type Data = Bytes;
    type Error = SimError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SimError>>> {
        let this = self.get_mut();
        if let Some(again) = this.again.take() {
            return Poll::Ready(Some(Ok(Frame::data(again))));
        }
        let polled = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(timeline) = &this.twice
            && let Some(Ok(frame)) = &polled
            && let Some(bytes) = frame.data_ref()
            && may_repeat(bytes)
        {
            timeline.note(TraceEvent::Network("repeats a frame"));
            this.again = Some(bytes.clone());
        }
        Poll::Ready(polled)
    }
}

/// Whether it is one whole frame of an end, of usage or of a keep-alive: repeated, none of these
/// changes the answer.
fn may_repeat(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let whole = text.ends_with("\n\n") || text.ends_with("\r\n\r\n");
    let frames = text.matches("data:").count();
    let harmless = ["[DONE]", "\"choices\":[]", "message_delta", "message_stop", "event: ping"];
    // A piece that begins with a colon may also be the rest of a line.
    let comment = text.starts_with(':') && frames == 0;
    whole && frames <= 1 && (comment || harmless.iter().any(|it| text.contains(it)))
}
