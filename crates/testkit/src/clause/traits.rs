//! What the compiler promises.

use std::fmt::Debug;

use crate::{
    Contract, Exchange, SECRET,
    contract::ContractedLayer,
    scene::{Found, Scene},
};

clause! {
    /// Layer and service are `Send`, `Sync`, `Clone`, `Debug` and `'static`, futures and replies are
    /// `Send` and `'static`; nothing need be `Unpin`. The compiler sees to it, before this runs. What
    /// `Debug` shows has no part of a request in it.
    auto_traits, traits
}

async fn traits<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> Found {
    let mut scene = Scene::new(contract).await;
    shows_no_secret(&scene.layer, "the layer")?;
    let request = scene.request();
    let future = scene.call(request).await?;
    shows_no_secret(scene.service(), "the service, with a call under way")?;
    drop(future);
    let _ = scene.ask_all().await?;
    shows_no_secret(scene.service(), "the service, after a call")?;
    shows_no_secret(&scene.layer, "the layer, after a call")
}

fn shows_no_secret<T: Debug + Send + Sync + Clone + 'static>(value: &T, what: &str) -> Found {
    let shown = format!("{value:?}{value:#?}");
    if shown.contains(SECRET) {
        return Err(format!("`Debug` of {what} shows the words of a request: {shown}"));
    }
    Ok(())
}
