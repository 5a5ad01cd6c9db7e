//! Orphans that this process adopts. A process of its own: it is a setting of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_tool::{CommandEnd, Script};
use support::*;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_are_reaped_and_no_child_of_anybody_else() {
    // Somebody else's children, which end all the time and are waited for.
    let others = tokio::spawn(async {
        for _ in 0..150 {
            let status = tokio::process::Command::new("true").status().await;
            assert!(status.unwrap().success(), "its end was lost to somebody else");
        }
    });
    let adopting = runner(|policy| policy.subreaper = true);
    let mut running = JoinSet::new();
    for (what, text, _) in STUBBORN {
        let adopting = adopting.clone();
        running.spawn(async move {
            let token = token();
            let script = Script::new(text.replace('@', &token)).within(Duration::from_millis(600));
            let done = adopting.run(script).await.unwrap();
            assert_eq!((done.end, done.survivors), (CommandEnd::TimedOut, 0), "{what}");
            assert_eq!(alive(&token), [] as [i32; 0], "{what}");
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    others.await.unwrap();
    let gone = becomes(Duration::from_secs(3), || children().is_empty()).await;
    assert!(gone, "{:?}", children());
}
