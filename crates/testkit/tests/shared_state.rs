//! The embedded store is a store.

use std::sync::Arc;

use steadfast_core::shared::{EmbeddedStore, SharedState};
use steadfast_testkit::shared_state;

#[tokio::test(start_paused = true)]
async fn the_embedded_store_keeps_the_contract() {
    let store = EmbeddedStore::new();
    shared_state::contract(async |name| Arc::new(store.join(name)) as Arc<dyn SharedState>).await;
}
