//! Commands as real processes: what they get, how they are ended, and that all of them are.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::{path::Path, time::Duration};

use steadfast_tool::{CommandEnd, CommandError, CommandOutput, CommandPolicy, Script};
use support::*;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

const IN_TIME: Duration = Duration::from_secs(3);

/// When a command has started, on a machine that is busy.
const STARTED: Duration = Duration::from_secs(60);

/// Runs them all at once.
async fn all<F: Future<Output = ()> + Send + 'static>(tests: impl IntoIterator<Item = F>) {
    let mut running: JoinSet<()> = tests.into_iter().collect();
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

async fn run(text: &str) -> CommandOutput {
    runner(|_| {}).run(Script::new(text)).await.unwrap()
}

#[tokio::test]
async fn a_command_gets_what_the_policy_says() {
    for (text, output, end) in [
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n", CommandEnd::Exited(0)),
        ("cat; echo done", "done\n", CommandEnd::Exited(0)),
        ("exit 7", "", CommandEnd::Exited(7)),
        ("kill -15 $$", "", CommandEnd::Signalled(15)),
        ("kill -9 $$", "", CommandEnd::Signalled(9)),
        ("sh -c 'kill -9 $$' 2>/dev/null; exit $?", "", CommandEnd::Exited(137)),
        ("nothing-of-this-name 2>/dev/null", "", CommandEnd::Exited(127)),
    ] {
        let done = run(text).await;
        assert_eq!((done.output.as_str(), done.end), (output, end), "{text}");
        assert_eq!((done.omitted, done.leftovers, done.survivors), (0, 0, 0), "{text}");
        assert_eq!(
            end.is_killed(),
            matches!(end, CommandEnd::Signalled(9) | CommandEnd::Exited(137))
        );
    }
    let in_usr = runner(|policy| {
        policy.dir = Some("/usr".into());
        policy.env.insert("MINE".to_owned(), "yes".to_owned());
    });
    let env = in_usr.run(Script::new("pwd; env | cut -d= -f1 | sort").in_dir("bin")).await.unwrap();
    assert!(env.output.starts_with("/usr/bin\n"), "{}", env.output);
    assert!(env.output.contains("MINE\n") && env.output.contains("PATH\n"), "{}", env.output);
    // Set for every test by cargo, and not in the list.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(!env.output.contains("CARGO_MANIFEST_DIR"), "{}", env.output);

    let nowhere = in_usr.run(Script::new("pwd").in_dir("nowhere")).await;
    assert!(matches!(nowhere, Err(CommandError::NoFolder(dir)) if dir.ends_with("usr/nowhere")));
    let no_shell = runner(|policy| policy.shell = "/nowhere/sh".into());
    let error = no_shell.run(Script::new("true")).await.unwrap_err();
    assert!(error.to_string().starts_with("the command could not be started with `/nowhere/sh`"));
}

#[tokio::test]
async fn long_output_keeps_its_beginning_and_end() {
    let capped = runner(|policy| policy.max_output_bytes = 1_000);
    let began = Instant::now();
    let done =
        capped.run(Script::new("echo first; yes | head -c 20000000; echo last")).await.unwrap();
    assert!(done.output.starts_with("first\ny\n") && done.output.ends_with("y\nlast\n"));
    assert!(done.output.len() < 1_100);
    assert_eq!(done.omitted, 20_000_000 + 6 + 5 - 1_000);
    assert!(done.output.contains("[... 19999011 bytes left out ...]"), "{}", done.output);
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// The table of processes that do not want to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_command_has_started_ends_with_its_time() {
    let reaps = init_reaps().await;
    let run_one = |(what, text, count): (&'static str, &'static str, usize)| async move {
        // All of it has to have started by then: on a machine that is too busy for that it has more time.
        for limit in [1_500, 6_000, 24_000].map(Duration::from_millis) {
            let token = token();
            let script = Script::new(format!("echo started; {}", text.replace('@', &token)));
            let (runner, began) = (runner(|_| {}), Instant::now());
            let call = tokio::spawn(async move { runner.run(script.within(limit)).await });
            let mut pids = Vec::new();
            let all_run = becomes(limit, || {
                pids = sleepers(&token);
                pids.len() == count
            });
            let all_run = all_run.await;
            let done = call.await.unwrap().unwrap();
            assert_eq!((done.end, done.survivors), (CommandEnd::TimedOut, 0), "{what}");
            assert_eq!(alive(&token), [] as [i32; 0], "{what}");
            assert!(began.elapsed() < limit + IN_TIME, "{what}: {:?}", began.elapsed());
            if all_run {
                assert_eq!(done.output, "started\n", "{what}");
                // No zombie, and none of init's, which has a pace of its own.
                assert!(!reaps || becomes(STARTED, || are_reaped(&pids)).await, "{what}: {pids:?}");
                return;
            }
        }
        panic!("{what}: it never ran");
    };
    all(STUBBORN.map(run_one)).await;
}

/// Linux cuts a program's name after 15 bytes, and what is left of this one is no UTF-8.
#[tokio::test]
async fn a_name_that_is_cut_within_a_character_hides_nobody() {
    let token = token();
    let program = format!("{}/fourteen_bytesé", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_file(&program);
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    // Alone in a session, without the parent that it had.
    let text = format!("(setsid {program} {token} >/dev/null 2>&1 &); sleep {token}");
    let abort = CancellationToken::new();
    let script = Script::new(text).aborted_by(abort.clone());
    let call = tokio::spawn(async move { runner(|_| {}).run(script).await });
    assert!(becomes(STARTED, || sleepers(&token).len() == 2).await, "it never ran");
    let comm = |pid: &i32| std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let comms: Vec<_> = sleepers(&token).iter().map(comm).collect();
    assert!(comms.contains(&b"fourteen_bytes\xc3\n".to_vec()), "{comms:?}");
    abort.cancel();
    let done = call.await.unwrap().unwrap();
    assert_eq!((done.end, done.survivors), (CommandEnd::Aborted, 0));
    assert_eq!(alive(&token), [] as [i32; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_ends_it_and_keeps_the_output() {
    let run_one = |(what, text, count): (&'static str, &'static str, usize)| async move {
        let token = token();
        let abort = CancellationToken::new();
        let script = Script::new(format!("echo started; {}", text.replace('@', &token)));
        let call = tokio::spawn({
            let (runner, script) = (runner(|_| {}), script.aborted_by(abort.clone()));
            async move { runner.run(script).await }
        });
        assert!(becomes(STARTED, || sleepers(&token).len() == count).await, "{what}: it never ran");
        let began = Instant::now();
        abort.cancel();
        let done = call.await.unwrap().unwrap();
        assert_eq!((done.end, done.output.as_str()), (CommandEnd::Aborted, "started\n"), "{what}");
        assert_eq!(alive(&token), [] as [i32; 0], "{what}");
        assert!(began.elapsed() < IN_TIME, "{what}: {:?}", began.elapsed());
    };
    all(STUBBORN.map(run_one)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_call_ends_it() {
    let run_one = |(what, text, count): (&'static str, &'static str, usize)| async move {
        let token = token();
        let script = Script::new(text.replace('@', &token));
        let call = tokio::spawn(async move { runner(|_| {}).run(script).await });
        assert!(becomes(STARTED, || sleepers(&token).len() == count).await, "{what}: it never ran");
        call.abort();
        assert!(becomes(IN_TIME, || alive(&token).is_empty()).await, "{what}: {:?}", alive(&token));
    };
    all(STUBBORN.map(run_one)).await;
}

/// Before it is started, before it has begun, while it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_may_be_dropped_at_any_time() {
    let (_, text, _) = STUBBORN[5];
    all([0, 1, 2, 3, 5, 8, 13, 21, 34, 55].map(|ms| async move {
        let token = token();
        let script = Script::new(text.replace('@', &token));
        let limit = Duration::from_millis(ms);
        assert!(tokio::time::timeout(limit, runner(|_| {}).run(script)).await.is_err());
        // What would still begin has begun by then.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(becomes(IN_TIME, || alive(&token).is_empty()).await, "{ms}: {:?}", alive(&token));
    }))
    .await;
}

/// While it is ended, and while its output is drained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_may_be_dropped_while_it_ends() {
    all([("trap '' TERM; sleep @; sleep @", 200), ("sleep @ & exit 0", 5_000)].map(
        |(text, time)| async move {
            let token = token();
            let script = Script::new(text.replace('@', &token));
            let slowly = runner(|policy| policy.grace = Duration::from_secs(60));
            let call = slowly.run(script.within(Duration::from_millis(time)));
            let call = tokio::time::timeout(Duration::from_millis(600), call).await;
            assert!(call.is_err(), "{text}: it has not ended yet");
            // Nobody waits for its grace to be over.
            assert!(becomes(IN_TIME, || alive(&token).is_empty()).await, "{text}");
        },
    ))
    .await;
}

#[tokio::test]
async fn one_that_writes_without_end_is_ended() {
    // The pipe takes 64 KiB: most of it has been read when the marker is there.
    let text = "head -c 300000 /dev/zero | tr '\\0' y; echo started; exec yes";
    let done = abort_when_marked(text, |policy| policy.max_output_bytes = 100).await;
    assert!(done.omitted > 200_000, "{done:?}");
    let limit = Duration::from_millis(300);
    let done = runner(|_| {}).run(Script::new("yes").within(limit)).await.unwrap();
    assert_eq!((done.end, done.survivors), (CommandEnd::TimedOut, 0));
    assert!(done.elapsed < limit + IN_TIME, "{done:?}");
    // In the background, it does not keep the drain from ending.
    let began = Instant::now();
    let done = runner(|policy| policy.drain = Duration::from_millis(200))
        .run(Script::new("yes & exit 3"))
        .await
        .unwrap();
    assert_eq!((done.end, done.leftovers), (CommandEnd::Exited(3), 1));
    assert!(began.elapsed() < IN_TIME);
}

#[test]
fn a_runtime_that_shuts_down_ends_it() {
    let token = token();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_, text, count) = STUBBORN[5];
    let script = Script::new(text.replace('@', &token));
    let call = async { runner(|_| {}).run(script).await };
    runtime.spawn(call);
    runtime.block_on(async {
        assert!(becomes(STARTED, || sleepers(&token).len() == count).await, "it never ran");
    });
    drop(runtime);
    let other = tokio::runtime::Runtime::new().unwrap();
    assert!(other.block_on(becomes(IN_TIME, || alive(&token).is_empty())));
}

#[tokio::test]
async fn sigterm_comes_first() {
    let text = "trap 'echo cleaned up; exit 0' TERM; echo started; while :; do sleep 0.05; done";
    let done = abort_when_marked(text, |policy| policy.grace = STARTED).await;
    assert!(done.output.starts_with("started\n") && done.output.ends_with("cleaned up\n"));
    assert!(done.elapsed < STARTED);
}

/// Runs `text`, in which `echo started` is followed by a marker; aborted once that is there.
async fn abort_when_marked(text: &str, change: impl FnOnce(&mut CommandPolicy)) -> CommandOutput {
    let marker = format!("{}/{}", env!("CARGO_TARGET_TMPDIR"), token());
    let text = text.replace("echo started;", &format!("echo started; : >{marker};"));
    let (abort, runner) = (CancellationToken::new(), runner(change));
    let script = Script::new(text).aborted_by(abort.clone());
    let call = tokio::spawn(async move { runner.run(script).await });
    assert!(becomes(STARTED, || std::fs::exists(&marker).unwrap()).await, "it never ran");
    std::fs::remove_file(marker).unwrap();
    abort.cancel();
    let done = call.await.unwrap().unwrap();
    assert_eq!((done.end, done.survivors), (CommandEnd::Aborted, 0));
    done
}

#[tokio::test]
async fn what_is_left_in_the_background_ends_with_the_command() {
    // It holds the pipe open: the drain has a limit of its own.
    let (token, began) = (token(), Instant::now());
    let script = Script::new(format!("echo hello; sleep {token} & setsid sleep {token} &"));
    let done =
        runner(|policy| policy.drain = Duration::from_millis(300)).run(script).await.unwrap();
    assert_eq!((done.output.as_str(), done.end), ("hello\n", CommandEnd::Exited(0)));
    assert_eq!((done.leftovers, done.survivors), (2, 0));
    assert!(began.elapsed() < IN_TIME && alive(&token).is_empty());
    // What comes within that limit is not lost.
    let patient = runner(|policy| policy.drain = STARTED);
    let late = Script::new("(sleep 0.2; echo late) & echo early");
    let done = patient.run(late).await.unwrap();
    // Its shell has closed the pipe, and may not be quite gone.
    assert_eq!((done.output.as_str(), done.survivors), ("early\nlate\n", 0));
}

#[tokio::test]
async fn what_is_left_in_the_background_may_be_kept() {
    let token = token();
    let keeping = runner(|policy| policy.keep_background = true);
    let script = Script::new(format!("sleep {token} >/dev/null 2>&1 & echo $!"));
    let done = keeping.run(script).await.unwrap();
    assert_eq!((done.leftovers, alive(&token).len()), (0, 1));
    let pid = rustix::process::Pid::from_raw(done.output.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The groups that commands of this process have in `parent`.
fn groups(parent: &Path) -> Vec<String> {
    let names = std::fs::read_dir(parent).unwrap().filter_map(Result::ok);
    let names = names.map(|one| one.file_name().to_string_lossy().into_owned());
    let ours = format!("steadfast-{:x}_", std::process::id());
    names.filter(|name| name.starts_with(&ours)).collect()
}

#[tokio::test]
async fn in_a_cgroup_nothing_gets_away() {
    let Some(parent) = cgroup() else { return };
    let token = token();
    let grouped = runner(|policy| policy.cgroup = Some(parent.clone()));
    let own = grouped.run(Script::new("cat /proc/self/cgroup")).await.unwrap();
    assert!(own.output.contains("/steadfast-"), "{}", own.output);
    let hidden = format!(
        "(env -i /usr/bin/setsid /bin/sh -c 'exec >/dev/null 2>&1; (/bin/sleep {token}) & exit' &); exit 4"
    );
    let done = grouped.run(Script::new(&hidden)).await.unwrap();
    assert_eq!((done.end, done.survivors), (CommandEnd::Exited(4), 0));
    assert!(becomes(IN_TIME, || alive(&token).is_empty()).await);
    assert_eq!(groups(&parent), [] as [String; 0]);

    // What may go on keeps its group, until the first command after it.
    let keeping = runner(|policy| {
        (policy.cgroup, policy.keep_background) = (Some(parent.clone()), true);
    });
    let left = Script::new(format!("sleep {token} >/dev/null 2>&1 &"));
    assert_eq!(keeping.run(left).await.unwrap().leftovers, 0);
    let kept = groups(&parent);
    assert_eq!((kept.len(), alive(&token).len()), (1, 1), "{kept:?}");
    std::fs::write(parent.join(&kept[0]).join("cgroup.kill"), "1").unwrap();
    assert!(becomes(STARTED, || is_empty(&parent.join(&kept[0]))).await);
    assert_eq!(grouped.run(Script::new("true")).await.unwrap().end, CommandEnd::Exited(0));
    assert_eq!(groups(&parent), [] as [String; 0]);

    // One that can not be started leaves none.
    let not_started = grouped.run(Script::new("\0")).await;
    assert!(matches!(not_started, Err(CommandError::Start { .. })), "{not_started:?}");
    assert_eq!(groups(&parent), [] as [String; 0]);
}

fn is_empty(group: &Path) -> bool {
    std::fs::read_to_string(group.join("cgroup.events")).unwrap().contains("populated 0")
}
