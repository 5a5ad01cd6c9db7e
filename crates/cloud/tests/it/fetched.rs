//! Fetches, in this process or in one whose environment is the test's.

use steadfast_client::{CredentialSource, TemporaryCredential};
use steadfast_core::{Failure, Reason};
use tokio::process::Command;

/// What stands for a secret in these tests: no message and no Debug may show one.
pub(crate) const SECRET: &str = "hidden-from-everybody";

/// How the private key of the tests begins.
const KEY_HEAD: &str = "MIIEvAIBADANBgkqhkiG";

/// Names the source that a process of its own fetches from.
const CHILD: &str = "STEADFAST_CLOUD_TEST_SOURCE";

/// The secrets of a credential, as text.
pub(crate) fn secrets(credential: &TemporaryCredential) -> Vec<String> {
    credential.secrets().map(|secret| secret.expose().to_owned()).collect()
}

/// A refusal that names all of `parts`, and shows no secret.
#[track_caller]
pub(crate) fn assert_failure(failure: &Failure, reason: Reason, parts: &[&str]) {
    assert_eq!(failure.reason(), reason, "{failure}");
    // In vain to ask again, and nobody was asked.
    assert_eq!(failure.attempts() == 0, reason == Reason::Auth, "{failure}");
    for part in parts {
        assert!(failure.message().contains(part), "no `{part}` in: {failure}");
    }
    assert!(!format!("{failure} {failure:?}").contains(SECRET), "{failure:?}");
}

/// What a fetch in a process of its own gave: the reason and message of the failure, or the credential's secrets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    Secrets(Vec<String>),
    Failure(String, String),
}

impl Fetched {
    /// It failed for `reason`, and the message has all of `parts`.
    #[track_caller]
    pub(crate) fn assert_failure(&self, reason: Reason, parts: &[&str]) {
        let Self::Failure(found, message) = self else { panic!("{self:?}") };
        assert_eq!(found, reason.as_str(), "{message}");
        for part in parts {
            assert!(message.contains(part), "no `{part}` in: {message}");
        }
    }
}

/// Fetches from the source `name` in a process that has the environment `variables` and no other, and
/// that logs everything: no secret is in it.
pub(crate) async fn in_child(name: &str, variables: &[(&'static str, String)]) -> Fetched {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["fetched::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env_clear()
        .env(CHILD, name)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .await
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    let (_, line) = out.split_once("fetched: ").expect(&out);
    let fields: Vec<String> = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(!log.contains(SECRET) && !log.contains(KEY_HEAD), "{log}");
    match fields.split_first().unwrap() {
        (kind, secrets) if kind == "secrets" => {
            assert!(!secrets.iter().any(|secret| log.contains(secret)), "{log}");
            Fetched::Secrets(secrets.to_vec())
        }
        (_, failure) => Fetched::Failure(failure[0].clone(), failure[1].clone()),
    }
}

#[tokio::test]
#[ignore = "the others run it, in a process of its own"]
async fn child() {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .init();
    let source: Box<dyn CredentialSource> = match std::env::var(CHILD).as_deref() {
        #[cfg(feature = "aws")]
        Ok("aws") => Box::new(steadfast_cloud::AwsSource::default_chain()),
        #[cfg(feature = "google")]
        Ok("google") => Box::new(steadfast_cloud::GoogleSource::default_chain()),
        #[cfg(feature = "aws")]
        Ok("aws region") => {
            let region = steadfast_cloud::aws_region().await.unwrap_or_default();
            return print(&["secrets", &region]);
        }
        _ => return,
    };
    match source.fetch().await {
        Ok(credential) => {
            let secrets = secrets(&credential);
            let shown = ["secrets"].into_iter().chain(secrets.iter().map(String::as_str));
            print(&shown.collect::<Vec<_>>());
        }
        Err(failure) => {
            let shown = format!("{failure} {failure:?}");
            assert!(!shown.contains(SECRET), "{shown}");
            print(&["failure", failure.reason().as_str(), failure.message()]);
        }
    }
}

fn print(fields: &[&str]) {
    println!("fetched: {}", serde_json::to_string(fields).unwrap());
}
