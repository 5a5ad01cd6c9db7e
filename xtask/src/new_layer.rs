//! `cargo xtask new-layer`: a crate with a layer that passes its contract, from `templates/layer`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use crate::workspace;

/// The files of the crate and their templates, in which `{{kebab}}`, `{{snake}}` and `{{Pascal}}` are
/// the layer's name. A manifest named `Cargo.toml` would be taken for a package of ours.
const TEMPLATES: &[(&str, &str)] = &[
    ("Cargo.toml", include_str!("../templates/layer/Cargo.toml.in")),
    ("README.md", include_str!("../templates/layer/README.md")),
    ("src/error.rs", include_str!("../templates/layer/src/error.rs")),
    ("src/event.rs", include_str!("../templates/layer/src/event.rs")),
    ("src/future.rs", include_str!("../templates/layer/src/future.rs")),
    ("src/layer.rs", include_str!("../templates/layer/src/layer.rs")),
    ("src/lib.rs", include_str!("../templates/layer/src/lib.rs")),
    ("src/policy.rs", include_str!("../templates/layer/src/policy.rs")),
    ("src/service.rs", include_str!("../templates/layer/src/service.rs")),
    ("src/state.rs", include_str!("../templates/layer/src/state.rs")),
    ("tests/contract.rs", include_str!("../templates/layer/tests/contract.rs")),
];

/// Words that name no crate, module or type, or mean something else there.
const RESERVED: &[&str] = &[
    "as", "async", "await", "break", "const", "continue", "core", "crate", "dyn", "else", "enum",
    "extern", "false", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "match", "mod",
    "move", "mut", "pub", "ref", "return", "self", "static", "std", "struct", "super", "test",
    "trait", "true", "try", "type", "unsafe", "use", "where", "while", "yield",
];

const USAGE: &str = "new-layer NAME [--dir WORKSPACE], such as `new-layer token-meter`";

/// The name of a layer, in the forms its templates need.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    kebab: String,
    snake: String,
    pascal: String,
}

/// Makes the layer named in `arguments`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let (name, root) = match arguments {
        [name] => (name, workspace::root().to_owned()),
        [name, dir, root] | [dir, root, name] if dir == "--dir" => (name, PathBuf::from(root)),
        _ => return Err(format!("usage: {USAGE}")),
    };
    let name = Name::parse(name)?;
    let folder = make(&name, &root)?;
    println!("made {} and its line in {}/Cargo.toml", folder.display(), root.display());
    println!(
        "next: cargo test -p steadfast-{}; then \"Adding a layer\" in CONTRIBUTING.md",
        name.kebab
    );
    Ok(())
}

/// Proves what the templates make: in a workspace of its own beside this one, with our lock file, lints
/// and crates.
pub(crate) fn template() -> Result<(), String> {
    let ours = workspace::root();
    let root = ours.join("target/template");
    if root.exists() {
        std::fs::remove_dir_all(&root)
            .map_err(|error| format!("can not remove {}: {error}", root.display()))?;
    }
    let manifest = workspace::read(&ours.join("Cargo.toml"))?;
    workspace::write(&root.join("Cargo.toml"), &alone(&manifest, ours))?;
    for file in ["Cargo.lock", "clippy.toml", "rustfmt.toml"] {
        workspace::write(&root.join(file), &workspace::read(&ours.join(file))?)?;
    }
    let name = Name::parse("sample-with-a-name-of-many-letters")?;
    make(&name, &root)?;
    let manifest = root.join("Cargo.toml").display().to_string();
    let at = ["--manifest-path", manifest.as_str()];
    let target =
        env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| ours.join("target").display().to_string());
    let vars = [("CARGO_TARGET_DIR", target.as_str()), ("RUSTDOCFLAGS", "-D warnings")];
    let clippy = ["--all-targets", "--", "-D", "warnings"];
    crate::cargo("template", &[&["fmt", "--check"], &at[..]].concat(), &vars)?;
    crate::cargo("template", &[&["clippy"], &at[..], &clippy].concat(), &vars)?;
    crate::cargo("template", &[&["test"], &at[..]].concat(), &vars)?;
    crate::cargo("template", &[&["doc", "--no-deps"], &at[..]].concat(), &vars)
}

/// The workspace of `manifest` without its members, its path dependencies where they are in `root`.
fn alone(manifest: &str, root: &Path) -> String {
    let lines = manifest.lines().filter_map(|line| {
        let key = line.split('=').next().unwrap_or_default().trim();
        match key {
            "members" => Some("members = [\"crates/*\"]".to_owned()),
            "exclude" | "default-members" => None,
            _ => Some(line.replace("path = \"", &format!("path = \"{}/", root.display()))),
        }
    });
    lines.map(|line| line + "\n").collect()
}

/// Makes the crate in the workspace `root`, and its line there.
fn make(name: &Name, root: &Path) -> Result<PathBuf, String> {
    let manifest_path = root.join("Cargo.toml");
    let manifest = workspace::read(&manifest_path)?;
    let folder = root.join("crates").join(&name.kebab);
    if folder.exists() {
        return Err(format!("{} is there already; choose another name", folder.display()));
    }
    let manifest = register(&manifest, name)?;
    for (file, template) in TEMPLATES {
        workspace::write(&folder.join(file), &name.fill(template))?;
    }
    workspace::write(&manifest_path, &manifest)?;
    // Names of other lengths break lines at other places.
    let formatted = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .arg(folder.join("src/lib.rs"))
        .arg(folder.join("tests/contract.rs"))
        .status();
    if !formatted.is_ok_and(|status| status.success()) {
        println!("rustfmt failed on {}: run cargo fmt", folder.display());
    }
    // So that the next `--locked` finds the lock file as it should be.
    let update = ["update", "--workspace", "--quiet", "--offline", "--manifest-path"];
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let updated = Command::new(cargo).args(update).arg(&manifest_path).status();
    if !updated.is_ok_and(|status| status.success()) {
        println!("Cargo.lock could not be updated offline: run cargo check");
    }
    Ok(folder)
}

/// The manifest of the workspace with the crate among its dependencies, behind our other published ones.
fn register(manifest: &str, name: &Name) -> Result<String, String> {
    let package = format!("steadfast-{}", name.kebab);
    if workspace::value(manifest, "workspace.dependencies", &package).is_some() {
        return Err(format!("[workspace.dependencies] has `{package}` already"));
    }
    let version = workspace::value(manifest, "workspace.package", "version")
        .ok_or("the workspace's Cargo.toml has no version in [workspace.package]")?;
    let last = workspace::table(manifest, "workspace.dependencies")
        .filter(|line| line.starts_with("steadfast") && line.contains("version"))
        .last()
        .ok_or("the workspace's Cargo.toml has no `steadfast` in [workspace.dependencies]")?;
    let path = format!("crates/{}", name.kebab);
    let line = format!("{package} = {{ path = \"{path}\", version = \"{version}\" }}");
    Ok(manifest.replacen(last, &format!("{last}\n{line}"), 1))
}

impl Name {
    fn parse(text: &str) -> Result<Self, String> {
        let kebab = text.replace('_', "-");
        let words: Vec<&str> = kebab.split('-').collect();
        let well_formed = words.iter().all(|word| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        });
        if !well_formed || !kebab.starts_with(|first: char| first.is_ascii_lowercase()) {
            return Err(format!(
                "`{text}` is no name for a layer; write small letters, digits and single hyphens, such as `token-meter`"
            ));
        }
        if kebab.len() > 40 {
            return Err(format!("`{text}` has {} characters; 40 are the most", kebab.len()));
        }
        if words[0] == "steadfast" || words.last() == Some(&"layer") {
            return Err(format!(
                "`{text}`: leave `steadfast` and `layer` out, they are put around the name"
            ));
        }
        let pascal: String =
            words.iter().map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect();
        if RESERVED.contains(&kebab.as_str()) || is_taken(&pascal) {
            return Err(format!("`{text}` means something else in Rust or in a layer's own code"));
        }
        Ok(Self { snake: kebab.replace('-', "_"), kebab, pascal })
    }

    fn fill(&self, template: &str) -> String {
        template
            .replace("{{kebab}}", &self.kebab)
            .replace("{{snake}}", &self.snake)
            .replace("{{Pascal}}", &self.pascal)
    }
}

/// Whether a template itself uses one of the type names that the layer would have.
fn is_taken(pascal: &str) -> bool {
    let types = ["", "Layer", "Handle", "Policy", "Counts"].map(|role| format!("{pascal}{role}"));
    TEMPLATES.iter().filter(|(file, _)| file.ends_with(".rs")).any(|(_, template)| {
        template
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| types.iter().any(|name| name == word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_three_forms() {
        for text in ["token-meter", "token_meter"] {
            let name = Name::parse(text).unwrap();
            assert_eq!(
                name.fill("{{kebab}} {{snake}} {{Pascal}}"),
                "token-meter token_meter TokenMeter"
            );
        }
        assert_eq!(Name::parse("http2").unwrap().pascal, "Http2");
    }

    #[test]
    fn what_is_no_name_is_refused_with_a_reason() {
        let long = "a".repeat(41);
        let table = [
            ("", "small letters"),
            ("Meter", "small letters"),
            ("-meter", "small letters"),
            ("token--meter", "small letters"),
            ("2fast", "small letters"),
            ("../escape", "small letters"),
            ("zähler", "small letters"),
            (long.as_str(), "40 are the most"),
            ("meter-layer", "leave `steadfast` and `layer` out"),
            ("steadfast-meter", "leave `steadfast` and `layer` out"),
            ("match", "means something else"),
            ("core", "means something else"),
            // The templates' own names.
            ("call", "means something else"),
            ("service", "means something else"),
            ("keyed", "means something else"),
        ];
        for (name, reason) in table {
            let error = Name::parse(name).unwrap_err();
            assert!(error.contains(reason), "{name}: {error}");
        }
    }

    #[test]
    fn a_crate_that_is_there_is_not_overwritten() {
        let error = make(&Name::parse("retry").unwrap(), workspace::root()).unwrap_err();
        assert!(error.contains("is there already"), "{error}");
    }

    #[test]
    fn the_workspace_learns_of_it_behind_our_other_crates() {
        let manifest = workspace::read(&workspace::root().join("Cargo.toml")).unwrap();
        let name = Name::parse("token-meter").unwrap();
        let registered = register(&manifest, &name).unwrap();
        let line = "steadfast-token-meter = { path = \"crates/token-meter\", version = \"0.1.0\" }";
        assert_eq!(registered.matches(line).count(), 1);
        let (before, behind) = registered.split_once(line).unwrap();
        assert!(before.trim_end().lines().last().unwrap().starts_with("steadfast"));
        assert!(
            !behind.lines().any(|line| line.starts_with("steadfast") && line.contains("version"))
        );
        let error = register(&registered, &name).unwrap_err();
        assert!(error.contains("already"), "{error}");
    }

    #[test]
    fn every_template_is_used_and_filled() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/layer");
        let count = |folder: PathBuf| std::fs::read_dir(folder).unwrap().count();
        let files =
            count(folder.clone()) - 2 + count(folder.join("src")) + count(folder.join("tests"));
        assert_eq!(files, TEMPLATES.len());
        let name = Name::parse("token-meter").unwrap();
        for (file, template) in TEMPLATES {
            assert!(!name.fill(template).contains("{{"), "{file}");
        }
    }
}
