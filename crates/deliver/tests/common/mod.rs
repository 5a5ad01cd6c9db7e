//! A channel that misbehaves on command, and what most tests begin with.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "helpers of tests are tests")]

use std::{
    collections::HashMap,
    future::Future,
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{Failure, Reason};
use steadfast_deliver::{
    Announcement, DeadLetters, DeliveryFolder, DeliveryLedger, LedgerPolicy, LetterList,
    LetterQueuePolicy,
};
use tokio::time::Instant;
use tower::Service;

/// What a destination does with messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Up,
    /// 503.
    Down,
    /// The connection can not be made.
    Refused,
    /// The connection breaks: nobody knows whether it was sent.
    Reset,
    /// 400: it will never take it.
    Invalid,
    /// 429 with a hint in seconds.
    Limited(u64),
    /// It is sent, and answered this late.
    Slow(Duration),
    /// 503, this late.
    DownAfter(Duration),
    /// The connection breaks, this late.
    ResetAfter(Duration),
    /// It is sent, and never answered.
    SentThenHangs,
    Hangs,
    Panics,
}

/// A channel; clones are the same channel.
#[derive(Clone, Debug, Default)]
pub struct Channel(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    modes: HashMap<String, Mode>,
    all: Option<Mode>,
    sent: Vec<(String, Instant)>,
    calls: u64,
}

impl Channel {
    pub fn set(&self, destination: &str, mode: Mode) {
        self.0.lock().modes.insert(destination.to_owned(), mode);
    }

    /// Every destination without a mode of its own.
    pub fn set_all(&self, mode: Mode) {
        self.0.lock().all = Some(mode);
    }

    /// The keys that people have read, in order, as often as they have.
    pub fn sent(&self) -> Vec<String> {
        self.0.lock().sent.iter().map(|(key, _)| key.clone()).collect()
    }

    pub fn sent_at(&self, key: &str) -> Option<Instant> {
        self.0.lock().sent.iter().find(|(one, _)| one == key).map(|(_, at)| *at)
    }

    /// How often it was called.
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }
}

impl Service<Announcement> for Channel {
    type Response = ();
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Announcement) -> Self::Future {
        let state = self.0.clone();
        Box::pin(async move {
            let mode = {
                let mut state = state.lock();
                state.calls += 1;
                let own = state.modes.get(&*message.destination).copied();
                own.or(state.all).unwrap_or(Mode::Up)
            };
            let send = || state.lock().sent.push((message.key.to_string(), Instant::now()));
            let error = |reason| Failure::new(reason, "as the script says");
            match mode {
                Mode::Up => send(),
                Mode::Down => {
                    return Err(error(Reason::ServerError)
                        .with_status(http::StatusCode::SERVICE_UNAVAILABLE));
                }
                Mode::DownAfter(time) => {
                    tokio::time::sleep(time).await;
                    return Err(error(Reason::ServerError)
                        .with_status(http::StatusCode::SERVICE_UNAVAILABLE));
                }
                Mode::ResetAfter(time) => {
                    tokio::time::sleep(time).await;
                    return Err(error(Reason::Network));
                }
                Mode::Refused => {
                    let cause = io::Error::from(io::ErrorKind::ConnectionRefused);
                    return Err(error(Reason::Network).with_source(cause));
                }
                Mode::Reset => return Err(error(Reason::Network)),
                Mode::Invalid => return Err(error(Reason::Format)),
                Mode::Limited(secs) => {
                    let hint = Duration::from_secs(secs);
                    return Err(error(Reason::RateLimit).with_retry_after(Some(hint)));
                }
                Mode::Slow(time) => {
                    send();
                    tokio::time::sleep(time).await;
                }
                Mode::SentThenHangs => {
                    send();
                    std::future::pending::<()>().await;
                }
                Mode::Hangs => std::future::pending::<()>().await,
                Mode::Panics => panic!("as the script says"),
            }
            Ok(())
        })
    }
}

pub fn message(key: &str, destination: &str) -> Announcement {
    Announcement::new(key, destination, format!("the text of {key}"))
}

pub fn ledger() -> DeliveryLedger {
    DeliveryLedger::in_memory(LedgerPolicy::default()).unwrap()
}

/// A failure after which a message is a letter.
pub fn down() -> Failure {
    Failure::new(Reason::ServerError, "as the script says")
}

/// The letters of a folder, delivered to this channel.
pub async fn open(path: &Path, channel: &Channel) -> DeadLetters {
    open_with(path, LetterQueuePolicy::default(), ledger(), channel.clone()).await
}

pub async fn open_with(
    path: &Path,
    policy: LetterQueuePolicy,
    ledger: DeliveryLedger,
    channel: Channel,
) -> DeadLetters {
    let folder = DeliveryFolder::open(path).await.unwrap();
    DeadLetters::open(&folder, policy, ledger, channel).await.unwrap()
}

/// `KEY end` of each letter that has ended.
pub fn ends(list: &LetterList) -> Vec<String> {
    list.ended.iter().map(|one| format!("{} {}", one.key, one.end.unwrap())).collect()
}

pub fn keys(list: &LetterList) -> Vec<&str> {
    list.waiting.iter().map(|one| &*one.key).collect()
}

/// Lets every task that can go on do so; the paused clock does not move.
pub async fn let_run() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Waits until this is so, which other tasks or the disk bring about; in real time, for ten seconds.
pub async fn until(is_so: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never came to that");
}
