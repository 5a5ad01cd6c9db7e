//! The state file: what rests and what was spent is written when it changes and when the gateway stops, and read at
//! the next start.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use steadfast_core::time::WallClock;
use steadfast_store::{remove_leftovers_of, replace};
use tokio::sync::oneshot;

use super::App;
use crate::stack::RestoredState;

/// How often is looked for changes. After a SIGKILL the rests of the last two seconds are unknown, which a call each
/// finds out again, and what was spent in them is not counted; and however much changes, the disk gets one file in that time.
const EVERY: Duration = Duration::from_secs(2);

/// The largest file that is read, in bytes; several times what is ever written.
const LARGEST: u64 = 64 * 1024 * 1024;

/// The state file of one gateway. Two of them can not share one.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// What is in the file, as far as this process has written it.
    written: Option<Vec<u8>>,
    /// In what ways it could not be written since it last was.
    failed: Vec<ErrorKind>,
}

impl StateFile {
    /// Has `app` go on with what is in the file at `path`. One that can not be read is set aside, and nothing is known:
    /// that is logged, and never an error. Call it before the first request; blocks while the file is read.
    pub fn open(path: &Path, app: &App) -> Self {
        // What can not be removed is in nobody's way.
        let _ = remove_leftovers_of(path);
        let result = match read(path) {
            Ok(None) => Ok(RestoredState::default()),
            Ok(Some(text)) => app.gateway().restore_state(&text),
            Err(error) => Err(error.to_string()),
        };
        match result {
            Ok(counts) => tracing::info!(
                name: "steadfast::gateway::state_restored",
                target: "steadfast::gateway",
                file = %path.display(),
                cooldowns = counts.cooldowns, breakers = counts.breakers, accounts = counts.accounts, expired = counts.expired,
                unknown = counts.unknown, unreadable = counts.unreadable,
                "what rested before the start rests on, and what was spent is spent"
            ),
            Err(error) => {
                let aside = set_aside(path);
                tracing::warn!(
                    name: "steadfast::gateway::state_unreadable",
                    target: "steadfast::gateway",
                    file = %path.display(), %error,
                    aside = aside.map(|path| path.display().to_string()),
                    "the state file can not be read; nothing is known of before the start"
                );
            }
        }
        Self { path: path.to_owned(), written: None, failed: Vec::new() }
    }

    /// Writes what rests in `app` at once, then whenever it has changed, and a last time when `stop` is sent or
    /// dropped. What can not be written is tried again.
    pub async fn keep(mut self, app: App, mut stop: oneshot::Receiver<()>) {
        loop {
            // Before it is written: what happens meanwhile is written once more.
            let last = !matches!(stop.try_recv(), Err(oneshot::error::TryRecvError::Empty));
            let app = app.clone();
            let saved = tokio::task::spawn_blocking(move || {
                self.save(&app);
                self
            });
            // It panicked, which is logged.
            let Ok(file) = saved.await else { return };
            self = file;
            if last {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = &mut stop => {}
            }
        }
    }

    /// Writes what rests, unless the file has it already.
    fn save(&mut self, app: &App) {
        let setup = app.setup();
        let shows_secret =
            |text: &[u8]| matches!(setup.secrets.mask(text), std::borrow::Cow::Owned(_));
        let text = setup.gateway.save_state(shows_secret);
        if self.written.as_ref() == Some(&text) {
            return;
        }
        let usable = usable(&self.path).map_err(|error| (ErrorKind::Other, error));
        let result = usable.and_then(|()| {
            replace(&self.path, &text).map_err(|error| (error.kind(), error.to_string()))
        });
        app.metrics().state_saved(result.is_ok());
        match result {
            Ok(()) => {
                if !self.failed.is_empty() {
                    tracing::info!(
                        name: "steadfast::gateway::state_saved",
                        target: "steadfast::gateway",
                        file = %self.path.display(), "the state file can be written again"
                    );
                }
                self.failed.clear();
                self.written = Some(text);
            }
            Err((kind, error)) => {
                if self.failed.contains(&kind) {
                    return;
                }
                self.failed.push(kind);
                tracing::warn!(
                    name: "steadfast::gateway::state_not_saved",
                    target: "steadfast::gateway",
                    file = %self.path.display(), %error,
                    "the state file can not be written: it is tried again, and this line is not repeated"
                );
            }
        }
    }
}

/// What is wrong with `path` for a state file, with what would be right.
pub(crate) fn usable(path: &Path) -> Result<(), String> {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(known) if known.is_file() => return Ok(()),
        Ok(known) if known.is_dir() => {
            return Err(format!("{shown} is a folder; write a file in it: {shown}/state.json"));
        }
        Ok(_) => return Err(format!("{shown} is no ordinary file; write the path of one")),
        Err(_) => {}
    }
    let folder = folder(path);
    match fs::metadata(folder) {
        Ok(known) if known.is_dir() => Ok(()),
        Ok(_) => Err(format!("{} is no folder", folder.display())),
        Err(error) => Err(format!(
            "the folder {} can not be used: {error}; create it, or have systemd do so by StateDirectory=",
            folder.display()
        )),
    }
}

/// The content of the file; `None` when there is none.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // To open a pipe would wait for somebody to write.
        Ok(known) if !known.is_file() => return Err(io::Error::other("it is no ordinary file")),
        _ => {}
    }
    let mut text = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LARGEST {
        return Err(io::Error::other("it is larger than any state file"));
    }
    Ok(Some(text))
}

/// Gives the file at `path` another name, so that it can be examined and is not written over; `None` when that is not
/// possible.
fn set_aside(path: &Path) -> Option<PathBuf> {
    if !fs::symlink_metadata(path).is_ok_and(|known| known.is_file()) {
        return None;
    }
    let mut name = path.file_name()?.to_owned();
    name.push(format!(".bad-{}", WallClock::now().unix_ms()));
    let aside = path.with_file_name(name);
    fs::rename(path, &aside).ok().map(|()| aside)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("steadfast-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_can_not_be_a_state_file_is_named() {
        let folder = scratch("saved-usable");
        fs::write(folder.join("file"), "").unwrap();
        usable(&folder.join("file")).unwrap();
        usable(&folder.join("new")).unwrap();
        usable(Path::new("new-in-the-working-directory")).unwrap();
        for (path, part) in [
            (folder.clone(), "is a folder"),
            (folder.join("none/state.json"), "create it"),
            (folder.join("file/state.json"), "is no folder"),
        ] {
            let error = usable(&path).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        #[cfg(unix)]
        {
            assert!(usable(Path::new("/dev/null")).unwrap_err().contains("no ordinary file"));
            read(Path::new("/dev/null")).unwrap_err();
        }
        assert!(read(&folder.join("new")).unwrap().is_none());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_bad_file_gets_another_name() {
        let folder = scratch("saved-aside");
        let path = folder.join("state.json");
        fs::write(&path, "torn").unwrap();
        let aside = set_aside(&path).unwrap();
        assert!(aside.display().to_string().contains("state.json.bad-1"), "{}", aside.display());
        assert_eq!(fs::read_to_string(aside).unwrap(), "torn");
        assert!(!path.exists() && set_aside(&path).is_none() && set_aside(&folder).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}
