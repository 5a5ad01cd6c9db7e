//! Whose the state is.

use crate::{
    Aspect, Contract, Exchange, Probe,
    contract::ContractedLayer,
    scene::{Found, Scene},
};

clause! {
    /// Every service that one layer value makes, and that its clones make, shares one state: axum
    /// calls `layer()` once a route. (axum#2634)
    state_is_shared, shared
}

async fn shared<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let Some(state) = contract.declared(Aspect::State, &contract.state)? else { return Ok(()) };
    let mut scene = Scene::new(contract).await;
    let layer = scene.layer.clone();
    let fresh = |layer: L| {
        let (probe, handle) = Probe::new(contract.exchange.clone());
        Scene::with(contract, layer, probe, handle)
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
    mark(&mut scene, contract).await?;
    check("a service of the layer")?;
    let clone = scene.service().clone();
    *scene.service() = clone;
    mark(&mut scene, contract).await?;
    check("a clone of that service")?;
    mark(&mut fresh(layer.clone()), contract).await?;
    check("a service of a clone of the layer")?;
    let mut again = fresh(layer.clone());
    again.layer = layer.clone();
    again.drop_service();
    mark(&mut again, contract).await?;
    check("another service of the layer")
}

clause! {
    /// Another layer value, made in the same way, has a state of its own.
    a_new_layer_has_new_state, new_state
}

async fn new_state<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let Some(state) = contract.declared(Aspect::State, &contract.state)? else { return Ok(()) };
    let mut first = Scene::new(contract).await;
    let new = state(&first.layer);
    mark(&mut first, contract).await?;
    let marked = state(&first.layer);
    let mut second = Scene::new(contract).await;
    let begins = state(&second.layer);
    if begins != new {
        return Err(format!(
            "a new layer begins at {begins} and not at {new}, after a call through another: each \
             layer value has its own state"
        ));
    }
    mark(&mut second, contract).await?;
    let after = state(&first.layer);
    if after != marked {
        return Err(format!(
            "a call through a new layer moved the state of another from {marked} to {after}: each \
             layer value has its own state"
        ));
    }
    Ok(())
}

async fn mark<E: Exchange, L: ContractedLayer<E>>(
    scene: &mut Scene<'_, E, L>,
    contract: &Contract<E, L>,
) -> Found {
    // What is noted with the time of it may be noted again only later.
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    scene.handle.usually(contract.mark);
    let _ = scene.ask_all().await?;
    Ok(())
}
