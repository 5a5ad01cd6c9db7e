//! `steadfast simulate`, as somebody runs it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    // Nobody's keys are read.
    command.env_clear().arg("simulate").args(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn report(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A quarter of an hour, with few calls.
const SHORT: [&str; 4] = ["--hours", "0.25", "--rate", "1"];

fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], more].concat()
}

#[test]
fn the_default_stack_answers_in_every_world_and_one_client_does_not() {
    for world in ["outage", "brownout", "throttle", "slow", "monday"] {
        let ran = simulate(&short(&["--world", world, "--json"]));
        assert!(ran.status.success(), "{world}: {}", report(&ran));
        let all: Value = serde_json::from_str(&out(&ran)).unwrap();
        let share = |run: usize| all["runs"][run]["answered_share"].as_f64().unwrap();
        assert!(share(0) >= 0.999, "{world}: {all}");
        assert!(share(0) > share(2), "{world}: {all}");
        let ours = &all["runs"][0];
        let counted: u64 = ours["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|target| target["asked"].as_u64().unwrap())
            .sum();
        assert_eq!(ours["attempts"], counted, "{world}");
        assert!(ours["steps"].as_object().unwrap().len() > 2, "{world}: {ours}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let run = |seed: &str, name: &str| {
        let (html, svg) = (file(&format!("{name}.html")), file(&format!("{name}.svg")));
        let more = ["--world", "monday", "--seed", seed, "--html", &html, "--svg", &svg];
        let ran = simulate(&short(&more));
        assert!(ran.status.success(), "{}", report(&ran));
        [out(&ran), fs::read_to_string(html).unwrap(), fs::read_to_string(svg).unwrap()]
    };
    let (first, again, other) = (run("7", "a"), run("7", "b"), run("8", "c"));
    assert!(first == again, "{}\n{}", first[0], again[0]);
    assert_ne!(first[0], other[0]);
    let [text, html, svg] = first;
    assert!(text.contains("monday: A working day"), "{text}");
    for loads in ["<script", "<link", "src=", "url(", "@import"] {
        assert!(!html.contains(loads) && !svg.contains(loads), "{loads}");
    }
    // The only addresses are the name of a format, and those of the configuration, which are text.
    let (picture, _) = html.split_once("<pre>").unwrap();
    assert_eq!(
        picture.matches("://").count(),
        picture.matches("http://www.w3.org/2000/svg").count()
    );
    for part in ["answered, % of calls", "anthropic", "failover.chain", "monday: A working day"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn what_is_asserted_and_does_not_hold_names_a_call() {
    let held = simulate(&short(&["--assert", "answered >= 99%", "--assert", "p50_added <= 1s"]));
    assert!(held.status.success(), "{}", report(&held));
    let broken = simulate(&short(&[
        "--world",
        "slow",
        "--assert",
        "max_added <= 0s",
        "--assert",
        "lost <= 5%",
    ]));
    assert_eq!(broken.status.code(), Some(1));
    let report = report(&broken);
    for part in [
        "`max_added <= 0s` does not hold: it is",
        "call ",
        "attempt 1",
        "attempt 2",
        "1 of 2 assertions",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
}

#[test]
fn a_key_with_several_values_has_a_row_each() {
    let ran = simulate(&short(&["--world", "throttle", "--vary", "retry.retries=0..2"]));
    assert!(ran.status.success(), "{}", report(&ran));
    let shown = out(&ran);
    let rows: Vec<_> = shown.lines().filter(|line| line.starts_with("retry.retries = ")).collect();
    assert_eq!(rows.len(), 3, "{shown}");
}

#[test]
fn calls_come_as_they_were_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls.csv");
    fs::write(
        &file,
        "at,model,input_tokens,output_tokens,stream\n10,gpt-5.4,1000,50,true\n12,,,,\n",
    )
    .unwrap();
    let calm = folder.path().join("calm.toml");
    fs::write(&calm, "name = 'calm'\n[targets.'*']\nerrors = 0\nbreaks = 0\n").unwrap();
    let (file, calm) = (file.to_str().unwrap(), calm.to_str().unwrap());
    let ran = simulate(&["--replay", file, "--world", calm, "--json"]);
    assert!(ran.status.success(), "{}", report(&ran));
    let all: Value = serde_json::from_str(&out(&ran)).unwrap();
    assert_eq!(all["runs"][0]["asked"], 2);
    let seconds = all["hours"].as_f64().unwrap() * 3_600.0;
    assert!((seconds - 3.0).abs() < 0.01, "from the first call to the last, and a second: {all}");
    // Each went to the vendor of its model.
    let asked = |run: usize, target: usize| all["runs"][run]["targets"][target]["answered"].clone();
    assert_eq!((asked(0, 0), asked(0, 1)), (1.into(), 1.into()), "{all}");
}

#[test]
fn what_is_wrong_is_named_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.toml");
    fs::write(&wrong, "[retry]\nretries = 'many'\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    for (arguments, part) in [
        (&["--world", "nowhere"][..], "worlds without a file are outage"),
        (&["--hours", "0"], "--hours: from"),
        (&["--hours", "nan"], "--hours: from"),
        (&["--rate", "0"], "--rate: more than 0"),
        (&["--assert", "speed >= 1"], "there is no figure `speed`"),
        (&["--vary", "retry.retries"], "has no values"),
        (&["--vary", "retry.retries=0..2", "--html", "x.html"], "cannot be used with"),
        (&["--replay", "/nowhere.log"], "/nowhere.log can not be read"),
        (&["--config", "/nowhere.toml"], "/nowhere.toml"),
        (&["--config", wrong], "retry.retries"),
    ] {
        let ran = simulate(arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {}", report(&ran));
        assert!(report(&ran).contains(part), "{arguments:?}: {}", report(&ran));
    }
}
