//! Every seed, by each target once: the inputs that fuzzing begins with, and those that it once found something by.

use std::{
    collections::BTreeSet,
    fs, panic,
    path::{Path, PathBuf},
};

use steadfast_fuzz as fuzz;

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 12] = [
    ("answer", fuzz::answer::run),
    ("array", fuzz::array::run),
    ("body", fuzz::body::run),
    ("config", fuzz::config::run),
    ("error_body", fuzz::error_body::run),
    ("line", fuzz::line::run),
    ("request", fuzz::request::run),
    ("server_front", fuzz::server_front::run),
    ("sse", fuzz::sse::run),
    ("stream", fuzz::stream::run),
    ("transcript", fuzz::transcript::run),
    ("wait", fuzz::wait::run),
];

/// The folder of the fuzz targets.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above this crate")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

#[test]
fn no_seed_is_a_finding() {
    let mut findings = Vec::new();
    for (name, run) in TARGETS {
        let seeds = entries(&folder().join("seeds").join(name));
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            let input = fs::read(&seed).expect("a seed");
            if panic::catch_unwind(|| run(&input)).is_err() {
                findings.push(seed);
            }
        }
    }
    assert!(findings.is_empty(), "{findings:#?}");
}

/// The programs are built by cargo-fuzz alone, so that their text is all there is to check here.
#[test]
fn each_target_is_its_module() {
    let files = entries(&folder().join("fuzz_targets"));
    let names: BTreeSet<_> = files.iter().filter_map(|file| file.file_stem()?.to_str()).collect();
    assert_eq!(names, TARGETS.iter().map(|(name, _)| *name).collect());
    for (file, (name, _)) in files.iter().zip(TARGETS) {
        let text = fs::read_to_string(file).expect("a target");
        let called = format!("fuzz_target!(|data: &[u8]| steadfast_fuzz::{name}::run(data));");
        assert!(text.contains(&called), "{} calls something else", file.display());
    }
}
