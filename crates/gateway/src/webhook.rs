//! Notices of held requests, sent to an address of the operator's.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use steadfast::client::{ClientBody, transport::Transport};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};
use tower::ServiceExt;

use crate::secrets::{Secrets, mask_lines};

/// The longest time of one try: as long as a connection may take.
const LIMIT: Duration = Duration::from_secs(10);

/// How often a notice is sent until it is taken.
const TRIES: u32 = 3;

/// The wait before the second try; twice as long before the third.
const PAUSE: Duration = Duration::from_secs(1);

/// Notices that wait or are being sent: as many as requests are held by default. One more is dropped.
const QUEUED: usize = 100;

/// Notices that are being sent at once.
const AT_ONCE: usize = 8;

/// Sends notices without delaying anybody; cheap to clone.
#[derive(Clone)]
pub(crate) struct Webhook(Arc<Inner>);

struct Inner {
    uri: Uri,
    transport: Transport,
    masks: Arc<Secrets>,
    queue: Arc<Semaphore>,
    sending: Semaphore,
}

impl Webhook {
    pub(crate) fn new(uri: Uri, transport: Transport, masks: Arc<Secrets>) -> Self {
        let (queue, sending) = (Arc::new(Semaphore::new(QUEUED)), Semaphore::new(AT_ONCE));
        Self(Arc::new(Inner { uri, transport, masks, queue, sending }))
    }

    /// Sends `notice`, a text of JSON, without its secrets. Has to be called by a task.
    pub(crate) fn send(&self, notice: &str) {
        let Ok(queued) = self.0.queue.clone().try_acquire_owned() else {
            report("the queue is full", 0);
            return;
        };
        let masked = self.0.masks.mask(notice.as_bytes());
        let body = Bytes::from(mask_lines(&masked).into_owned());
        let inner = self.0.clone();
        tokio::spawn(async move {
            inner.deliver(body).await;
            drop(queued);
        });
    }
}

impl Inner {
    async fn deliver(&self, body: Bytes) {
        let mut pause = PAUSE;
        for attempt in 1..=TRIES {
            let why = match self.post(body.clone()).await {
                Ok(status) if status.is_success() => return,
                // It would refuse the same again.
                Ok(status) if status.is_client_error() && !is_passing(status) => {
                    report(&format!("the address answers {status}"), attempt);
                    return;
                }
                Ok(status) => format!("the address answers {status}"),
                Err(why) => why.to_owned(),
            };
            if attempt == TRIES {
                report(&why, attempt);
                return;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// One try. An error says nothing of the address, which may be a secret.
    async fn post(&self, body: Bytes) -> Result<StatusCode, &'static str> {
        let Ok(_sending) = self.sending.acquire().await else { return Err("it is closed") };
        let mut request = Request::new(ClientBody::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        match timeout(LIMIT, self.transport.clone().oneshot(request)).await {
            Ok(Ok(response)) => Ok(response.status()),
            Ok(Err(_)) => Err("the address can not be reached"),
            Err(_) => Err("the address does not answer in time"),
        }
    }
}

/// Whether another try may be taken.
fn is_passing(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// A notice was not delivered.
fn report(why: &str, tries: u32) {
    tracing::error!(
        name: "steadfast::gateway::webhook_failed",
        target: "steadfast::gateway",
        why,
        tries,
        "a notice of a held request was not delivered"
    );
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").finish_non_exhaustive()
    }
}
