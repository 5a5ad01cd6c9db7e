//! A network that adds mischief of its own: late headers, frames that come twice.

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
use steadfast_tests::harness::Net;
use tower_service::Service;

use crate::{
    chance, ms,
    timeline::{Timeline, What},
};

/// Between the client and [`Net`]. While it is rough, some answers are held back before their
/// headers arrive, and some frames that carry no content arrive twice.
#[derive(Clone)]
pub(crate) struct Rough {
    net: Net,
    timeline: Timeline,
    rough: Arc<AtomicBool>,
    dice: Arc<Mutex<Rng>>,
}

impl Rough {
    pub(crate) fn around(net: Net, timeline: &Timeline, dice: Rng) -> Self {
        let rough = Arc::new(AtomicBool::new(true));
        Self { net, timeline: timeline.clone(), rough, dice: Arc::new(Mutex::new(dice)) }
    }

    /// From now on it only passes things on.
    pub(crate) fn calm(&self) {
        self.rough.store(false, Ordering::Relaxed);
    }
}

impl Service<Request<ClientBody>> for Rough {
    type Response = Response<RoughBody>;
    type Error = SimError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, SimError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SimError>> {
        self.net.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let (mut held, mut twice) = (Duration::ZERO, false);
        if self.rough.load(Ordering::Relaxed) {
            let mut dice = self.dice.lock();
            if chance(&mut dice, 0.06) {
                held = ms(&mut dice, 0..50_000);
            }
            twice = chance(&mut dice, 0.15);
        }
        let (call, timeline) = (self.net.call(request), self.timeline.clone());
        Box::pin(async move {
            let response = call.await?;
            if !held.is_zero() {
                timeline.note(What::Network("holds an answer back"));
                tokio::time::sleep(held).await;
            }
            let twice = twice.then_some(timeline);
            Ok(response.map(|body| RoughBody { body, twice, again: None }))
        })
    }
}

/// A body of which frames without content may come twice.
#[derive(Debug)]
pub(crate) struct RoughBody {
    body: SimBody,
    /// They do, and this is told of it.
    twice: Option<Timeline>,
    again: Option<Bytes>,
}

impl Body for RoughBody {
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
            timeline.note(What::Network("says a frame twice"));
            this.again = Some(bytes.clone());
        }
        Poll::Ready(polled)
    }
}

/// Whether it is one whole frame that ends an answer, counts it or says that its writer is alive:
/// heard twice, none of that changes what was said.
fn may_repeat(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let whole = text.ends_with("\n\n") || text.ends_with("\r\n\r\n");
    let frames = text.matches("data:").count();
    let harmless = ["[DONE]", "\"choices\":[]", "message_delta", "message_stop", "event: ping"];
    whole && frames <= 1 && (text.starts_with(':') || harmless.iter().any(|it| text.contains(it)))
}
