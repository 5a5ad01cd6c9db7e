//! What a model may touch: paths with links and `..`, hosts, sizes, profiles.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use steadfast_chat::{ToolCall, ToolFailureKind, ToolRequest, ToolResult};
use steadfast_core::{CallContext, Failure};
use steadfast_tool::{AccessPolicy, AccessProfile, PolicyError, ToolArguments, ToolPolicyLayer};
use tower::{Layer, ServiceExt, service_fn};

/// A folder with a project in it, and something beside it; removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("steadfast-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("project/src")).unwrap();
        fs::create_dir_all(folder.join("other")).unwrap();
        fs::write(folder.join("project/src/a.rs"), "fn main() {}").unwrap();
        fs::write(folder.join("project/large.txt"), vec![b'x'; 2_000]).unwrap();
        fs::write(folder.join("other/secret"), "secret").unwrap();
        let folder = fs::canonicalize(folder).unwrap();
        let link = |to: &str, at: &str| symlink(to, folder.join("project").join(at)).unwrap();
        link("../other", "out");
        link("../other/secret", "leak");
        link("src", "in");
        link("round", "round");
        link("/", "root");
        symlink(folder.join("project"), folder.join("alias")).unwrap();
        Self(folder)
    }

    fn path(&self, path: &str) -> String {
        self.0.join(path).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Asked {
    result: ToolResult,
    made: bool,
}

impl Asked {
    fn text(&self) -> &str {
        self.result.content[0].as_text().unwrap()
    }
}

/// Whether the call was made, and the result.
async fn ask(layer: &ToolPolicyLayer, agent: Option<&str>, tool: &str, arguments: &str) -> Asked {
    let made = Arc::new(AtomicU32::new(0));
    let runs = {
        let made = made.clone();
        service_fn(move |request: ToolRequest| {
            made.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, Failure>(ToolResult::of(&request.call, "done")) }
        })
    };
    let call = ToolCall { name: tool.into(), arguments: arguments.into(), ..ToolCall::default() };
    let mut context = CallContext::recording();
    if let Some(agent) = agent {
        context = context.with_agent(agent);
    }
    let log = context.log.clone();
    let result = layer.layer(runs).oneshot(ToolRequest::new(context, call)).await.unwrap();
    let made = made.load(Ordering::Relaxed) == 1;
    assert_eq!(result.failure_kind(), (!made).then_some(ToolFailureKind::Refused));
    assert_eq!(log.is_empty(), made, "a refusal is a step");
    Asked { result, made }
}

fn within(roots: &[&Path]) -> AccessProfile {
    let roots = roots.iter().map(|root| root.to_path_buf()).collect();
    AccessProfile { roots: Some(roots), ..AccessProfile::default() }
}

#[tokio::test]
async fn paths_are_followed_before_they_are_compared() {
    let folder = Folder::new("paths");
    let root = folder.0.join("project");
    let layer = ToolPolicyLayer::new(AccessPolicy::of(within(&[&root]))).unwrap();
    let by_alias =
        ToolPolicyLayer::new(AccessPolicy::of(within(&[&folder.0.join("alias")]))).unwrap();
    for (path, allowed) in [
        (folder.path("project/src/a.rs"), true),
        (folder.path("project"), true),
        (folder.path("alias/src/a.rs"), true),
        ("src/a.rs".into(), true),
        ("./src/../src/a.rs".into(), true),
        ("in/a.rs".into(), true),
        ("new/file/not/there.rs".into(), true),
        (String::new(), true),
        (format!("file://{}", folder.path("project/src/a.rs")), true),
        ("nothing/../../other/secret".into(), false),
        ("../other/secret".into(), false),
        ("src/../../other/secret".into(), false),
        // `..` behind a link leads out, although it does not by its text.
        ("out/../project/src/a.rs".into(), true),
        ("root/../etc/passwd".into(), false),
        ("leak".into(), false),
        ("out/secret".into(), false),
        ("out/new".into(), false),
        ("round/a".into(), false),
        (folder.path("other/secret"), false),
        (folder.path("project-2/a"), false),
        (folder.path("projec"), false),
        ("/etc/passwd".into(), false),
        ("~/.ssh/id_ed25519".into(), false),
        ("..\\other\\secret".into(), false),
    ] {
        let arguments = serde_json::json!({ "path": path }).to_string();
        for layer in [&layer, &by_alias] {
            let asked = ask(layer, None, "read_file", &arguments).await;
            assert_eq!(asked.made, allowed, "{path}: {}", asked.text());
        }
    }
    assert_eq!(layer.refused(), 14);
}

#[tokio::test]
async fn a_folder_in_a_root_may_be_refused() {
    let folder = Folder::new("refused");
    let root = folder.0.join("project");
    fs::create_dir(root.join(".state")).unwrap();
    symlink(".state", root.join("by-link")).unwrap();
    // Also where any other file may be used, and where the folder is named by a link.
    for roots in [Some(vec![root.clone()]), None] {
        for refused in [root.join(".state"), folder.0.join("alias/by-link")] {
            let layer = ToolPolicyLayer::new(AccessPolicy::of(AccessProfile {
                roots: roots.clone(),
                refused_paths: vec![refused],
                base: Some(root.clone()),
                ..AccessProfile::default()
            }));
            let layer = layer.unwrap();
            for (path, allowed) in [
                ("src/a.rs".to_owned(), true),
                (".state-2/log".into(), true),
                (".state".into(), false),
                (".state/new".into(), false),
                ("src/../.state/log".into(), false),
                ("by-link/log".into(), false),
                (folder.path("alias/.state/log"), false),
                (format!("file://{}", folder.path("project/.state")), false),
            ] {
                let arguments = serde_json::json!({ "path": path }).to_string();
                let asked = ask(&layer, None, "write_file", &arguments).await;
                assert_eq!(asked.made, allowed, "{path}: {}", asked.text());
                assert!(
                    allowed || asked.text().contains("is not for its tools"),
                    "{}",
                    asked.text()
                );
            }
        }
    }
}

#[tokio::test]
async fn every_argument_that_names_something_is_checked() {
    let folder = Folder::new("arguments");
    let root = folder.0.join("project");
    let mut policy = AccessPolicy::of(AccessProfile {
        hosts: Some(vec!["docs.rs".into()]),
        max_file_bytes: Some(1_000),
        refused_tools: vec!["run_command".into()],
        ..within(&[&root])
    });
    let mine = ToolArguments { paths: vec!["where".into()], ..ToolArguments::default() };
    policy.arguments.insert("mine".into(), mine);
    let layer = ToolPolicyLayer::new(policy).unwrap();
    let long = format!(r#"{{"path":"new.txt","content":"{}"}}"#, "x".repeat(1_001));
    for (tool, arguments, refused) in [
        ("read_file", r#"{"path":"src/a.rs","offset":3}"#, None),
        ("read_file", r#"{"path":"src/a.rs","path":"/etc/passwd"}"#, Some("outside")),
        ("read_file", r#"{"path":"/etc/passwd","path":"src/a.rs"}"#, Some("outside")),
        ("read_file", r#"{"p\u0061th":"/etc/passwd"}"#, Some("outside")),
        ("read_many", r#"{"paths":["src/a.rs","../other/secret"]}"#, Some("outside")),
        ("edit", r#"{"edits":[{"file_path":"/etc/passwd"}]}"#, Some("outside")),
        ("read_file", r#"{"path":"src/a.rs"} trailing"#, Some("not a JSON object")),
        ("read_file", r#"["/etc/passwd"]"#, Some("not a JSON object")),
        ("list", "", None),
        ("other", r#"{"where":"/etc/passwd"}"#, None),
        ("mine", r#"{"where":"/etc/passwd"}"#, Some("outside")),
        ("read_file", r#"{"path":"large.txt"}"#, Some("2000 bytes")),
        ("write_file", &long, Some("1001 bytes")),
        ("fetch", r#"{"url":"https://docs.rs/tower"}"#, None),
        ("fetch", r#"{"url":"https://evil.test/?docs.rs"}"#, Some("It may call `docs.rs`")),
        ("Run_Command", r#"{"command":"ls"}"#, Some("may not use this tool")),
    ] {
        let asked = ask(&layer, None, tool, arguments).await;
        assert_eq!(asked.made, refused.is_none(), "{tool} {arguments}");
        if let Some(refused) = refused {
            let begins = format!("`{tool}` was not called. ");
            assert!(asked.text().starts_with(&begins), "{}", asked.text());
            assert!(asked.text().contains(refused), "{}", asked.text());
        }
    }
}

#[tokio::test]
async fn each_agent_has_its_profile() {
    let folder = Folder::new("profiles");
    let (project, other) = (folder.0.join("project"), folder.0.join("other"));
    let mut policy = AccessPolicy::of(within(&[&project]));
    policy.profiles.insert("auditor".into(), within(&[&project, &other]));
    policy.profiles.insert("nobody".into(), within(&[]));
    let layer = ToolPolicyLayer::new(policy).unwrap();
    let secret = serde_json::json!({ "path": folder.path("other/secret") }).to_string();
    let source = serde_json::json!({ "path": folder.path("project/src/a.rs") }).to_string();
    for (agent, arguments, allowed) in [
        (None, &source, true),
        (None, &secret, false),
        (Some("auditor"), &secret, true),
        (Some("somebody"), &secret, false),
        (Some("nobody"), &source, false),
    ] {
        let asked = ask(&layer, agent, "read_file", arguments).await;
        assert_eq!(asked.made, allowed, "{agent:?} {arguments}");
    }
    let nobody = ask(&layer, Some("nobody"), "read_file", &source).await;
    assert!(nobody.text().ends_with("It may use no files."), "{}", nobody.text());
}

#[test]
fn invalid_policies_are_refused_with_a_message() {
    let of = |profile| AccessPolicy::of(profile);
    let relative = AccessProfile { roots: Some(vec!["src".into()]), ..AccessProfile::default() };
    let refused =
        AccessProfile { refused_paths: vec![".state".into()], ..AccessProfile::default() };
    let host = AccessProfile { hosts: Some(vec!["https://a".into()]), ..AccessProfile::default() };
    let zero = AccessProfile { max_file_bytes: Some(0), ..AccessProfile::default() };
    let missing = AccessPolicy { default: "x".into(), ..AccessPolicy::default() };
    for (policy, says) in [
        (of(relative), "`roots` `src` of the profile `default` is not absolute"),
        (of(refused), "`refused_paths` `.state` of the profile `default` is not absolute"),
        (of(host), "`https://a` of the profile `default` is not a host"),
        (of(zero), "`max_file_bytes` is zero"),
        (missing, "there is no profile `x`"),
    ] {
        let error: PolicyError = ToolPolicyLayer::new(policy).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}
