//! Who may speak to the store, and over what.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::{path::Path, process::Command};

use common::{Server, eventually, shared};
use steadfast_core::shared::SharedState;
use steadfast_redis::{RedisConfig, RedisState};
use steadfast_testkit::shared_state;
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_of_the_documentation_may_do_all_that_is_needed() {
    let server = Server::start().await;
    let line: Vec<_> = include_str!("../src/acl.txt").split_whitespace().collect();
    assert_eq!(server.cli(&line), "OK");
    let url = format!("redis://gateway:password@127.0.0.1:{}", server.port);
    shared_state::contract(async |name| {
        let config = RedisConfig::new(&url).with_node(name);
        shared(RedisState::connect(config).unwrap())
    })
    .await;
    assert_eq!(server.cli(&["ACL", "LOG"]), "", "nothing was refused");

    let elsewhere = RedisConfig::new(&url).with_prefix("another");
    let refused = RedisState::connect(elsewhere).unwrap();
    let error = || refused.away().map(|cause| cause.to_string()).unwrap_or_default();
    eventually("it may not touch another's", || error().contains("refuses this node")).await;
    assert!(!error().contains("password@"), "{}", error());
}

#[tokio::test]
async fn a_store_may_be_on_the_same_machine() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket").to_str().unwrap().to_owned();
    let _server = Server::start_with(&["--unixsocket", &socket]).await;
    let node = RedisState::connect(RedisConfig::new(format!("unix://{socket}"))).unwrap();
    eventually("it has joined", || !node.is_away()).await;
    assert_eq!(node.fleet().store.name, socket);
}

#[tokio::test]
async fn a_store_with_tls_is_trusted_by_its_certificate() {
    let folder = certificates();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let options = [
        "--port",
        "0",
        "--tls-port",
        "{port}",
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "optional",
    ];
    let server = Server::start_with(&options).await;
    let config = RedisConfig::new(format!("rediss://localhost:{}", server.port));
    let read = |name: &str| std::fs::read(path(name)).unwrap();

    let known = RedisState::connect(config.clone().with_ca(read("ca.pem"))).unwrap();
    eventually("it is known", || !known.is_away()).await;

    let unknown = RedisState::connect(config.clone()).unwrap();
    let error = || unknown.away().map(|cause| cause.to_string()).unwrap_or_default();
    eventually("nobody has signed it", || error().contains("certificate")).await;
    println!("{}", error());
    assert!(unknown.is_away());

    let mut mutual = config.with_ca(read("ca.pem"));
    mutual.client_certificate = Some((read("server.pem"), read("server.key")));
    let mutual = RedisState::connect(mutual).unwrap();
    eventually("both are known", || !mutual.is_away() && mutual.nodes() == 2).await;
}

/// A certificate for `localhost`, and that of who has signed it.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let ca = ["req", "-x509", "-subj", "/CN=a test", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(folder.path(), &[&ca[..], &curve[..]].concat());
    let request = ["req", "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"];
    openssl(folder.path(), &[&request[..], &curve[..]].concat());
    std::fs::write(folder.path().join("names"), "subjectAltName=DNS:localhost").unwrap();
    let sign = [
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-extfile",
        "names",
        "-out",
        "server.pem",
    ];
    openssl(folder.path(), &sign);
    folder
}

fn openssl(folder: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
