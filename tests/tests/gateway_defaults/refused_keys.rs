//! Keys that every provider refuses.

use steadfast::sim::{ErrorKind, Fault, FaultPlan};
use steadfast_tests::gateway::{DIALECTS, ask, in_process::InProcess, model};

use crate::{asked, failing};

/// The first call learns it from the provider; the next one is not sent, and its caller is told the same. To
/// come back does not help, and when the gateway will try the key again is what it can say.
#[tokio::test(start_paused = true)]
async fn a_second_call_is_refused_like_the_first_and_not_sent() {
    for dialect in DIALECTS {
        for (kind, reason) in [(ErrorKind::Auth, "auth"), (ErrorKind::Permission, "auth")] {
            for stream in [false, true] {
                let case = format!("{dialect}, {kind:?}, stream {stream}");
                let sims = [failing(dialect, FaultPlan::always(Fault::Error(kind.clone())))];
                let gateway = InProcess::without_file(&sims);
                let mut statuses = Vec::new();
                for (attempts, calls) in [("1", 1), ("0", 1), ("0", 1)] {
                    let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
                    println!("{case}: {} {:?} {}", reply.status, reply.headers, reply.text());
                    statuses.push(reply.status);
                    assert_eq!(reply.header("x-steadfast-reason"), Some(reason), "{case}");
                    assert_eq!(reply.header("x-should-retry"), Some("false"), "{case}");
                    assert_eq!(reply.header("x-steadfast-attempts"), Some(attempts), "{case}");
                    assert_eq!(asked(&sims), calls, "{case}");
                    if attempts == "0" {
                        let after: u64 = reply.header("retry-after").unwrap().parse().unwrap();
                        // Ten minutes, and half a minute before its end somebody may see.
                        assert!((540..=600).contains(&after), "{case}: {after}");
                    }
                }
                assert!(
                    statuses.iter().all(|status| *status == statuses[0]),
                    "{case}: {statuses:?}"
                );
            }
        }
    }
}
