//! What a crash, a full disk or a restart leaves of runs, and who is notified of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    env,
    future::{pending, ready},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{Job, Notices, job, ran, watched_by};
use steadfast_core::{CallContext, Failure, Reason};
use steadfast_supervise::{
    AgentRun, GhostPolicy, GhostSweep, NoticeKind, NoticeState, NoticeVia, RunNotice, RunRegistry,
    RunState, Sweeping,
};
use steadfast_testkit::{fail, ms, secs};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

fn hang() -> Job {
    job(|_| pending())
}

fn sweeping(registry: &RunRegistry) -> Sweeping {
    GhostSweep::new(registry.clone(), GhostPolicy::default()).unwrap().spawn()
}

/// Registers a run whose watchdog can not fire, since nobody polls it.
fn stuck(registry: &RunRegistry, id: &str) -> impl Future + use<> {
    let mut service = watched_by(registry);
    let run = AgentRun::new(hang()).with_id(id).with_destination("slack");
    tower::Service::call(&mut service, run)
}

#[tokio::test(start_paused = true)]
async fn a_run_is_swept_after_exactly_its_grace() {
    let notices = Notices::default();
    let registry = RunRegistry::in_memory().with_notices(notices.sink());
    let sweep = GhostSweep::new(registry.clone(), GhostPolicy::default()).unwrap();
    let _held = stuck(&registry, "stuck");
    sleep(ms(719_999)).await;
    assert_eq!((sweep.sweep(), registry.snapshot().running), (0, 1));
    sleep(ms(1)).await;
    assert_eq!((sweep.sweep(), registry.snapshot().running), (1, 0));
    assert_eq!(sweep.sweep(), 0, "once");
    sleep(ms(1)).await;
    let notices = notices.take();
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0].key, "run-notice:stuck");
    assert_eq!(notices[0].destination.as_deref(), Some("slack"));
    assert_eq!(
        (notices[0].kind, notices[0].state),
        (NoticeKind::NotSuccessful, RunState::GhostSweep)
    );
    assert_eq!(
        notices[0].text(),
        "A task that was running in the background did not finish successfully."
    );
}

#[tokio::test(start_paused = true)]
async fn the_sweep_runs_at_the_start_and_every_five_minutes() {
    let registry = RunRegistry::in_memory();
    let _first = stuck(&registry, "at 0 s");
    sleep(secs(300)).await;
    let _second = stuck(&registry, "at 300 s");
    let sweeping = sweeping(&registry);
    let mut swept = Vec::new();
    for at in (300..=1_500).step_by(10) {
        sleep(ms(1)).await;
        if registry.snapshot().counts.ghost_sweep > swept.len() as u64 {
            swept.push(at);
        }
        sleep(ms(9_999)).await;
    }
    // Sweeps at 300, 600, 900, 1200: the first one that is 720 s after each start.
    assert_eq!(swept, [900, 1_200]);
    drop(sweeping);
    let _third = stuck(&registry, "after the end of the sweep");
    sleep(secs(2_000)).await;
    assert_eq!(registry.snapshot().running, 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_result_is_recorded_and_not_announced() {
    let notices = Notices::default();
    let registry = RunRegistry::in_memory().with_notices(notices.sink());
    let sweep = GhostSweep::new(registry.clone(), GhostPolicy::default()).unwrap();
    // It completes while nobody polls it.
    let service = watched_by(&registry);
    let run = AgentRun::new(job(|_| ready(Ok("done")))).with_id("late");
    let late = tower::Service::call(&mut service.clone(), run);
    sleep(secs(720)).await;
    assert_eq!(sweep.sweep(), 1);
    let failure = late.await.unwrap_err();
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Timeout, "ghost_sweep"));
    sleep(ms(1)).await;
    let record = registry.get(&"late".into()).unwrap();
    assert_eq!((record.state, record.late), (RunState::GhostSweep, Some(RunState::Completed)));
    assert_eq!(notices.take().len(), 1);
    // By another way, as well.
    assert!(!registry.report(&"late".into(), Ok(())));
    assert_eq!(registry.snapshot().counts.late, 2);
    // One that was swept while somebody waits for it ends at once.
    let waits = tokio::spawn(service.oneshot(AgentRun::new(hang()).with_id("by hand")));
    sleep(ms(1)).await;
    registry.cancel(&"by hand".into());
    assert!(waits.await.unwrap().is_err());
    assert!(!registry.report(&"unknown".into(), Ok(())));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_run_that_is_swept_waits_no_longer_and_it_is_dropped() {
    let notices = Notices::default();
    let registry = RunRegistry::in_memory().with_notices(notices.sink());
    let policy = GhostPolicy { grace: secs(10), ..GhostPolicy::default() };
    let sweep = GhostSweep::new(registry.clone(), policy).unwrap();
    let alive = Arc::new(());
    let held = alive.clone();
    let run = AgentRun::new(job(move |_| {
        let held = held.clone();
        async move {
            let _held = held;
            pending().await
        }
    }));
    let waits = tokio::spawn(watched_by(&registry).oneshot(run));
    sleep(secs(10)).await;
    assert_eq!(sweep.sweep(), 1);
    let failure = timeout(ms(1), waits).await.unwrap().unwrap().unwrap_err();
    assert_eq!(failure.evidence(), "ghost_sweep");
    assert_eq!(Arc::strong_count(&alive), 1, "its future is gone");
    assert_eq!(notices.take().len(), 1);
    assert_eq!(registry.snapshot().counts.late, 0, "it had no result");
}

#[tokio::test(start_paused = true)]
async fn failures_send_one_notice_of_two_texts_and_the_rest_none() {
    let notices = Notices::default();
    let registry = RunRegistry::in_memory().with_notices(notices.sink());
    let service = watched_by(&registry);
    let context = CallContext::new().with_tenant("acme").with_agent("coder").with_session("s");
    for (id, job) in [
        ("completed", job(|_| ready(Ok("done")))),
        ("failed", job(|_| ready(Err(fail(Reason::Overloaded))))),
        ("cancelled", job(|_| ready(Err(fail(Reason::Cancelled))))),
        ("not in time", hang()),
    ] {
        let run = AgentRun::new(job).with_id(id).with_context(context.clone());
        let _ = service.clone().oneshot(run).await;
    }
    let dropped = service.clone().oneshot(AgentRun::new(hang()).with_id("dropped"));
    assert!(timeout(secs(5), dropped).await.is_err());
    sleep(ms(1)).await;
    let sent = notices.take();
    let kinds: Vec<_> = sent.iter().map(|notice| (notice.run.as_str(), notice.kind)).collect();
    assert_eq!(
        kinds,
        [("failed", NoticeKind::NotSuccessful), ("not in time", NoticeKind::NotInTime)]
    );
    assert_eq!(
        sent[1].text(),
        "A task that was running in the background did not finish in time and was stopped."
    );
    assert_eq!(sent[0].tenant.as_deref(), Some("acme"));
    assert_eq!(sent[0].agent.as_deref(), Some("coder"));
    assert_eq!(sent[0].session.as_deref(), Some("s"));
    assert_eq!(ran(&registry, &"cancelled".into()), RunState::Cancelled);
    assert_eq!(ran(&registry, &"dropped".into()), RunState::Cancelled);
    let failed = registry.get(&"failed".into()).unwrap();
    assert_eq!(failed.reason.as_deref(), Some("overloaded"));
    assert_eq!(failed.notice, NoticeState::Sent(NoticeVia::Direct));
    assert_eq!(registry.snapshot().counts.notices, 2);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_closed_waits_for_the_notices_that_are_being_sent() {
    for (takes, limit, waited, sent) in
        [(secs(7), secs(10), secs(7), 1), (secs(30), secs(10), secs(10), 0)]
    {
        let notices = Arc::new(AtomicUsize::new(0));
        let count = notices.clone();
        let registry = RunRegistry::in_memory().with_notices(move |_: RunNotice| {
            let count = count.clone();
            async move {
                sleep(takes).await;
                count.fetch_add(1, SeqCst);
                Ok(NoticeVia::Direct)
            }
        });
        let failing = job(|_| ready(Err(fail(Reason::ServerError))));
        let _ = watched_by(&registry).oneshot(AgentRun::new(failing)).await;
        let before = tokio::time::Instant::now();
        assert_eq!(registry.close(limit).await, 0);
        assert_eq!((before.elapsed(), notices.load(SeqCst)), (waited, sent), "{takes:?}");
    }
    // What nobody takes is for the next process, and not waited for.
    let registry = RunRegistry::in_memory()
        .with_notices(|_: RunNotice| ready(Err::<NoticeVia, _>(fail(Reason::Network))));
    let failing = job(|_| ready(Err(fail(Reason::ServerError))));
    let _ = watched_by(&registry).oneshot(AgentRun::new(failing)).await;
    let before = tokio::time::Instant::now();
    registry.close(secs(10)).await;
    assert!(before.elapsed() < secs(1), "{:?}", before.elapsed());
}

#[tokio::test]
async fn a_registry_on_disk_is_closed_when_the_notice_of_a_run_that_just_failed_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..20 {
        let notices = Notices::default();
        let registry = RunRegistry::open(folder.path()).await.unwrap().with_notices(notices.sink());
        let failing = job(|_| ready(Err(fail(Reason::ServerError))));
        let id = format!("run {n}");
        let _ = watched_by(&registry).oneshot(AgentRun::new(failing).with_id(&*id)).await;
        // Its end is not on disk yet, so its notice is not even being sent.
        registry.close(secs(30)).await;
        assert_eq!(notices.take().len(), 1, "{id}");
        let record = registry.get(&(*id).into()).unwrap();
        assert_eq!(record.notice, NoticeState::Sent(NoticeVia::Direct), "{id}");
    }
    // Without a lock, as it is for whoever looks.
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let read = RunRegistry::read(folder.path()).unwrap();
    assert_eq!((read.len(), read), (20, registry.runs()));
    let none = tempfile::tempdir().unwrap();
    assert_eq!(RunRegistry::read(none.path()).unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_could_not_be_sent_is_sent_again_with_the_same_key() {
    let keys = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let attempts = Arc::new(AtomicUsize::new(0));
    let (seen, counted) = (keys.clone(), attempts.clone());
    let registry = RunRegistry::in_memory().with_notices(move |notice: RunNotice| {
        seen.lock().push(notice.key);
        let attempt = counted.fetch_add(1, SeqCst);
        assert!(attempt != 1, "a bug in the sink");
        async move {
            match attempt {
                0 => Err(fail(Reason::Network)),
                2 => pending().await,
                _ => Ok(NoticeVia::Letter),
            }
        }
    });
    let _sweeping = sweeping(&registry);
    let run = AgentRun::new(job(|_| ready(Err(fail(Reason::Format))))).with_id("r");
    let _ = watched_by(&registry).oneshot(run).await;
    sleep(secs(3_600)).await;
    assert_eq!(*keys.lock(), ["run-notice:r"; 4]);
    let record = registry.get(&"r".into()).unwrap();
    assert_eq!(record.notice, NoticeState::Sent(NoticeVia::Letter));
    assert_eq!(registry.snapshot().counts.notices, 1);
}

/// A process of its own: what it does with the registry in the folder.
const FOLDER: &str = "STEADFAST_SUPERVISE_FOLDER";

fn child(folder: &Path, before: &str, what: &str) -> Child {
    let program = env::current_exe().unwrap();
    let script = format!("{before} exec \"$0\" --ignored --exact --nocapture {what}");
    Command::new("sh")
        .args(["-c", &script])
        .arg(program)
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Reads its output up to this line.
fn wait_for(child: &mut Child, line: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|read| read.unwrap() == line), "the child never printed `{line}`");
}

#[test]
#[ignore = "the other tests of this file start it"]
fn leave_runs() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = env::var_os(FOLDER).expect("is started by the other tests");
        let registry = RunRegistry::open(folder).await.unwrap();
        let registry = registry.with_notices(|_: RunNotice| pending());
        let service = watched_by(&registry);
        let done = AgentRun::new(job(|_| ready(Ok("done")))).with_id("done");
        service.clone().oneshot(done).await.unwrap();
        let failed = AgentRun::new(job(|_| ready(Err(fail(Reason::Format))))).with_id("failed");
        let _ = service.clone().oneshot(failed).await;
        let (sender, mut started) = tokio::sync::mpsc::unbounded_channel();
        for id in ["one", "two"] {
            let sender = sender.clone();
            let run = AgentRun::new(job(move |_| {
                let _ = sender.send(());
                pending()
            }));
            tokio::spawn(service.clone().oneshot(run.with_id(id)));
            started.recv().await.unwrap();
        }
        while registry.snapshot().unwritten > 0 {
            tokio::task::yield_now().await;
        }
        writeln!(std::io::stdout(), "\nruns").unwrap();
        pending::<()>().await;
    });
}

/// Starts that process, and kills it when its runs run.
fn crash(folder: &Path) {
    let mut child = child(folder, "", "leave_runs");
    wait_for(&mut child, "runs");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_process_left_is_swept_after_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    crash(folder.path());
    let notices = Notices::default();
    let registry = RunRegistry::open(folder.path()).await.unwrap().with_notices(notices.sink());
    let snapshot = registry.snapshot();
    assert_eq!((snapshot.running, snapshot.known), (2, 4));
    assert_eq!(ran(&registry, &"done".into()), RunState::Completed);
    let another = RunRegistry::open(folder.path()).await.unwrap_err();
    assert!(another.is_locked(), "one process has it");
    let sweep = GhostSweep::new(registry.clone(), GhostPolicy::default()).unwrap();
    assert_eq!(sweep.sweep(), 0, "they may be resumed");
    sleep(ms(1)).await;
    let first = notices.take();
    assert_eq!(first.len(), 1, "the notice that nobody had confirmed");
    assert_eq!((&*first[0].key, first[0].state), ("run-notice:failed", RunState::Failed));

    let _sweeping = sweeping(&registry);
    sleep(secs(690)).await;
    assert_eq!(registry.snapshot().running, 2);
    sleep(secs(300)).await;
    assert_eq!(registry.snapshot().running, 0);
    let mut swept: Vec<_> = notices.take().into_iter().map(|notice| notice.key).collect();
    swept.sort();
    assert_eq!(swept, ["run-notice:one", "run-notice:two"]);
    registry.close(secs(1)).await;

    // Nothing of it comes back.
    let registry = RunRegistry::open(folder.path()).await.unwrap().with_notices(notices.sink());
    assert_eq!((registry.snapshot().running, registry.snapshot().known), (0, 4));
    assert_eq!(ran(&registry, &"one".into()), RunState::GhostSweep);
    let _sweeping = sweeping_at_once(&registry);
    sleep(secs(3_600)).await;
    assert!(notices.take().is_empty());
}

fn sweeping_at_once(registry: &RunRegistry) -> Sweeping {
    let policy = GhostPolicy { orphans_at_once: true, ..GhostPolicy::default() };
    GhostSweep::new(registry.clone(), policy).unwrap().spawn()
}

#[tokio::test(start_paused = true)]
async fn orphans_are_swept_at_the_start_if_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    crash(folder.path());
    let notices = Notices::default();
    let registry = RunRegistry::open(folder.path()).await.unwrap().with_notices(notices.sink());
    let _own = stuck(&registry, "of this process");
    let _sweeping = sweeping_at_once(&registry);
    sleep(secs(2)).await;
    assert_eq!(notices.take().len(), 3);
    let running: Vec<_> =
        registry.runs().into_iter().filter(|run| run.state == RunState::Running).collect();
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].id.as_str(), "of this process");
}

#[tokio::test(start_paused = true)]
async fn a_run_is_on_disk_before_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let file = folder.path().join("runs.jsonl");
    let seen = file.clone();
    let run = AgentRun::new(job(move |run| {
        let text = std::fs::read_to_string(&seen).unwrap();
        assert!(text.contains(run.id().as_str()) && text.contains("\"running\""), "{text}");
        ready(Ok("done"))
    }));
    watched_by(&registry).oneshot(run).await.unwrap();
    assert_eq!(registry.close(secs(1)).await, 0);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches("\"completed\"").count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_notice_is_sent_without_a_sweep_once_its_state_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.jsonl");
    let (sender, mut sent) = tokio::sync::mpsc::unbounded_channel();
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let registry = registry.with_notices(move |notice: RunNotice| {
        sender.send((notice.key, std::fs::read_to_string(&file).unwrap())).unwrap();
        ready(Ok(NoticeVia::Parent))
    });
    let run = AgentRun::new(job(|_| ready(Err(fail(Reason::Format))))).with_id("r");
    let _ = watched_by(&registry).oneshot(run).await;
    let (key, on_disk) = timeout(secs(60), sent.recv()).await.unwrap().unwrap();
    assert_eq!(key, "run-notice:r");
    assert!(on_disk.contains("\"state\":\"failed\""), "{on_disk}");
    registry.close(secs(1)).await;
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let record = registry.get(&"r".into()).unwrap();
    assert_eq!(record.notice, NoticeState::Sent(NoticeVia::Parent));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_while_it_is_registered_never_starts() {
    let folder = tempfile::tempdir().unwrap();
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let started = Arc::new(AtomicUsize::new(0));
    let counted = started.clone();
    let run = AgentRun::new(job(move |_| {
        counted.fetch_add(1, SeqCst);
        pending()
    }));
    let id = run.id().clone();
    let mut future = Box::pin(tower::Service::call(&mut watched_by(&registry), run));
    assert!(tokio_test::task::spawn(&mut future).poll().is_pending());
    drop(future);
    assert_eq!(registry.close(secs(1)).await, 0);
    assert_eq!((started.load(SeqCst), ran(&registry, &id)), (0, RunState::Cancelled));
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    assert_eq!(registry.snapshot().running, 0, "on disk, too");
}

#[tokio::test(start_paused = true)]
async fn what_runs_at_the_end_of_a_process_is_swept_by_the_next_one_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let service = watched_by(&registry);
    let work = job(|_| async {
        sleep(secs(3)).await;
        Ok("done")
    });
    let ends = tokio::spawn(service.clone().oneshot(AgentRun::new(work).with_id("ends")));
    let hangs = tokio::spawn(service.clone().oneshot(AgentRun::new(hang()).with_id("hangs")));
    let cut = tokio::spawn(service.clone().oneshot(AgentRun::new(hang()).with_id("cut")));
    sleep(secs(1)).await;
    let closing = {
        let registry = registry.clone();
        tokio::spawn(async move { registry.close(secs(10)).await })
    };
    sleep(secs(1)).await;
    let refused = service.oneshot(AgentRun::new(hang())).await.unwrap_err();
    assert!(refused.message().contains("restarted"), "{refused}");
    // Dropped by a shutdown, not by somebody who does not want it any more.
    cut.abort();
    assert_eq!(closing.await.unwrap(), 2);
    assert_eq!(ends.await.unwrap().unwrap(), "done");
    hangs.abort();

    let notices = Notices::default();
    let registry = RunRegistry::open(folder.path()).await.unwrap().with_notices(notices.sink());
    assert_eq!(ran(&registry, &"ends".into()), RunState::Completed);
    let _sweeping = sweeping(&registry);
    sleep(secs(1)).await;
    let mut keys: Vec<_> = notices.take().into_iter().map(|notice| notice.key).collect();
    keys.sort();
    assert_eq!(keys, ["run-notice:cut", "run-notice:hangs"]);
}

#[test]
#[ignore = "the other tests of this file start it"]
fn run_on_a_full_disk() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = env::var_os(FOLDER).expect("is started by the other tests");
        let registry = RunRegistry::open(&folder).await.unwrap();
        let service = watched_by(&registry);
        let mut runs = 0;
        while !registry.snapshot().disk_failed {
            let run = AgentRun::new(job(|_| ready(Ok("done")))).with_id(format!("{runs:04}"));
            service.clone().oneshot(run).await.unwrap();
            runs += 1;
            assert!(runs < 1_000);
        }
        // Runs go on, and do not wait for a disk that has answered. (One may, for a machine that is busy.)
        let mut slow = 0;
        for n in 0..20 {
            let run = AgentRun::new(job(|_| ready(Ok("done")))).with_id(format!("full {n}"));
            let started = tokio::time::Instant::now();
            service.clone().oneshot(run).await.unwrap();
            slow += u32::from(started.elapsed() > Duration::from_millis(4_500));
        }
        assert!(slow <= 2, "{slow} runs waited");
        // What is being tried again at this moment is not counted.
        let counted = async {
            while registry.snapshot().unwritten < 20 {
                sleep(ms(1)).await;
            }
        };
        timeout(secs(60), counted).await.unwrap();
        // Somebody makes room.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        let room = rustix::process::Rlimit { current: limit.maximum, ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, room).unwrap();
        let written = async {
            // The same: nothing to write is not yet all that is written.
            while registry.snapshot().unwritten > 0 || registry.snapshot().disk_failed {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(secs(60), written).await.unwrap();
        writeln!(std::io::stdout(), "\nwritten").unwrap();
    });
}

#[test]
fn a_full_disk_stops_no_run_and_is_written_when_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = child(folder.path(), "trap '' XFSZ; ulimit -S -f 8;", "run_on_a_full_disk");
    wait_for(&mut child, "written");
    assert!(child.wait().unwrap().success());
    let text = std::fs::read_to_string(folder.path().join("runs.jsonl")).unwrap();
    for n in 0..20 {
        assert!(text.contains(&format!("\"full {n}\"")), "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_file_is_compacted_and_what_is_damaged_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.jsonl");
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let service = watched_by(&registry);
    let _left = tokio::spawn(service.clone().oneshot(AgentRun::new(hang()).with_id("left")));
    for _ in 0..40 {
        // Many at once: a write for all of them.
        let runs = (0..100).map(|_| {
            let run = AgentRun::new(job(|_| ready(Ok("done"))));
            tokio::spawn(service.clone().oneshot(run))
        });
        for run in runs.collect::<Vec<_>>() {
            run.await.unwrap().unwrap();
        }
    }
    assert_eq!(registry.snapshot().known, 1_025, "1,024 ended ones are kept");
    registry.close(Duration::ZERO).await;
    let lines = std::fs::read_to_string(&file).unwrap().lines().count();
    assert!((1_025..=4_200).contains(&lines), "{lines} lines for 8,001 records");

    let mut damaged = std::fs::read(&file).unwrap();
    damaged[5_000] ^= 1;
    damaged.extend_from_slice(b"{\"n\":99999,\"crc32\":1,\"v\":{\"torn");
    std::fs::write(&file, damaged).unwrap();
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    assert!(registry.snapshot().known >= 1_023);
    assert_eq!(ran(&registry, &"left".into()), RunState::Running);
    assert!(folder.path().join("runs.jsonl.bad").exists());
}

#[tokio::test(start_paused = true)]
async fn a_failure_without_a_sink_is_not_announced_later() {
    let folder = tempfile::tempdir().unwrap();
    let registry = RunRegistry::open(folder.path()).await.unwrap();
    let run = AgentRun::new(job(|_| ready(Err::<_, Failure>(fail(Reason::Format))))).with_id("r");
    let _ = watched_by(&registry).oneshot(run).await;
    registry.close(secs(1)).await;
    let notices = Notices::default();
    let registry = RunRegistry::open(folder.path()).await.unwrap().with_notices(notices.sink());
    let _sweeping = sweeping(&registry);
    sleep(secs(1_000)).await;
    assert!(notices.take().is_empty());
}
