//! What the compiler reports to those who forget something: it names what to add.

#![cfg(feature = "stack")]

use std::{env, error::Error, fmt::Write, fs, path::Path, process::Command};

/// Layers that take any request and any reply.
const LAYERS: [(&str, &str); 4] = [
    ("retry", "retry::RetryBackoffLayer::default()"),
    ("breaker", "breaker::CircuitBreakerLayer::default()"),
    ("failover", "failover::CooldownFailoverLayer::new(chain)"),
    ("timeout", "timeout::StallTimeoutLayer::default()"),
];

/// What is forgotten: the inner service, and what the message has to name.
const FORGOTTEN: [(&str, &str, &str); 3] = [
    ("plain", "|_: Request| async { Ok::<_, Failure>(\"a plain value\") }", "`.at_once()`"),
    (
        "error",
        "|_: Request| async { Err::<Reply, _>(OwnError) }",
        "`ServiceBuilder::new().layer(..).map_err(",
    ),
    (
        "request",
        "|_: OwnRequest| async { Ok::<_, Failure>(Reply::new(String::new())) }",
        "`WithContext::new(request)`",
    ),
];

const MANIFEST: &str = r#"
[package]
name = "messages"
edition = "2024"

[workspace]

[dependencies]
http = "1"
tower = { version = "0.5", features = ["util"] }
"#;

fn program(layer: &str, inner: &str, request: &str) -> String {
    format!(
        "use steadfast::*;
         type Request = http::Request<()>;
         type Reply = http::Response<String>;
         #[derive(Debug)] struct OwnError;
         #[derive(Clone)] struct OwnRequest;
         fn used<R, S: tower::Service<R>>(_: S) {{}}
         fn main() {{
             let chain = failover::Chain::new([\"any\"]).unwrap();
             let inner = tower::service_fn({inner});
             used::<{request}, _>(tower::ServiceBuilder::new().layer({layer}).service(inner));
         }}"
    )
}

#[test]
fn the_compiler_names_what_is_missing() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("messages");
    let bins = package.join("src/bin");
    if package.exists() {
        fs::remove_dir_all(package.join("src"))?;
    }
    fs::create_dir_all(&bins)?;
    fs::copy(root.join("../../Cargo.lock"), package.join("Cargo.lock"))?;
    let mut manifest = MANIFEST.to_owned();
    writeln!(manifest, "[dependencies.steadfast]\npath = {root:?}\ndefault-features = false")?;
    writeln!(manifest, r#"features = ["classify", "retry", "breaker", "failover", "timeout"]"#)?;
    fs::write(package.join("Cargo.toml"), manifest)?;

    let mut cases = Vec::new();
    for (name, layer) in LAYERS {
        for (forgotten, inner, names) in FORGOTTEN {
            cases.push((format!("{name}_{forgotten}"), layer, inner, names));
        }
    }
    let [_, (_, own_error, _), _] = FORGOTTEN;
    cases.push((
        "classify_error".to_owned(),
        "classify::ClassifyLayer::http()",
        own_error,
        "`.map_err(",
    ));
    for (name, layer, inner, _) in &cases {
        let request = if name.ends_with("request") { "OwnRequest" } else { "Request" };
        fs::write(bins.join(format!("{name}.rs")), program(layer, inner, request))?;
    }

    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--offline", "--keep-going", "--color=never"]).current_dir(&package);
    let output = cargo.env("CARGO_TARGET_DIR", package.join("target")).output()?;
    let report = String::from_utf8(output.stderr)?;
    for (name, _, _, names) in &cases {
        let file = format!("src/bin/{name}.rs:");
        let named =
            report.split("\n\n").any(|error| error.contains(&file) && error.contains(names));
        assert!(named, "{name}: {names} is not in\n{report}");
    }
    Ok(())
}
