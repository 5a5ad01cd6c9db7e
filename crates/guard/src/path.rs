//! Canonical paths of files.

use std::borrow::Cow;

/// The canonical spelling of `path`: forward slashes, no `.`, no `..` that can be resolved, no doubled
/// or trailing slash, no `file://`, no quotes or white space around it, relative to one of `roots` when
/// it is in it. Works on the text alone: no link is followed.
pub(crate) fn canonical<'a>(path: &'a str, roots: &[String]) -> Cow<'a, str> {
    if is_canonical(path) && (roots.is_empty() || !path.starts_with('/')) {
        return Cow::Borrowed(path);
    }
    let path = normal(path);
    for root in roots {
        let root = normal(root);
        if !root.is_empty()
            && let Some(rest) = path.strip_prefix(root.as_str())
        {
            if rest.is_empty() {
                return ".".into();
            }
            if root.ends_with('/') {
                return rest.to_owned().into();
            }
            if let Some(rest) = rest.strip_prefix('/') {
                return rest.to_owned().into();
            }
        }
    }
    path.into()
}

/// Whether a path is canonical already, as most are.
fn is_canonical(path: &str) -> bool {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
    !path.starts_with(ends)
        && !path.ends_with(ends)
        && !path.contains('\\')
        && !path.starts_with("file:")
        && path
            .strip_prefix('/')
            .unwrap_or(path)
            .split('/')
            .all(|part| !matches!(part, "" | "." | ".."))
}

fn normal(path: &str) -> String {
    let path = path.trim().trim_matches(['"', '\'', '`']).trim();
    let path = path.strip_prefix("file://").unwrap_or(path);
    let absolute = path.starts_with(['/', '\\']);
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." if absolute && parts.is_empty() => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// How a patch begins.
pub(crate) const PATCH: &str = "*** Begin Patch";

/// The files that a patch names, in the forms `*** Update File: a.rs` and `+++ b/a.rs`.
pub(crate) fn in_patch<'a>(patch: &'a str) -> impl Iterator<Item = &'a str> + 'a {
    patch.lines().filter_map(|line| {
        if let Some(rest) = line.strip_prefix("*** ") {
            let (word, file) = rest.split_once(" File: ")?;
            return matches!(word, "Update" | "Add" | "Delete").then_some(file);
        }
        let file = line.strip_prefix("+++ ")?;
        let file = file.split('\t').next().unwrap_or(file);
        (file != "/dev/null").then(|| file.strip_prefix("b/").unwrap_or(file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_file_are_equal() {
        let roots = ["/home/me/project/".to_owned()];
        for path in [
            "src/a.rs",
            "./src/a.rs",
            "src//a.rs",
            "src/./a.rs",
            "src/b/../a.rs",
            " src/a.rs ",
            "\"src/a.rs\"",
            "src\\a.rs",
            "/home/me/project/src/a.rs",
            "file:///home/me/project/src/a.rs",
            "/home/me/other/../project/src/a.rs",
        ] {
            assert_eq!(canonical(path, &roots), "src/a.rs", "{path}");
        }
    }

    #[test]
    fn different_files_are_different() {
        let roots = ["/srv".to_owned()];
        for (path, wanted) in [
            ("../a.rs", "../a.rs"),
            ("../../a.rs", "../../a.rs"),
            ("/../a.rs", "/a.rs"),
            ("/srvx/a.rs", "/srvx/a.rs"),
            ("/srv", "."),
            ("", "."),
            ("A.rs", "A.rs"),
            ("a/../..", ".."),
        ] {
            assert_eq!(canonical(path, &roots), wanted, "{path}");
        }
        assert_eq!(canonical("/a", &["/".to_owned()]), "a");
    }

    proptest::proptest! {
        /// A path that is returned unchanged is canonical.
        #[test]
        fn canonical_paths_are_unchanged(
            parts in proptest::collection::vec(
                proptest::sample::select(vec!["a", "b.rs", ".", "..", "/", "//", "\\", " ", "\"", "file://", "~", "\u{e9}"]),
                0..8,
            ),
        ) {
            let path = parts.concat();
            let once = canonical(&path, &[]);
            proptest::prop_assert_eq!(&once, &normal(&path));
        }
    }

    #[test]
    fn patches_name_their_files() {
        let patch =
            "*** Begin Patch\n*** Update File: src/a.rs\n+x\n*** Add File: b\n*** End Patch";
        assert_eq!(in_patch(patch).collect::<Vec<_>>(), ["src/a.rs", "b"]);
        let diff = "--- a/x.rs\n+++ b/x.rs\t2026\n@@\n+++ /dev/null\n";
        assert_eq!(in_patch(diff).collect::<Vec<_>>(), ["x.rs"]);
    }
}
