//! One key of a configuration with several values.

use std::{fmt, str::FromStr};

use crate::config::Source;

/// The most values of a key.
const MOST: usize = 50;

/// A key and the values that it is to have: `retry.retries=0..5`, `failover.attempts=1,2,4`.
#[derive(Clone, Debug, PartialEq)]
pub struct Variation {
    key: String,
    values: Vec<toml::Value>,
}

impl FromStr for Variation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = "write KEY=FROM..TO or KEY=A,B,C, such as retry.retries=0..5";
        let Some((key, values)) = text.split_once('=') else {
            return Err(format!("`{text}` has no values; {help}"));
        };
        let (key, values) = (key.trim(), values.trim());
        let values: Vec<_> = match values.split_once("..") {
            Some((from, to)) => {
                let number = |text: &str| text.trim_start_matches('=').trim().parse::<i64>();
                let (Ok(from), Ok(to)) = (number(from), number(to)) else {
                    return Err(format!("`{values}` is no range of whole numbers; {help}"));
                };
                let range = from..=to;
                if to.saturating_sub(from) >= MOST as i64 {
                    return Err(format!("`{values}` has more than {MOST} values"));
                }
                range.map(toml::Value::Integer).collect()
            }
            None => values.split(',').map(|value| read(value.trim())).collect(),
        };
        if key.is_empty() || values.is_empty() || values.len() > MOST {
            return Err(format!("`{text}` has from one to {MOST} values of a key; {help}"));
        }
        Ok(Self { key: key.to_owned(), values })
    }
}

/// As in the file, where it is something there; a text without quotes otherwise.
fn read(text: &str) -> toml::Value {
    let table: Option<toml::Table> = format!("value = {text}").parse().ok();
    let value = table.and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

impl Variation {
    /// The name of each value, and `source` with it.
    ///
    /// # Errors
    ///
    /// When `source` is no TOML, or something on the way to the key is no table.
    pub fn of(&self, source: &Source) -> Result<Vec<(String, Source)>, String> {
        let table: toml::Table = source.as_str().parse().map_err(|error| format!("{error}"))?;
        let one = |value: &toml::Value| {
            let mut table = table.clone();
            set(&mut table, &self.key, value.clone())?;
            let text = toml::to_string(&table).map_err(|error| error.to_string())?;
            Ok((format!("{} = {value}", self.key), Source::text(text)))
        };
        self.values.iter().map(one).collect()
    }
}

impl fmt::Display for Variation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

fn set(table: &mut toml::Table, key: &str, value: toml::Value) -> Result<(), String> {
    let Some((first, rest)) = key.split_once('.') else {
        table.insert(key.to_owned(), value);
        return Ok(());
    };
    let below = table.entry(first).or_insert_with(|| toml::Table::new().into());
    match below {
        toml::Value::Table(below) => set(below, rest, value),
        _ => Err(format!("`{first}` is no table, so there is no `{key}` in it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_file() {
        let source = Source::text("[retry]\nretries = 3\n");
        let texts = |text: &str| -> Vec<String> {
            let all = text.parse::<Variation>().unwrap().of(&source).unwrap();
            all.iter()
                .map(|(name, source)| format!("{name}: {}", source.as_str().replace('\n', " ")))
                .collect()
        };
        assert_eq!(
            texts("retry.retries=0..1"),
            ["retry.retries = 0: [retry] retries = 0 ", "retry.retries = 1: [retry] retries = 1 ",]
        );
        assert_eq!(
            texts("preset=comis")[0],
            "preset = \"comis\": preset = \"comis\"  [retry] retries = 3 "
        );
        assert_eq!(texts("a.b=true,2.5").len(), 2);
        for (text, part) in [
            ("retry.retries", "has no values"),
            ("retry.retries=a..b", "no range"),
            ("retry.retries=0..500", "more than 50"),
            ("=1", "of a key"),
        ] {
            let error = text.parse::<Variation>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let wrong = "retry.retries.more=1".parse::<Variation>().unwrap().of(&source).unwrap_err();
        assert!(wrong.contains("`retries` is no table"), "{wrong}");
    }
}
