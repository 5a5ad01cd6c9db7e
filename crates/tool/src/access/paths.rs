//! Where a path leads.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs,
    path::{Component, Path, PathBuf},
};

/// Links that are followed, as many as Linux follows.
const MAX_LINKS: u32 = 40;

/// Where `path` leads, from `base` if it is relative: without links and `..`, whether or not there is
/// anything. `None` when that can not be known: a circle of links, a folder that can not be read.
///
/// `..` behind a link leads to the parent of what the link leads to, as it does when the path is opened.
pub(super) fn resolve(path: &Path, base: &Path) -> Option<PathBuf> {
    let whole = base.join(path);
    let mut left: VecDeque<OsString> = parts(&whole)?;
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(&part);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                let target = fs::read_link(&at).ok()?;
                at.pop();
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for part in parts(&target)?.into_iter().rev() {
                    left.push_front(part);
                }
            }
            Ok(_) => {}
            Err(error) if is_absent(&error) => {}
            Err(_) => return None,
        }
    }
    Some(at)
}

/// There is nothing: what follows leads nowhere either, apart from `..`.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// The parts of a path, without its root.
fn parts(path: &Path) -> Option<VecDeque<OsString>> {
    let mut parts = VecDeque::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push_back(name.to_owned()),
            Component::ParentDir => parts.push_back("..".into()),
            Component::RootDir | Component::CurDir => {}
            Component::Prefix(_) => return None,
        }
    }
    Some(parts)
}
