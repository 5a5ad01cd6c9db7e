//! The binary in front of Bedrock with keys of AWS as its own tools have them: signed, streamed, and renewed when
//! they have run out.

#![cfg(all(unix, feature = "aws"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fs, path::Path, process::Command};

use serde_json::json;
use steadfast_core::Dialect;
use steadfast_sim::{
    Answer, AwsSigner, Model, SimPlatform, SimProvider, SimServer, default_models,
};

use self::process::{Running, address, file, finish, folder, http, steadfast, text};

mod process;

const MODEL: &str = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0";

/// What a command prints that gives keys: this id with its secret, for an hour.
fn keys(id: &str) -> String {
    json!({
        "Version": 1, "AccessKeyId": id, "SecretAccessKey": format!("secret-of-{id}"),
        "SessionToken": format!("session-of-{id}"), "Expiration": "2099-01-01T00:00:00Z",
    })
    .to_string()
}

async fn bedrock() -> SimServer {
    let known = default_models(Dialect::Anthropic).into_iter();
    let model = known.map(|known| Model { name: MODEL.to_owned(), ..known }).next().unwrap();
    let signer = |id: &str| {
        let session = format!("session-of-{id}");
        AwsSigner::new(id, format!("secret-of-{id}")).with_session_token(session)
    };
    let platform = SimPlatform::bedrock("eu-central-1")
        .with_signer(signer("AKIAFIRST"))
        .with_signer(signer("AKIASECOND"));
    let provider = SimProvider::builder(Dialect::Anthropic)
        .on(platform)
        .with_models([model])
        .respond(|_| Some(Answer::text("Signed and read.")))
        .build();
    SimServer::local(provider).await.unwrap()
}

/// The binary with `task`, whose keys a profile's command gives.
fn configured(folder: &Path, upstream: &str, task: &str) -> Command {
    let keys = folder.join("keys.json");
    let profile = format!("[profile models]\ncredential_process = /bin/cat {}\n", keys.display());
    let profile = file(folder, "aws", &profile);
    let config = format!(
        "[server]\nauth = \"none\"\nlisten = \"127.0.0.1:0\"\n\
         [[providers]]\nname = \"bedrock\"\nkind = \"bedrock\"\ndialect = \"anthropic\"\n\
         region = \"eu-central-1\"\nbase_url = \"{upstream}\"\n\
         credentials = [\"aws:profile/models\"]\nmodels = {{ \"*\" = \"{MODEL}\" }}\n"
    );
    let config = file(folder, "steadfast.toml", &config);
    let mut command = steadfast(&[task, "--config", &config]);
    command.env("AWS_CONFIG_FILE", profile).env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"] {
        command.env_remove(name);
    }
    command
}

fn serve(folder: &Path, upstream: &str) -> (Running, std::net::SocketAddr) {
    let command = configured(folder, upstream, "serve");
    let running = Running::start(command);
    let at = address(&running.line("serves on"));
    (running, at)
}

fn ask(at: std::net::SocketAddr, stream: bool) -> String {
    let body = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 100, "stream": stream,
        "messages": [{"role": "user", "content": "Say something."}],
    })
    .to_string();
    http(
        at,
        &format!(
            "POST /v1/messages HTTP/1.1\r\nhost: {at}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ),
    )
}

/// What can not be had is found by a check, without its secrets.
#[test]
fn a_check_fetches_credentials_of_a_cloud() {
    let folder = folder("bedrock-check");
    let kept = folder.join("keys.json");
    let check = || {
        let mut command = configured(&folder, "http://127.0.0.1:9", "check");
        command.arg("--fetch");
        let output = command.output().unwrap();
        assert!(!text(&output.stderr).contains("secret-of"), "{output:?}");
        (output.status.code(), text(&output.stderr).to_owned())
    };
    fs::write(&kept, keys("AKIAFIRST")).unwrap();
    let (code, printed) = check();
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("fetched: bedrock: aws:profile/models"), "{printed}");
    fs::write(&kept, "no keys").unwrap();
    let (code, printed) = check();
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("bedrock: aws:profile/models: "), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_profile_sign_and_are_read_again_when_they_have_run_out() {
    let folder = folder("bedrock");
    let sim = bedrock().await;
    fs::write(folder.join("keys.json"), keys("AKIAFIRST")).unwrap();
    let (running, at) = serve(&folder, &sim.base_url());
    let asked = |stream| tokio::task::spawn_blocking(move || ask(at, stream));
    for stream in [false, true] {
        let answer = asked(stream).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(answer.contains("event: message_stop"), stream, "{answer}");
    }
    assert!(sim.provider().expire_signer("AKIAFIRST"));
    fs::write(folder.join("keys.json"), keys("AKIASECOND")).unwrap();
    let answer = asked(true).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("client.credential_renewed"), "{answer}");
    let answer = asked(false).await.unwrap();
    assert!(answer.contains("Signed and read."), "{answer}");
    assert!(!answer.contains("x-steadfast-recovery"), "nothing rests: {answer}");

    // Keys that nobody takes are the operator's matter: the answer says so, and shows none of them.
    assert!(sim.provider().expire_signer("AKIASECOND"));
    let answer = asked(false).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("refused our credentials"), "{answer}");
    assert!(answer.contains("retry-after: 60"), "{answer}");
    running.terminate();
    let output = finish(running);
    for shown in [&answer, text(&output.stderr)] {
        assert!(!shown.contains("secret-of") && !shown.contains("session-of"), "{shown}");
    }
}
