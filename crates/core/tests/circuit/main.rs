//! The circuit: each rule with its numbers. A case is a policy and a [script](script).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod script;

use std::time::Duration;

use script::{Case, Rig, blame, run, secs, verdict};
use steadfast_core::{
    PermitKind, Reason,
    circuit::{Blame, CircuitPolicy, CircuitVerdict, LonePolicy, SlowPolicy, Weight},
};

/// The circuit breaker's numbers without lone calls: what most cases need.
fn plain() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(5),
        second_witness: false,
        trusted_for: Duration::ZERO,
        window: secs(60),
        min_calls: 20,
        failure_rate: Some(0.5),
        slow: None,
        content_is_success: false,
        cooldown: secs(30),
        first_rest: None,
        growth: 2.0,
        max_cooldown: secs(900),
        permanent_cooldown: secs(3_600),
        max_permanent: secs(86_400),
        probe_lead: secs(30),
        probe_limit: secs(600),
        probes: 1,
        successes: 1,
        lone: None,
        turns: None,
    }
}

fn with_lone() -> CircuitPolicy {
    CircuitPolicy { lone: Some(LonePolicy::default()), ..plain() }
}

/// Content counts as success.
fn with_content() -> CircuitPolicy {
    CircuitPolicy { content_is_success: true, failure_rate: None, ..plain() }
}

fn with_witnesses() -> CircuitPolicy {
    CircuitPolicy { second_witness: true, failure_rate: None, ..plain() }
}

/// One failure opens it, and rests do not grow.
fn cooling() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(1),
        failure_rate: None,
        growth: 1.0,
        probe_limit: secs(180),
        ..plain()
    }
}

/// Failover's numbers: rests are short and grow, and one caller's failures are its own.
fn preference() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(2),
        first_rest: Some(secs(2)),
        growth: 1.5,
        trusted_for: secs(600),
        ..with_witnesses()
    }
}

/// A breaker's below failover: repetitions take turns.
fn turns() -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(4),
        content_is_success: true,
        turns: Some(secs(1)),
        ..with_witnesses()
    }
}

#[test]
fn opens_after_failures() {
    let rate = || CircuitPolicy { consecutive: None, ..plain() };
    run(&[
        Case {
            name: "at the fifth hard failure in a row, which a soft one neither breaks nor lengthens",
            policy: plain,
            script: "server x4; success; server x4; soft; nothing; is row 4; \
                     network => closed > open consecutive network; is rest 30; refused 15",
        },
        Case {
            name: "a call under way breaks the row, and a late end fills it",
            policy: || CircuitPolicy { failure_rate: None, ..plain() },
            script: "server x4; call a; server x4; is row 4; call b; server; is row 1; \
                     b nothing; is row 5; a server => closed > open consecutive server_error",
        },
        Case {
            name: "a success ends the rows of all that began before it",
            policy: || CircuitPolicy { failure_rate: None, ..plain() },
            script: "call a; server x4; call b; call c; b success; is row 0; a server; is row 0; \
                     server x3; is row 3; c server; is row 4",
        },
        Case {
            name: "soft failures count in the rate alone",
            policy: plain,
            script: "soft x19; soft => open failure_rate; is rest 60",
        },
        Case {
            name: "the rate needs enough calls, and a success never opens",
            policy: rate,
            script: "timeout x19; success; timeout => open failure_rate",
        },
        Case {
            name: "old failures leave the window",
            policy: rate,
            script: "timeout x19; wait 60; timeout; is calls 1",
        },
        Case {
            name: "just under a half, and a half",
            policy: rate,
            script: "success x20; soft x19; soft => open failure_rate; is failure_rate 0.5",
        },
        Case {
            name: "proof opens at once",
            policy: plain,
            script: "proof => open proof auth; is rest 600",
        },
        Case {
            name: "one hard failure where the policy says one",
            policy: || CircuitPolicy { consecutive: Some(1), ..plain() },
            script: "server => open consecutive",
        },
        Case {
            name: "no longer row than is remembered",
            policy: || CircuitPolicy { consecutive: Some(1_000), failure_rate: None, ..plain() },
            script: "server x63; is row 63; server => open consecutive",
        },
        Case {
            name: "one is enough even after the success of a later call",
            policy: || CircuitPolicy { consecutive: Some(1), ..plain() },
            script: "call a; call b; b success; a server => open consecutive server_error",
        },
    ]);
}

#[test]
fn opens_after_slow_calls_only_when_the_policy_says_so() {
    run(&[
        Case {
            name: "a slow probe does not recover either",
            policy: || CircuitPolicy {
                slow: Some(SlowPolicy { after: secs(10), rate: 0.5 }),
                min_calls: 4,
                ..plain()
            },
            script: "success took 10; success took 1; success took 11; \
                     success took 11 => open slow_rate none; is rest 30; wait 15; probe a; \
                     a success took 11 => probe_failed",
        },
        Case {
            name: "without the rule",
            policy: || CircuitPolicy { min_calls: 1, ..plain() },
            script: "success took 1000 x50",
        },
    ]);
}

#[test]
fn opens_after_failures_of_two_witnesses() {
    run(&[
        Case {
            name: "of one, and of two",
            policy: with_witnesses,
            script: "server by 7 x50; server by 8 => open consecutive",
        },
        Case {
            name: "a call without a witness is one of its own",
            policy: with_witnesses,
            script: "server by none x4; server by none => open",
        },
        Case {
            name: "a success forgets the witnesses; proof needs no second one",
            policy: with_witnesses,
            script: "server by 1; server by 2; success; server by 1 x20; proof by 1 => open",
        },
        Case {
            name: "without the rule one is enough",
            policy: plain,
            script: "server by 7 x4; server by 7 => open consecutive",
        },
    ]);
}

#[test]
fn how_long_it_rests() {
    // What opened it, the first rest, after one failed probe, after many.
    for (failure, first, second, last) in [
        ("network", 30, 60, 900),
        ("server", 60, 120, 900),
        // The provider's hint, doubled when it was wrong.
        ("hint:7", 7, 14, 900),
        // A failure's own cooldown is kept where the doubling ends earlier.
        ("proof", 600, 900, 900),
        ("hint:5000", 5_000, 5_000, 5_000),
        // Permanent: long, doubling to a day, whatever the hint.
        ("permanent", 3_600, 7_200, 86_400),
        ("permanent:5", 3_600, 7_200, 86_400),
    ] {
        // Probed at the very end, so that no rest that is left adds to it.
        let failed = format!("wait rest; probe a; a {failure} => open probe_failed");
        let mut rig = Rig::new(plain());
        rig.run(failure, &format!("open {failure}; is rest {first}; {failed}; is rest {second}"));
        for _ in 2..12 {
            rig.run(failure, &failed);
        }
        let forgotten = "wait rest; probe a; a success => closed";
        let after = format!("is rest {last}; is failed_probes 11; {forgotten}; open {failure}");
        rig.run(failure, &format!("{after}; is rest {first}"));
    }
}

#[test]
fn rests_are_never_shortened() {
    run(&[
        Case {
            name: "by a probe's shorter hint or by hand",
            policy: plain,
            script: "open proof; is rest 600; wait 580; probe a; a hint:7 => open probe_failed; \
                     is rest 20; trip overloaded 1; is rest 20; trip overloaded 100; is rest 100",
        },
        Case {
            name: "permanent ones double to a day and start over after a success",
            policy: cooling,
            script: "permanent => open; is permanent yes; is left 3600; wait 3600; probe a; \
                     a permanent => open; is permanent yes; is left 7200; wait 7200; probe a; \
                     a permanent => open; is permanent yes; is left 14400; wait 14400; probe a; \
                     a permanent => open; is left 28800; wait 28800; probe a; \
                     a permanent => open; is left 57600; wait 57600; probe a; \
                     a permanent => open; is permanent yes; is left 86400; wait 86400; probe a; \
                     a permanent => open; is permanent yes; is left 86400; wait 86400; probe a; \
                     a success => closed; permanent => open; is left 3600",
        },
        Case {
            name: "earlier failures that were not permanent do not lengthen a permanent rest",
            policy: cooling,
            script: "network => open; [wait 30, probe a, a network => open] x5; wait 30; probe a; \
                     a permanent => open; is left 3600",
        },
        Case {
            name: "calls that were under way together lengthen it once",
            policy: cooling,
            script: "call a x50; a permanent => open; a permanent x49; is left 3600; is failed_probes 0",
        },
        Case {
            name: "a rest without a failure; what is under way decides as before",
            policy: cooling,
            script: "call a; rest circuit_open 20; is left 20; is row 0; is reason circuit_open; \
                     rest circuit_open 5; is left 20; a success => closed; is left none",
        },
        Case {
            name: "a cooldown of zero counts the failure and rests for no time",
            policy: cooling,
            script: "hard:network:0; is left none; is row 1",
        },
        Case {
            name: "where the first one is short it grows up to the reason's own",
            policy: preference,
            script: "network by 1; network by 2 => open; is rest 2; \
                     [wait probe, probe a, a network => open] x5; is rest 15.1875; \
                     [wait rest, probe a, a network => open] x9; is rest 30",
        },
        Case {
            name: "a hint and a proof are not shortened",
            policy: preference,
            script: "server by 1; hard:auth:9 by 1; proof by 2 => open proof; is rest 600; reset => closed; \
                     server by 1; server by 2 => open; is rest 2; send a; a hint:40; is rest 40",
        },
        Case {
            name: "what is called meanwhile says nothing by failing, and all by a success",
            policy: preference,
            script: "network by 1; network by 2 => open; send a; send b; send c; a network; \
                     b server; is rest 2; is failed_probes 0; c success => closed recovered",
        },
        Case {
            name: "proof during a rest refuses from then on",
            policy: preference,
            script: "network by 1; network by 2 => open; is refuses no; send a; a proof; \
                     is refuses yes; is rest 600",
        },
    ]);
}

#[test]
fn one_witness_is_rested_alone() {
    run(&[
        Case {
            name: "after its own row, for longer each time, until it succeeds",
            policy: preference,
            script: "server by 7; is rested none by 7; server by 7; is rested 2 by 7; \
                     is rested none by 8; is state closed; wait 2; is rested none by 7; \
                     server by 7; is rested 3 by 7; wait 3; server by 7; is rested 4.5 by 7; \
                     send a by 7; a success; is rested none by 7; server by 7; is rested none by 7",
        },
        Case {
            name: "calls of others are no part of its row; its own calls under way break it",
            policy: preference,
            script: "server by 7; success x3; server by 7; is rested 2 by 7; reset; \
                     server by 7; send a by 7; server by 7; is rested none by 7; a server; \
                     is rested 2 by 7",
        },
        Case {
            name: "a call without a witness has no rest of its own",
            policy: || CircuitPolicy { consecutive: Some(3), ..preference() },
            script: "server by none x2; is rested none by none; server by none => open",
        },
        Case {
            name: "only so many are remembered",
            policy: preference,
            script: "[server by 1, success] x3; is rested 2 by 1; server by 2; success; server by 3; \
                     success; server by 4; success; server by 5; success; server by 6; success; \
                     server by 7; success; server by 8; success; server by 9; success; server by 10; \
                     success; server by 11; success; server by 12; success; server by 13; success; \
                     server by 14; success; server by 15; success; server by 16; success; \
                     is rested 2 by 1; server by 17; is rested none by 1",
        },
        Case {
            name: "the word of one is not enough against a key that has just worked",
            policy: preference,
            script: "success; wait 599; proof by 7; is state closed; is rested 600 by 7; \
                     is rested none by 8; proof by 8 => open proof",
        },
        Case {
            name: "after a while it is",
            policy: preference,
            script: "success; wait 600; proof by 7 => open proof",
        },
    ]);
}

#[test]
fn repetitions_take_turns_where_something_else_decides() {
    run(&[
        Case {
            name: "first attempts pass, repetitions one a second, a success opens the way for all",
            policy: turns,
            script: "server by 1; server by 2 x2; first a by 1; a server => open; first b by 3; \
                     no turn 1 by 1; wait 0.4; no turn 0.6 by 1; wait 0.6; turn d by 1; \
                     no turn 1 by 2; b network; d network; first c by 3; c content 1 => closed recovered; \
                     turn e by 1; turn f by 1",
        },
        Case {
            name: "one witness takes turns with itself",
            policy: turns,
            script: "server by 7 x4; is state closed; no turn 1 by 7; turn a by 8; turn b by 8; wait 1; \
                     turn c by 7; no turn 1 by 7; first d by 7; d content 1; turn e by 7; turn f by 7",
        },
        Case {
            name: "it closes when calls under way break the row",
            policy: turns,
            script: "server by 1 x3; server by 2 => open; first a by 1; first b by 3; b server => closed; \
                     turn c by 1; turn d by 1",
        },
        Case {
            name: "what was under way when it opened joins the row, and does not close it",
            policy: turns,
            script: "first late by 5; server by 1; server by 2; server by 3; server by 4 => open; late server; \
                     first b by 3; b server; is state open; is row 6",
        },
        Case {
            name: "an operator's word holds for first attempts too",
            policy: turns,
            script: "force forced_open => closed > forced_open; no turn 30 by 1; reset => closed; \
                     turn a by 1",
        },
    ]);
}

#[test]
fn an_attempt_that_fails_counts_at_once() {
    run(&[
        Case {
            name: "in the row of its call, once",
            policy: plain,
            script: "call a; a again server; is row 1; a again server; is row 1; a server; is row 1; \
                     is failures 3",
        },
        Case {
            name: "and is forgotten when the call succeeds in the end",
            policy: plain,
            script: "server x3; call a; a again server; is row 4; a success; is row 0",
        },
        Case {
            name: "a probe's decides nothing yet",
            policy: plain,
            script: "open network; wait 30; probe a; a again server; is state half_open; \
                     a success => closed",
        },
    ]);
}

#[test]
fn the_probe_is_a_little_early() {
    // The rest, and when the probe may be made, which is what a refused call gets.
    for (rest, from, before) in
        [(1_000, 970, 969.999), (60, 30, 29.999), (50, 25, 24.999), (10, 5, 4.999)]
    {
        Rig::new(plain()).run(
            &format!("{from} of {rest}"),
            &format!(
                "open proof:auth:{rest}; wait {before}; refused 0.001; wait 0.001; probe a; \
                 is state half_open"
            ),
        );
    }
    run(&[
        Case {
            name: "not where the policy gives no lead",
            policy: || CircuitPolicy { probe_lead: Duration::ZERO, ..plain() },
            script: "open server; wait 59; refused 1; wait 1; probe a",
        },
        Case {
            name: "not where the provider said when",
            policy: plain,
            script: "open hint:60; wait 59; refused 1; wait 1; probe a",
        },
    ]);
}

#[test]
fn probes_decide() {
    run(&[
        Case {
            name: "one at a time, and one without an answer makes room for the next",
            policy: plain,
            script: "open network; wait 30; \
                     [probe a, refused 1, a nothing, is state half_open, is probes 0] x3; \
                     probe a; a success => closed recovered; call b",
        },
        Case {
            name: "several and a threshold; one failure is enough",
            policy: || CircuitPolicy { probes: 2, successes: 3, ..plain() },
            script: "open network; wait 30; probe a; probe b; refused; a success; probe c; \
                     b success; is probe_successes 2; probe d; c soft => open probe_failed; \
                     d success; is state open; wait 900; [probe e, e success] x2; probe e; \
                     e success => closed",
        },
        Case {
            name: "a lost one makes room for the next and decides nothing",
            policy: plain,
            script: "open network; wait 30; probe a; wait 599; refused 1; wait 1; is probes 0; \
                     probe b lost 1; a network; is state half_open; b success => closed",
        },
        Case {
            name: "stragglers decide nothing: open, half-open, closed; an end counts once",
            policy: plain,
            script: "call old x10; open network; old hint:5000 => same; wait 30; probe a; \
                     old success; old network; is state half_open; a success => closed; \
                     old network x7; is calls 0; is row 0; \
                     open network; wait 30; probe a; a nothing; a success; is state half_open",
        },
        Case {
            name: "one can be reserved; a lost one decides nothing",
            policy: cooling,
            script: "no reserve; open server; wait 29; no reserve; wait 1; reserve a; \
                     is probing yes; no reserve; a nothing; reserve b; wait 20; b hard:auth:600 => open probe_failed; \
                     wait 570; reserve c; wait 10; trip overloaded 600; wait 600; reserve d; \
                     c success; is state half_open",
        },
        Case {
            name: "a rest lasts until somebody has seen that it is over",
            policy: cooling,
            script: "open server; is left 60; wait 60; is left 0; probe a; refused 1; \
                     a server => half_open > open probe_failed; is left 60; wait 500; is left 0; \
                     probe b; b success => closed; is left none",
        },
    ]);
}

#[test]
fn first_content_counts_as_success_where_the_policy_says_so() {
    run(&[
        Case {
            name: "it ends a row, and a failure after it begins none",
            policy: with_content,
            script: "server x4; call a; a content 1; is row 0; a network took 1; is row 0",
        },
        Case {
            name: "without the rule",
            policy: plain,
            script: "server x4; call a; a content 1; is row 4; a network took 1 => open; is row 5",
        },
        Case {
            name: "a probe's success, once",
            policy: || CircuitPolicy { successes: 2, ..with_content() },
            script: "open network; wait 30; probe a; a content 1; is probe_successes 1; \
                     a success took 1; is probe_successes 1; is probes 0; probe b; \
                     b content 1 => closed recovered; b network took 1",
        },
        Case {
            name: "a probe that fails after it has not failed",
            policy: || CircuitPolicy { successes: 2, ..with_content() },
            script: "open network; wait 30; probe a; a content 1; a network took 1; \
                     is state half_open; is failed_probes 0",
        },
        Case {
            name: "not of a straggler, and not when it is slow",
            policy: || CircuitPolicy {
                slow: Some(SlowPolicy { after: secs(10), rate: 1.0 }),
                ..with_content()
            },
            script: "call old; open network; old content 1; wait 30; probe a; a content 11; \
                     is probe_successes 0",
        },
    ]);
}

#[test]
fn lone_calls_pass_an_open_circuit_a_few_at_a_time() {
    run(&[
        Case {
            name: "a rest that the provider asked for ends by a longer hint or after the probe",
            policy: with_lone,
            script: "open hint:1000; lone refused 1; refused 1000; wait 1; lone a; wait 5; \
                     lone refused 1; is rest 994; a server; is rest 994; is failed_probes 0; \
                     lone a; a hint:3; is rest 994; wait 1; lone a; a hint:2000; is rest 2000; \
                     wait 1; [lone a, a success, wait 1] x10; \
                     wait probe; probe b; lone a; a success => closed; b network",
        },
        Case {
            name: "any other rest ends after three successes in a row",
            policy: with_lone,
            script: "open server; [wait 1, lone a, a success] x2; wait 1; lone a; a network; \
                     wait 1; lone a; a success; wait 1; lone a; a nothing; \
                     wait 1; lone a; a success; wait 1; lone a; a success => closed",
        },
        Case {
            name: "a lost one makes room for the next",
            policy: with_lone,
            script: "open hint:10000; wait 1; lone a; wait 599; lone refused; wait 1; lone b",
        },
    ]);
}

#[test]
fn an_operator_decides() {
    run(&[Case {
        name: "forced open, isolated, forced closed, reset",
        policy: with_lone,
        script: "force forced_open => closed > forced_open manual; force forced_open; \
                 wait 1000000; refused 30; [lone a, a success, wait 1] x10; trip overloaded 1; \
                 force isolated => forced_open > isolated; wait 1000000; lone refused 30; \
                 force forced_closed => isolated > forced_closed; permanent x100; is failures 100; \
                 reset => forced_closed > closed; is calls 0; is row 0; reset; proof => open",
    }]);
}

#[test]
fn the_longest_times_do_not_overflow() {
    let policy = CircuitPolicy {
        cooldown: Duration::MAX,
        max_cooldown: Duration::MAX,
        permanent_cooldown: Duration::MAX,
        max_permanent: Duration::MAX,
        probe_lead: Duration::MAX,
        probe_limit: Duration::MAX,
        lone: Some(LonePolicy { every: Duration::MAX, ..LonePolicy::default() }),
        ..plain()
    };
    let forever = blame(Weight::Proof, Reason::Auth, Duration::MAX);
    let hinted = Blame { hinted: true, ..blame(Weight::Soft, Reason::RateLimit, Duration::MAX) };
    for verdict in [
        CircuitVerdict::Failure(forever),
        CircuitVerdict::Failure(hinted),
        verdict("permanent"),
        verdict("network"),
    ] {
        let mut rig = Rig::new(policy);
        rig.open(verdict);
        let _ = (rig.ask(true), rig.ask(false));
        rig.now = rig.snapshot().until.unwrap();
        let probe = rig.admitted(PermitKind::Probe);
        assert!(rig.end(probe, verdict).is_some(), "{verdict:?}");
        rig.snapshot();
    }
}
