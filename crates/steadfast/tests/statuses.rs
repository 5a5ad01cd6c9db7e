//! Core, classifier and retry agree on what a bare status means, and how often it is asked again.
#![cfg(all(feature = "classify", feature = "retry"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{HeaderMap, Request, Response, StatusCode};
use steadfast::{
    BoxError, Call, CallContext, Failure, Reason, Upstream, classify::ClassifyLayer,
    retry::RetryBackoffLayer,
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

/// Status, reason, and how often the target is asked in all where another one can answer, and alone.
const TABLE: &[(u16, Reason, usize, usize)] = &[
    (400, Reason::Format, 1, 1),
    (401, Reason::Auth, 1, 1),
    (402, Reason::Billing, 1, 1),
    (404, Reason::ModelNotFound, 1, 1),
    (408, Reason::Timeout, 2, 11),
    (409, Reason::ServerError, 2, 11),
    (413, Reason::PayloadTooLarge, 1, 1),
    (429, Reason::RateLimit, 1, 11),
    (500, Reason::ServerError, 2, 11),
    (501, Reason::Unsupported, 1, 1),
    (502, Reason::ServerError, 2, 11),
    (503, Reason::Overloaded, 3, 11),
    (504, Reason::Timeout, 2, 11),
    (505, Reason::Unsupported, 1, 1),
    (507, Reason::ServerError, 2, 11),
    (511, Reason::ServerError, 2, 11),
    (520, Reason::ServerError, 2, 11),
    (524, Reason::Timeout, 2, 11),
    (529, Reason::Overloaded, 3, 11),
    (530, Reason::ServerError, 2, 11),
    (599, Reason::ServerError, 2, 11),
];

/// The reason of the failure, how often the service was asked, and how often by the recovery log.
async fn asked<S, R>(
    service: impl FnOnce(Arc<AtomicUsize>) -> S,
    alternatives: u32,
) -> (Reason, usize, u32)
where
    S: Service<Request<()>, Response = R, Error = Failure>,
{
    let asked = Arc::new(AtomicUsize::new(0));
    let mut request = Request::new(());
    *request.context_mut() = CallContext::recording();
    let log = request.context().log.clone();
    request.context_mut().alternatives = alternatives;
    let failure = service(asked.clone()).oneshot(request).await.err().unwrap();
    (failure.reason(), asked.load(Ordering::Relaxed), log.attempts())
}

#[tokio::test(start_paused = true)]
async fn each_status_has_one_meaning_with_a_classifier_and_without() {
    for (status, reason, with_spare, alone) in TABLE {
        let status = StatusCode::from_u16(*status).unwrap();
        for (alternatives, times) in [(1, *with_spare), (0, *alone)] {
            let retry = || RetryBackoffLayer::in_stack().without_budget();
            let classified = |asked: Arc<AtomicUsize>| {
                ServiceBuilder::new().layer(retry()).layer(ClassifyLayer::llm_http()).service(
                    service_fn(move |_: Request<()>| {
                        asked.fetch_add(1, Ordering::Relaxed);
                        let mut response =
                            Response::new(http_body_util::Empty::<bytes::Bytes>::new());
                        *response.status_mut() = status;
                        async { Ok::<_, BoxError>(response) }
                    }),
                )
            };
            let bare = |asked: Arc<AtomicUsize>| {
                ServiceBuilder::new().layer(retry().at_once()).service(service_fn(
                    move |_: Request<()>| {
                        asked.fetch_add(1, Ordering::Relaxed);
                        let upstream = Upstream::response(status, HeaderMap::new(), "");
                        async { Err::<(), _>(Failure::from_upstream(upstream)) }
                    },
                ))
            };
            let counted = u32::try_from(times).unwrap();
            let expected = (*reason, times, counted);
            assert_eq!(asked(classified, alternatives).await, expected, "{status}, classified");
            // A service of one's own counts for itself.
            let expected = (*reason, times, 0);
            assert_eq!(asked(bare, alternatives).await, expected, "{status}, by core alone");
        }
    }
}
