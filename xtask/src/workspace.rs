//! What the manifests of the workspace say. They are read line by line: our own are plain enough.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A crate under `crates/`.
#[derive(Debug)]
pub(crate) struct Crate {
    /// Its package, such as `steadfast-retry`.
    pub(crate) package: String,
    pub(crate) folder: PathBuf,
    pub(crate) manifest: String,
}

impl Crate {
    /// Whether crates.io is to have it.
    pub(crate) fn is_published(&self) -> bool {
        value(&self.manifest, "package", "publish") != Some("false")
    }
}

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The crates in the folder `crates`, by name.
pub(crate) fn crates(root: &Path) -> Result<Vec<Crate>, String> {
    folders(&root.join("crates"))?
        .into_iter()
        .map(|folder| {
            let manifest = read(&folder.join("Cargo.toml"))?;
            let package = value(&manifest, "package", "name")
                .map(str::to_owned)
                .ok_or_else(|| format!("{}/Cargo.toml has no name", folder.display()))?;
            Ok(Crate { package, folder, manifest })
        })
        .collect()
}

/// The folders in `folder` that hold a crate, by name.
pub(crate) fn folders(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder)
        .map_err(|error| format!("can not read {}: {error}", folder.display()))?;
    let mut folders: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("Cargo.toml").is_file())
        .collect();
    folders.sort();
    Ok(folders)
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("can not read {}: {error}", path.display()))
}

/// Writes a file, and the folders it is in.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .map_err(|error| format!("can not make {}: {error}", folder.display()))?;
    }
    fs::write(path, text).map_err(|error| format!("can not write {}: {error}", path.display()))
}

/// The lines of `[table]` in a manifest.
pub(crate) fn table<'a>(manifest: &'a str, table: &str) -> impl Iterator<Item = &'a str> {
    let head = format!("[{table}]");
    let body = manifest.lines().skip_while(move |line| line.trim() != head);
    body.skip(1).take_while(|line| !line.starts_with('['))
}

/// What `key` in `[table]` of a manifest is, without its quotes.
pub(crate) fn value<'a>(manifest: &'a str, name: &str, key: &str) -> Option<&'a str> {
    let pairs = table(manifest, name).filter_map(|line| line.split_once('='));
    let mut values = pairs.filter(|(found, _)| found.trim() == key);
    values.next().map(|(_, value)| value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_crates_and_their_names() {
        let crates = crates(root()).unwrap();
        assert!(crates.iter().any(|found| found.package == "steadfast"));
        assert!(crates.iter().any(|found| found.package == "steadfast-core"));
    }

    #[test]
    fn reads_a_value_of_its_own_table_only() {
        let manifest = "[package]\nname = \"a\"\n\n[lib]\nname = \"b\"\n";
        assert_eq!(value(manifest, "package", "name"), Some("a"));
        assert_eq!(value(manifest, "lib", "name"), Some("b"));
        assert_eq!(value(manifest, "package", "publish"), None);
    }
}
