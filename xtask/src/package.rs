//! `cargo xtask package`: what crates.io and docs.rs would get.

use crate::workspace::{self, Crate};

/// Keys that a published crate has in `[package]`, its own or the workspace's.
const KEYS: [&str; 5] = ["description", "license", "repository", "categories", "keywords"];

/// Checks the manifests, packages the published crates and builds each from its package.
pub(crate) fn run() -> Result<(), String> {
    let crates = workspace::crates(workspace::root())?;
    let published: Vec<_> = crates.iter().filter(|found| found.is_published()).collect();
    let missing: Vec<String> = published.iter().flat_map(|found| missing(found)).collect();
    if !missing.is_empty() {
        return Err(missing.join("\n"));
    }
    // What is not committed is checked as well: this publishes nothing.
    let mut args = vec!["package", "--locked", "--allow-dirty"];
    args.extend(published.iter().flat_map(|found| ["-p", found.package.as_str()]));
    crate::cargo("package", &args, &[])
}

/// What a published crate lacks.
fn missing(found: &Crate) -> Vec<String> {
    let manifest = &found.manifest;
    let has = |key: &str| {
        let inherited = format!("{key}.workspace");
        [key, &inherited].iter().any(|key| workspace::value(manifest, "package", key).is_some())
    };
    let keys = KEYS.into_iter().filter(|key| !has(key)).map(|key| format!("no `{key}`"));
    let docs = workspace::value(manifest, "package.metadata.docs.rs", "all-features");
    let docs = docs.is_none().then(|| "no [package.metadata.docs.rs] with all-features".to_owned());
    let page = found.folder.join("README.md");
    let page = (!page.is_file()).then(|| "no README.md".to_owned());
    let missing = keys.chain(docs).chain(page);
    missing.map(|what| format!("{} has {what}", found.package)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_crates_have_what_their_readers_need() {
        let crates = workspace::crates(workspace::root()).unwrap();
        let missing: Vec<_> =
            crates.iter().filter(|c| c.is_published()).flat_map(missing).collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let manifest = "[package]\nname = \"a\"\nlicense.workspace = true\n".to_owned();
        let bare = Crate { package: "a".to_owned(), folder: "/nowhere".into(), manifest };
        let missing = missing(&bare).join("\n");
        for what in ["no `description`", "no README.md", "no [package.metadata.docs.rs]"] {
            assert!(missing.contains(&format!("a has {what}")), "{what}: {missing}");
        }
        assert!(!missing.contains("license"), "{missing}");
    }
}
