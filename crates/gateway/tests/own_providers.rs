//! A gateway's providers: given by a program instead of its configuration, and reached by https.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use steadfast::{
    ChatRequest, Dialect,
    client::{Credential, Provider, Providers},
};
use steadfast_gateway::{config::Source, stack::Gateway};
use steadfast_sim::{Answer, SimProvider, SimServer};
use tokio::{io::AsyncReadExt, net::TcpListener};
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

#[tokio::test]
async fn they_are_asked_by_https() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let source = Source::text(format!(
        "[[providers]]\nname = 'p'\ndialect = 'openai'\nbase_url = 'https://{at}/v1'\n\
         models = {{ '*' = 'gpt-4o' }}\n"
    ));
    let config = source.parse().unwrap();
    let gateway = Gateway::connect(&config, &source).unwrap();
    let request = ChatRequest::user("who?");
    let asked = gateway.route(&request).service().oneshot(request);
    let first = async {
        let mut stream = listener.accept().await.unwrap().0;
        stream.read_u8().await.unwrap()
    };
    let first = tokio::select! {
        first = first => first,
        ended = asked => panic!("{ended:?}"),
    };
    assert_eq!(first, 0x16, "a handshake");
}
