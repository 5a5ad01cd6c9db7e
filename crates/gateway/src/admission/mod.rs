//! Who is let in: how many connections, requests and bytes of bodies there are at once.
//!
//! What a request holds is counted as it comes, and given back when its answer has ended. Beyond the limits it is
//! refused, at once or for memory within a second: a fast refusal that says when to come back is worth more than an
//! answer that everybody waits for.

mod limits;
mod state;
mod usable;

use std::{
    fmt::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{Failure, FaultSide, Reason};
use tokio::time::{Instant, timeout};

pub(crate) use self::limits::{LEAST_MIB, Limits};
use self::{limits::Size, state::State};

/// The largest body that is small: 256 KiB, more than a usual chat. Small ones have memory of their own, so that
/// they pass while large ones wait.
pub(crate) const SMALL: usize = 256 * 1024;

/// What a byte of a body costs until it is given back: itself, what is read from it, what is written for a
/// provider, and what is copied on the way.
pub(crate) const COST: u64 = 4;

/// What a value of JSON costs beside its bytes, which is much where there is little text: at most 142 bytes in all of
/// the dialects' forms that were measured.
const VALUE_COST: u64 = 160;

/// How long a request waits for memory in all, before it is refused: 1 s.
const PATIENCE: Duration = Duration::from_secs(1);

/// When whoever is refused may come back: in 1 s.
const COME_BACK: Duration = Duration::from_secs(1);

/// A limit by which somebody was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `server.max_connections`
    Connections,
    /// `server.max_in_flight`
    Requests,
    /// `server.memory_mib`
    Memory,
}

/// Counts what is let in; a handle, shared by cloning.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    connections: AtomicU64,
    /// By limit.
    refused: [AtomicU64; 3],
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(limits)),
            connections: AtomicU64::new(0),
            refused: Default::default(),
        }))
    }

    /// From now on these hold; what is let in stays.
    pub(crate) fn set_limits(&self, limits: Limits) {
        self.0.state.lock().set_limits(limits);
    }

    /// What sockets may hold of messages that are not charged yet.
    pub(crate) fn memory_of_sockets(&self) -> u64 {
        self.0.state.lock().limits().memory_of_sockets()
    }

    /// A connection was accepted, and is counted until the guard is dropped.
    pub(crate) fn connected(&self) -> Connected {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        Connected(self.clone())
    }

    /// Lets a request in, on behalf of `tenant`.
    ///
    /// # Errors
    ///
    /// When there are too many.
    pub(crate) fn enter(&self, tenant: Option<Arc<str>>) -> Result<Admitted, Failure> {
        let entered = self.0.state.lock().enter(tenant.as_ref());
        match entered {
            Some(order) => Ok(Admitted {
                admission: self.clone(),
                tenant,
                order,
                size: Size::Small,
                capacity: 0,
                values: 0,
                waited: Duration::ZERO,
            }),
            None => Err(self.refused(Limit::Requests)),
        }
    }

    /// How many requests are in progress.
    pub(crate) fn in_flight(&self) -> u64 {
        self.0.state.lock().held().requests
    }

    /// The refusal by `limit`, which is counted.
    pub(crate) fn refused(&self, limit: Limit) -> Failure {
        self.0.refused[limit as usize].fetch_add(1, Ordering::Relaxed);
        let message = match limit {
            Limit::Connections => {
                "the gateway has as many connections as it takes (`server.max_connections`)"
            }
            Limit::Requests => {
                "the gateway has as many requests in flight as it takes (`server.max_in_flight`)"
            }
            Limit::Memory => {
                "the bodies of the requests in flight take all the memory that the gateway has for \
                 them (`server.memory_mib`)"
            }
        };
        Failure::refused_fixed(Reason::Overloaded, message)
            .with_status(http::StatusCode::SERVICE_UNAVAILABLE)
            .with_fault(FaultSide::Local)
            .with_retry_after(Some(COME_BACK))
            .with_evidence("gateway limit")
    }

    /// What is let in now and what was refused, in Prometheus' text format.
    pub(crate) fn gauges(&self) -> String {
        let (held, waiting) = {
            let state = self.0.state.lock();
            (state.held(), state.waiting())
        };
        let connections = self.0.connections.load(Ordering::Relaxed);
        let mut text = String::new();
        for (name, help, value) in [
            ("connections", "Callers' connections.", connections),
            ("in_flight", "Requests in progress.", held.requests),
            ("body_memory_waiting", "Requests that wait for memory.", waiting),
        ] {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "# HELP steadfast_{name} {help}\n# TYPE steadfast_{name} gauge\nsteadfast_{name} {value}"
            );
        }
        let _ = writeln!(
            text,
            "# HELP steadfast_body_memory_bytes What the bodies of requests in progress are charged.\n\
             # TYPE steadfast_body_memory_bytes gauge\n\
             steadfast_body_memory_bytes{{size=\"small\"}} {}\n\
             steadfast_body_memory_bytes{{size=\"large\"}} {}\n\
             # HELP steadfast_refused Requests that were refused by a limit of the gateway.\n\
             # TYPE steadfast_refused counter",
            held.small, held.large
        );
        let names = ["connections", "in_flight", "memory"];
        for (name, count) in names.iter().zip(&self.0.refused) {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(text, "steadfast_refused_total{{limit=\"{name}\"}} {count}");
        }
        text
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.state.lock().fmt(f)
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(crate) struct Connected(Admission);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that was let in, and what its body is charged, until it is dropped.
#[derive(Debug)]
#[must_use = "the request counts as ended when this is dropped"]
pub(crate) struct Admitted {
    admission: Admission,
    tenant: Option<Arc<str>>,
    /// How many came before: who is older goes first.
    order: u64,
    size: Size,
    /// The bytes of a body that there is memory for.
    capacity: u64,
    /// What its values are charged.
    values: u64,
    /// How long it has waited for memory.
    waited: Duration,
}

impl Admitted {
    /// How many bytes of memory the request holds.
    pub(crate) fn held(&self) -> u64 {
        self.capacity * COST + self.values
    }

    /// The body is announced to have so many bytes: nothing is taken for it before it comes.
    ///
    /// # Errors
    ///
    /// When there never is memory for it.
    pub(crate) fn announced(&mut self, bytes: u64) -> Result<(), Failure> {
        if bytes > SMALL as u64 {
            self.fits(bytes)?;
            self.size = Size::Large;
        }
        Ok(())
    }

    /// Makes room for a body of so many bytes in all, of which at least half have come. Waits while there is
    /// none.
    ///
    /// # Errors
    ///
    /// When there never is, or was none in time.
    pub(crate) async fn reserve(&mut self, capacity: usize) -> Result<(), Failure> {
        let capacity = capacity as u64;
        let size = if capacity > SMALL as u64 { Size::Large } else { self.size };
        // What has turned out to be large is charged there, all of it.
        let kept = if size == self.size { self.capacity } else { 0 };
        if capacity <= kept {
            return Ok(());
        }
        if size == Size::Large {
            self.fits(capacity)?;
        }
        self.acquire(size, (capacity - kept) * COST).await?;
        if size != self.size {
            self.give_back(self.size, self.capacity * COST);
        }
        (self.size, self.capacity) = (size, capacity);
        Ok(())
    }

    /// The body has so many values, which are charged as well. Waits while there is no memory.
    ///
    /// # Errors
    ///
    /// When there never is, or was none in time.
    pub(crate) async fn weigh(&mut self, values: usize) -> Result<(), Failure> {
        let cost = values as u64 * VALUE_COST;
        let all = self.capacity * COST + cost;
        let most = self.most();
        if all > most {
            let message = format!(
                "the request body has {values} JSON values, which take {all} bytes of memory, more than \
                 the {most} that the gateway has for one (`server.memory_mib`)"
            );
            return Err(Failure::refused(Reason::PayloadTooLarge, message));
        }
        // Few bytes can have many values.
        let size = if all > SMALL as u64 * COST { Size::Large } else { self.size };
        if size == self.size {
            self.acquire(size, cost).await?;
        } else {
            self.acquire(size, all).await?;
            self.give_back(self.size, self.capacity * COST);
        }
        (self.size, self.values) = (size, cost);
        Ok(())
    }

    /// The body has come whole, and has no more bytes than these.
    pub(crate) fn shrink(&mut self, capacity: usize) {
        let more = self.capacity.saturating_sub(capacity as u64);
        if more > 0 {
            self.give_back(self.size, more * COST);
            self.capacity -= more;
        }
    }

    /// Refuses a body of so many bytes if there never is memory for it.
    fn fits(&self, bytes: u64) -> Result<(), Failure> {
        let largest = self.most() / COST;
        if bytes <= largest {
            return Ok(());
        }
        let message = format!(
            "the request body has {bytes} bytes, and with the memory that the gateway has for bodies \
             (`server.memory_mib`) none can have more than {largest}"
        );
        Err(Failure::refused(Reason::PayloadTooLarge, message))
    }

    /// What a body can be charged at most, where there is no other.
    fn most(&self) -> u64 {
        self.admission.0.state.lock().limits().most()
    }

    fn give_back(&self, size: Size, bytes: u64) {
        self.admission.0.state.lock().give_back(self.tenant.as_ref(), size, bytes);
    }

    async fn acquire(&mut self, size: Size, bytes: u64) -> Result<(), Failure> {
        let asked = self.admission.0.state.lock().ask(self.order, &self.tenant, size, bytes);
        let Some(given) = asked else { return Ok(()) };
        let since = Instant::now();
        let turn = Turn { of: self, size, bytes, ended: false };
        // Closed without being given it can not be: the turn is in the queue until then.
        let _ = timeout(PATIENCE.saturating_sub(self.waited), given).await;
        let has_it = turn.end();
        self.waited += since.elapsed();
        if has_it { Ok(()) } else { Err(self.admission.refused(Limit::Memory)) }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.admission.0.state.lock();
        state.leave(self.tenant.as_ref(), self.size, self.held());
    }
}

/// A wait for memory, which may be given up.
struct Turn<'a> {
    of: &'a Admitted,
    size: Size,
    bytes: u64,
    ended: bool,
}

impl Turn<'_> {
    /// Whether it was given what it waited for.
    fn end(mut self) -> bool {
        self.ended = true;
        !self.of.admission.0.state.lock().withdraw(self.of.order)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let mut state = self.of.admission.0.state.lock();
            if !state.withdraw(self.of.order) {
                state.give_back(self.of.tenant.as_ref(), self.size, self.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn admission(memory: usize) -> Admission {
        Admission::new(Limits { requests: 100, memory: memory as u64, shared: false })
    }

    fn held(admission: &Admission) -> (u64, u64, u64) {
        let held = admission.0.state.lock().held();
        (held.requests, held.small, held.large)
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_body_is_charged_is_given_back() {
        let admission = admission(64 * MIB);
        let mut one = admission.enter(None).unwrap();
        let kib = |kib: u64| kib * 1024;
        assert_eq!(held(&admission), (1, 0, 0));
        for (capacity, expected) in [
            (1024, (1, kib(4), 0)),
            (512, (1, kib(4), 0)),
            (SMALL, (1, kib(1024), 0)),
            (2 * SMALL, (1, 0, kib(2048))),
            (4 * SMALL, (1, 0, kib(4096))),
        ] {
            one.reserve(capacity).await.unwrap();
            assert_eq!(held(&admission), expected, "{capacity}");
        }
        one.shrink(3 * SMALL);
        assert_eq!(held(&admission), (1, 0, kib(3072)));
        one.weigh(64).await.unwrap();
        assert_eq!((held(&admission), one.held()), ((1, 0, kib(3072 + 10)), kib(3072 + 10)));
        assert_eq!(one.weigh(MIB).await.unwrap_err().reason(), Reason::PayloadTooLarge);
        one.give_back(Size::Large, kib(10));
        one.values = 0;
        assert_eq!((held(&admission), one.held()), ((1, 0, kib(3072)), kib(3072)));
        drop(one);
        assert_eq!(held(&admission), (0, 0, 0));

        // Few bytes of many values are large.
        let mut dense = admission.enter(None).unwrap();
        dense.reserve(SMALL / 2).await.unwrap();
        dense.weigh(SMALL / 4).await.unwrap();
        assert_eq!(held(&admission), (1, 0, kib(512 + 160 * 64)));
        drop(dense);
        assert_eq!(held(&admission), (0, 0, 0));

        // What is announced takes nothing, and is large from its first byte.
        let mut announced = admission.enter(None).unwrap();
        announced.announced(2 * MIB as u64).unwrap();
        assert_eq!(held(&admission), (1, 0, 0));
        announced.reserve(1024).await.unwrap();
        assert_eq!(held(&admission), (1, 0, kib(4)));
        let never = announced.announced(15 * MIB as u64).unwrap_err();
        assert_eq!(never.reason(), Reason::PayloadTooLarge);
        assert!(announced.reserve(15 * MIB).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_memory_waits_for_a_second_in_all() {
        let admission = admission(64 * MIB);
        let mut first = admission.enter(None).unwrap();
        first.reserve(13 * MIB).await.unwrap();
        let mut second = admission.enter(None).unwrap();
        second.reserve(MIB).await.unwrap();
        let began = Instant::now();
        let failure = second.reserve(2 * MIB).await.unwrap_err();
        assert_eq!(began.elapsed(), PATIENCE);
        assert_eq!(failure.status(), Some(http::StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(failure.retry_after(), Some(COME_BACK));
        assert!(admission.gauges().contains("steadfast_refused_total{limit=\"memory\"} 1\n"));
        // It has had its second.
        assert!(second.reserve(2 * MIB).await.is_err());
        assert_eq!(began.elapsed(), PATIENCE);

        // Small ones have their own.
        let mut small = admission.enter(None).unwrap();
        small.reserve(SMALL).await.unwrap();
        let mut third = admission.enter(None).unwrap();
        let (given, ()) = tokio::join!(third.reserve(2 * MIB), async {
            tokio::time::sleep(PATIENCE / 2).await;
            drop(first);
        });
        given.unwrap();
        assert_eq!(began.elapsed(), PATIENCE * 3 / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_given_up_keeps_nothing() {
        let admission = admission(64 * MIB);
        let mut first = admission.enter(None).unwrap();
        first.reserve(13 * MIB).await.unwrap();
        // Given up while it waits, and when it was given what it waited for.
        for is_given in [false, true] {
            let mut second = admission.enter(None).unwrap();
            {
                let mut wait = std::pin::pin!(second.reserve(2 * MIB));
                let waker = std::task::Waker::noop();
                let mut cx = std::task::Context::from_waker(waker);
                assert!(wait.as_mut().poll(&mut cx).is_pending());
                if is_given {
                    first.shrink(0);
                }
            }
            drop(second);
            let expected = if is_given { 0 } else { 13 * 4 * MIB as u64 };
            assert_eq!(held(&admission), (1, 0, expected));
            assert_eq!(admission.0.state.lock().waiting(), 0);
        }
    }

    #[test]
    fn connections_are_counted() {
        let admission = admission(MIB);
        let (one, _other) = (admission.connected(), admission.connected());
        assert!(admission.gauges().contains("\nsteadfast_connections 2\n"));
        drop(one);
        assert!(admission.gauges().contains("\nsteadfast_connections 1\n"));
    }
}
