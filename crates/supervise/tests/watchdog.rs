//! When the watchdog fires, to the millisecond, and whom it spares.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    future::{pending, poll_fn},
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use common::{Job, Watched, job, ran, steps, watched};
use steadfast_core::{Call, CallContext, Deadline, Failover, Failure, FaultSide, Reason, Retry};
use steadfast_supervise::{AgentRun, RunState, WatchdogLayer, WatchdogPolicy};
use steadfast_testkit::{elapsed_ms, ms, secs};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};

/// Never over.
fn hang() -> Job {
    job(|_| pending())
}

/// Works for as long.
fn work(time: Duration) -> Job {
    job(move |_| async move {
        sleep(time).await;
        Ok("done")
    })
}

#[tokio::test(start_paused = true)]
async fn fires_after_exactly_its_limit() {
    for (max_steps, limit_ms) in
        [(0, 600_000), (1, 60_000), (2, 120_000), (9, 540_000), (10, 600_000), (11, 600_000)]
    {
        let (service, registry) = watched();
        let run = AgentRun::new(hang()).with_max_steps(NonZeroU32::new(max_steps));
        let (id, started) = (run.id().clone(), Instant::now());
        let failure = service.clone().oneshot(run).await.unwrap_err();
        assert_eq!(elapsed_ms(started), ms(limit_ms), "{max_steps} steps");
        assert_eq!(failure.reason(), Reason::Timeout);
        assert_eq!(failure.evidence(), "watchdog_timeout");
        assert_eq!((failure.retry(), failure.failover()), (Retry::No, Failover::Never));
        assert_eq!(failure.fault(), FaultSide::Local, "no provider is to blame");
        let record = registry.get(&id).unwrap();
        assert_eq!(record.state, RunState::WatchdogTimeout);

        // A millisecond less is in time.
        let run = AgentRun::new(work(ms(limit_ms - 1))).with_max_steps(NonZeroU32::new(max_steps));
        assert_eq!(service.oneshot(run).await.unwrap(), "done");
        assert_eq!(registry.snapshot().counts.completed, 1);
        assert_eq!(registry.snapshot().running, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_is_dropped_at_once_and_the_message_names_the_key() {
    let alive = Arc::new(AtomicUsize::new(0));
    let layer =
        WatchdogLayer::new(WatchdogPolicy { max_run_timeout: secs(30), per_step_timeout: secs(7) })
            .unwrap();
    let counted = alive.clone();
    let service = layer.layer(service_fn(move |_: AgentRun<()>| {
        let alive = counted.clone();
        alive.fetch_add(1, Ordering::Relaxed);
        async move {
            let _guard = Dropped(alive);
            pending::<Result<(), Failure>>().await
        }
    }));
    let run = AgentRun::new(()).with_max_steps(NonZeroU32::new(3));
    let mut future = Box::pin(service.clone().oneshot(run));
    let failure = (&mut future).await.unwrap_err();
    assert_eq!(alive.load(Ordering::Relaxed), 0, "while its future is still held");
    assert_eq!(
        failure.message(),
        "the run was not over in time: limit of 21s, set by `per_step_timeout_ms`; given up after 21s"
    );
    let failure = service.clone().oneshot(AgentRun::new(())).await.unwrap_err();
    assert!(failure.message().contains("limit of 30s, set by `max_run_timeout_ms`"), "{failure}");
    let context = CallContext::new().with_deadline(Deadline::after(secs(5)));
    let run = AgentRun::new(()).with_context(context);
    let failure = service.oneshot(run).await.unwrap_err();
    assert!(failure.message().contains("limit of 5s, set by `the deadline of its"), "{failure}");
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A parent of one step, 60 s, that starts `child` after 10 s, waits for it for at most `patience`, and then hangs or works for 40 s.
fn parent(service: &Watched, child: Job, child_steps: u32, patience: Duration, after: Job) -> Job {
    let service = service.clone();
    job(move |run| {
        let (service, child, after) = (service.clone(), child.clone(), after.clone());
        async move {
            sleep(secs(10)).await;
            let child = run.child(child).with_max_steps(NonZeroU32::new(child_steps));
            let _ = tokio::time::timeout(patience, service.oneshot(child)).await;
            (after.0)(run).await
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_waits_for_a_live_child_is_spared() {
    let (service, registry) = watched();
    // 10 s of its own, 250 s of the child, 49 s of its own: 59 s of 60.
    let job = parent(&service, work(secs(250)), 5, secs(1_000), work(secs(49)));
    assert_eq!(service.clone().oneshot(steps(job, 1)).await.unwrap(), "done");

    // The same, and it hangs: exactly what is left of its own time, the time of the child not counted.
    let job = parent(&service, work(secs(250)), 5, secs(1_000), hang());
    let started = Instant::now();
    let _ = service.clone().oneshot(steps(job, 1)).await.unwrap_err();
    assert_eq!(elapsed_ms(started), secs(60 + 250));
    let counts = registry.snapshot().counts;
    assert_eq!((counts.completed, counts.watchdog_timeout), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_waits_for_a_dead_child_is_not_spared() {
    for (name, child, patience, spared) in [
        ("dropped by its parent", hang(), secs(20), secs(20)),
        ("failed", job(|_| async { Err(Failure::new(Reason::Format, "no")) }), secs(999), secs(0)),
        ("given up by its own watchdog", hang(), secs(999), secs(120)),
    ] {
        let (service, _) = watched();
        let job = parent(&service, child, 2, patience, hang());
        let started = Instant::now();
        let _ = service.clone().oneshot(steps(job, 1)).await.unwrap_err();
        assert_eq!(elapsed_ms(started), secs(60) + spared, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_nobody_polls_spares_its_parent_until_its_own_limit() {
    let (service, registry) = watched();
    let inner = service.clone();
    let job = job(move |run| {
        let service = inner.clone();
        async move {
            let child = run.child(hang()).with_max_steps(NonZeroU32::new(2));
            let mut child = Box::pin(service.oneshot(child));
            poll_fn(|cx| {
                assert!(child.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            // Its future is held, polled by nobody, and never dropped.
            std::mem::forget(child);
            pending().await
        }
    });
    let started = Instant::now();
    let _ = service.oneshot(steps(job, 1)).await.unwrap_err();
    assert_eq!(elapsed_ms(started), secs(120 + 60));
    assert_eq!(registry.snapshot().running, 1, "the sweep's");
}

#[tokio::test(start_paused = true)]
async fn a_child_in_a_task_that_panics_or_is_aborted_is_dead() {
    for aborted in [false, true] {
        let (service, registry) = watched();
        let inner = service.clone();
        let job = job(move |run| {
            let service = inner.clone();
            async move {
                let child = match aborted {
                    true => hang(),
                    false => job(|_| async {
                        sleep(secs(30)).await;
                        panic!("a bug in a tool")
                    }),
                };
                let task = tokio::spawn(service.oneshot(run.child(child)));
                sleep(secs(30)).await;
                if aborted {
                    task.abort();
                }
                assert!(task.await.is_err());
                pending().await
            }
        });
        let started = Instant::now();
        let _ = service.oneshot(steps(job, 1)).await.unwrap_err();
        assert_eq!(elapsed_ms(started), secs(60 + 30), "aborted: {aborted}");
        let counts = registry.snapshot().counts;
        let expected = if aborted { (1, 0) } else { (0, 1) };
        assert_eq!((counts.cancelled, counts.failed), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_is_not_polled_when_its_child_ends_is_given_up_in_time() {
    let (service, _) = watched();
    let inner = service.clone();
    let job = job(move |run| {
        // Its result goes to nobody.
        tokio::spawn(inner.clone().oneshot(run.child(work(secs(30)))));
        async {
            // Polled once more while the child lives, so that the alarm is that of a parent who waits.
            sleep(secs(1)).await;
            pending().await
        }
    });
    let started = Instant::now();
    let _ = service.oneshot(steps(job, 1)).await.unwrap_err();
    assert_eq!(elapsed_ms(started), secs(60 + 30));
}

#[tokio::test(start_paused = true)]
async fn nobody_lasts_longer_than_the_hard_limit_or_its_parent() {
    let (service, registry) = watched();
    let deadlines = Arc::new(parking_lot::Mutex::new(Vec::new()));
    // Three generations: each starts the next one after 100 s.
    let (seen, inner) = (deadlines.clone(), service.clone());
    fn generation(
        depth: u32,
        service: Watched,
        seen: Arc<parking_lot::Mutex<Vec<Duration>>>,
    ) -> Job {
        job(move |run| {
            let (service, seen) = (service.clone(), seen.clone());
            async move {
                seen.lock().push(run.context().deadline.unwrap().remaining());
                if depth == 0 {
                    return pending().await;
                }
                sleep(secs(100)).await;
                let next = generation(depth - 1, service.clone(), seen);
                let _ = service.oneshot(run.child(next)).await;
                pending().await
            }
        })
    }
    let started = Instant::now();
    let job = generation(2, inner, seen);
    let _ = service.oneshot(steps(job, 2)).await.unwrap_err();
    assert_eq!(elapsed_ms(started), secs(600));
    let deadlines: Vec<_> = deadlines.lock().iter().map(Duration::as_secs).collect();
    assert_eq!(deadlines, [600, 500, 400], "all at the same moment");
    assert_eq!(registry.snapshot().running, 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_s_deadline_is_kept_and_a_late_or_orphaned_run_is_refused() {
    let (service, registry) = watched();
    let context = || CallContext::new().with_deadline(Deadline::after(secs(7)));
    let started = Instant::now();
    let run = AgentRun::new(hang()).with_context(context());
    let _ = service.clone().oneshot(run).await.unwrap_err();
    assert_eq!(elapsed_ms(started), secs(7));

    let run = AgentRun::new(hang()).with_context(context());
    sleep(secs(7)).await;
    let failure = service.clone().oneshot(run).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Timeout, 0));

    let parent = AgentRun::new(work(secs(1)));
    let child = parent.child(hang());
    service.clone().oneshot(parent).await.unwrap();
    let failure = service.clone().oneshot(child).await.unwrap_err();
    assert_eq!(failure.message(), "the run's parent has ended");

    let twice = || AgentRun::new(work(secs(1))).with_id("the same");
    service.clone().oneshot(twice()).await.unwrap();
    let failure = service.oneshot(twice()).await.unwrap_err();
    assert_eq!(failure.message(), "a run of this name is registered already");
    assert_eq!(registry.snapshot().counts.started, 3);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_call_or_poll_fails_the_run_and_one_in_drop_changes_nothing() {
    for (where_, expected) in [
        ("call", RunState::Failed),
        ("poll", RunState::Failed),
        ("drop", RunState::WatchdogTimeout),
    ] {
        let layer = WatchdogLayer::default();
        let service = layer.layer(service_fn(move |_: AgentRun<()>| {
            assert!(where_ != "call", "in call");
            async move {
                let _bomb = (where_ == "drop").then_some(Bomb);
                assert!(where_ != "poll", "in poll");
                pending::<Result<(), Failure>>().await
            }
        }));
        let result = tokio::spawn(service.oneshot(AgentRun::new(()))).await;
        match where_ {
            "drop" => assert_eq!(result.unwrap().unwrap_err().evidence(), "watchdog_timeout"),
            _ => assert!(result.unwrap_err().is_panic(), "a layer hides no panic"),
        }
        let runs = layer.registry().runs();
        assert_eq!(runs.iter().map(|run| run.state).collect::<Vec<_>>(), [expected], "{where_}");
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in drop");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_at_any_await_is_cancelled_and_frees_its_parent() {
    for polls in 1..=6 {
        let (service, registry) = watched();
        let inner = service.clone();
        let job = job(move |run| {
            let service = inner.clone();
            async move {
                let child = run.child(job(|_| async {
                    for _ in 0..5 {
                        tokio::task::yield_now().await;
                    }
                    Ok("done")
                }));
                let mut child = Box::pin(service.oneshot(child));
                let mut polled = 0;
                poll_fn(|cx| match child.as_mut().poll(cx) {
                    Poll::Pending if polled < polls => {
                        polled += 1;
                        Poll::Pending
                    }
                    _ => Poll::Ready(()),
                })
                .await;
                drop(child);
                pending().await
            }
        });
        let started = Instant::now();
        let _ = service.oneshot(steps(job, 1)).await.unwrap_err();
        assert_eq!(elapsed_ms(started), secs(60), "no child keeps it alive");
        let counts = registry.snapshot().counts;
        let ended = if polls < 5 { (1, 0) } else { (0, 1) };
        assert_eq!((counts.cancelled, counts.completed), ended, "dropped after {polls} polls");
        assert_eq!(registry.snapshot().running, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_cancelled_by_hand() {
    let (service, registry) = watched();
    let run = AgentRun::new(hang());
    let id = run.id().clone();
    let task = tokio::spawn(service.oneshot(run));
    sleep(secs(3)).await;
    assert!(registry.cancel(&id));
    assert!(!registry.cancel(&id), "once");
    let failure = task.await.unwrap().unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Cancelled, "by_hand"));
    assert_eq!(ran(&registry, &id), RunState::Cancelled);
    assert_eq!(registry.snapshot().counts.late, 0);
}
