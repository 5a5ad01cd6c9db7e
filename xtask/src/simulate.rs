//! `simulate`: the five worlds on the default configuration, into docs/simulate.md, with their pictures.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use crate::{RELEASE, page::Page, program, workspace};

const PAGE: Page = Page {
    path: "docs/simulate.md",
    begin: "<!-- simulate -->\n",
    end: "<!-- /simulate -->\n",
    command: "cargo xtask simulate",
};

/// Calls a second: enough for shares to a hundredth of a percent.
const RATE: &str = "10";

const WORLDS: [&str; 5] = ["outage", "brownout", "throttle", "slow", "monday"];

/// Runs them: a day of each; `--quick`: an hour, only printed.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let quick = match args {
        [] => false,
        [quick] if quick == crate::QUICK => true,
        _ => return Err(format!("`simulate` takes `{}` or nothing", crate::QUICK)),
    };
    crate::cargo("simulate", &["build", "--release", "--locked", "-p", "steadfast-gateway"], &[])?;
    let gateway = crate::target().join(RELEASE).join("steadfast");
    let root = workspace::root();
    let pictures = root.join("docs/pictures");
    let mut section = String::new();
    for world in WORLDS {
        let picture = pictures.join(format!("simulate-{world}.svg"));
        let text = simulate(&gateway, world, (!quick).then_some(&picture), quick)?;
        println!("{text}");
        let _ = write!(
            section,
            "### {world}\n\n![{world}](pictures/simulate-{world}.svg)\n\n```\n{}\n```\n\n",
            text.trim_end()
        );
    }
    if quick {
        return Ok(());
    }
    PAGE.keep(root, &section, |there, written| there == written)
}

fn simulate(
    gateway: &Path,
    world: &str,
    picture: Option<&Path>,
    quick: bool,
) -> Result<String, String> {
    let mut command = Command::new(gateway);
    command.args(["simulate", "--world", world, "--rate", RATE]);
    if quick {
        command.args(["--hours", "1"]);
    }
    if let Some(picture) = picture {
        let folder = picture.parent().unwrap_or(picture);
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        command.arg("--svg").arg(picture);
    }
    program::output(&mut command)
}
