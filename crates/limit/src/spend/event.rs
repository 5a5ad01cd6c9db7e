//! What the layer reports: one event for each action, and a step in the log of the call that it concerns.

use steadfast_core::{CallContext, Failure, Reason, SpendRefusal, Step, time::millis};
use tracing::{Level, event};

use super::UnpricedModel;

/// A cap leaves too little for a call. Returns the failure it ends with.
pub(super) fn refused(refusal: SpendRefusal, context: &CallContext) -> Failure {
    let unit = if refusal.is_cost { "cost" } else { "tokens" };
    event!(
        name: "steadfast::limit::spend_refused",
        target: "steadfast::limit",
        Level::WARN,
        tenant = context.tenant(),
        account = %refusal.account,
        window = refusal.window.as_str(),
        unit,
        cap = refusal.cap,
        used = refusal.used,
        requested = refusal.requested,
        wait_ms = refusal.frees_in.map(millis),
        "{refusal}",
    );
    context.log.record(|| {
        let step = Step::new("limit", "spend_refused")
            .with_target(context.target.as_ref())
            .with_reason(Reason::SpendCap)
            .with_detail(format!("{} {unit}", refusal.window.as_str()));
        match refusal.frees_in {
            Some(wait) => step.with_wait(wait),
            None => step,
        }
    });
    let failure = Failure::refused(Reason::SpendCap, refusal.to_string())
        .with_retry_after(refusal.frees_in)
        .with_evidence("spend_cap")
        .with_source(refusal);
    match &context.target {
        Some(target) => failure.with_target(target.clone()),
        None => failure,
    }
}

/// A model has no price.
pub(super) fn unpriced(model: &str, taken_for: UnpricedModel) {
    event!(
        name: "steadfast::limit::unpriced",
        target: "steadfast::limit",
        Level::WARN,
        model,
        taken_for = ?taken_for,
        "no price is known of a model: set one, or caps on money do not hold for it as they should",
    );
}
