//! What is reported to the log and the trace: one entry of each for one action.

use steadfast_core::{CallContext, Failure, Reason, Step, Target, Usage};
use tracing::{Level, event};

const LAYER: &str = "recover";

/// The output limit is raised and the request sent again; the answer so far is dropped.
pub(crate) fn escalated(context: &CallContext, target: Option<&Target>, to: u64, dropped: u64) {
    event!(
        name: "steadfast::recover::escalated",
        target: "steadfast::recover",
        Level::INFO,
        max_output = to,
        waste_output_tokens = dropped,
        target = target.map(tracing::field::display),
        "the answer was cut off; the request is sent again with a higher limit",
    );
    record(context, target, "escalated", || {
        format!("to {to} tokens; {dropped} output tokens were dropped")
    });
}

/// The answer is continued; `cut_call` is how many bytes had come of a tool call that was cut off.
pub(crate) fn continued(
    context: &CallContext,
    target: Option<&Target>,
    continuation: u32,
    new: u64,
    cut_call: Option<usize>,
) {
    event!(
        name: "steadfast::recover::continued",
        target: "steadfast::recover",
        Level::INFO,
        continuation,
        new_tokens = new,
        cut_call_bytes = cut_call,
        target = target.map(tracing::field::display),
        "the answer was cut off; it is continued",
    );
    record(context, target, "continued", || match cut_call {
        None => format!("after {new} output tokens"),
        Some(bytes) => format!(
            "after {new} output tokens, the last {bytes} bytes in a tool call that was dropped"
        ),
    });
}

/// The answer is left truncated.
pub(crate) fn truncated(context: &CallContext, target: Option<&Target>, why: &'static str) {
    event!(
        name: "steadfast::recover::truncated",
        target: "steadfast::recover",
        Level::WARN,
        why,
        target = target.map(tracing::field::display),
        "the answer was cut off and is not continued ({why})",
    );
    record(context, target, "truncated", || why.into());
}

fn record(
    context: &CallContext,
    target: Option<&Target>,
    action: &'static str,
    detail: impl FnOnce() -> String,
) {
    let reason = Reason::OutputTruncated;
    context.log.record(|| {
        Step::new(LAYER, action).with_target(target).with_reason(reason).with_detail(detail())
    });
}

/// A broken stream will be resumed: `lost` is what the broken part is known or estimated to have used.
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
        "the stream broke and will be resumed: {failure}",
    );
    context.log.record(|| {
        let detail = format!(
            "after {seen} bytes of text; the broken part used about {input} input and {output} output tokens"
        );
        Step::new(LAYER, "resuming").with_target(target).with_reason(failure.reason()).with_detail(detail)
    });
}

/// The overlap is found: the caller's stream continues.
pub(crate) fn resumed(context: &CallContext, to: Option<&Target>, resume: u32) {
    event!(
        name: "steadfast::recover::resumed",
        target: "steadfast::recover",
        Level::INFO,
        resume,
        target = to.map(tracing::field::display),
        "the answer continues where it broke",
    );
    context.log.record(|| Step::new(LAYER, "resumed").with_target(to));
}

/// A broken stream is not resumed: the caller gets its failure.
pub(crate) fn declined(context: &CallContext, failure: &Failure, why: &'static str) {
    event!(
        name: "steadfast::recover::not_resumed",
        target: "steadfast::recover",
        Level::WARN,
        reason = failure.reason().as_str(),
        why,
        target = failure.target().map(tracing::field::display),
        "the stream broke and is not resumed ({why}): {failure}",
    );
    context.log.record(|| {
        Step::new(LAYER, "not_resumed")
            .with_target(failure.target())
            .with_reason(failure.reason())
            .with_detail(why)
    });
}

/// Thinking was left out that its provider would refuse, or put back that it wrote.
pub(crate) fn thinking(context: &CallContext, dropped: usize, returned: usize) {
    event!(
        name: "steadfast::recover::thinking",
        target: "steadfast::recover",
        Level::DEBUG,
        dropped,
        returned,
        target = context.target.as_ref().map(tracing::field::display),
        "thinking that is bound to another history was left out, or put back",
    );
    context.log.record(|| {
        let detail = format!("{dropped} blocks left out, {returned} put back");
        Step::new(LAYER, "thinking").with_target(context.target.as_ref()).with_detail(detail)
    });
}
