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

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn webhook(listener: &TcpListener) -> Webhook {
        let uri = format!("http://{}/hook", listener.local_addr().unwrap()).parse().unwrap();
        Webhook::new(uri, Transport::new(), Arc::new(Secrets::of(["a-known-secret"])))
    }

    #[tokio::test]
    async fn a_receiver_that_hangs_holds_a_bounded_number() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = webhook(&listener);
        for sent in 0..QUEUED + 5 {
            webhook.send("{}");
            let left = QUEUED.saturating_sub(sent + 1);
            assert_eq!(webhook.0.queue.available_permits(), left, "nobody waits for a permit");
        }
        // Each of those that are sent at once has a connection, and no other.
        let mut connections = Vec::new();
        for _ in 0..AT_ONCE {
            connections.push(listener.accept().await.unwrap());
        }
        tokio::task::yield_now().await;
        assert_eq!(webhook.0.sending.available_permits(), 0);
    }

    #[tokio::test]
    async fn a_refused_notice_is_not_sent_again_and_secrets_are_masked() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = webhook(&listener);
        webhook.send(r#"{"message": "the key a-known-secret is refused"}"#);
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"}") {
            assert!(stream.read_buf(&mut text).await.unwrap() > 0);
        }
        let text = String::from_utf8(text).unwrap();
        assert!(text.ends_with(r#"{"message": "the key [redacted] is refused"}"#), "{text}");
        stream.write_all(b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        // Another try, which nobody answers, would hold its permit for longer.
        let all = webhook.0.queue.acquire_many(u32::try_from(QUEUED).unwrap());
        let _all = timeout(LIMIT / 2, all).await.expect("it is over").unwrap();
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        for (status, passes) in [(408, true), (429, true), (400, false), (404, false)] {
            assert_eq!(is_passing(StatusCode::from_u16(status).unwrap()), passes, "{status}");
        }
    }
}
