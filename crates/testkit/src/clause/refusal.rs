//! Refused calls.

use std::task::Poll;

use crate::{
    Aspect, Contract, Exchange,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness},
    task::Stuck,
};

clause! {
    /// A call that is refused fails at once, without a call of the inner service, and leaves the
    /// readiness that was acquired for it to the next call, or to other callers.
    a_refusal_calls_nothing, calls_nothing
}

async fn calls_nothing<E: Exchange, L: ContractedLayer<E>>(
    contract: &Contract<E, L>,
) -> ClauseResult {
    let Some(refuse) = contract.declared(Aspect::Refusal, &contract.refuse)? else {
        return Ok(());
    };
    let mut harness = Harness::new(contract).await;
    harness.handle.set_capacity(1);
    for refused in 1..=3 {
        match harness.poll_ready() {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(failure)) => {
                return Err(format!("`poll_ready` fails with `{failure}`: refuse in `call`"));
            }
            Poll::Pending => {
                return Err(format!(
                    "the only permit of the inner service was acquired for a call that was \
                     refused, and not released: refusal {refused} does not get it"
                ));
            }
        }
        let mut request = harness.request();
        refuse(&harness.layer, &mut request);
        let started = tokio::time::Instant::now();
        let mut future = harness.call(request).await?;
        let result = harness.drive(&mut future, usize::MAX).await.map_err(Stuck::describe)?;
        if harness.handle.calls() > 0 {
            return Err(
                "the inner service was called for a request that is to be refused".to_owned()
            );
        }
        if matches!(result, Some(Ok(_))) {
            return Err("a request that is to be refused was answered".to_owned());
        }
        if started != tokio::time::Instant::now() {
            return Err(format!(
                "the refusal came after {:?}; it has to come at once, since nothing is waited for",
                started.elapsed()
            ));
        }
    }
    harness.drop_service();
    harness.freed("after refusals").await
}
