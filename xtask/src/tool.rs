//! Programs that a task needs: the user's own, or one under `target/tools`, installed when it is
//! missing.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use crate::workspace;

/// For builds that take longer than what is built runs.
pub(crate) const BUILT_QUICKLY: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Sees to it that the program `name` of Debian's package `package` is there.
///
/// # Errors
///
/// When it is missing and can not be installed.
pub(crate) fn debian(name: &str, package: &str) -> Result<(), String> {
    let is_there = || Command::new(name).arg("--version").output().is_ok();
    if is_there() {
        return Ok(());
    }
    for args in [&["update"][..], &["install", "-y", "--no-install-recommends", package]] {
        println!("== {name} is missing: apt-get {}", args.join(" "));
        // Whether it is there then is what counts: old lists may do, and there may be no apt-get.
        let _ = Command::new("apt-get").args(args).status();
    }
    if is_there() {
        return Ok(());
    }
    Err(format!(
        "{name} is missing; it is in Debian's package {package}, which could not be installed"
    ))
}

/// A program on crates.io.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// The version that is installed; the user's own may be another.
    pub(crate) version: &'static str,
}

impl Tool {
    /// The path of the program.
    ///
    /// # Errors
    ///
    /// When it is missing and can not be installed.
    pub(crate) fn path(self) -> Result<PathBuf, String> {
        let own = PathBuf::from(self.name);
        if self.works(&own) {
            return Ok(own);
        }
        let root = workspace::root().join("target/tools");
        let installed = root.join("bin").join(self.name);
        if self.works(&installed) {
            return Ok(installed);
        }
        let install = ["install", self.name, "--locked", "--version", self.version];
        println!("== {} is missing: cargo {} (into target/tools)", self.name, install.join(" "));
        let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut command = Command::new(cargo);
        command.args(install).arg("--root").arg(&root).envs(BUILT_QUICKLY);
        let status = command.status();
        if status.is_ok_and(|status| status.success()) && self.works(&installed) {
            Ok(installed)
        } else {
            let (name, install) = (self.name, install.join(" "));
            Err(format!("{name} is missing and can not be installed: cargo {install}"))
        }
    }

    fn works(self, path: &Path) -> bool {
        // As cargo calls it: not all of them take anything else.
        let command = self.name.trim_start_matches("cargo-");
        let output = Command::new(path).args([command, "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    }
}
