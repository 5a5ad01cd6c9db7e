//! `steadfast compact`: a request body in, one that fits out.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use steadfast::{
    client::dialect::{Wire, codec},
    compact::{Compactor, Counter, Limits, Models, Policy, PolicyError, Report, Room, Tape, Task},
};
use steadfast_core::{ChatRequest, transcript::Rules};

use super::{CompactArgs, FAILED, USAGE, fail, input};

pub(crate) fn run(args: &CompactArgs) -> ExitCode {
    let mut request = match input::request(args.file.as_deref(), args.dialect) {
        Ok(request) => request,
        Err(why) => return fail(why.code(), why),
    };
    let report = match compact(&mut request, args) {
        Ok(report) => report,
        Err(Wrong::Usage(why)) => return fail(USAGE, why),
        Err(Wrong::Failed(why)) => return fail(FAILED, why),
    };
    let body = match codec(args.dialect).encode_request(&request, &Wire::default()) {
        Ok(body) => body,
        Err(why) => return fail(FAILED, why),
    };
    eprintln!("{report}");
    match io::stdout().lock().write_all(&body) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, error),
    }
}

/// Why there is nothing to print.
enum Wrong {
    Usage(String),
    Failed(String),
}

/// Compacts `request` if it has to be; what was done, as a text.
fn compact(request: &mut ChatRequest, args: &CompactArgs) -> Result<String, Wrong> {
    let model = args.model.as_deref().unwrap_or(&request.model).to_owned();
    let known = Models::default().get(&model);
    let limits = match (args.window, known) {
        (Some(window), known) => match known.and_then(|known| known.output) {
            Some(output) => Limits::new(window).with_output(output),
            None => Limits::new(window),
        },
        (None, Some(known)) => known,
        (None, None) => {
            return Err(Wrong::Usage(format!(
                "nobody knows the window of the model `{model}`; say it with --window TOKENS"
            )));
        }
    };
    let rules = Rules::for_dialect(args.dialect);
    let mut policy = Policy::default();
    let room = policy.room(limits, request.params.max_output, rules.output_counts);
    if let Some(target) = args.target {
        aim(&mut policy, room, target)?;
    }
    let compactor =
        Compactor::new(policy).map_err(|error: PolicyError| Wrong::Usage(error.to_string()))?;

    let counter = Counter::default();
    let count = counter.count(&mut Tape::default(), request, &model);
    let weigh = |message: &_| counter.message(message, &model);
    let mut task = Task::new(&rules, &weigh);
    (task.room, task.fixed, task.measured) = (room, count.fixed, Some(count.upper));
    let done = compactor
        .run(request, &task, &mut fastrand::Rng::new())
        .map_err(|too_large| Wrong::Failed(too_large.to_string()))?;
    Ok(match done.map(|run| run.report) {
        Some(report) => summary(&report),
        None => format!(
            "nothing to do: {} input tokens, and {} kept for the answer, of {}",
            count.upper, room.reserve, room.window
        ),
    })
}

/// Sets `policy` so that whatever has more than `target` input tokens comes down to that.
fn aim(policy: &mut Policy, room: Room, target: u64) -> Result<(), Wrong> {
    let limit = room.window.saturating_sub(room.reserve);
    if target == 0 || target >= limit {
        return Err(Wrong::Usage(format!(
            "--target {target}: has to be above 0 and below {limit}, which is what a window of {} \
             with {} kept for the answer takes",
            room.window, room.reserve
        )));
    }
    let share = |tokens: u64| tokens as f64 / room.window as f64;
    policy.target = share(target + room.reserve);
    policy.least_target = policy.target;
    policy.compact_at = share(target + room.reserve + 1);
    policy.warn_at = policy.compact_at;
    Ok(())
}

fn summary(report: &Report) -> String {
    format!(
        "{} input tokens came down to {} (target {}, never touched {}): {} messages kept, {} gone, {} \
         results and arguments now markers\n{report}",
        report.before,
        report.after,
        report.target,
        report.floor,
        report.kept,
        report.dropped,
        report.stripped,
    )
}
