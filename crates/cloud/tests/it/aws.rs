//! Keys of AWS.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime},
};

use aws_credential_types::{
    Credentials,
    provider::{ProvideCredentials, error::CredentialsError, future},
};
use serde_json::json;
use steadfast_client::{CredentialSource, TemporaryCredential};
use steadfast_cloud::AwsSource;
use steadfast_core::Reason;
use tempfile::TempDir;

use crate::{
    endpoint::{Answer, Endpoint},
    fetched::{Fetched, SECRET, assert_failure, in_child, secrets},
};

/// An end far away: 2100-01-01, in seconds since 1970.
const END: u64 = 4_102_444_800;

fn config(folder: &TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("config");
    fs::write(&path, text).unwrap();
    path
}

fn with_static_keys(profile: &str, key: &str, secret: &str) -> String {
    format!("[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
}

#[cfg(unix)]
#[tokio::test]
async fn a_credential_process_runs_at_each_fetch() {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys.json");
    let rotate = |key: &str, secret: &str| {
        let printed = json!({
            "Version": 1,
            "AccessKeyId": key,
            "SecretAccessKey": secret,
            "SessionToken": format!("session of {key}"),
            "Expiration": "2100-01-01T00:00:00Z",
        });
        fs::write(&keys, printed.to_string()).unwrap();
    };
    let file = config(
        &folder,
        &format!("[profile models]\ncredential_process = cat {}\n", keys.display()),
    );
    let source = AwsSource::profile_in("models", file);

    rotate("AKIDONE", "one");
    let first = source.fetch().await.unwrap();
    assert_eq!(secrets(&first), ["one", "session of AKIDONE"]);
    let wanted = TemporaryCredential::aws("AKIDONE", "one", Some("session of AKIDONE".into()))
        .expires_at(SystemTime::UNIX_EPOCH + Duration::from_secs(END));
    assert_eq!(format!("{first:?}"), format!("{wanted:?}"), "the key and its end");

    rotate("AKIDTWO", "two");
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["two", "session of AKIDTWO"]);
}

#[tokio::test]
async fn a_profile_file_is_read_at_each_fetch() {
    let folder = TempDir::new().unwrap();
    let file = config(&folder, &with_static_keys("default", "AKIDONE", "one"));
    let source = AwsSource::profile_in("default", &file);
    let first = source.fetch().await.unwrap();
    assert_eq!(secrets(&first), ["one"]);
    assert!(format!("{first:?}").contains("expires: None"), "{first:?}");
    config(&folder, &with_static_keys("default", "AKIDTWO", "two"));
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["two"]);
}

#[tokio::test]
async fn a_profile_that_can_not_be_used_is_in_vain() {
    let folder = TempDir::new().unwrap();
    let sso = "[profile models]\nsso_start_url = https://x\nsso_region = eu-central-1\n\
               sso_account_id = 1\nsso_role_name = r\n";
    let container = "[profile models]\nrole_arn = arn:aws:iam::1:role/r\n\
                     credential_source = Missing\n";
    for (text, parts) in [
        ("", &["`models`", "credential_process"][..]),
        (&with_static_keys("profile other", "AKID", SECRET), &["`models`", "was not defined"]),
        ("[profile models]\nregion = eu-central-1\n", &["`models`", "credential_process"]),
        (&format!("{SECRET}\n"), &["invalid profile"]),
        (&format!("[profile models]\n{SECRET}\n"), &["invalid profile"]),
        (sso, &["sso", "aws configure export-credentials"]),
        (container, &["`Missing`"]),
    ] {
        let file = config(&folder, text);
        let shown = file.display().to_string();
        let failure = AwsSource::profile_in("models", file).fetch().await.unwrap_err();
        assert_failure(&failure, Reason::Auth, parts);
        assert_failure(&failure, Reason::Auth, &[&shown]);
    }
    let failure = AwsSource::profile_in("models", "/no/such/file").fetch().await.unwrap_err();
    assert_failure(&failure, Reason::Auth, &["could not read file `/no/such/file`"]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_credential_process_that_fails_may_be_run_again() {
    let folder = TempDir::new().unwrap();
    for (command, part) in [
        ("echo the session is over >&2; exit 3", "the session is over"),
        ("echo nothing useful", "could not parse response"),
    ] {
        let file = config(&folder, &format!("[default]\ncredential_process = {command}\n"));
        let failure = AwsSource::profile_in("default", file).fetch().await.unwrap_err();
        assert_failure(&failure, Reason::ServerError, &["`default`", part]);
    }
}

#[derive(Debug, Default)]
struct Counting(AtomicU32);

impl ProvideCredentials for Counting {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let keys = match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(Credentials::new("AKID", "of a provider", None, None, "test")),
            1 => Err(CredentialsError::provider_timed_out(Duration::from_secs(5))),
            2 => Err(CredentialsError::unhandled("what nobody expects")),
            _ => Err(CredentialsError::not_loaded_no_source()),
        };
        future::ProvideCredentials::ready(keys)
    }
}

#[tokio::test]
async fn a_provider_is_asked_at_each_fetch() {
    let source = AwsSource::from_provider(Counting::default());
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["of a provider"]);
    for (reason, part) in [
        (Reason::Timeout, "timed out after 5 seconds"),
        (Reason::ServerError, "what nobody expects"),
        (Reason::Auth, "from the provider of them"),
    ] {
        assert_failure(&source.fetch().await.unwrap_err(), reason, &[part]);
    }
}

#[test]
fn debug_shows_names_alone() {
    #[derive(Debug)]
    struct Talkative(#[expect(dead_code, reason = "Debug shows it")] &'static str);
    impl ProvideCredentials for Talkative {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::ready(Err(CredentialsError::not_loaded_no_source()))
        }
    }
    let shown = format!(
        "{:?} {:?} {:?}",
        AwsSource::from_provider(Talkative(SECRET)),
        AwsSource::profile("models"),
        AwsSource::default_chain(),
    );
    assert_eq!(
        shown,
        "AwsSource { from: \"provider\" } AwsSource { profile: \"models\", file: None } \
         AwsSource { from: \"default chain\" }"
    );
}

/// A home that has nothing, and no metadata service.
fn bare(home: &TempDir) -> Vec<(&'static str, String)> {
    vec![
        ("HOME", home.path().display().to_string()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ]
}

#[tokio::test]
async fn nothing_configured_is_in_vain_and_names_what_would_be_right() {
    let home = TempDir::new().unwrap();
    let fetched = in_child("aws", &bare(&home)).await;
    let parts = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "container"];
    fetched.assert_failure(Reason::Auth, &parts);
}

#[tokio::test]
async fn the_chain_takes_the_environment_then_the_profile() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join(".aws");
    fs::create_dir(&folder).unwrap();
    let file = with_static_keys("default", "AKID", "of the profile") + "region = eu-west-3\n";
    fs::write(folder.join("config"), file).unwrap();
    let mut environment = bare(&home);
    let of = |secret: &str| Fetched::Secrets(vec![secret.to_owned()]);
    assert_eq!(in_child("aws", &environment).await, of("of the profile"));
    assert_eq!(in_child("aws region", &environment).await, of("eu-west-3"));
    environment.push(("AWS_ACCESS_KEY_ID", "AKID".to_owned()));
    environment.push(("AWS_SECRET_ACCESS_KEY", "of the environment".to_owned()));
    environment.push(("AWS_REGION", "eu-north-1".to_owned()));
    assert_eq!(in_child("aws", &environment).await, of("of the environment"));
    assert_eq!(in_child("aws region", &environment).await, of("eu-north-1"));
    environment.push(("AWS_PROFILE", "missing".to_owned()));
    assert_eq!(in_child("aws", &environment).await, of("of the environment"));
    environment.retain(|(name, _)| *name != "AWS_SECRET_ACCESS_KEY");
    in_child("aws", &environment)
        .await
        .assert_failure(Reason::Auth, &["`missing` was not defined"]);
}

#[tokio::test]
async fn a_container_gives_keys_by_its_endpoint() {
    let home = TempDir::new().unwrap();
    let keys = json!({
        "AccessKeyId": "ASIA",
        "SecretAccessKey": "of the container",
        "Token": "session of the container",
        "Expiration": "2100-01-01T00:00:00Z",
    });
    let failing = Answer::Status(500, "{}".to_owned());
    let endpoint = Endpoint::new([failing, Answer::Status(200, keys.to_string())]).await;
    let mut environment = bare(&home);
    environment.push(("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/keys", endpoint.url)));
    environment.push(("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod".to_owned()));
    let wanted = ["of the container", "session of the container"].map(str::to_owned).to_vec();
    assert_eq!(in_child("aws", &environment).await, Fetched::Secrets(wanted));
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 2, "it is asked again at once");
    assert!(requests[1].starts_with("GET /keys HTTP/1.1"), "{}", requests[1]);
    assert!(requests[1].contains("authorization: pod"), "{}", requests[1]);
}

#[tokio::test]
async fn an_instance_gives_keys_by_its_metadata_service() {
    let home = TempDir::new().unwrap();
    let keys = json!({
        "Code": "Success",
        "AccessKeyId": "ASIA",
        "SecretAccessKey": "of the instance",
        "Token": "session of the instance",
        "Expiration": "2100-01-01T00:00:00Z",
    });
    let script = ["a token of the service".to_owned(), "the-role".to_owned(), keys.to_string()];
    let endpoint = Endpoint::new(script.map(|body| Answer::Status(200, body))).await;
    let at = |url: &str| {
        vec![
            ("HOME", home.path().display().to_string()),
            ("AWS_REGION", "eu-central-1".to_owned()),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.to_owned()),
        ]
    };
    let wanted = ["of the instance", "session of the instance"].map(str::to_owned).to_vec();
    assert_eq!(in_child("aws", &at(&endpoint.url)).await, Fetched::Secrets(wanted));
    let requests = endpoint.requests();
    assert!(requests[0].starts_with("PUT /latest/api/token "), "{}", requests[0]);
    assert!(requests[2].contains("/security-credentials/the-role "), "{}", requests[2]);

    let outside = in_child("aws", &at(&Endpoint::down().await)).await;
    outside.assert_failure(Reason::Auth, &["EC2 instance"]);

    let forbidden = Endpoint::new([Answer::Status(403, String::new())]).await;
    let disabled = in_child("aws", &at(&forbidden.url)).await;
    disabled.assert_failure(Reason::Auth, &["IMDS is disabled", "EC2 instance"]);
}

#[tokio::test]
async fn a_container_without_keys_may_be_asked_again_unless_it_is_described_wrongly() {
    let home = TempDir::new().unwrap();
    let fetch_by = async |url: String, name: &'static str, value: String| {
        let mut environment = bare(&home);
        environment.push(("AWS_CONTAINER_CREDENTIALS_FULL_URI", url));
        environment.push((name, value));
        in_child("aws", &environment).await
    };
    let token = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
    let url = Endpoint::down().await;
    let down = fetch_by(url.clone(), token, "pod".to_owned()).await;
    down.assert_failure(Reason::Network, &["refused"]);

    let endpoint = Endpoint::new([Answer::Status(403, SECRET.to_owned())]).await;
    let refused = fetch_by(endpoint.url.clone(), token, "pod".to_owned()).await;
    refused.assert_failure(Reason::ServerError, &["403"]);

    // The library shows the token in its message.
    let malformed = fetch_by(url.clone(), token, format!("{SECRET}\n")).await;
    malformed.assert_failure(Reason::Auth, &["AWS_CONTAINER_AUTHORIZATION_TOKEN"]);
    let file = fetch_by(url, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/no/file".into()).await;
    file.assert_failure(Reason::Auth, &["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "No such file"]);

    let elsewhere = fetch_by("http://192.0.2.1/keys".to_owned(), token, "pod".into()).await;
    elsewhere.assert_failure(Reason::Auth, &["AWS_ACCESS_KEY_ID"]);
}

#[tokio::test]
async fn a_fetch_that_is_dropped_is_over() {
    let folder = TempDir::new().unwrap();
    let mut endpoint = Endpoint::new([Answer::Never]).await;
    let token = folder.path().join("token");
    fs::write(&token, "a web identity").unwrap();
    let file = config(&folder, &web_identity(&token, &endpoint.url));
    let source = AwsSource::profile_in("default", file);
    tokio::select! {
        fetched = source.fetch() => panic!("{fetched:?}"),
        () = endpoint.arrived() => {}
    }
    endpoint.hung_up().await;
    assert_eq!(endpoint.requests().len(), 1);
}

#[tokio::test]
async fn a_web_identity_is_exchanged_by_sts() {
    let folder = TempDir::new().unwrap();
    let answer = "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
        <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIA</AccessKeyId>\
        <SecretAccessKey>of sts</SecretAccessKey><SessionToken>session of sts</SessionToken>\
        <Expiration>2100-01-01T00:00:00Z</Expiration></Credentials>\
        </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
    let denied = "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>\
        <Message>Not authorized to perform sts:AssumeRoleWithWebIdentity</Message></Error>\
        </ErrorResponse>";
    let script = [Answer::Status(200, answer.to_owned()), Answer::Status(403, denied.to_owned())];
    let endpoint = Endpoint::new(script).await;
    let token = folder.path().join("token");
    let file = config(&folder, &web_identity(&token, &endpoint.url));
    let source = AwsSource::profile_in("default", file);

    let failure = source.fetch().await.unwrap_err();
    assert_failure(&failure, Reason::Auth, &["a file", "AWS_WEB_IDENTITY_TOKEN_FILE"]);

    fs::write(&token, SECRET).unwrap();
    assert_eq!(secrets(&source.fetch().await.unwrap()), ["of sts", "session of sts"]);
    assert!(endpoint.requests()[0].contains("Action=AssumeRoleWithWebIdentity"));
    let failure = source.fetch().await.unwrap_err();
    assert_failure(&failure, Reason::ServerError, &["AccessDenied"]);
}

fn web_identity(token: &Path, endpoint: &str) -> String {
    format!(
        "[default]\nregion = eu-central-1\nrole_arn = arn:aws:iam::1:role/r\n\
         web_identity_token_file = {}\nendpoint_url = {endpoint}\n",
        token.display()
    )
}
