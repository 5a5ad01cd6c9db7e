//! Keys that every provider refuses.

use std::{cell::Cell, time::Duration};

use steadfast::{
    Dialect,
    sim::{ErrorKind, Fault, FaultPlan, PlanRule, SimProvider},
};
use steadfast_tests::gateway::{DIALECTS, ask, in_process::InProcess, model, wire_answer::refusal};
use tokio::time::{Instant, advance, sleep_until};

use crate::{
    asked, failing,
    poison::{self, ACME, Known, OTHER},
    sim, spare,
};

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

/// A key that has never worked rests for ten minutes, and is tried once by a caller 30 s before their end: no
/// earlier, and by nobody else until that is answered. Where it works again, it is used again.
#[tokio::test(start_paused = true)]
async fn a_refused_key_is_tried_again_half_a_minute_before_its_rest_ends() {
    for dialect in DIALECTS {
        for well in [true, false] {
            let case = format!("{dialect}, well {well}");
            let refuses = FaultPlan::always(Fault::Error(ErrorKind::Auth));
            let sims = [failing(dialect, refuses), spare(dialect)];
            let gateway = InProcess::without_file(&sims);
            let send = async |first: usize, answers: &SimProvider| {
                let reply = gateway.send(&ask(dialect, model(dialect), true)).await;
                assert_eq!(reply.status, 200, "{case}: {}", reply.text());
                let target = reply.header("x-steadfast-target").unwrap().to_owned();
                assert!(target.starts_with(answers.name()), "{case}: {target}");
                assert_eq!(sims[0].journal().len(), first, "{case}: asked so often");
                Instant::now()
            };
            let refused = send(1, &sims[1]).await;
            if well {
                sims[0].set_faults(FaultPlan::none());
            }
            for at in [1, 60, 299, 300, 301, 569] {
                sleep_until(refused + Duration::from_secs(at)).await;
                send(1, &sims[1]).await;
            }
            sleep_until(refused + Duration::from_secs(571)).await;
            if well {
                for calls in 2..5 {
                    send(calls, &sims[0]).await;
                }
            } else {
                let refused = send(2, &sims[1]).await;
                for at in [0, 30, 31, 300, 569] {
                    sleep_until(refused + Duration::from_secs(at)).await;
                    send(2, &sims[1]).await;
                }
            }
        }
    }
}

/// What providers refuse the key for.
const REFUSED: &str = "a prompt that a key is refused for";

/// A key that has just worked is not taken from everybody because one caller's requests have it refused: that
/// takes a second caller's.
#[tokio::test(start_paused = true)]
async fn a_key_that_has_just_worked_is_taken_from_all_by_a_second_witness() {
    for (known, between) in
        [(Known::Session, 0), (Known::Session, 20), (Known::Prompt, 0), (Known::Prompt, 20)]
    {
        let case = format!("{known:?}, {between} answers between");
        let sims = [sim(Dialect::Anthropic).build(), sim(Dialect::OpenAi).build()];
        let gateway = InProcess::with_file(&poison::tenants(true), &sims);
        let number = Cell::new(0);
        // Who is asked for this tenant, with a session and a prompt of its own.
        let send = async |key: &str, session: &str, prompt: &str| {
            number.set(number.get() + 1);
            let session = matches!(known, Known::Session).then_some(session);
            let prompt = match known {
                Known::Session => format!("{}: {prompt}", number.get()),
                _ => prompt.to_owned(),
            };
            let before = [&sims[0], &sims[1]].map(|sim| sim.journal().len());
            let reply = gateway.send(&poison::question(key, &prompt, session, true)).await;
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            [0, 1].map(|at| sims[at].journal().len() - before[at])
        };
        let (first, moved, spared) = ([1, 0], [1, 1], [0, 1]);
        assert_eq!(send(OTHER, "healthy", "before").await, first, "{case}: it works");

        let plan = PlanRule::new(Fault::Error(ErrorKind::Auth)).contains(REFUSED);
        sims[0].set_faults(FaultPlan::none().rule(plan));
        assert_eq!(send(ACME, "ill", REFUSED).await, moved, "{case}: refused to one");
        for n in 0..between {
            advance(Duration::from_secs(1)).await;
            let (key, session) =
                if n % 2 == 0 { (OTHER, "healthy") } else { (ACME, "healthy too") };
            assert_eq!(send(key, session, &format!("well {n}")).await, first, "{case}, {n}");
            assert_eq!(send(ACME, "ill", REFUSED).await, spared, "{case}, {n}: refused once");
        }

        sims[0].set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
        // An answer to anybody shows that the key is good: then it takes two again.
        let witnesses = if between == 0 { 1 } else { 2 };
        for (key, session) in [(OTHER, "second"), (ACME, "third")].into_iter().take(witnesses) {
            assert_eq!(send(key, session, session).await, moved, "{case}, {session}");
        }
        for (key, session) in [(OTHER, "healthy"), (ACME, "ill"), (ACME, "new"), (OTHER, "new")] {
            advance(Duration::from_secs(30)).await;
            assert_eq!(send(key, session, session).await, spared, "{case}, {session}: all");
        }
    }
}
