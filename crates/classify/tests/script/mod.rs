//! Scripted answers of an HTTP service.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "tests; each file uses its part"
)]

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use steadfast_classify::http::{ClassifiedBody, HttpClassifyLayer};
use steadfast_core::{Call, Failure, Target};
use tower::{BoxError, Layer, ServiceExt, service_fn};

/// A body from a list, of a stated or unknown size; `Pending` where the list says so.
pub struct Script {
    frames: VecDeque<Step>,
    pub size: Option<u64>,
    pub polled: Arc<AtomicUsize>,
}

pub enum Step {
    Data(Bytes),
    Trailers(HeaderMap),
    Fail(BoxError),
    Hang,
}

impl Script {
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self { frames: steps.into_iter().collect(), size: None, polled: Arc::default() }
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.polled.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(match self.frames.pop_front() {
            Some(Step::Data(data)) => Some(Ok(Frame::data(data))),
            Some(Step::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Some(Step::Fail(error)) => Some(Err(error)),
            Some(Step::Hang) => {
                self.frames.push_front(Step::Hang);
                return Poll::Pending;
            }
            None => None,
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.size.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

pub fn data(text: impl Into<Bytes>) -> Step {
    Step::Data(text.into())
}

pub fn response(status: u16, kind: &'static str, body: Script) -> Response<Script> {
    Response::builder().status(status).header("content-type", kind).body(body).unwrap()
}

/// What `layer` makes of an answer.
pub async fn call(
    layer: &HttpClassifyLayer,
    response: Response<Script>,
) -> Result<Response<ClassifiedBody<Script>>, Failure> {
    let mut once = Some(response);
    let inner = service_fn(move |_: Request<()>| {
        let response = once.take().unwrap();
        async { Ok::<_, Infallible>(response) }
    });
    let mut request = Request::new(());
    request.context_mut().target = Some(Target::new("openai"));
    layer.layer(inner).oneshot(request).await
}

/// The bytes that came, and the failure that ended them.
pub async fn drain(
    mut body: impl Body<Data = Bytes, Error = Failure> + Unpin,
) -> (String, Option<Failure>) {
    let mut text = String::new();
    loop {
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    text.push_str(std::str::from_utf8(&data).unwrap());
                }
            }
            Some(Err(failure)) => {
                assert!(body.frame().await.is_none(), "fused after its first error");
                return (text, Some(failure));
            }
            None => return (text, None),
        }
    }
}
