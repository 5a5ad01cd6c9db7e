//! Refusing a call.

use std::task::Poll;

use crate::{
    Aspect, Contract, Exchange,
    contract::ContractedLayer,
    scene::{Found, Scene},
    watch::Stuck,
};

clause! {
    /// A call that is refused fails without a call of the inner service, at once, and leaves the
    /// readiness that was taken for it to the next call, or to others.
    a_refusal_calls_nothing, calls_nothing
}

async fn calls_nothing<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let Some(refuse) = contract.declared(Aspect::Refusal, &contract.refuse)? else {
        return Ok(());
    };
    let mut scene = Scene::new(contract).await;
    scene.handle.places(1);
    for refused in 1..=3 {
        match scene.poll_ready() {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(failure)) => {
                return Err(format!("`poll_ready` fails with `{failure}`: refuse in `call`"));
            }
            Poll::Pending => {
                return Err(format!(
                    "the only place of the inner service was taken for a call that was refused, \
                     and not given back: refusal {refused} finds it gone"
                ));
            }
        }
        let mut request = scene.request();
        refuse(&scene.layer, &mut request);
        let began = tokio::time::Instant::now();
        let mut future = scene.call(request).await?;
        let result = scene.drive(&mut future, usize::MAX).await.map_err(Stuck::describe)?;
        if scene.handle.calls() > 0 {
            return Err(
                "the inner service was called for a request that is to be refused".to_owned()
            );
        }
        if matches!(result, Some(Ok(_))) {
            return Err("a request that is to be refused was answered".to_owned());
        }
        if began != tokio::time::Instant::now() {
            return Err(format!(
                "the refusal came after {:?}; it is to come at once, since nothing is waited for",
                began.elapsed()
            ));
        }
    }
    scene.drop_service();
    scene.freed("after refusals").await
}
