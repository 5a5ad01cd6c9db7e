//! What tools may touch.

use std::{collections::BTreeMap, path::PathBuf};

use super::hosts::HostPattern;
use crate::PolicyError;

/// What tools may touch, by profile, for a [`ToolPolicyLayer`](crate::ToolPolicyLayer).
///
/// ```
/// use steadfast_tool::{AccessPolicy, AccessProfile, ToolPolicyLayer};
///
/// let layer = ToolPolicyLayer::new(AccessPolicy::of(AccessProfile {
///     roots: Some(vec!["/srv/project".into()]),
///     hosts: Some(vec!["docs.rs".into(), "*.example.com".into()]),
///     max_file_bytes: Some(1_000_000),
///     ..AccessProfile::default()
/// }))?;
/// # Ok::<(), steadfast_tool::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct AccessPolicy {
    /// The profiles, by name. That of a call is the one with the name of its agent
    /// ([`CallContext::agent`](steadfast_core::CallContext::agent)).
    pub profiles: BTreeMap<String, AccessProfile>,
    /// The profile of all other calls. `default`.
    pub default: String,
    /// Which arguments name files, hosts and contents, by tool; `*` is every tool. By default the names that
    /// the tools of usual agents have.
    pub arguments: BTreeMap<String, ToolArguments>,
}

/// What the tools of one profile may touch. By default everything.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct AccessProfile {
    /// The folders that files have to be in, as absolute paths. Without it, any; an empty list: no file at
    /// all.
    pub roots: Option<Vec<PathBuf>>,
    /// Folders and files that may not be used though they are in a root, as absolute paths.
    pub refused_paths: Vec<PathBuf>,
    /// Where relative paths begin: the folder that the tools run in. By default the first of `roots`.
    pub base: Option<PathBuf>,
    /// The hosts of addresses: `example.com`, `*.example.com` for those beneath it, with a port if only that
    /// one is meant. Without it, any; an empty list: none.
    pub hosts: Option<Vec<String>>,
    /// The largest file that may be named, and the largest content that may be written, in bytes. Without it,
    /// any.
    pub max_file_bytes: Option<u64>,
    /// Tools that may not be called. Commands of a shell are not read: a profile with limits for files or
    /// hosts that does not trust the model refuses its shell here, or runs it in a sandbox.
    pub refused_tools: Vec<String>,
}

/// Names of arguments, wherever they are in a call's JSON. A value that is a list of texts is checked text by
/// text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ToolArguments {
    /// Those that name a file or folder.
    pub paths: Vec<String>,
    /// Those that are an address.
    pub urls: Vec<String>,
    /// Those that are what a file will contain.
    pub contents: Vec<String>,
}

impl Default for AccessPolicy {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let usual = ToolArguments {
            paths: names(&[
                "path",
                "paths",
                "file",
                "files",
                "file_path",
                "filepath",
                "filePath",
                "filename",
                "file_name",
                "absolute_path",
                "relative_path",
                "notebook_path",
                "target_file",
                "dir",
                "directory",
                "dir_path",
                "folder",
                "cwd",
                "workdir",
                "source",
                "destination",
                "old_path",
                "new_path",
            ]),
            urls: names(&["url", "urls", "uri", "uris", "href", "endpoint"]),
            contents: names(&["content", "contents", "file_text", "new_string", "new_str", "text"]),
        };
        Self {
            profiles: BTreeMap::from([("default".to_owned(), AccessProfile::default())]),
            default: "default".to_owned(),
            arguments: BTreeMap::from([("*".to_owned(), usual)]),
        }
    }
}

impl AccessPolicy {
    /// One profile for all calls, with the usual names of arguments.
    pub fn of(profile: AccessProfile) -> Self {
        Self { profiles: BTreeMap::from([("default".to_owned(), profile)]), ..Self::default() }
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if !self.profiles.contains_key(&self.default) {
            return Err(PolicyError::NoProfile(self.default.clone()));
        }
        self.profiles.iter().try_for_each(|(name, profile)| profile.check(name))
    }
}

impl AccessProfile {
    fn check(&self, name: &str) -> Result<(), PolicyError> {
        let roots = self.roots.iter().flatten().map(|root| ("roots", root));
        let refused = self.refused_paths.iter().map(|path| ("refused_paths", path));
        let base = self.base.iter().map(|base| ("base", base));
        for (field, path) in roots.chain(refused).chain(base) {
            if !path.is_absolute() {
                let (path, profile) = (path.display().to_string(), name.to_owned());
                return Err(PolicyError::NotAbsolute { field, path, profile });
            }
        }
        for host in self.hosts.iter().flatten() {
            if HostPattern::parse(host).is_none() {
                let (host, profile) = (host.clone(), name.to_owned());
                return Err(PolicyError::Host { host, profile });
            }
        }
        if self.max_file_bytes == Some(0) {
            return Err(PolicyError::Zero("max_file_bytes", ", or leave it out for no limit"));
        }
        Ok(())
    }

    /// Whether no call can be refused by it.
    pub(super) fn allows_all(&self) -> bool {
        self.roots.is_none()
            && self.refused_paths.is_empty()
            && self.hosts.is_none()
            && self.max_file_bytes.is_none()
            && self.refused_tools.is_empty()
    }
}
