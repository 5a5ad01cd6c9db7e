//! Tokens of Google Cloud.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use steadfast_client::{CredentialSource, TemporaryCredential};
use steadfast_cloud::GoogleSource;
use steadfast_core::Reason;
use tempfile::TempDir;

use crate::{
    endpoint::{Answer, Endpoint},
    fetched::{Fetched, SECRET, assert_failure, in_child, secrets},
};

/// A key made for these tests.
const KEY: &str = include_str!("../data/test-key.pem");

fn key_file(folder: &TempDir, token_uri: &str) -> PathBuf {
    let key = json!({
        "type": "service_account",
        "project_id": "p",
        "private_key": KEY,
        "client_email": "tests@p.iam.gserviceaccount.com",
        "token_uri": token_uri,
    });
    write(folder, &key)
}

fn write(folder: &TempDir, key: &Value) -> PathBuf {
    let path = folder.path().join("key.json");
    fs::write(&path, key.to_string()).unwrap();
    path
}

fn token(token: &str) -> Answer {
    let body = json!({"access_token": token, "expires_in": 3600, "token_type": "Bearer"});
    Answer::Status(200, body.to_string())
}

#[tokio::test]
async fn a_service_account_gives_a_token_with_its_end_and_a_new_one_each_time() {
    let folder = TempDir::new().unwrap();
    let endpoint = Endpoint::new([token("first"), token("second")]).await;
    let source = GoogleSource::service_account(key_file(&folder, &endpoint.url));

    let first = source.fetch().await.unwrap();
    assert_eq!(secrets(&first), ["first"]);
    let left = expires_in(&first).unwrap();
    assert!(left > Duration::from_secs(3_590) && left <= Duration::from_secs(3_600), "{left:?}");
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["second"]);

    let requests = endpoint.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[0].starts_with("POST / HTTP/1.1"), "{}", requests[0]);
    assert!(
        requests[0].contains("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer")
    );
}

#[tokio::test]
async fn a_key_that_was_rotated_is_read_anew() {
    let folder = TempDir::new().unwrap();
    let (old, new) = (Endpoint::new([token("old")]).await, Endpoint::new([token("new")]).await);
    let source = GoogleSource::service_account(key_file(&folder, &old.url));
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["old"]);
    key_file(&folder, &new.url);
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["new"]);
}

#[tokio::test]
async fn an_error_of_the_endpoint_passes() {
    let folder = TempDir::new().unwrap();
    let endpoint = Endpoint::new([Answer::Status(500, "{}".to_owned()), token("good")]).await;
    let source = GoogleSource::service_account(key_file(&folder, &endpoint.url));
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["good"]);
}

#[tokio::test]
async fn an_endpoint_that_gives_no_token_may_be_asked_again() {
    let folder = TempDir::new().unwrap();
    for (answer, part) in [
        (Answer::Status(503, SECRET.to_owned()), "token request failed"),
        (Answer::Status(200, format!("\"{SECRET}\"")), "its answer is no token"),
        // An end that no date can have.
        (
            Answer::Status(
                200,
                json!({"access_token": SECRET, "expires_in": u64::MAX}).to_string(),
            ),
            "can not handle",
        ),
    ] {
        let endpoint = Endpoint::new([answer]).await;
        let source = GoogleSource::service_account(key_file(&folder, &endpoint.url));
        let failure = source.fetch().await.unwrap_err();
        assert_failure(&failure, Reason::ServerError, &["no Google credentials", part]);
    }
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_the_networks() {
    let folder = TempDir::new().unwrap();
    let url = Endpoint::down().await;
    let source = GoogleSource::service_account(key_file(&folder, &url));
    let failure = source.fetch().await.unwrap_err();
    assert_failure(&failure, Reason::Network, &[&url, "refused"]);
}

#[tokio::test]
async fn a_fetch_that_is_dropped_is_over() {
    let folder = TempDir::new().unwrap();
    let mut endpoint = Endpoint::new([Answer::Never]).await;
    let source = GoogleSource::service_account(key_file(&folder, &endpoint.url));
    tokio::select! {
        fetched = source.fetch() => panic!("{fetched:?}"),
        () = endpoint.arrived() => {}
    }
    endpoint.hung_up().await;
    assert_eq!(endpoint.requests().len(), 1);
}

#[tokio::test]
async fn a_file_that_is_no_key_is_in_vain() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("key.json");
    let source = GoogleSource::service_account(&path);
    let shown = path.display().to_string();
    let failure = source.fetch().await.unwrap_err();
    assert_failure(&failure, Reason::Auth, &[&shown, "can not be read"]);

    let complete = json!({
        "type": "service_account",
        "private_key": KEY,
        "client_email": "a@b",
        "token_uri": "http://127.0.0.1:1",
    });
    let with = |name: &str, value: Value| {
        let mut key = complete.clone();
        key[name] = value;
        key.to_string()
    };
    for (text, part) in [
        (String::new(), "not the JSON of a key (line 1"),
        // The secret itself, and one where something else should be.
        (format!("\"{SECRET}\""), "not the JSON of a key"),
        (SECRET.to_owned(), "not the JSON of a key"),
        (with("client_email", json!([SECRET])), "lacks `client_email`"),
        (with("private_key", json!(SECRET)), "no RSA key"),
        (with("private_key", Value::Null), "lacks `client_email`, `private_key`"),
        (with("token_uri", json!("no address")), "`token_uri` that is no address"),
        (with("token_uri", json!("/path")), "`token_uri` that is no address"),
        (with("type", json!("authorized_user")), "type `authorized_user`"),
        (with("type", json!("external_account")), "type `external_account`"),
    ] {
        fs::write(&path, text).unwrap();
        let failure = source.fetch().await.unwrap_err();
        assert_failure(&failure, Reason::Auth, &[&shown, part, "right would be"]);
    }
}

#[tokio::test]
async fn the_chain_takes_the_key_that_the_environment_names() {
    let (folder, home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let endpoint = Endpoint::new([token("of the environment")]).await;
    let path = key_file(&folder, &endpoint.url).display().to_string();
    let home = home.path().display().to_string();
    let environment =
        [("GOOGLE_APPLICATION_CREDENTIALS", path), ("HOME", home), ("NO_GCE_CHECK", "true".into())];
    let fetched = in_child("google", &environment).await;
    assert_eq!(fetched, Fetched::Secrets(vec!["of the environment".to_owned()]));

    let [(name, _), home, check] = environment;
    let environment = [(name, "/no/such.json".to_owned()), home, check];
    in_child("google", &environment)
        .await
        .assert_failure(Reason::Auth, &["/no/such.json can not be read"]);
}

#[cfg(unix)]
#[tokio::test]
async fn the_chain_goes_on_to_the_default_file_and_to_gcloud() {
    let home = TempDir::new().unwrap();
    let bin = home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let shown = |path: &Path| path.display().to_string();
    let environment =
        [("HOME", shown(home.path())), ("NO_GCE_CHECK", "true".to_owned()), ("PATH", shown(&bin))];

    for script in
        [None, Some("echo You do not currently have an active account selected. >&2; exit 1")]
    {
        if let Some(script) = script {
            gcloud(&bin, script);
        }
        let nothing = in_child("google", &environment).await;
        nothing.assert_failure(Reason::Auth, &["GOOGLE_APPLICATION_CREDENTIALS is not set"]);
    }

    gcloud(&bin, "echo ya29.of-gcloud; echo done >&2");
    let fetched = in_child("google", &environment).await;
    assert_eq!(fetched, Fetched::Secrets(vec!["ya29.of-gcloud".to_owned()]));

    gcloud(&bin, "echo The account is gone >&2; exit 1");
    let failed = in_child("google", &environment).await;
    failed.assert_failure(Reason::ServerError, &["The account is gone"]);

    let folder = home.path().join(".config/gcloud");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("application_default_credentials.json");
    fs::write(&file, json!({"type": "authorized_user", "client_id": SECRET}).to_string()).unwrap();
    let incomplete = in_child("google", &environment).await;
    incomplete.assert_failure(Reason::Auth, &["lacks `client_id`, `client_secret`"]);

    let endpoint = Endpoint::new([token("of the default file")]).await;
    let keys = TempDir::new().unwrap();
    fs::copy(key_file(&keys, &endpoint.url), &file).unwrap();
    let fetched = in_child("google", &environment).await;
    assert_eq!(fetched, Fetched::Secrets(vec!["of the default file".to_owned()]));
}

#[test]
fn debug_shows_paths_alone() {
    let shown = format!("{:?}", GoogleSource::service_account("/etc/key.json"));
    assert_eq!(shown, "GoogleSource { service_account: \"/etc/key.json\" }");
    let shown = format!("{:?}", GoogleSource::default_chain());
    assert_eq!(shown, "GoogleSource { from: \"default chain\" }");
}

/// When it expires, by what its Debug shows.
fn expires_in(credential: &TemporaryCredential) -> Option<Duration> {
    let shown = format!("{credential:?}");
    let (_, seconds) = shown.split_once("tv_sec: ")?;
    let end: u64 = seconds.split(',').next()?.parse().ok()?;
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end);
    #[expect(clippy::disallowed_methods, reason = "the library takes the time from there")]
    let now = SystemTime::now();
    Some(end.duration_since(now).unwrap_or_default())
}

#[cfg(unix)]
fn gcloud(folder: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;

    let path = folder.join("gcloud");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}
