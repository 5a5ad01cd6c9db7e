//! The load: connections that are kept alive, each with one request at a time. Hand-written on
//! sockets, so that it uses little CPU.

use std::{cell::Cell, fmt, net::SocketAddr, rc::Rc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::LocalSet,
    time::Instant,
};

use crate::{Error, fit::Fit};

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// After so long.
    Time(Duration),
    /// After so many requests.
    Count(u64),
}

/// The results of whole answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// How long each took, in nanoseconds, sorted.
    pub(crate) took: Vec<u64>,
}

impl Answers {
    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.took.len() as u64
    }

    /// The time below which `share` of them were.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let at = (self.took.len() as f64 * share) as usize;
        let at = at.min(self.took.len().saturating_sub(1));
        Duration::from_nanos(self.took.get(at).copied().unwrap_or_default())
    }
}

/// The results of streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streamed {
    /// Events.
    pub(crate) events: u64,
    /// Their HTTP chunks.
    pub(crate) chunks: u64,
    /// Reads from the socket they took.
    pub(crate) reads: u64,
}

/// How a load is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Callers {
    /// Each with one request at a time.
    pub(crate) connections: usize,
    /// The pause of each before its next request.
    pub(crate) pause: Duration,
}

impl Callers {
    /// So many, without a pause.
    pub(crate) const fn without_pause(connections: usize) -> Self {
        Self { connections, pause: Duration::ZERO }
    }
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.connections)?;
        if self.pause.is_zero() { Ok(()) } else { write!(f, ", {:?} apart", self.pause) }
    }
}

/// Sends `request` over connections repeatedly. `start` is called when all connections are open and
/// have been used.
pub(crate) async fn whole<T>(
    address: SocketAddr,
    request: &Rc<[u8]>,
    callers: Callers,
    until: Until,
    start: impl FnOnce() -> T,
) -> Result<(Answers, T), Error> {
    let mut open = Vec::new();
    for _ in 0..callers.connections {
        let mut connection = Connection::open(address).await?;
        connection.ask(request).await?;
        open.push(connection);
    }
    let started = start();
    let left = Rc::new(Cell::new(match until {
        Until::Count(count) => count,
        Until::Time(_) => u64::MAX,
    }));
    let end = match until {
        Until::Time(time) => Some(Instant::now() + time),
        Until::Count(_) => None,
    };
    let tasks = LocalSet::new();
    let running: Vec<_> = (0..)
        .zip(open)
        .map(|(number, mut connection)| {
            let (request, left) = (request.clone(), left.clone());
            tasks.spawn_local(async move {
                let mut took = Vec::with_capacity(4_096);
                // Spread over the pause: callers are independent.
                let spread = callers.pause * number / callers.connections as u32;
                let mut now = pause(spread).await;
                while left.get() > 0 && end.is_none_or(|end| now < end) {
                    left.set(left.get() - 1);
                    connection.ask(&request).await?;
                    let done = Instant::now();
                    took.push(u64::try_from((done - now).as_nanos()).unwrap_or(u64::MAX));
                    now = if callers.pause.is_zero() { done } else { pause(callers.pause).await };
                }
                Ok::<_, Error>(took)
            })
        })
        .collect();
    tasks.await;
    let mut answers = Answers::default();
    for task in running {
        answers.took.extend(task.await??);
    }
    answers.took.sort_unstable();
    Ok((answers, started))
}

/// Waits, and returns the time afterwards.
async fn pause(time: Duration) -> Instant {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
    Instant::now()
}

/// Sends `request` over `connections` at once, each of which is answered by a stream of `events`
/// events. `start` is called once all connections are there and have been used, for `first`.
pub(crate) async fn streams<T>(
    address: SocketAddr,
    first: &Rc<[u8]>,
    request: &Rc<[u8]>,
    connections: usize,
    events: u64,
    start: impl FnOnce() -> T,
) -> Result<(Streamed, T), Error> {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(address).await?);
    }
    // At the same time, so that the variant under test opens its own connections too.
    let tasks = LocalSet::new();
    let using: Vec<_> = open
        .into_iter()
        .map(|mut connection| {
            let first = first.clone();
            tasks.spawn_local(async move { connection.ask(&first).await.map(|_| connection) })
        })
        .collect();
    tasks.await;
    let mut open = Vec::new();
    for used in using {
        open.push(used.await??);
    }
    let started = start();
    let tasks = LocalSet::new();
    let running: Vec<_> = open
        .into_iter()
        .map(|mut connection| {
            let request = request.clone();
            tasks.spawn_local(async move { connection.ask(&request).await })
        })
        .collect();
    tasks.await;
    let mut all = Streamed::default();
    for task in running {
        let one = task.await??;
        if one.events != events {
            return Err(format!("a stream had {} events, not {events}", one.events).into());
        }
        all.events += one.events;
        all.chunks += one.chunks;
        all.reads += one.reads;
    }
    Ok((all, started))
}

/// One connection.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 16 * 1024], filled: 0 })
    }

    /// Sends `request` and reads its answer to the end.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<Streamed, Error> {
        let mut answer = self.begin(request).await?;
        while !answer.fit.is_over() {
            self.more(&mut answer).await?;
        }
        Ok(answer.seen)
    }

    /// Sends `request` and reads the head of its answer.
    pub(crate) async fn begin(&mut self, request: &[u8]) -> Result<Answer, Error> {
        self.stream.write_all(request).await?;
        let mut seen = Streamed::default();
        let head = loop {
            self.read().await?;
            seen.reads += 1;
            if let Some(at) = memchr::memmem::find(&self.buffer[..self.filled], b"\r\n\r\n") {
                break at + 4;
            }
        };
        let text = std::str::from_utf8(&self.buffer[..head])?;
        if !text.starts_with("HTTP/1.1 200") {
            let all = String::from_utf8_lossy(&self.buffer[..self.filled]);
            return Err(format!("answered with {all}").into());
        }
        let mut answer = Answer { fit: Fit::of_head(text)?, seen };
        self.buffer.copy_within(head..self.filled, 0);
        self.filled -= head;
        self.take(&mut answer)?;
        Ok(answer)
    }

    /// Waits for more of `answer`.
    pub(crate) async fn more(&mut self, answer: &mut Answer) -> Result<(), Error> {
        self.read().await?;
        answer.seen.reads += 1;
        self.take(answer)
    }

    /// Passes what has been read to `answer`.
    fn take(&mut self, answer: &mut Answer) -> Result<(), Error> {
        answer.fit.feed(&self.buffer[..self.filled])?;
        answer.seen.events = answer.fit.events();
        answer.seen.chunks = answer.fit.chunks();
        self.filled = 0;
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Error> {
        if self.filled == self.buffer.len() {
            return Err("the head of an answer is too large".into());
        }
        match self.stream.read(&mut self.buffer[self.filled..]).await? {
            0 => Err("the connection was closed in an answer".into()),
            read => {
                self.filled += read;
                Ok(())
            }
        }
    }
}

/// An answer being read.
pub(crate) struct Answer {
    fit: Fit,
    /// What has arrived so far.
    pub(crate) seen: Streamed,
}
