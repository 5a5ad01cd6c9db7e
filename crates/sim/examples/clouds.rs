//! Each platform on a port of its own, for the vendors' SDKs: `cargo run --features clouds --example clouds`.
//!
//! It prints a line for each: platform, dialect and base URL. The keys and tokens are in the constants.

use steadfast_sim::{
    Answer, AwsSigner, Dialect, Model, SimPlatform, SimProvider, SimProviderBuilder, SimServer,
};

/// Keys of Azure and Bedrock, tokens of Azure and Vertex AI.
const KEYS: [&str; 2] = ["bedrock-api-key-example", "token-example"];
const ACCESS_KEY_ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const REGION: &str = "us-east-1";
const MODELS: [&str; 2] =
    ["us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5@20250929"];

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let bedrock = || {
        let temporary = AwsSigner::new("ASIATEMPORARY", SECRET).with_session_token("session-token");
        SimPlatform::bedrock(REGION)
            .with_signer(AwsSigner::new(ACCESS_KEY_ID, SECRET))
            .with_signer(temporary)
    };
    let mut servers = Vec::new();
    for dialect in Dialect::ALL {
        for (name, provider) in [
            ("azure", builder(dialect).on(SimPlatform::azure())),
            ("azure-2024-10-21", builder(dialect).on(SimPlatform::azure_version("2024-10-21"))),
            ("vertex", builder(dialect).on(SimPlatform::vertex("my-project", "us-east5"))),
            ("bedrock", builder(dialect).on(bedrock())),
        ] {
            if dialect == Dialect::Gemini && name != "vertex" {
                continue;
            }
            let server = SimServer::local(provider.build()).await?;
            println!("{name} {dialect} {}", server.base_url());
            servers.push(server);
        }
    }
    println!("ready");
    std::future::pending().await
}

fn builder(dialect: Dialect) -> SimProviderBuilder {
    let builder = SimProvider::builder(dialect)
        .keys(KEYS)
        .respond(|_| Some(Answer::thinking("Hm.").then_text("It is naïve, 日本.")));
    MODELS
        .iter()
        .fold(builder, |builder, name| builder.with_model(Model::new(*name, 200_000, 64_000)))
}
