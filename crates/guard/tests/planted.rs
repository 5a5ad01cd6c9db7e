//! Random loops with insignificant changes in each turn, and random healthy sessions.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use proptest::prelude::*;
use steadfast_chat::ChatRequest;
use steadfast_guard::{GuardPolicy, LoopRule, SafetyGuardHandle, StopCause};
use support::*;
use tower::{Layer, ServiceExt};

/// One of the calls that make a loop.
#[derive(Clone, Debug)]
struct Step {
    tool: &'static [&'static str],
    about: u8,
    failed: bool,
}

impl Step {
    /// The same call in different spellings: another name of the tool, another order of keys, another
    /// spelling of the file; a result with other ids, times and paths.
    fn disguised(&self, n: usize) -> ToolRun {
        let tool = self.tool[n % self.tool.len()];
        let about = self.about;
        let path = [
            format!("src/{about}.rs"),
            format!("./src/{about}.rs"),
            format!("src//x/../{about}.rs"),
            format!("\\\"src/{about}.rs\\\""),
        ];
        let path = &path[n % 4];
        let arguments = match n % 3 {
            0 => format!(r#"{{"path":"{path}","deep":{{"a":1,"b":[1,2]}}}}"#),
            1 => format!(r#"{{ "deep" : {{"b":[1,2],"a":1}}, "path" : "{path}" }}"#),
            _ => {
                format!("{{\n  \"deep\": {{\"a\": 1, \"b\": [1, 2]}},\n  \"path\": \"{path}\"\n}}")
            }
        };
        let (minute, second) = (n / 60 % 60, n % 60);
        let result = match about % 5 {
            0 => format!("nothing new in {about} at 2026-11-21T17:{minute:02}:{second:02}.{n:03}Z"),
            1 => format!(r#"{{"about":{about},"request_id":"req_01{n:06}ab","took_ms":{n}}}"#),
            2 => format!("wrote /tmp/run-{n}/out.txt; {about} is as it was, in {second}.{n}s"),
            3 => format!("run 123e4567-e89b-12d3-a456-{n:012} of {about} came to nothing"),
            _ => format!("{about}: object 0x7ffe{n:08x} is gone since 1764{n:06}"),
        };
        // A prefix would make the object invalid JSON, whose volatile fields are not known.
        let result = match (self.failed, result.strip_prefix('{')) {
            (true, Some(fields)) => format!("{{\"error\":\"it failed\",{fields}"),
            (true, None) => format!("Error: {result}"),
            (false, _) => result,
        };
        ToolRun {
            failed: self.failed && n.is_multiple_of(2),
            ..tool_run(tool, &arguments, &result)
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let tools: [&'static [&'static str]; 4] = [
        &["read_file", "Read", "cat", "VIEW_FILE"],
        &["grep", "grep_search", "Codebase_Search"],
        &["bash", "Bash", "shell"],
        &["ask_the_oracle", "Ask_The_Oracle"],
    ];
    (prop::sample::select(tools.to_vec()), 0..250_u8, prop::bool::weighted(0.3))
        .prop_map(|(tool, about, failed)| Step { tool, about, failed })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A loop of any calls, with other calls in between, is advised and then stopped.
    #[test]
    fn a_planted_loop_is_advised_and_stopped(
        steps in prop::collection::vec(step(), 1..9),
        noise in prop::option::of(1..4_usize),
        before in 0..30_usize,
    ) {
        let mut steps = steps;
        // Different calls, or the loop would be shorter.
        for (at, step) in steps.iter_mut().enumerate() {
            step.about = (step.about / 10) * 10 + u8::try_from(at).unwrap();
        }
        let mut rounds: Vec<_> = (0..before)
            .map(|n| vec![tool_run("read_file", &format!(r#"{{"path":"old/{n}"}}"#), &format!("file {n} of them"))])
            .collect();
        let mut at = 0;
        for turn in 0..9 {
            for step in &steps {
                at += 1;
                rounds.push(vec![step.disguised(at)]);
            }
            if noise.is_some_and(|every| turn % every == 0) {
                // An unrelated new result in each turn.
                let path = format!(r#"{{"path":"new/{turn}"}}"#);
                rounds.push(vec![tool_run("read_file", &path, &format!("page {turn} of a long book"))]);
            }
        }
        let outcome = outcome_of(&without_limits(), &rounds);
        let (advised, stopped) = (outcome.advised.unwrap_or(0), outcome.stopped.unwrap_or(usize::MAX));
        let (long, noisy) = (steps.len(), noise.is_some());
        // Five times each; calls that may change something count from the second time on.
        let may_change = steps.iter().any(|step| step.tool[0] == "bash" || step.tool[0].starts_with("ask"));
        let turns = match long {
            // The rule for cycles stops one turn earlier.
            2 | 3 if !noisy && !may_change => 4,
            _ => 5 + usize::from(may_change),
        };
        let most = before + turns * (long + usize::from(noisy));
        prop_assert!(stopped <= most, "{stopped} of {most}: {outcome:?}");
        prop_assert!(advised > before && advised < stopped, "{outcome:?}");
        let looped = matches!(outcome.cause, Some(StopCause::Loop { .. }));
        prop_assert!(looped, "{outcome:?}");
        // And not before the loop could be seen.
        prop_assert!(stopped > before + 3 * long, "{stopped}: {outcome:?}");
    }
}

/// A session with progress: common work of agents, in random order.
fn healthy(random: &mut fastrand::Rng) -> Vec<Vec<ToolRun>> {
    let mut rounds: Vec<Vec<ToolRun>> = Vec::new();
    let mut part = 0;
    while rounds.len() < 400 {
        part += 1;
        let some = |random: &mut fastrand::Rng, from, to| random.usize(from..=to);
        match random.u8(..8) {
            // Build, edit, build: the same error until the last edit.
            0 => {
                for edit in 0..some(random, 2, 12) {
                    let build = tool_run(
                        "bash",
                        r#"{"command":"cargo build"}"#,
                        "error[E0308]: mismatched types",
                    );
                    rounds.push(vec![build.failing()]);
                    let change = format!(r#"{{"path":"src/p{part}.rs","new":"try {edit}"}}"#);
                    rounds.push(vec![tool_run("Edit", &change, "The file has been updated.")]);
                }
                rounds.push(vec![tool_run(
                    "bash",
                    r#"{"command":"cargo build"}"#,
                    "Finished in 3.1s",
                )]);
            }
            // Paging through a file.
            1 => {
                for page in 0..some(random, 5, 40) {
                    let arguments =
                        format!(r#"{{"path":"log{part}.txt","offset":{}}}"#, page * 200);
                    rounds.push(vec![tool_run(
                        "read_file",
                        &arguments,
                        &format!("lines of page {page}"),
                    )]);
                }
            }
            // Waiting for a job that makes progress.
            2 => {
                for progress in 0..some(random, 5, 30) {
                    let shown = format!(
                        r#"{{"job":{part},"done":{progress},"now":"17:{progress:02}:00"}}"#
                    );
                    rounds.push(vec![tool_run(
                        "job_status",
                        &format!(r#"{{"id":{part}}}"#),
                        &shown,
                    )]);
                }
            }
            // Waiting for a job without output for a while.
            3 => {
                for _ in 0..some(random, 2, 11) {
                    let arguments = format!(r#"{{"id":"slow{part}"}}"#);
                    rounds.push(vec![tool_run(
                        "bash_output",
                        &arguments,
                        "still running, no new output",
                    )]);
                }
                rounds.push(vec![tool_run(
                    "bash_output",
                    &format!(r#"{{"id":"slow{part}"}}"#),
                    "all 97 tests passed",
                )]);
            }
            // Searches without matches.
            4 => {
                for word in 0..some(random, 3, 25) {
                    let arguments = format!(r#"{{"pattern":"word_{part}_{word}"}}"#);
                    rounds.push(vec![tool_run("grep", &arguments, "No matches found")]);
                }
            }
            // Several at once.
            5 => {
                let batch = |n: usize| {
                    let arguments = format!(r#"{{"path":"dir{part}/f{n}.rs"}}"#);
                    tool_run("Read", &arguments, &format!("the text of file {n} in {part}"))
                };
                rounds.push((0..some(random, 2, 9)).map(batch).collect());
            }
            // The same query before and after a change.
            6 => {
                let list = || {
                    tool_run(
                        "bash",
                        &format!(r#"{{"command":"git status {part}"}}"#),
                        "nothing to commit, working tree clean",
                    )
                };
                rounds.push(vec![list()]);
                rounds.push(vec![tool_run(
                    "bash",
                    &format!(r#"{{"command":"git fetch {part}"}}"#),
                    &format!("fetched {part}"),
                )]);
                rounds.push(vec![list()]);
            }
            // Tests one by one, most of which have the same result.
            _ => {
                for test in 0..some(random, 2, 4) {
                    let arguments = format!(r#"{{"name":"suite_{part}::case_{test}"}}"#);
                    rounds.push(vec![tool_run(
                        "run_test",
                        &arguments,
                        "test result: ok. 1 passed",
                    )]);
                }
                rounds.push(vec![tool_run(
                    "write_file",
                    &format!(r#"{{"path":"out/{part}.md"}}"#),
                    "written",
                )]);
            }
        }
    }
    rounds
}

#[test]
fn sessions_with_progress_are_never_stopped() {
    for seed in 0..60 {
        let rounds = healthy(&mut fastrand::Rng::with_seed(seed));
        let outcome = stateful(&SafetyGuardHandle::new(without_limits()).unwrap(), &rounds);
        assert_eq!((outcome.stopped, outcome.cause), (None, None), "seed {seed}");
        // The same, read from the history at its end.
        let verdict =
            SafetyGuardHandle::new(without_limits()).unwrap().from_history(&request(&rounds));
        assert!(
            !matches!(verdict, steadfast_guard::GuardVerdict::Stop(_)),
            "seed {seed}: {verdict:?}"
        );
    }
}

/// Behind a gateway: the model is advised first, and then the task is stopped.
#[tokio::test(start_paused = true)]
async fn the_model_is_advised_before_the_caller_is_stopped() {
    let step = |tool, failed| Step { tool, about: 7, failed };
    let read = step(&["read_file", "Read"], false);
    let build = step(&["bash", "shell"], true);
    for (what, steps, advised, stopped, rule) in [
        ("the same", vec![read.clone()], 3, 5, LoopRule::SameResult),
        ("the same error", vec![build.clone()], 2, 4, LoopRule::SameError),
        ("in turn", vec![read, Step { about: 8, ..step(&["grep"], false) }], 5, 8, LoopRule::Cycle),
    ] {
        let guard = SafetyGuardHandle::new(GuardPolicy::default()).unwrap();
        let model = Model::default();
        let llm = guard.layer().layer(model.clone());
        let mut rounds = Vec::new();
        for round in 1..=stopped {
            rounds.push(vec![steps[(round - 1) % steps.len()].disguised(round)]);
            let sent: ChatRequest = request(&rounds);
            let answer = llm.clone().oneshot(sent.clone()).await;
            if round == stopped {
                let failure = answer.unwrap_err();
                assert!(failure.message().contains("goes in circles"), "{what}: {failure}");
                let verdict = guard.from_history(&sent);
                let steadfast_guard::GuardVerdict::Stop(stop) = verdict else {
                    panic!("{verdict:?}")
                };
                assert!(matches!(stop.cause, StopCause::Loop { rule: found, .. } if found == rule));
                break;
            }
            answer.unwrap().collect().await.unwrap();
            let reported = model.last().messages.len() - sent.messages.len();
            assert_eq!(reported, usize::from(round >= advised), "{what}, round {round}");
        }
        assert_eq!(model.calls(), stopped - 1, "{what}");
    }
}
