//! The system prompt, put together from texts and files.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::{SessionError, event};

/// The most that is read of one file: what is larger is no instruction, and would fill the window of every call.
const MAX_FILE: u64 = 256 << 10;

/// What the system prompt of a run is made of. It is put together anew for each, so that a file that was changed counts from the next
/// prompt on, and no file is in the history.
///
/// ```
/// use steadfast_session::PromptParts;
///
/// let parts = PromptParts::new()
///     .text("You are a careful assistant.")
///     .file("Memory", "agent/MEMORY.md")
///     .folder("Skill", "agent/skills");
/// assert_eq!(parts.assemble()?, "You are a careful assistant.", "the files do not exist");
/// # Ok::<(), steadfast_session::SessionError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "parts do nothing until they are given to a layer"]
pub struct PromptParts(Vec<PromptPart>);

#[derive(Clone, Debug)]
enum PromptPart {
    Text(String),
    Required(PathBuf),
    File { title: String, path: PathBuf },
    Folder { title: String, path: PathBuf },
}

impl PromptParts {
    /// Nothing so far.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    fn with(mut self, part: PromptPart) -> Self {
        self.0.push(part);
        self
    }

    /// A text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.with(PromptPart::Text(text.into()))
    }

    /// The text of a file, without which there is no run.
    pub fn required(self, path: impl Into<PathBuf>) -> Self {
        self.with(PromptPart::Required(path.into()))
    }

    /// The text of a file under this title, such as the agent's memory or identity. Left out without a word when there is none, and
    /// with an event when it can not be read.
    pub fn file(self, title: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.with(PromptPart::File { title: title.into(), path: path.into() })
    }

    /// The text of each file of a folder, by name, under this title with the file's name, such as skills. As [`file`](Self::file).
    pub fn folder(self, title: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.with(PromptPart::Folder { title: title.into(), path: path.into() })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The prompt as it is now. Blocks. A file above 256 KiB is cut there, with an event; what is no UTF-8 is replaced.
    ///
    /// # Errors
    ///
    /// A required file can not be read.
    pub fn assemble(&self) -> Result<String, SessionError> {
        let mut sections = Vec::new();
        for part in &self.0 {
            match part {
                PromptPart::Text(text) => sections.push(text.trim().to_owned()),
                PromptPart::Required(path) => {
                    let text = read(path)
                        .map_err(|source| SessionError::Folder { folder: path.clone(), source })?;
                    sections.push(text);
                }
                PromptPart::File { title, path } => sections.extend(section(title, path)),
                PromptPart::Folder { title, path } => {
                    for file in files(path) {
                        let name = file.file_stem().unwrap_or_default().to_string_lossy();
                        sections.extend(section(&format!("{title}: {name}"), &file));
                    }
                }
            }
        }
        sections.retain(|section| !section.is_empty());
        Ok(sections.join("\n\n"))
    }
}

/// A file with its title, unless there is nothing in it.
fn section(title: &str, path: &Path) -> Option<String> {
    let text = optional(path, read(path))?;
    (!text.is_empty()).then(|| format!("# {title}\n\n{text}"))
}

/// The files of a folder, by name; hidden ones are not read.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = optional(folder, entries).unwrap_or_default();
    let is_file = |entry: &fs::DirEntry| {
        !entry.file_name().to_string_lossy().starts_with('.') && entry.path().is_file()
    };
    let mut files: Vec<_> = entries.into_iter().filter(is_file).map(|entry| entry.path()).collect();
    files.sort_unstable();
    files
}

fn optional<T>(path: &Path, read: io::Result<T>) -> Option<T> {
    let error = match read {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::NotFound {
        event::prompt_part(path, "left_out", Some(&error));
    }
    None
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        event::prompt_part(path, "cut", None);
        bytes.pop();
        // Not in the middle of a character.
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            bytes.truncate(error.valid_up_to());
        }
    }
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_put_together_anew_and_what_is_not_there_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let parts = PromptParts::new()
            .text(" Be brief. ")
            .file("Identity", at("identity.md"))
            .file("Memory", at("memory.md"))
            .folder("Skill", at("skills"));
        assert_eq!(parts.assemble().unwrap(), "Be brief.");
        fs::write(at("memory.md"), "likes tea\n").unwrap();
        fs::create_dir_all(at("skills/nested")).unwrap();
        fs::write(at("skills/b.md"), b"\xff bee").unwrap();
        fs::write(at("skills/a.md"), "ay").unwrap();
        fs::write(at("skills/.hidden"), "no").unwrap();
        fs::write(at("skills/c.md"), " \n").unwrap();
        assert_eq!(
            parts.assemble().unwrap(),
            "Be brief.\n\n# Memory\n\nlikes tea\n\n# Skill: a\n\nay\n\n# Skill: b\n\n\u{fffd} bee",
        );
        fs::write(at("memory.md"), "likes coffee").unwrap();
        assert!(parts.assemble().unwrap().contains("coffee"), "read again");

        let required = PromptParts::new().required(at("rules.md"));
        let error = required.assemble().unwrap_err().to_string();
        assert!(error.contains("rules.md"), "{error}");
        fs::write(at("rules.md"), "é".repeat(200_000)).unwrap();
        let text = required.assemble().unwrap();
        assert_eq!((text.len() as u64, text.chars().all(|char| char == 'é')), (MAX_FILE, true));
        fs::write(at("rules.md"), format!("x{}", "é".repeat(200_000))).unwrap();
        assert_eq!(required.assemble().unwrap().len() as u64, MAX_FILE - 1);
    }
}
