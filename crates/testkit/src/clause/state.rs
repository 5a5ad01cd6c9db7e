//! What shares state, and what does not.

use crate::{
    Aspect, Contract, Exchange, Probe,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness},
};

clause! {
    /// All services that one layer value and its clones make share one state: axum calls `layer()`
    /// once a route. (axum#2634)
    state_is_shared, shared
}

async fn shared<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let Some(state) = contract.declared(Aspect::State, &contract.state)? else { return Ok(()) };
    let mut harness = Harness::new(contract).await;
    let layer = harness.layer.clone();
    let service_of = |layer: L| {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        Harness::with(contract, layer, probe, handle)
    };
    let mut seen = state(&layer);
    let mut check = |what: &str| {
        let now = state(&layer);
        if now == seen {
            return Err(format!(
                "a call through {what} left the state of the layer at {now}: make the state in the layer's constructor, and share it"
            ));
        }
        seen = now;
        Ok(())
    };
    mark(&mut harness, contract).await?;
    check("a service of the layer")?;
    let clone = harness.service().clone();
    *harness.service() = clone;
    mark(&mut harness, contract).await?;
    check("a clone of that service")?;
    mark(&mut service_of(layer.clone()), contract).await?;
    check("a service of a clone of the layer")?;
    harness.drop_service();
    mark(&mut harness, contract).await?;
    check("another service of the layer")
}

clause! {
    /// Another layer value, made in the same way, has separate state.
    a_new_layer_has_new_state, new_state
}

async fn new_state<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let Some(state) = contract.declared(Aspect::State, &contract.state)? else { return Ok(()) };
    let mut first = Harness::new(contract).await;
    let new = state(&first.layer);
    mark(&mut first, contract).await?;
    let marked = state(&first.layer);
    let mut second = Harness::new(contract).await;
    let other = state(&second.layer);
    if other != new {
        return Err(format!(
            "a new layer starts at {other} and not at {new}, after a call through another: each \
             layer value has its own state"
        ));
    }
    mark(&mut second, contract).await?;
    let after = state(&first.layer);
    if after != marked {
        return Err(format!(
            "a call through a new layer changed the state of another from {marked} to {after}: each \
             layer value has its own state"
        ));
    }
    Ok(())
}

async fn mark<E: Exchange, L: ContractedLayer<E>>(
    harness: &mut Harness<'_, E, L>,
    contract: &Contract<E, L>,
) -> ClauseResult {
    // State that depends on the time may change only when time has passed.
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    harness.handle.set_default(contract.mark);
    let _ = harness.send_and_read().await?;
    Ok(())
}
