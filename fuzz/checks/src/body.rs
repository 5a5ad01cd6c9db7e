//! An HTTP answer passing through the classifier: `kind plan bytes`.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use steadfast_classify::ClassifyLayer;
use steadfast_core::Failure;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    content::check_failure,
    input::{Input, cut},
};

struct Chunks(std::vec::IntoIter<Bytes>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|chunk| Ok(Frame::data(chunk))))
    }
}

#[derive(Clone)]
struct Provider {
    status: StatusCode,
    content_type: &'static str,
    chunks: Vec<Bytes>,
}

impl Service<Request<()>> for Provider {
    type Response = Response<Chunks>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new(Chunks(self.chunks.clone().into_iter()));
        *response.status_mut() = self.status;
        if !self.content_type.is_empty() {
            let value = http::HeaderValue::from_static(self.content_type);
            response.headers_mut().insert("content-type", value);
        }
        ready(Ok(response))
    }
}

/// The forwarded bytes, and the failure.
fn watch(provider: Provider) -> (Vec<u8>, Option<Failure>) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut service = ClassifyLayer::llm_http().layer(provider);
    let response = pin!(service.call(Request::new(()))).as_mut().poll(&mut cx);
    let Poll::Ready(response) = response else { panic!("nothing to wait for") };
    let response = match response {
        Ok(response) => response,
        Err(failure) => return (Vec::new(), Some(failure)),
    };
    let mut body = pin!(response.into_body());
    let mut out = Vec::new();
    loop {
        match body.as_mut().poll_frame(&mut cx) {
            Poll::Pending => panic!("nothing to wait for"),
            Poll::Ready(None) => return (out, None),
            Poll::Ready(Some(Ok(frame))) => {
                out.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
            }
            Poll::Ready(Some(Err(failure))) => {
                assert!(matches!(body.as_mut().poll_frame(&mut cx), Poll::Ready(None)));
                return (out, Some(failure));
            }
        }
    }
}

/// * Bytes pass unchanged, all of them unless a failure follows.
/// * Splitting them makes no difference to the failure.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.byte();
    let plan = input.byte();
    let text = input.rest();
    let content_type = ["text/event-stream", "application/json", "", "text/plain"];
    let mut provider = Provider {
        status: if kind & 4 == 0 { StatusCode::OK } else { StatusCode::BAD_GATEWAY },
        content_type: content_type[usize::from(kind) % 4],
        chunks: vec![text.clone()],
    };
    let (out, failure) = watch(provider.clone());
    provider.chunks = cut(&text, plan);
    let (pieces, other) = watch(provider);
    for (out, failure) in [(&out, &failure), (&pieces, &other)] {
        assert!(text.starts_with(out), "bytes changed");
        match failure {
            None => assert_eq!(out.len(), text.len(), "bytes were lost"),
            Some(failure) => check_failure(failure),
        }
    }
    let shown = |failure: &Failure| (failure.reason(), failure.message().to_owned());
    assert_eq!(failure.as_ref().map(shown), other.as_ref().map(shown), "a split made a difference");
}
