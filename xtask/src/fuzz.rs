//! `cargo xtask fuzz`: the fuzz targets, built once and run side by side.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
    thread,
};

use crate::tool::{BUILT_QUICKLY, Tool};

/// How long each target runs by default: 5 minutes, what a release is held to.
const SECONDS: u32 = 300;

/// Below this many seconds the build is what takes long.
const SMOKE: u32 = 60;

const CARGO_FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

/// The compiler's own sanitizers need a nightly one and find what unsafe code does; there is none
/// here. Without them a stable compiler will do.
const BUILD: [&str; 4] = ["--sanitizer", "none", "--codegen-units", "16"];

/// Flags of libFuzzer: no input takes 20 s or 2 GiB, and none is larger than 16 KiB.
const LIMITS: [&str; 3] = ["-timeout=20", "-rss_limit_mb=2048", "-max_len=16384"];

/// How long, and from which seed.
#[derive(Clone, Copy)]
struct Effort {
    seconds: u32,
    /// The same inputs in the same order every time, as far as the seconds go; new ones each time
    /// without.
    seed: Option<u32>,
}

/// Runs `[--seconds N] [--seed N] [target...]`, all targets without names.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let all = targets(&fuzz)?;
    let (effort, wanted) = parse(args, &all)?;
    let tool = CARGO_FUZZ.path()?;

    // One build for all of them: they share everything but their last step.
    println!("== fuzz: build");
    let host = host()?;
    let target = fuzz.join("target");
    let mut build = Command::new(tool);
    build.arg("build").args(BUILD).arg("--fuzz-dir").arg(&fuzz);
    build.arg("--target").arg(&host).arg("--target-dir").arg(&target);
    if effort.seconds < SMOKE {
        build.envs(BUILT_QUICKLY);
    }
    let status = build.status().map_err(|error| format!("can not start cargo-fuzz: {error}"))?;
    if !status.success() {
        return Err(format!("the fuzz targets do not build ({status})"));
    }

    let side_by_side = thread::available_parallelism().map_or(1, usize::from).min(wanted.len());
    println!("== fuzz: {} s each, {side_by_side} at a time", effort.seconds);
    let programs = target.join(host).join("release");
    let (programs, fuzz, wanted) = (&programs, &fuzz, &wanted);
    let found: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..side_by_side)
            .map(|worker| {
                let mine = wanted.iter().skip(worker).step_by(side_by_side);
                scope.spawn(move || {
                    let finds = |target: &&String| match one(programs, fuzz, target, effort) {
                        Ok(()) => false,
                        Err(finding) => {
                            println!("{finding}");
                            true
                        }
                    };
                    mine.filter(finds).cloned().collect::<Vec<_>>()
                })
            })
            .collect();
        let lost = |_| vec!["a runner that panicked".to_owned()];
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(lost)).collect()
    });
    if found.is_empty() { Ok(()) } else { Err(format!("findings in {}", found.join(", "))) }
}

/// One target from its seeds and what it found before; `Err` with its output when it finds
/// something.
fn one(programs: &Path, fuzz: &Path, target: &str, effort: Effort) -> Result<(), String> {
    let corpus = fuzz.join("corpus").join(target);
    let artifacts = fuzz.join("artifacts").join(target);
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder)
            .map_err(|error| format!("can not make {}: {error}", folder.display()))?;
    }
    let program = programs.join(target);
    let mut command = Command::new(&program);
    command.arg(&corpus).arg(fuzz.join("seeds").join(target)).args(LIMITS);
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-max_total_time={}", effort.seconds));
    command.args(effort.seed.map(|seed| format!("-seed={seed}")));
    let words = fuzz.join("dict");
    let own = words.join(format!("{target}.dict"));
    let words = if own.exists() { own } else { words.join("json.dict") };
    command.arg(format!("-dict={}", words.display()));
    let output = command
        .output()
        .map_err(|error| format!("can not start {}: {error}", program.display()))?;
    let text = text(&output);
    if output.status.success() {
        let runs = text.lines().rev().find(|line| line.starts_with("Done "));
        println!("fuzz: {target}: no finding; {}", runs.unwrap_or("done"));
        return Ok(());
    }
    let tail: Vec<&str> = text.lines().collect();
    let from = tail.len().saturating_sub(60);
    Err(format!("fuzz: {target}: a finding\n{}", tail[from..].join("\n")))
}

/// The targets there are, by their files.
fn targets(fuzz: &Path) -> Result<Vec<String>, String> {
    let folder = fuzz.join("fuzz_targets");
    let entries = fs::read_dir(&folder)
        .map_err(|error| format!("can not read {}: {error}", folder.display()))?;
    let mut all: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    all.sort();
    Ok(all)
}

fn parse(args: &[String], all: &[String]) -> Result<(Effort, Vec<String>), String> {
    let mut effort = Effort { seconds: SECONDS, seed: None };
    let mut wanted = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().and_then(|value| value.parse().ok());
            let value: Option<u32> = value.filter(|value| *value > 0);
            value.ok_or(format!("{arg} needs a whole number above 0"))
        };
        match arg.as_str() {
            "--seconds" => effort.seconds = number()?,
            "--seed" => effort.seed = Some(number()?),
            target if all.contains(arg) => wanted.push(target.to_owned()),
            _ => {
                return Err(format!(
                    "there is no fuzz target `{arg}`; there are {}",
                    all.join(", ")
                ));
            }
        }
    }
    if wanted.is_empty() {
        wanted = all.to_vec();
    }
    Ok((effort, wanted))
}

/// The host's triple, which is a folder of what cargo-fuzz builds.
fn host() -> Result<String, String> {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .map_err(|error| format!("can not start rustc: {error}"))?;
    let text = text(&output);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say what its host is".to_owned())
}

fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}
