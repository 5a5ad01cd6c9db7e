//! A stack around a client that does not know all of its chain.
#![cfg(all(feature = "stack", feature = "client"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use steadfast::{
    Dialect, Stack,
    client::{LlmClient, Provider, Providers},
    failover::{Chain, CooldownFailoverLayer},
};

#[tokio::test]
async fn a_provider_that_nobody_knows_is_an_error_at_the_start() {
    let provider = |name| Provider::new(name, Dialect::OpenAi).without_credential();
    let client = || LlmClient::new(Providers::new([provider("one"), provider("two")]).unwrap());
    let chain = |names: &[&str]| Chain::new(names.iter().copied()).unwrap();
    assert!(Stack::new(chain(&["two", "one"])).connect(client()).is_ok());

    let error = Stack::new(chain(&["one", "three"])).connect(client()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the chain names the provider `three`, which the client does not know; it knows: one, two"
    );
    // In a chain that only some requests take, too.
    let failover =
        CooldownFailoverLayer::new(chain(&["one"])).with_chain("other", chain(&["four"]));
    assert_eq!(Stack::around(failover).connect(client()).unwrap_err().provider, "four");
}
