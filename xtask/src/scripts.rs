//! Scripts that run others' libraries against the gateway: what `sdk` and `frameworks` have in common.

pub(crate) mod lines;
pub(crate) mod setup;
pub(crate) mod stage;

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use lines::Line;

/// Runs all, so many at a time for each core, and prints each when it is over; in the order asked for.
pub(crate) fn run_all<T: Copy + Sync, O: Send>(
    chosen: &[T],
    per_core: usize,
    run: impl Fn(T) -> O + Sync,
    print: impl Fn(&O),
) -> Vec<O> {
    let next = AtomicUsize::new(0);
    let (send, over) = mpsc::channel();
    let workers = thread::available_parallelism().map_or(2, usize::from).clamp(2, 8) * per_core;
    let mut done: Vec<_> = thread::scope(|scope| {
        for _ in 0..workers {
            let (send, next, run) = (send.clone(), &next, &run);
            scope.spawn(move || {
                while let Some((at, one)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    chosen.get(at).map(|one| (at, *one))
                } {
                    let _ = send.send((at, run(one)));
                }
            });
        }
        drop(send);
        over.iter().inspect(|(_, outcome): &(usize, O)| print(outcome)).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The lines of one script from its start to its end; `folder` has the logs beside it.
pub(crate) fn run(mut script: Command, folder: &Path) -> Result<Vec<Line>, String> {
    let output = script
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("the script can not be started: {error}"))?;
    let mut lines = lines::read(&String::from_utf8_lossy(&output.stdout));
    let failed = lines.iter().any(|line| matches!(line, Line::Fail { .. }));
    if failed || !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let text: Vec<_> = text.lines().rev().take(8).collect();
        let text: Vec<_> = text.into_iter().rev().collect();
        if !failed {
            lines.push(Line::broken(format!("{}: {}", output.status, text.join(" | "))));
        }
        lines.push(Line::Note(format!("logs are in {}", folder.display())));
    }
    Ok(lines)
}
