//! Announcements: the way from a result to somebody who reads it, by a turn of the agent, a chat room, or a dead letter.

use std::{
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use parking_lot::Mutex;
use serde_json::json;
use steadfast::{
    Failure, Reason,
    classify::ClassifyLayer,
    deliver::{
        Announcement, BatchLayer, DeadLetterLayer, DeadLetters, DeliveryFolder, DeliveryLedger,
        DeliveryReceipt, DeliveryRetryLayer, DeliveryRoute, FailureNotice, LedgerPolicy,
        LetterDrain, LetterQueuePolicy, ParentTurn, RouteFallbackLayer, SendOnceLayer,
    },
    health::HealthHandle,
    supervise::{NoticeKind, NoticeVia, RunNotice},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::{helpers::result_key, screen::Screen};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A turn of the agent in which it announces something: there while the agent is.
#[derive(Clone, Default)]
pub(crate) struct Parent(Arc<Mutex<Option<BoxCloneSyncService<ParentTurn, (), Failure>>>>);

impl Parent {
    /// The agent is there, or has gone.
    pub(crate) fn set(&self, turn: Option<BoxCloneSyncService<ParentTurn, (), Failure>>) {
        *self.0.lock() = turn;
    }

    async fn announce(self, turn: ParentTurn) -> Result<(), Failure> {
        let parent = self.0.lock().clone();
        let parent =
            parent.ok_or_else(|| Failure::refused(Reason::Unknown, "there is no agent"))?;
        parent.oneshot(turn).await
    }
}

/// Takes announcements: what it returns for is delivered, or a letter on the disk. Clones are the same.
#[derive(Clone)]
pub(crate) struct Announcing {
    delivery: BoxCloneSyncService<Announcement, DeliveryReceipt, Failure>,
    letters: DeadLetters,
    ledger: DeliveryLedger,
}

impl Announcing {
    /// With letters in `folder`. To `room`, a URL that takes JSON by POST; without one by a turn of `parent`, else to the screen.
    pub(crate) async fn open(
        folder: &Path,
        room: Option<Uri>,
        parent: Parent,
        health: &HealthHandle,
        screen: Screen,
    ) -> Result<Self, BoxError> {
        let has_room = room.is_some();
        let folder = DeliveryFolder::open(folder).await?;
        let ledger = DeliveryLedger::open(&folder, LedgerPolicy::default()).await?;
        let channel = Channel { room: room.map(Room::new).transpose()?, screen };
        let once = ServiceBuilder::new().layer(SendOnceLayer::new(ledger.clone())).service(channel);
        // The room takes the key, so what may have been sent is sent again.
        let letters =
            LetterQueuePolicy { resend_unclear: has_room, ..LetterQueuePolicy::default() };
        let letters = DeadLetters::open(&folder, letters, ledger.clone(), once.clone()).await?;
        // A provider that is back: whatever held up the agent's turns may be over.
        letters.drain_when(health.watch(), |health| health.degraded().next().is_none());
        // Whoever starts the agent reads it now.
        letters.drain(&LetterDrain::All);
        let direct = ServiceBuilder::new().layer(DeliveryRetryLayer::default()).service(once);
        let kept = DeadLetterLayer::new(letters.clone());
        let delivery = if has_room {
            BoxCloneSyncService::new(ServiceBuilder::new().layer(kept).service(direct))
        } else {
            let degraded = health.degraded();
            let parent = service_fn(move |turn: ParentTurn| parent.clone().announce(turn));
            let parent =
                ServiceBuilder::new().layer(BatchLayer::new(ledger.clone())).service(parent);
            let route = RouteFallbackLayer::new(parent, ledger.clone())
                .skip_parent_when(move || !degraded.is_empty());
            BoxCloneSyncService::new(ServiceBuilder::new().layer(kept).layer(route).service(direct))
        };
        Ok(Self { delivery, letters, ledger })
    }

    /// Delivers, or keeps for delivery.
    pub(crate) async fn announce(&self, message: Announcement) -> Result<DeliveryRoute, Failure> {
        Ok(self.delivery.clone().oneshot(message).await?.route)
    }

    /// Delivers the notice that a run did not succeed, unless somebody has its result already or waits for it.
    pub(crate) async fn notice(&self, notice: RunNotice) -> Result<NoticeVia, Failure> {
        let Some(destination) = notice.destination.as_deref() else {
            // Its caller has the failure as a tool's result.
            return Ok(NoticeVia::Parent);
        };
        // An agent that ended while its result was on its way has left it as a letter, which is delivered by now or later.
        let result = result_key(&notice.run);
        if self.letters.list().waiting.iter().any(|letter| *letter.key == *result) {
            return Ok(NoticeVia::Letter);
        }
        if self.ledger.delivered(&result).is_some() {
            return Ok(NoticeVia::Direct);
        }
        let text = match notice.kind {
            NoticeKind::NotInTime => FailureNotice::NotInTime,
            _ => FailureNotice::NotSuccessful,
        };
        let message = Announcement::notice(notice.key.as_str(), destination, text);
        Ok(match self.announce(message.with_session(destination)).await? {
            DeliveryRoute::Parent => NoticeVia::Parent,
            // One that has ended in a record is decided: an error would have it sent again with every sweep.
            DeliveryRoute::Letter | DeliveryRoute::Recorded => NoticeVia::Letter,
            _ => NoticeVia::Direct,
        })
    }

    /// How many letters wait.
    pub(crate) fn waiting(&self) -> usize {
        self.letters.snapshot().waiting
    }

    /// Ends in good order: what is under way is finished, and the rest is for the next start.
    pub(crate) async fn close(&self) {
        self.letters.close().await;
        self.ledger.close().await;
    }
}

/// Where announcements go.
#[derive(Clone)]
struct Channel {
    room: Option<Room>,
    screen: Screen,
}

impl Service<Announcement> for Channel {
    type Response = ();
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Announcement) -> Self::Future {
        let Self { room, screen } = self.clone();
        Box::pin(async move {
            match room {
                Some(room) => room.post(&message).await,
                None => {
                    screen.line(format_args!("* {}", message.text));
                    Ok(())
                }
            }
        })
    }
}

/// A chat room that takes JSON by POST, and the key as `idempotency-key`.
#[derive(Clone)]
struct Room {
    uri: Uri,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Room {
    fn new(uri: Uri) -> Result<Self, BoxError> {
        let https = HttpsConnectorBuilder::new().with_webpki_roots().https_or_http();
        let client = Client::builder(TokioExecutor::new()).build(https.enable_http1().build());
        Ok(Self { uri, client })
    }

    async fn post(self, message: &Announcement) -> Result<(), Failure> {
        let body = json!({"text": &*message.text, "thread": &*message.session}).to_string();
        let request = Request::post(self.uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", &*message.key)
            .body(Full::from(body))
            .map_err(|error| Failure::refused(Reason::Format, error.to_string()))?;
        // What a status means, and the wait that a 429 asks for.
        let http = ServiceBuilder::new().layer(ClassifyLayer::http()).service(self.client);
        let answer = http.oneshot(request).await?;
        answer.into_body().collect().await.map_err(|error| {
            Failure::new(Reason::Network, "the room's answer broke").with_source(error)
        })?;
        Ok(())
    }
}
