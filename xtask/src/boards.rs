//! `cargo xtask boards`: Prometheus' rules and Grafana's board, against a real Prometheus.
//!
//! Each alert fires and ends in a test of its rule, every query of the board has series while a gateway with simulated
//! providers goes through an outage, and the board is what Grafana's own types say that a board is.

use std::{fs, net::TcpListener, path::Path, process::Command};

use crate::{
    agents,
    program::{self, Program, output},
    tool,
    workspace::{self, read, write},
};

const FOLDER: &str = "tests/boards";
const RULES: &str = "dist/prometheus/rules.yml";
const RULES_TEST: &str = "dist/prometheus/rules_test.yml";
const BOARD: &str = "dist/grafana/steadfast.json";

/// The keys of a run. They open nothing.
const TENANT_KEY: &str = "boards-tests-tenant";
const PROVIDER_KEY: &str = "boards-tests-provider";

/// A type as JSON has it: its enumerations are their texts.
const PLAIN: &str = "\
import type { Dashboard } from '@grafana/schema';
type Plain<T> = T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
";

pub(crate) fn run() -> Result<(), String> {
    let root = workspace::root();
    for (name, package) in
        [("promtool", "prometheus"), ("prometheus", "prometheus"), ("python3", "python3")]
    {
        tool::debian(name, package)?;
    }
    for arguments in [["check", "rules", RULES], ["test", "rules", RULES_TEST]] {
        println!("== boards: promtool {}", arguments.join(" "));
        output(Command::new("promtool").args(arguments).current_dir(root))?;
    }
    every_alert_is_tested(root)?;
    types(root)?;
    queries(root)
}

/// Each alert has a test in which it fires, and one in which it does not.
fn every_alert_is_tested(root: &Path) -> Result<(), String> {
    let (rules, tests) = (read(&root.join(RULES))?, read(&root.join(RULES_TEST))?);
    let names: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let missing: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| {
            let fires = tests.contains(&format!("alertname: {name}\n        exp_alerts:\n"));
            let quiet = tests.matches(&format!("alertname: {name}, exp_alerts: [] }}")).count();
            !fires || quiet < 1
        })
        .collect();
    match &missing[..] {
        [] => {
            println!("== boards: {} alerts fire and end", names.len());
            Ok(())
        }
        missing => {
            Err(format!("{RULES_TEST}: no test in which it fires and ends: {}", missing.join(", ")))
        }
    }
}

/// The board has the types of Grafana's own.
fn types(root: &'static Path) -> Result<(), String> {
    let work = root.join("target/boards");
    fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let node = agents::node(root)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(node).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).map_err(|error| error.to_string())?;
    for name in ["package.json", "package-lock.json", ".npmrc"] {
        let text = read(&root.join(FOLDER).join(name))?;
        write(&work.join(name), &text)?;
    }
    println!("== boards: npm ci");
    let mut npm = Command::new("npm");
    output(
        npm.args(["ci", "--ignore-scripts", "--loglevel=error"])
            .env("PATH", &path)
            .current_dir(&work),
    )?;
    let board = read(&root.join(BOARD))?;
    write(
        &work.join("board.ts"),
        &format!("{PLAIN}export const board: Plain<Dashboard> = {board};\n"),
    )?;
    let mut tsc = Command::new("node");
    tsc.arg("node_modules/typescript/lib/tsc.js").args([
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--module",
        "esnext",
        "--target",
        "es2022",
        "--moduleResolution",
        "bundler",
        "board.ts",
    ]);
    println!("== boards: {BOARD} by the types of @grafana/schema");
    output(tsc.env("PATH", &path).current_dir(&work)).map(drop)
}

/// Every query has series in an outage, and every rule can be evaluated.
fn queries(root: &Path) -> Result<(), String> {
    let binary = program::gateway("boards")?;
    let work = root.join("target/boards");
    let control = free()?;
    let mut sim = Program::kept(&binary);
    sim.args(["sim", "--listen", "127.0.0.1:0", "--control", &control]);
    let (_sim, lines) = Program::start(sim, &work.join("sim.log"), "any key is accepted")?;
    let at = |dialect: &str| {
        let found = lines.iter().find_map(|line| line.strip_prefix(dialect).map(str::trim));
        found.ok_or_else(|| format!("`steadfast sim` did not print where its {dialect} is"))
    };
    let config = read(&root.join(FOLDER).join("steadfast.toml"))?;
    let config = config.replace("{openai}", at("openai")?).replace("{anthropic}", at("anthropic")?);
    let file = work.join("steadfast.toml");
    write(&file, &config)?;
    let mut gateway = Program::kept(&binary);
    gateway
        .args(["serve", "--config"])
        .arg(&file)
        .env("BOARDS_TENANT_KEY", TENANT_KEY)
        .env("BOARDS_PROVIDER_KEY", PROVIDER_KEY);
    let (_gateway, lines) =
        Program::start(gateway, &work.join("gateway.log"), "steadfast serves on")?;
    let gateway = lines.last().and_then(|line| line.strip_prefix("steadfast serves on "));
    let gateway = gateway.ok_or("`steadfast serve` did not print where it serves")?.trim();

    let scraped = gateway.trim_start_matches("http://");
    // Rules are evaluated every second here.
    let rules = read(&root.join(RULES))?.replace("interval: 30s", "interval: 1s");
    let (_server, prometheus) = prometheus(&work.join("server"), scraped, &rules, &[])?;
    let with_native = ["--enable-feature=native-histograms"];
    let (_other, native) = self::prometheus(&work.join("native"), scraped, "", &with_native)?;

    println!("== boards: an outage, the board's queries and the rules");
    let mut check = Command::new("python3");
    check
        .arg(root.join(FOLDER).join("check.py"))
        .args([gateway, &format!("http://{control}"), &prometheus, &native])
        .arg(root.join(BOARD))
        .env("BOARDS_TENANT_KEY", TENANT_KEY)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    print!("{}", output(&mut check)?);
    Ok(())
}

/// A Prometheus that works in `folder` and scrapes this gateway every second; where it answers.
fn prometheus(
    folder: &Path,
    scraped: &str,
    rules: &str,
    flags: &[&str],
) -> Result<(Program, String), String> {
    program::remove(folder)?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let settings = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [rules.yml]\n\
         scrape_configs: [{{ job_name: steadfast, static_configs: [{{ targets: ['{scraped}'] }}] }}]\n"
    );
    write(&folder.join("prometheus.yml"), &settings)?;
    write(&folder.join("rules.yml"), rules)?;
    let address = free()?;
    let mut server = Program::kept(Path::new("sh"));
    // It says that it is ready on standard error.
    server.args(["-c", "exec prometheus \"$@\" 2>&1", "sh"]).args([
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        "--log.format=json",
        &format!("--web.listen-address={address}"),
    ]);
    server.args(flags).current_dir(folder);
    let (server, _) =
        Program::start(server, &folder.join("prometheus.log"), "{\"caller\":\"main.go")?;
    Ok((server, format!("http://{address}")))
}

/// An address where nobody listens.
fn free() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.to_string()).map_err(|error| error.to_string())
}
