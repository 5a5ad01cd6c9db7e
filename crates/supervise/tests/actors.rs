//! What users of threads see, whatever happens to a turn.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::{Ready, pending, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{BoxError, Call, CallContext, Deadline, Failure, LOST_HISTORY, Reason};
use steadfast_supervise::{
    Actors, ActorsBuilder, ActorsPolicy, MailboxError, PostBody, Prompt, Steered, TOOL_TIMEOUT,
    ThreadKey, ThreadPost, TurnFailure,
};
use steadfast_testkit::{elapsed_ms, ms, secs};
use tokio::time::{Instant, sleep};
use tower::{Service, service_fn};

/// What was sent: thread, text, when.
#[derive(Clone)]
struct Posts {
    sent: Arc<Mutex<Vec<(ThreadKey, String, Duration)>>>,
    since: Instant,
}

impl Posts {
    fn new() -> Self {
        Self { sent: Arc::default(), since: Instant::now() }
    }

    fn sink(
        &self,
    ) -> impl Fn(ThreadPost<String>) -> Ready<Result<(), Failure>> + Send + Sync + 'static {
        let posts = self.clone();
        move |post| {
            let text = match post.body {
                PostBody::Reply(reply) => reply,
                PostBody::Failed(failure) => format!("! {failure}"),
                other => panic!("{other:?}"),
            };
            posts.sent.lock().push((post.thread, text, elapsed_ms(posts.since)));
            ready(Ok(()))
        }
    }

    fn texts(&self) -> Vec<String> {
        self.sent.lock().drain(..).map(|(_, text, _)| text).collect()
    }

    fn timed(&self) -> Vec<(String, u64)> {
        let timed = self.sent.lock().drain(..).collect::<Vec<_>>().into_iter();
        timed.map(|(_, text, at)| (text, at.as_secs())).collect()
    }
}

const SECRET: &str = "sk-secret-of-the-raw-error";

/// A turn for each word.
async fn turn(prompt: Prompt<&'static str>) -> Result<String, Failure> {
    let failure = |reason| Err(Failure::new(reason, SECRET));
    match prompt.input {
        "hang" => pending().await,
        "slow" => {
            sleep(secs(10)).await;
            Ok("slow".to_owned())
        }
        "panic" => panic!("{SECRET}"),
        "provider" => failure(Reason::Overloaded),
        "format" => failure(Reason::Format),
        "tool" => Err(Failure::new(Reason::Timeout, SECRET).with_evidence(TOOL_TIMEOUT)),
        "bomb" => {
            let _bomb = Bomb;
            pending().await
        }
        "steered" => {
            let mut read = Vec::new();
            while read.last() != Some(&"end") {
                read.push(prompt.steering.next().await);
            }
            Ok(format!("steered by {}", read.join(", ")))
        }
        word => Ok(word.to_uppercase()),
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

fn actors(posts: &Posts) -> Actors<&'static str> {
    Actors::new(service_fn(turn), posts.sink())
}

const A: &str = "a";

fn key() -> ThreadKey {
    ThreadKey::new(A)
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_a_turn_but_a_text_and_the_next_prompt_runs() {
    let posts = Posts::new();
    let actors = actors(&posts);
    for word in ["provider", "panic", "tool", "format", "fine"] {
        actors.send(A, word).unwrap();
    }
    sleep(ms(1)).await;
    assert_eq!(
        posts.texts(),
        [
            "! The model provider can't be reached right now. Please try again in a moment.",
            "! Something went wrong (panic). Please send your message again.",
            "! A command took too long and was stopped. Say so if it should be tried again.",
            "! Something went wrong (format). Please send your message again.",
            "FINE",
        ]
    );
    let counts = actors.snapshot().counts;
    assert_eq!((counts.taken, counts.failed, counts.replied), (5, 4, 1));
}

/// Panics wherever it is asked to, once.
#[derive(Clone)]
struct Panics {
    at: &'static str,
    once: Arc<AtomicBool>,
}

impl Panics {
    fn here(&self, at: &str) {
        assert!(self.at != at || self.once.swap(true, SeqCst), "here: {SECRET}");
    }
}

/// An error that can not even be converted.
struct BadError(Panics);

impl From<BadError> for Failure {
    fn from(error: BadError) -> Self {
        error.0.here("error");
        Failure::new(Reason::Format, SECRET)
    }
}

struct PanicsOnDrop(Panics, bool);

impl Future for PanicsOnDrop {
    type Output = Result<String, BadError>;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.here("poll");
        match self.1 {
            true => Poll::Ready(Err(BadError(self.0.clone()))),
            false => Poll::Ready(Ok("REPLY".to_owned())),
        }
    }
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.here("drop");
        }
    }
}

impl Service<Prompt<&'static str>> for Panics {
    type Response = String;
    type Error = BadError;
    type Future = PanicsOnDrop;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BadError>> {
        self.here("ready");
        match self.at == "refuse" && !self.once.swap(true, SeqCst) {
            true => Poll::Ready(Err(BadError(self.clone()))),
            false => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, _: Prompt<&'static str>) -> PanicsOnDrop {
        self.here("call");
        let fails = self.at == "error" && !self.once.load(SeqCst);
        PanicsOnDrop(self.clone(), fails)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_anywhere_is_a_text() {
    let failed = "! Something went wrong (panic). Please send your message again.";
    for (at, first) in [
        ("ready", failed),
        ("call", failed),
        ("poll", failed),
        ("error", failed),
        ("refuse", "! Something went wrong (format). Please send your message again."),
        ("drop", "REPLY"),
    ] {
        let posts = Posts::new();
        let service = Panics { at, once: Arc::default() };
        let actors = Actors::new(service, posts.sink());
        actors.send(A, "first").unwrap();
        actors.send(A, "second").unwrap();
        sleep(ms(1)).await;
        assert_eq!(posts.texts(), [first, "REPLY"], "{at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_fails_panics_or_hangs_stops_nobody() {
    for (how, seconds) in [("fail", 0), ("panic", 0), ("hang", 600 + 30)] {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let posts = sent.clone();
        let actors = Actors::new(service_fn(turn), move |post: ThreadPost<String>| {
            posts.lock().push(post.body);
            let first = posts.lock().len() == 1 || how == "hang" && posts.lock().len() == 2;
            assert!(!(first && how == "panic"), "a sink");
            async move {
                match how {
                    "hang" if first => pending().await,
                    "fail" if first => Err(Failure::new(Reason::Network, "no")),
                    _ => Ok(()),
                }
            }
        });
        let started = Instant::now();
        actors.send(A, "one").unwrap();
        actors.send(A, "two").unwrap();
        let two = PostBody::Reply("TWO".to_owned());
        while sent.lock().last() != Some(&two) {
            sleep(ms(500)).await;
        }
        assert_eq!(started.elapsed().as_secs(), seconds, "{how}");
        let text = PostBody::Failed(TurnFailure::Pipeline);
        let texts = sent.lock().iter().filter(|body| **body == text).count();
        assert_eq!(texts, usize::from(how == "hang"), "the reply was not sent in time");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_s_whole_run_has_600_seconds() {
    let posts = Posts::new();
    let actors = actors(&posts);
    actors.send(A, "hang").unwrap();
    actors.send(A, "next").unwrap();
    sleep(ms(599_999)).await;
    assert!(posts.sent.lock().is_empty());
    sleep(ms(2)).await;
    assert_eq!(
        posts.timed(),
        [
            (
                "! This took too long and was stopped. Please send it again, or ask for a smaller part of it."
                    .to_owned(),
                600
            ),
            ("NEXT".to_owned(), 600)
        ]
    );
    assert_eq!(actors.snapshot().counts.timed_out, 1);
}

#[tokio::test(start_paused = true)]
async fn a_turn_has_its_deadline_its_thread_and_its_tenant() {
    let posts = Posts::new();
    let service = service_fn(async |prompt: Prompt<&'static str>| {
        let context = prompt.context();
        let left = context.deadline.unwrap().remaining().as_secs();
        Ok::<_, Failure>(format!("{:?} {:?} {left}", context.tenant(), context.session()))
    });
    let actors = Actors::new(service, posts.sink());
    let mine = ThreadKey::new("t").with_tenant("acme");
    actors.send(mine.clone(), "").unwrap();
    sleep(ms(1)).await;
    let context = CallContext::new().with_session("s").with_deadline(Deadline::after(secs(9)));
    actors.send_with(mine, "", context).unwrap();
    sleep(ms(1)).await;
    assert_eq!(posts.texts(), ["Some(\"acme\") Some(\"t\") 600", "Some(\"acme\") Some(\"s\") 9"]);
}

#[tokio::test(start_paused = true)]
async fn threads_run_at_once_and_the_prompts_of_one_in_order() {
    let posts = Posts::new();
    let actors = actors(&posts);
    let other = ThreadKey::new(A).with_tenant("another tenant");
    actors.send(A, "slow").unwrap();
    actors.send(A, "then").unwrap();
    actors.send(other.clone(), "slow").unwrap();
    actors.send(other, "then").unwrap();
    sleep(secs(11)).await;
    let timed = posts.timed();
    assert!(timed.iter().all(|(_, at)| *at == 10), "{timed:?}");
    assert_eq!(timed.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_is_bounded_and_says_so() {
    let posts = Posts::new();
    let actors = actors(&posts);
    actors.send(A, "slow").unwrap();
    tokio::task::yield_now().await;
    for _ in 0..20 {
        actors.send(A, "more").unwrap();
    }
    let error = actors.send(A, "too many").unwrap_err();
    assert_eq!(error, MailboxError::Full { waiting: 20 });
    assert_eq!(
        error.to_string(),
        "20 messages of this thread wait already; wait for an answer, or abort what runs, then send it again"
    );
    let failure = Failure::from(error);
    assert_eq!((failure.reason(), failure.evidence()), (Reason::Budget, "full"));
    actors.send("b", "another thread").unwrap();
    let snapshot = actors.snapshot();
    assert_eq!((snapshot.threads, snapshot.running, snapshot.waiting), (2, 1, 21));
    assert_eq!(snapshot.counts.refused, 1);
    sleep(secs(11)).await;
    actors.send(A, "again").unwrap();
    sleep(ms(1)).await;
    assert_eq!(posts.texts().len(), 1 + 20 + 1 + 1);

    // Steering has the same bound of its own.
    actors.send(A, "slow").unwrap();
    tokio::task::yield_now().await;
    for _ in 0..20 {
        actors.steer(A, "unread").unwrap();
    }
    assert_eq!(actors.steer(A, "unread"), Err(MailboxError::Full { waiting: 20 }));
    assert_eq!(actors.clear(&key()), 0, "they are the turn's");
}

#[tokio::test(start_paused = true)]
async fn turns_that_never_read_steering_leave_the_mailbox_bounded() {
    let posts = Posts::new();
    let actors = actors(&posts);
    let mut most = 0;
    for _ in 0..20 {
        actors.send(A, "slow").ok();
        tokio::task::yield_now().await;
        while actors.steer(A, "slow").is_ok() {}
        // The turn ends, and what it has not read waits.
        sleep(secs(10) + ms(1)).await;
        most = most.max(actors.snapshot().waiting);
    }
    assert!((20..=40).contains(&most), "{most}");
    assert_eq!(actors.send(A, "one more"), Err(MailboxError::Full { waiting: most }));
    sleep(secs(10 * 60)).await;
    assert_eq!(actors.snapshot().waiting, 0, "all of them run");
}

#[tokio::test(start_paused = true)]
async fn unread_steering_is_a_prompt_with_time_of_its_own_and_the_same_caller() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = seen.clone();
    let turn = service_fn(move |prompt: Prompt<&'static str>| {
        let tenant = prompt.context.tenant().map(str::to_owned);
        let deadline = prompt.context.deadline.map(|deadline| deadline.instant());
        record.lock().push((tenant, deadline));
        async move {
            sleep(secs(20)).await;
            Ok::<_, Failure>(prompt.input.to_owned())
        }
    });
    let posts = Posts::new();
    let actors = Actors::new(turn, posts.sink());
    let context = CallContext::new().with_tenant("acme").with_deadline(Deadline::after(secs(30)));
    actors.send_with(A, "first", context).unwrap();
    sleep(secs(19)).await;
    actors.steer(A, "unread").unwrap();
    sleep(secs(30)).await;
    assert_eq!(posts.timed(), [("first".to_owned(), 20), ("unread".to_owned(), 40)]);
    let seen = seen.lock();
    assert_eq!(seen[1].0.as_deref(), Some("acme"));
    assert_eq!(seen[1].1.unwrap() - seen[0].1.unwrap(), secs(20 + 600 - 30));
}

/// An error that can not even be displayed.
#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("in display")
    }
}

impl std::error::Error for Unspeakable {}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_it_is_displayed_stays_in_its_turn() {
    let posts = Posts::new();
    let turn = service_fn(async |prompt: Prompt<&'static str>| match prompt.input {
        "fails" => Err(Failure::new(Reason::ServerError, "text").with_source(Unspeakable)),
        word => Ok(word.to_owned()),
    });
    let actors = Actors::new(turn, posts.sink());
    actors.send(A, "fails").unwrap();
    actors.send(A, "fine").unwrap();
    sleep(ms(1)).await;
    let text = "! The model provider can't be reached right now. Please try again in a moment.";
    assert_eq!(posts.texts(), [text, "fine"]);
}

#[tokio::test(start_paused = true)]
async fn steering_overtakes_what_waits_and_is_never_lost() {
    let posts = Posts::new();
    let actors = actors(&posts);
    let prompt = actors.send(A, "steered").unwrap();
    tokio::task::yield_now().await;
    actors.send(A, "waits").unwrap();
    assert_eq!(actors.steer(A, "left"), Ok(Steered::Running { prompt }));
    actors.steer(A, "right").unwrap();
    actors.steer(A, "end").unwrap();
    actors.steer(A, "unread one").unwrap();
    actors.steer(A, "unread two").unwrap();
    sleep(ms(1)).await;
    assert_eq!(posts.texts(), ["steered by left, right, end", "UNREAD ONE", "UNREAD TWO", "WAITS"]);
    // Nothing runs: it is the next prompt.
    assert!(matches!(actors.steer(A, "alone"), Ok(Steered::Next { .. })));
    sleep(ms(1)).await;
    assert_eq!(posts.texts(), ["ALONE"]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_overtakes_what_waits() {
    let posts = Posts::new();
    let actors = actors(&posts);
    let prompt = actors.send(A, "hang").unwrap();
    actors.send(A, "next").unwrap();
    sleep(secs(1)).await;
    assert_eq!(actors.abort(&key()), Some(prompt));
    sleep(ms(1)).await;
    assert_eq!(posts.timed(), [("NEXT".to_owned(), 1)]);
    assert_eq!(actors.abort(&key()), None, "nothing runs");
    assert_eq!(actors.abort(&ThreadKey::new("nobody")), None);
    assert_eq!(actors.snapshot().counts.aborted, 1);
    // A turn that panics when it is dropped is aborted all the same.
    actors.send(A, "bomb").unwrap();
    actors.send(A, "next").unwrap();
    sleep(secs(1)).await;
    actors.abort(&key()).unwrap();
    sleep(ms(1)).await;
    assert_eq!(posts.texts(), ["NEXT"]);
    // What waits can be forgotten, too.
    actors.send(A, "hang").unwrap();
    tokio::task::yield_now().await;
    actors.send(A, "waits").unwrap();
    actors.send(A, "waits").unwrap();
    assert_eq!(actors.clear(&key()), 2);
    actors.abort(&key()).unwrap();
    sleep(secs(1)).await;
    assert!(posts.texts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_aborted_at_any_await_leaves_nothing() {
    let alive = Arc::new(AtomicUsize::new(0));
    let counted = alive.clone();
    let service = service_fn(move |prompt: Prompt<&'static str>| {
        let alive = counted.clone();
        async move {
            alive.fetch_add(1, SeqCst);
            let _alive = Alive(alive);
            for _ in 0..5 {
                sleep(ms(10)).await;
            }
            Ok::<_, Failure>(prompt.input.to_owned())
        }
    });
    let posts = Posts::new();
    // The reply takes a while as well.
    let sink = posts.sink();
    let actors = Actors::new(service, move |post| {
        let posted = sink(post);
        async move {
            sleep(ms(10)).await;
            posted.await
        }
    });
    for at in (1..60).step_by(10) {
        actors.send(A, "first").unwrap();
        actors.send(A, "second").unwrap();
        sleep(ms(at)).await;
        actors.abort(&key()).unwrap();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert!(alive.load(SeqCst) <= 1, "the first is gone when the second starts");
        sleep(ms(100)).await;
        let texts = posts.texts();
        assert_eq!(texts.last().map(String::as_str), Some("second"), "aborted after {at} ms");
        assert_eq!(alive.load(SeqCst), 0);
    }
    assert_eq!(actors.snapshot().running, 0);
}

struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_idle_threads_are_evicted_and_made_again() {
    let posts = Posts::new();
    let actors = actors(&posts);
    let thread = |n: usize| ThreadKey::new(format!("thread {n}"));
    for n in 0..10_000 {
        actors.send(thread(n), "hello").unwrap();
    }
    sleep(secs(1)).await;
    assert_eq!((actors.snapshot().threads, tasks()), (10_000, 10_000));
    assert_eq!(posts.texts().len(), 10_000);
    sleep(ms(298_999)).await;
    // A thread that was used again is kept.
    actors.send(thread(7), "hello").unwrap();
    sleep(secs(2)).await;
    let snapshot = actors.snapshot();
    assert_eq!((snapshot.threads, snapshot.counts.evicted, tasks()), (1, 9_999, 1));
    actors.send(thread(8), "again").unwrap();
    sleep(secs(1)).await;
    assert_eq!(posts.texts(), ["HELLO", "AGAIN"]);
    sleep(secs(301)).await;
    assert_eq!((actors.snapshot().threads, tasks()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn threads_are_bounded_and_idle_ones_make_room() {
    let posts = Posts::new();
    let policy = ActorsPolicy { threads: 16, ..ActorsPolicy::default() };
    let actors = ActorsBuilder::default().policy(policy);
    let actors = actors.build(service_fn(turn), posts.sink()).unwrap();
    let thread = |n: usize| ThreadKey::new(format!("thread {n}"));
    for n in 0..1_000 {
        actors.send(thread(n), "hello").unwrap();
        sleep(secs(1)).await;
        assert!(actors.snapshot().threads <= 16);
    }
    assert_eq!(posts.texts().len(), 1_000);
    for n in 0..16 {
        actors.send(thread(n), "hang").unwrap();
    }
    let error = actors.send("another", "hello").unwrap_err();
    assert_eq!(error, MailboxError::TooManyThreads { threads: 16 });
    sleep(ms(1)).await;
    assert_eq!(tasks(), 16, "those that were evicted have ended");
    actors.abort(&thread(3)).unwrap();
    sleep(ms(1)).await;
    actors.send("another", "hello").unwrap();
    sleep(ms(1)).await;
    assert_eq!(posts.texts(), ["HELLO"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_turns_end_and_reports_the_rest() {
    let posts = Posts::new();
    let actors = actors(&posts);
    actors.send("ends", "slow").unwrap();
    actors.send("hangs", "hang").unwrap();
    actors.send("hangs", "waits").unwrap();
    actors.send("idle", "hello").unwrap();
    sleep(secs(1)).await;
    let stopped = {
        let actors = actors.clone();
        tokio::spawn(async move { actors.shutdown(secs(20)).await })
    };
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(actors.send("new", "hello"), Err(MailboxError::Stopping));
    assert_eq!(actors.steer("hangs", "hello"), Err(MailboxError::Stopping));
    let report = stopped.await.unwrap();
    assert_eq!((report.finished, report.cut, report.dropped), (1, 1, 1));
    let restart = "! Something went wrong (restart). Please send your message again.".to_owned();
    assert_eq!(
        posts.timed(),
        [("HELLO".to_owned(), 0), ("slow".to_owned(), 10), (restart.clone(), 21), (restart, 21)]
    );
    assert_eq!((actors.snapshot().threads, tasks()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_turn_can_save_what_it_has_when_the_process_ends() {
    let posts = Posts::new();
    let service = service_fn(async |prompt: Prompt<&'static str>| {
        assert!(!prompt.steering.is_stopping());
        prompt.steering.stopping().await;
        sleep(secs(2)).await;
        Ok::<_, Failure>("saved".to_owned())
    });
    let actors = Actors::new(service, posts.sink());
    actors.send(A, "work").unwrap();
    sleep(secs(1)).await;
    let started = Instant::now();
    let report = actors.shutdown(secs(20)).await;
    assert_eq!((elapsed_ms(started), report.finished), (secs(2), 1));
    assert_eq!(posts.texts(), ["saved"]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_has_the_kind_that_the_caller_decides() {
    let posts = Posts::new();
    let service = service_fn(async |_: Prompt<&'static str>| {
        Err::<String, _>(Failure::from(BoxError::from("disk")))
    });
    let actors = ActorsBuilder::default()
        .kinds(|failure| match failure.message() {
            "disk" => TurnFailure::History,
            _ => panic!("a bug in that, too"),
        })
        .build(service, posts.sink())
        .unwrap();
    actors.send(A, "").unwrap();
    sleep(ms(1)).await;
    assert_eq!(posts.texts(), [format!("! {LOST_HISTORY}")]);
}
