//! Prints the tables of `docs/performance.md` about layers; `--quick` in a few seconds.
//! `--profile "retry" 1 100000` makes that many calls of one case in the second table, for a profiler
//! or a counter of instructions.

use std::{env, process::Command};

use steadfast_bench_layers::{
    report::{Allocations, markdown},
    tables,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    match args.as_slice() {
        [] => print(&runtime, 400),
        [quick] if quick == "--quick" => print(&runtime, 40),
        [profile, case, table, calls] if profile == "--profile" => {
            let table = tables(&runtime).into_iter().nth(table.parse()?).ok_or("no such table")?;
            let [ours, ..] = table.columns;
            let mut all = ours.into_iter().chain([table.bare]);
            let found = all.find(|one| one.name == case).ok_or("no such case")?;
            let (mut run, _inside) = (found.run, runtime.enter());
            run(calls.parse()?);
            Ok(())
        }
        _ => {
            Err("usage: steadfast-bench-layers [--quick | --profile <case> <table> <calls>]".into())
        }
    }
}

fn print(
    runtime: &tokio::runtime::Runtime,
    rounds: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let counter = env::current_exe()?.with_file_name("allocations");
    let allocations = match Command::new(&counter).output() {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout)?,
        Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).into()),
        Err(error) => {
            let hint = "build it too: cargo build --release -p steadfast-bench-layers";
            return Err(format!("{}: {error}; {hint}", counter.display()).into());
        }
    };
    print!("{}", markdown(runtime, rounds, &Allocations::parse(&allocations)));
    Ok(())
}
