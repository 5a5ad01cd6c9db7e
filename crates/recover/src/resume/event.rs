//! What resuming tells the log and the trace: one of each for one action.

use steadfast_core::{CallContext, Failure, Step, Target, Usage};
use tracing::{Level, event};

use super::policy::Declined;

const LAYER: &str = "recover";

/// A broken stream is to be gone on with: `lost` is what the broken part is known or estimated to
/// have used.
pub(crate) fn resuming(
    context: &CallContext,
    failure: &Failure,
    from: Option<&Target>,
    resume: u32,
    seen: usize,
    lost: &Usage,
) {
    let target = failure.target().or(from);
    let (input, output) = (lost.input.unwrap_or(0), lost.output.unwrap_or(0));
    event!(
        name: "steadfast::recover::resuming",
        target: "steadfast::recover",
        Level::INFO,
        reason = failure.reason().as_str(),
        resume,
        seen_bytes = seen,
        waste_input_tokens = input,
        waste_output_tokens = output,
        target = target.map(tracing::field::display),
        "the stream broke and is to be gone on with: {failure}",
    );
    context.log.record(|| {
        let detail = format!(
            "after {seen} bytes of text; the broken part used about {input} input and {output} output tokens"
        );
        Step::new(LAYER, "resuming").target(target).reason(failure.reason()).detail(detail)
    });
}

/// The seam is found: the caller's stream goes on.
pub(crate) fn resumed(context: &CallContext, to: Option<&Target>, resume: u32) {
    event!(
        name: "steadfast::recover::resumed",
        target: "steadfast::recover",
        Level::INFO,
        resume,
        target = to.map(tracing::field::display),
        "the answer goes on where it broke",
    );
    context.log.record(|| Step::new(LAYER, "resumed").target(to));
}

/// A broken stream is not gone on with: the caller is given its failure.
pub(crate) fn declined(context: &CallContext, failure: &Failure, why: Declined) {
    event!(
        name: "steadfast::recover::not_resumed",
        target: "steadfast::recover",
        Level::WARN,
        reason = failure.reason().as_str(),
        why = why.as_str(),
        target = failure.target().map(tracing::field::display),
        "the stream broke and is not gone on with ({}): {failure}",
        why.as_str(),
    );
    context.log.record(|| {
        Step::new(LAYER, "not_resumed")
            .target(failure.target())
            .reason(failure.reason())
            .detail(why.as_str())
    });
}
