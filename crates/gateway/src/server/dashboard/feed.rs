//! `GET /dashboard/feed`: what the page shows, as server-sent events.
//!
//! One task makes what all pages get, while there are any: however many calls there are and however many look, it is
//! made a few times a second, and whoever reads slowly gets the newest.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, header};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, timeout},
};

use super::{is_operator, snapshot};
use crate::server::{App, admin::admin};

/// The shortest time between two frames, 400 ms: quicker than anybody reads.
const PERIOD: Duration = Duration::from_millis(400);

/// The longest, 2 s: how old what rests and waits may look while nothing happens.
const IDLE: Duration = Duration::from_secs(2);

/// The most pages that are open at once: an operations team with a screen on the wall.
const PAGES: usize = 32;

/// Makes what is shown, and passes it on.
pub(in crate::server) struct Feed {
    frames: watch::Sender<Option<Bytes>>,
    pages: Arc<Semaphore>,
    /// Somebody makes frames.
    is_made: AtomicBool,
    changed: Notify,
    closed: AtomicBool,
}

impl Feed {
    pub(in crate::server) fn new() -> Self {
        Self {
            frames: watch::Sender::new(None),
            pages: Arc::new(Semaphore::new(PAGES)),
            is_made: AtomicBool::new(false),
            changed: Notify::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// An operator has changed something, and wants to see it.
    pub(in crate::server) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Ends all feeds, so that nobody waits for their connections. There are no more.
    pub(in crate::server) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.frames.send_modify(|_| {});
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("pages", &self.frames.receiver_count()).finish_non_exhaustive()
    }
}

/// `GET /dashboard/feed`.
pub(super) async fn feed(State(app): State<App>, asked: Parts) -> Response {
    if let Err(refused) = admin(&app, &asked) {
        return refused;
    }
    let feed = &app.0.feed;
    if feed.is_closed() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    let Ok(permit) = feed.pages.clone().try_acquire_owned() else {
        let why = format!("{PAGES} dashboards are open already; close one\n");
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let frames = feed.frames.subscribe();
    if !feed.is_made.swap(true, Ordering::AcqRel) {
        tokio::spawn(make(app.clone()));
    }
    let page = Page { app, asked, frames, is_first: true, _permit: permit };
    let events = futures_util::stream::unfold(page, |mut page| async {
        let frame = page.next().await?;
        Some((Ok::<_, Infallible>(frame), page))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy would keep them back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// One reader.
struct Page {
    app: App,
    asked: Parts,
    frames: watch::Receiver<Option<Bytes>>,
    is_first: bool,
    _permit: OwnedSemaphorePermit,
}

impl Page {
    /// The next frame. `None` when there are no more for this page: the gateway stops, or its session has ended.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !std::mem::take(&mut self.is_first) {
                self.frames.changed().await.ok()?;
            }
            if self.app.0.feed.is_closed() || !is_operator(&self.app, &self.asked) {
                return None;
            }
            // Of the one who looked before, until there is another, for whoever comes while it is made.
            let frame = self.frames.borrow_and_update().clone();
            if frame.is_some() {
                return frame;
            }
        }
    }
}

/// Makes frames until nobody looks any more.
async fn make(app: App) {
    let feed = &app.0.feed;
    let mut made: Option<(u64, Instant)> = None;
    loop {
        if feed.is_closed() || feed.frames.receiver_count() == 0 {
            // What is shown next is not of now.
            feed.frames.send_replace(None);
            feed.is_made.store(false, Ordering::Release);
            let is_wanted = !feed.is_closed() && feed.frames.receiver_count() > 0;
            if !is_wanted || feed.is_made.swap(true, Ordering::AcqRel) {
                return;
            }
        }
        let version = app.stories().version();
        if made.is_none_or(|(of, at)| of != version || at.elapsed() >= IDLE) {
            let made_by = app.clone();
            // It takes milliseconds where much is remembered, and calls wait for nothing.
            let frame = tokio::task::spawn_blocking(move || snapshot::event(&made_by)).await;
            // That it panicked is logged; the page finds out that nothing comes.
            if let Ok(frame) = frame {
                feed.frames.send_replace(Some(frame));
            }
            made = Some((version, Instant::now()));
        }
        sleep(PERIOD).await;
        if made.is_some_and(|(of, _)| of == app.stories().version())
            && timeout(PERIOD, feed.changed.notified()).await.is_ok()
        {
            made = None;
        }
    }
}
