//! Auto traits and `Debug`.

use std::fmt::Debug;

use crate::{
    Contract, Exchange, SECRET,
    contract::ContractedLayer,
    harness::{ClauseResult, Harness},
};

clause! {
    /// Layer and service are `Send`, `Sync`, `Clone`, `Debug` and `'static`, futures and replies are
    /// `Send` and `'static`; nothing need be `Unpin`. The compiler checks these. `Debug` shows no part
    /// of a request.
    auto_traits, traits
}

async fn traits<E: Exchange, L: ContractedLayer<E>>(contract: &Contract<E, L>) -> ClauseResult {
    let mut harness = Harness::new(contract).await;
    shows_no_secret(&harness.layer, "the layer")?;
    let request = harness.request();
    let future = harness.call(request).await?;
    shows_no_secret(harness.service(), "the service, with a call under way")?;
    drop(future);
    let _ = harness.send_and_read().await?;
    shows_no_secret(harness.service(), "the service, after a call")?;
    shows_no_secret(&harness.layer, "the layer, after a call")
}

fn shows_no_secret<T: Debug + Send + Sync + Clone + 'static>(
    value: &T,
    what: &str,
) -> ClauseResult {
    let shown = format!("{value:?}{value:#?}");
    if shown.contains(SECRET) {
        return Err(format!("`Debug` of {what} shows a part of a request: {shown}"));
    }
    Ok(())
}
