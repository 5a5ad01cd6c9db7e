//! `cargo xtask unit`: systemd can read the gateway's unit, and it is as confined as it is meant to be.

use std::process::{Command, Output};

use crate::{tool, workspace};

const UNIT: &str = "dist/steadfast.service";

/// Lines without which it is no service that stays up; nothing of systemd's checks misses them.
const REQUIRED: [&str; 2] = ["Restart=always", "StartLimitIntervalSec=0"];

/// What the unit starts, which is not installed where this runs, and what stands in for it.
const PROGRAM: (&str, &str) = ("ExecStart=/usr/bin/steadfast ", "ExecStart=/bin/true ");

/// The most that `systemd-analyze security` may call exposed, in tenths. It is 17 with systemd 252; without its
/// confinement the unit has 96.
const EXPOSURE: &str = "20";

/// The first systemd that rates a unit that is not loaded.
const RATES: u32 = 250;

/// Has systemd check the unit, and rate it.
pub(crate) fn run() -> Result<(), String> {
    let version = version()?;
    let text = workspace::read(&workspace::root().join(UNIT))?;
    if !text.contains(PROGRAM.0) {
        return Err(format!("{UNIT}: there is no `{}`", PROGRAM.0.trim_end()));
    }
    required(&text)?;
    let copy = crate::target().join("unit/steadfast.service");
    workspace::write(&copy, &text.replace(PROGRAM.0, PROGRAM.1))?;
    let copy = copy.display().to_string();
    println!("== unit: systemd-analyze verify {UNIT}");
    let output = analyze(&["verify", "--man=no", &copy])?;
    check(output.status.success(), &String::from_utf8_lossy(&output.stderr))?;
    if version < RATES {
        println!("unit: not rated, systemd {version} can not; {RATES} can");
        return Ok(());
    }
    let threshold = format!("--threshold={EXPOSURE}");
    let output = analyze(&["security", "--offline=true", "--no-pager", &threshold, &copy])?;
    let rating = String::from_utf8_lossy(&output.stdout);
    let overall = rating.lines().last().unwrap_or_default().trim();
    println!("== unit: {overall}");
    if output.status.success() {
        return Ok(());
    }
    let exposed = rating.lines().filter(|line| line.starts_with('✗'));
    Err(format!("{UNIT} is not confined:\n{}", exposed.collect::<Vec<_>>().join("\n")))
}

/// Whether each line that has to be there is.
fn required(text: &str) -> Result<(), String> {
    let is_missing = |line: &&&str| !text.lines().any(|one| one.trim() == **line);
    match REQUIRED.iter().find(is_missing) {
        Some(line) => Err(format!("{UNIT}: there is no line `{line}`")),
        None => Ok(()),
    }
}

/// What systemd does not understand it ignores, with a line that has the unit's name, and is content.
fn check(success: bool, errors: &str) -> Result<(), String> {
    let ours: Vec<_> = errors.lines().filter(|line| line.contains("steadfast.service")).collect();
    match (success, &ours[..]) {
        (true, []) => Ok(()),
        (false, []) => Err(format!("{UNIT} is wrong:\n{errors}")),
        _ => Err(format!("{UNIT} is wrong:\n{}", ours.join("\n"))),
    }
}

/// The version of systemd, which is installed when it is missing.
fn version() -> Result<u32, String> {
    tool::debian("systemd-analyze", "systemd")?;
    let output = analyze(&["--version"])?;
    number(&String::from_utf8_lossy(&output.stdout))
}

/// The number in `systemd 252 (252.38-1~deb12u1)`.
fn number(version: &str) -> Result<u32, String> {
    let number = version
        .split_whitespace()
        .nth(1)
        .and_then(|number| number.split(|sign: char| !sign.is_ascii_digit()).next()?.parse().ok());
    number.ok_or_else(|| format!("`systemd-analyze --version` has no version: {version}"))
}

fn analyze(args: &[&str]) -> Result<Output, String> {
    let mut command = Command::new("systemd-analyze");
    // Colours and links are for terminals.
    command
        .args(args)
        .env("SYSTEMD_COLORS", "0")
        .env("SYSTEMD_URLIFY", "0")
        .env("LC_ALL", "C.UTF-8");
    command.output().map_err(|error| format!("can not run systemd-analyze: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_does_not_restart_is_an_error() {
        let unit = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\n";
        required(unit).unwrap();
        for line in REQUIRED {
            let error = required(&unit.replace(line, &format!("# {line}"))).unwrap_err();
            assert!(error.contains(line), "{error}");
        }
        required(&unit.replace("always", "on-failure")).unwrap_err();
    }

    #[test]
    fn what_systemd_ignores_is_an_error() {
        let line = "/x/unit/steadfast.service:42: Unknown key 'ProtectHom' in section [Service], ignoring.";
        let error = check(true, &format!("{line}\nother.service: odd\n")).unwrap_err();
        assert!(error.ends_with(line), "{error}");
        check(true, "/lib/systemd/system/other.service:7: odd\n").unwrap();
        let error = check(false, "Failed to start\n").unwrap_err();
        assert!(error.contains("Failed to start"), "{error}");
    }

    #[test]
    fn versions_are_read() {
        for (text, version) in [
            ("systemd 252 (252.38-1~deb12u1)\n+PAM", Some(252)),
            ("systemd 257.4 (v257)", Some(257)),
            ("systemd 249.11-0ubuntu3", Some(249)),
            ("", None),
        ] {
            assert_eq!(number(text).ok(), version, "{text}");
        }
    }
}
