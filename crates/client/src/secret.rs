//! Secrets, and where they come from.

use std::{env, fmt, fs, io, path::Path, sync::Arc};

/// A secret. It shows itself to nobody who does not ask by name.
///
/// ```
/// use steadfast_client::Secret;
///
/// let secret = Secret::new("sk-123");
/// assert_eq!(format!("{secret} {secret:?}"), "[secret] Secret");
/// assert_eq!(secret.expose(), "sk-123");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps `secret`.
    pub fn new(secret: impl Into<Arc<str>>) -> Self {
        Self(secret.into())
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// A secret under a name, by which targets, logs and metrics speak of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credential {
    /// The name; unique within a provider.
    pub name: Box<str>,
    /// The secret.
    pub secret: Secret,
}

/// A credential that could not be had. It names the source, never the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The environment variable is not set.
    #[error("the environment variable `{0}` is not set; set it to the secret")]
    NotSet(String),
    /// The environment variable is not text.
    #[error("the environment variable `{0}` is not valid UTF-8")]
    NotText(String),
    /// The file can not be read.
    #[error("the file `{path}` can not be read: {source}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("{0} is empty; it has to hold the secret")]
    Empty(String),
}

impl Credential {
    /// A secret under a name.
    pub fn new(name: impl Into<Box<str>>, secret: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), secret: Secret::new(secret) }
    }

    /// The secret in the environment variable `variable`, under its name.
    ///
    /// # Errors
    ///
    /// When the variable is not set, not text, or empty.
    pub fn env(variable: &str) -> Result<Self, CredentialError> {
        let value = env::var(variable).map_err(|error| match error {
            env::VarError::NotPresent => CredentialError::NotSet(variable.to_owned()),
            env::VarError::NotUnicode(_) => CredentialError::NotText(variable.to_owned()),
        })?;
        Self::read(variable, &value, || format!("the environment variable `{variable}`"))
    }

    /// The secret in the file `path`, under the file's name. White space around it is no part of
    /// it.
    ///
    /// # Errors
    ///
    /// When the file can not be read or is empty.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, CredentialError> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let value = fs::read_to_string(path)
            .map_err(|source| CredentialError::File { path: shown.clone(), source })?;
        let name = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
        Self::read(&name, &value, || format!("the file `{shown}`"))
    }

    /// A credential as it stands in a configuration: `env:NAME`, `file:/path`, or the secret
    /// itself, which is then called `key`.
    ///
    /// # Errors
    ///
    /// When the variable or file has none.
    pub fn parse(text: &str) -> Result<Self, CredentialError> {
        if let Some(variable) = text.strip_prefix("env:") {
            Self::env(variable.trim())
        } else if let Some(path) = text.strip_prefix("file:") {
            Self::file(path.trim())
        } else {
            Self::read("key", text, || "the credential".to_owned())
        }
    }

    /// The same secret under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = name.into();
        self
    }

    fn read(
        name: &str,
        value: &str,
        source: impl FnOnce() -> String,
    ) -> Result<Self, CredentialError> {
        let value = value.trim();
        if value.is_empty() {
            return Err(CredentialError::Empty(source()));
        }
        Ok(Self::new(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_a_secret_is_missing_and_never_what_it_is() {
        let error = Credential::parse("env:STEADFAST_NOT_SET").unwrap_err();
        assert!(error.to_string().contains("`STEADFAST_NOT_SET` is not set"), "{error}");
        let error = Credential::parse("file:/not/there").unwrap_err();
        assert!(error.to_string().contains("/not/there"), "{error}");
        assert!(matches!(Credential::parse("  "), Err(CredentialError::Empty(_))));
        let literal = Credential::parse("sk-very-secret").unwrap();
        assert_eq!((&*literal.name, literal.secret.expose()), ("key", "sk-very-secret"));
        assert!(!format!("{literal:?}").contains("very"));
    }

    #[test]
    fn a_file_is_read_without_its_line_end() {
        let path = env::temp_dir().join(format!("steadfast-secret-{}.txt", std::process::id()));
        fs::write(&path, "sk-from-file\n").unwrap();
        let read = Credential::parse(&format!("file:{}", path.display()));
        fs::remove_file(&path).unwrap();
        let read = read.unwrap();
        assert_eq!(read.secret.expose(), "sk-from-file");
        assert!(read.name.starts_with("steadfast-secret-"), "{}", read.name);
    }
}
