//! A configuration's text, and where its keys stand in it.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Config, ConfigError, ConfigErrors};

/// A configuration with the text it was read from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    file: Option<PathBuf>,
    text: String,
}

impl Source {
    /// A configuration given as text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { file: None, text: text.into() }
    }

    /// A configuration file.
    ///
    /// # Errors
    ///
    /// When it can not be read.
    pub fn file(path: &Path) -> Result<Self, ConfigErrors> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { file: Some(path.to_owned()), text }),
            Err(error) => Err(ConfigErrors::from(ConfigError {
                file: Some(path.to_owned()),
                place: None,
                key: String::new(),
                message: format!("can not be read: {error}"),
            })),
        }
    }

    /// Reads the keys. Their values are checked by [`Config::validate`].
    ///
    /// # Errors
    ///
    /// When it is no TOML, or a key is unknown or of the wrong type.
    pub fn parse(&self) -> Result<Config, ConfigErrors> {
        let deserializer = toml::Deserializer::parse(&self.text).map_err(|e| self.syntax(&e))?;
        Config::deserialize(deserializer).map_err(|error| self.syntax(&error))
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigErrors {
        let place = error.span().map(|span| self.line_column(span.start));
        let key = error.span().map_or_else(String::new, |span| self.key_at(span.start));
        ConfigErrors::from(ConfigError {
            file: self.file.clone(),
            place,
            key,
            message: error.message().trim().to_owned(),
        })
    }

    /// An error at `key`, such as `providers[1].dialect`.
    pub fn error(&self, key: &str, message: impl Into<String>) -> ConfigError {
        ConfigError {
            file: self.file.clone(),
            place: self.offset(key).map(|offset| self.line_column(offset)),
            key: key.to_owned(),
            message: message.into(),
        }
    }

    /// Whether `key` is set in the file.
    pub fn has(&self, key: &str) -> bool {
        self.offset(key).is_some()
    }

    /// Where `key` stands; a key that is not there stands where its nearest parent does, so only
    /// an exact match counts for [`has`](Self::has).
    fn offset(&self, key: &str) -> Option<usize> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut table = Some(root.get_ref());
        let mut array: Option<&[Spanned<DeValue<'_>>]> = None;
        let mut found = None;
        for step in key.split(['.', '[']) {
            let value = match step.strip_suffix(']') {
                Some(index) => array?.get(index.parse::<usize>().ok()?)?,
                None => table?.iter().find(|(name, _)| name.get_ref() == step)?.1,
            };
            found = Some(value.span().start);
            (table, array) = match value.get_ref() {
                DeValue::Table(inner) => (Some(inner), None),
                DeValue::Array(inner) => (None, Some(&inner[..])),
                _ => (None, None),
            };
        }
        found
    }

    /// The key whose value or name stands at `offset`, as far as can be told.
    fn key_at(&self, offset: usize) -> String {
        fn search(table: &DeTable<'_>, offset: usize, path: &mut String) -> bool {
            for (name, value) in table {
                let length = path.len();
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name.get_ref());
                let hit = name.span().contains(&offset) || value.span().contains(&offset);
                if descend(value, offset, path) || hit {
                    return true;
                }
                path.truncate(length);
            }
            false
        }

        fn descend(value: &Spanned<DeValue<'_>>, offset: usize, path: &mut String) -> bool {
            match value.get_ref() {
                DeValue::Table(table) => search(table, offset, path),
                DeValue::Array(items) => items.iter().enumerate().any(|(index, item)| {
                    let length = path.len();
                    path.push_str(&format!("[{index}]"));
                    let found = descend(item, offset, path)
                        || (!matches!(item.get_ref(), DeValue::Table(_))
                            && item.span().contains(&offset));
                    if !found {
                        path.truncate(length);
                    }
                    found
                }),
                _ => false,
            }
        }

        let mut path = String::new();
        if let Ok(root) = DeTable::parse(&self.text) {
            search(root.get_ref(), offset, &mut path);
        }
        path
    }

    fn line_column(&self, offset: usize) -> (usize, usize) {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        (line, column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> String {
        Source::text(text).parse().unwrap_err().to_string()
    }

    #[test]
    fn the_empty_file_is_valid() {
        let config = Source::text("").parse().unwrap();
        assert_eq!(config.server.listen.port(), 8080);
        assert!(config.providers.is_empty());
    }

    #[test]
    fn unknown_keys_are_named_with_their_place() {
        let text = "[server]\nlisten = \"127.0.0.1:1\"\nport = 3\n";
        let error = errors(text);
        assert!(error.starts_with("configuration:3:1: server.port: unknown field"), "{error}");
        assert!(error.contains("listen"), "it says which there are: {error}");
        let error = errors("[[providers]]\nname='a'\ndialect='openai'\nbaseurl='x'\n");
        assert!(error.contains(":4:1: providers[0].baseurl: unknown field"), "{error}");
        assert!(errors("[health]\n").contains("health"), "a section that is not there yet");
    }

    #[test]
    fn wrong_types_and_words_are_named_with_their_place() {
        let error = errors("[retry]\nretries = \"many\"\n");
        assert!(error.contains(":2:11: retry.retries: invalid type: string"), "{error}");
        let error = errors("[[providers]]\nname='a'\ndialect='cobol'\n");
        assert!(error.contains(":3:9: providers[0].dialect:"), "{error}");
        assert!(error.contains("openai"), "{error}");
        let error = errors("[retry]\nretries = -1\n");
        assert!(error.contains("retry.retries"), "{error}");
    }

    #[test]
    fn broken_toml_is_named_with_its_place() {
        let error = errors("[server\nlisten = 1");
        assert!(error.starts_with("configuration:1:8"), "{error}");
    }

    #[test]
    fn keys_are_found_where_they_stand() {
        let source = Source::text(
            "[failover]\nchain = ['a',\n  'b']\n[[providers]]\nname='x'\n[[providers]]\nname = 'y'\n",
        );
        assert_eq!(source.error("failover.chain[1]", "").place, Some((3, 3)));
        assert_eq!(source.error("providers[1].name", "").place, Some((7, 8)));
        assert_eq!(source.error("providers[2].name", "").place, None);
        assert!(source.has("failover.chain") && !source.has("failover.hedge_ms"));
    }
}
