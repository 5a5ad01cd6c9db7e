//! `cargo xtask package`: what crates.io and docs.rs would get.

use std::{
    env, fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use crate::workspace::{self, Crate};

/// Keys that a published crate has in `[package]`, its own or the workspace's.
const KEYS: [&str; 5] = ["description", "license", "repository", "categories", "keywords"];

/// Do not build.
const NO_VERIFY: &str = "--no-verify";

/// Checks the manifests, packages the published crates and builds each from its package, unless `arguments` say
/// `--no-verify`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    if let Some(unknown) = arguments.iter().find(|argument| *argument != NO_VERIFY) {
        return Err(format!("`{unknown}` is not known; there is {NO_VERIFY}"));
    }
    let crates = workspace::crates(workspace::root())?;
    let published: Vec<_> = crates.iter().filter(|found| found.is_published()).collect();
    let missing: Vec<String> = published.iter().flat_map(|found| missing(found)).collect();
    if !missing.is_empty() {
        return Err(missing.join("\n"));
    }
    // cargo takes a version to be unchanging: what it unpacked or built of an earlier state of ours
    // would stand for today's.
    let target = crate::target().join("published");
    remove(&target)?;
    for old in unpacked(&cargo_home()?, &published) {
        remove(&old)?;
    }
    // What is not committed is checked as well: this publishes nothing.
    let target = target.display().to_string();
    let mut args = vec!["package", "--locked", "--allow-dirty", "--target-dir", &target];
    args.extend(arguments.first().map(|_| NO_VERIFY));
    args.extend(published.iter().flat_map(|found| ["-p", found.package.as_str()]));
    crate::cargo("package", &args, &[("CARGO_PROFILE_DEV_DEBUG", "0")])
}

/// Where cargo keeps what it downloads and unpacks.
fn cargo_home() -> Result<PathBuf, String> {
    let home = || env::home_dir().map(|home| home.join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).ok_or("no CARGO_HOME".to_owned())
}

/// The folders in which cargo unpacked `crates` from a registry without a host: that is one that
/// an earlier packaging stood up.
fn unpacked(cargo_home: &Path, crates: &[&Crate]) -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let ours = |folder: &PathBuf| {
        let package = name(folder).rsplit_once('-').map(|(package, _)| package.to_owned());
        crates.iter().any(|one| package.as_ref() == Some(&one.package))
    };
    entries(&cargo_home.join("registry/src"))
        .filter(|registry| name(registry).starts_with('-'))
        .flat_map(|registry| entries(&registry))
        .filter(ours)
        .collect()
}

/// Removes a folder that need not be there.
fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("can not remove {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
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
    fn only_our_own_crates_of_earlier_packagings_are_removed() {
        let home = env::temp_dir().join(format!("steadfast-package-{}", std::process::id()));
        let src = home.join("registry/src");
        for folder in ["-12ab/a-0.1.0", "-12ab/a-b-0.1.0", "-34cd/a-0.2.0", "index.io-1/a-0.1.0"] {
            fs::create_dir_all(src.join(folder)).unwrap();
        }
        let ours =
            Crate { package: "a".to_owned(), folder: "/nowhere".into(), manifest: String::new() };
        let mut found = unpacked(&home, &[&ours]);
        found.sort();
        assert_eq!(found, [src.join("-12ab/a-0.1.0"), src.join("-34cd/a-0.2.0")]);
        remove(&home).unwrap();
        assert_eq!(unpacked(&home, &[&ours]), [""; 0].map(PathBuf::from));
        remove(&home).unwrap();
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
