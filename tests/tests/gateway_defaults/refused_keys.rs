//! Keys that every provider refuses.

use steadfast::{
    Dialect,
    sim::{ErrorKind, Fault, FaultPlan},
};
use steadfast_tests::gateway::{DIALECTS, ask, in_process::InProcess, model, wire_answer::refusal};

use crate::{asked, failing};

/// The first call learns it from the provider; the next one is not sent, and its caller gets the same answer:
/// that the operator's key is refused, which is not the caller's fault, and that to come back is no use. Both
/// say so; what is refused for no more than a time says when it ends.
#[tokio::test(start_paused = true)]
async fn a_second_call_is_refused_like_the_first_and_not_sent() {
    for dialect in DIALECTS {
        for (kind, text, rest) in
            [(ErrorKind::Auth, "credentials", 600), (ErrorKind::InsufficientQuota, "credit", 1_800)]
        {
            // Of Gemini that is a quota of the day, which passes by itself.
            if dialect == Dialect::Gemini && kind == ErrorKind::InsufficientQuota {
                continue;
            }
            for stream in [false, true] {
                let case = format!("{dialect}, {kind:?}, stream {stream}");
                let sims = [failing(dialect, FaultPlan::always(Fault::Error(kind.clone())))];
                let gateway = InProcess::without_file(&sims);
                for attempts in ["1", "0", "0"] {
                    let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
                    let message = refusal(dialect, 503, &reply);
                    assert!(message.contains(text), "{case}: {message}");
                    assert_eq!(reply.header("x-steadfast-reason"), Some("exhausted"), "{case}");
                    assert_eq!(reply.header("x-should-retry"), Some("false"), "{case}: {message}");
                    assert_eq!(reply.header("x-steadfast-attempts"), Some(attempts), "{case}");
                    assert_eq!(asked(&sims), 1, "{case}");
                    let after = reply.header("retry-after").map(|after| after.parse().unwrap());
                    assert_eq!(after, (attempts == "0").then_some(rest), "{case}");
                }
            }
        }
    }
}
