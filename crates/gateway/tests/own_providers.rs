//! A gateway whose providers are given by a program instead of its configuration.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use steadfast::{
    ChatRequest, Dialect,
    client::{Credential, Provider, Providers},
};
use steadfast_gateway::{config::Source, stack::Gateway};
use steadfast_sim::{Answer, SimProvider, SimServer};
use tower::ServiceExt;

#[tokio::test]
async fn they_replace_the_configured_ones() {
    let answer = |_: &steadfast_sim::SimRequest| Some(Answer::text("From the other one."));
    let provider = SimProvider::builder(Dialect::OpenAi).keys(["other"]).respond(answer).build();
    let server = SimServer::local(provider).await.unwrap();
    // Nobody answers there.
    let source = Source::text(
        "[[providers]]\nname = 'p'\ndialect = 'openai'\nbase_url = 'http://127.0.0.1:1'\n\
         models = { '*' = 'gpt-4o' }\n"
            .to_owned(),
    );
    let config = source.parse().unwrap();
    let own = Provider::new("p", Dialect::OpenAi)
        .with_base_url(server.base_url())
        .with_credential(Credential::new("main", "other"));
    let gateway =
        Gateway::with_providers(&config, &source, Providers::new([own]).unwrap()).unwrap();
    let request = ChatRequest::user("who?");
    let answer = gateway.route(&request).service().oneshot(request).await.unwrap();
    assert_eq!(answer.collect().await.unwrap().text(), "From the other one.");
    assert_eq!(gateway.chain(), ["p".into()]);
}
