//! `steadfast compact`: a request body in, one that fits out.

use std::io::{self, Write};

use steadfast::{
    client::dialect::{Wire, codec},
    compact::{
        CompactionPolicy, CompactionReport, CompactionTask, Compactor, CountedHistory, Counter,
        Models, Room, TokenLimits,
    },
};
use steadfast_chat::{ChatRequest, transcript::TranscriptRules};

use super::{CompactArgs, Exit, input, print};

pub(super) fn run(args: &CompactArgs) -> Result<(), Exit> {
    let mut request = input::request(args.file.as_deref(), args.dialect)?;
    let report = compact(&mut request, args)?;
    let body = codec(args.dialect).encode_request(&request, &Wire::default());
    let body = body.map_err(Exit::failed)?;
    print::report(report);
    let mut out = io::stdout().lock();
    Ok(out.write_all(&body).and_then(|()| out.flush())?)
}

/// Compacts `request` if it has to be; what was done, as a text.
fn compact(request: &mut ChatRequest, args: &CompactArgs) -> Result<String, Exit> {
    let model = args.model.as_deref().unwrap_or(&request.model).to_owned();
    let known = Models::default().get(&model);
    let limits = match (args.window, known) {
        (Some(window), known) => match known.and_then(|known| known.output) {
            Some(output) => TokenLimits::new(window).with_output(output),
            None => TokenLimits::new(window),
        },
        (None, Some(known)) => known,
        (None, None) => {
            return Err(Exit::usage(format_args!(
                "nobody knows the window of the model `{model}`; say it with --window TOKENS"
            )));
        }
    };
    let rules = TranscriptRules::for_dialect(args.dialect);
    let mut policy = CompactionPolicy::default();
    let room = policy.room(limits, request.params.max_output, rules.output_counts);
    if let Some(target) = args.target {
        aim(&mut policy, room, target)?;
    }
    let compactor = Compactor::new(policy).map_err(Exit::usage)?;

    let counter = Counter::default();
    let count = counter.count(&mut CountedHistory::default(), request, &model);
    let count_message = |message: &_| counter.message(message, &model);
    let mut task = CompactionTask::new(&rules, &count_message);
    (task.room, task.fixed, task.measured) = (room, count.fixed, Some(count.upper));
    let done = compactor.run(request, &task, &mut fastrand::Rng::new()).map_err(Exit::failed)?;
    Ok(match done.map(|run| run.report) {
        Some(report) => summary(&report),
        None => format!(
            "nothing to do: {} input tokens, and {} kept for the answer, of {}",
            count.upper, room.reserve, room.window
        ),
    })
}

/// Sets `policy` so that whatever has more than `target` input tokens comes down to that.
fn aim(policy: &mut CompactionPolicy, room: Room, target: u64) -> Result<(), Exit> {
    let limit = room.window.saturating_sub(room.reserve);
    if target == 0 || target >= limit {
        return Err(Exit::usage(format_args!(
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

fn summary(report: &CompactionReport) -> String {
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
