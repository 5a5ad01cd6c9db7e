//! Which model a provider is sent for the one that was asked for.

use std::collections::BTreeMap;

/// The key that stands for every model without an entry of its own.
const ANY: &str = "*";

/// The value that sends the model as it was asked for.
const AS_ASKED: &str = "*";

/// Which model a provider is sent for the one that was asked for. Without an entry the model goes
/// through unchanged.
///
/// A key that ends with `*` stands for every model that begins with what is before it; an exact
/// key is stronger, and a longer beginning is stronger than a shorter one. The value `*` sends the
/// model as it was asked for.
///
/// ```
/// use steadfast_failover::ModelMap;
///
/// let models = ModelMap::new([("claude-sonnet-4", "gpt-4o"), ("*", "gpt-4o-mini")]);
/// assert_eq!(models.sent(Some("claude-sonnet-4")), Some("gpt-4o"));
/// assert_eq!(models.sent(Some("anything else")), Some("gpt-4o-mini"));
/// assert_eq!(models.sent(None), Some("gpt-4o-mini"));
/// assert_eq!(ModelMap::default().sent(Some("as it is")), Some("as it is"));
///
/// let models = ModelMap::new([("gpt-*", "*"), ("gpt-3*", "gpt-4o-mini"), ("*", "gpt-4o")]);
/// assert_eq!(models.sent(Some("gpt-5")), Some("gpt-5"));
/// assert_eq!(models.sent(Some("gpt-3.5-turbo")), Some("gpt-4o-mini"));
/// assert_eq!(models.sent(Some("claude-sonnet-4")), Some("gpt-4o"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelMap(BTreeMap<String, String>);

impl ModelMap {
    /// A map from models asked for to models sent; `*` stands for all others.
    pub fn new<A, S>(entries: impl IntoIterator<Item = (A, S)>) -> Self
    where
        A: Into<String>,
        S: Into<String>,
    {
        Self(entries.into_iter().map(|(asked, sent)| (asked.into(), sent.into())).collect())
    }

    /// The model to send. A request that names none gets the one for all others, if there is one.
    pub fn sent<'a>(&'a self, asked: Option<&'a str>) -> Option<&'a str> {
        let entry = match asked {
            Some(asked) => self.0.get(asked).or_else(|| self.pattern(asked)),
            None => self.0.get(ANY),
        };
        match entry.map(String::as_str) {
            Some(AS_ASKED) | None => asked,
            sent => sent,
        }
    }

    /// The entry of the longest beginning of `asked`.
    fn pattern(&self, asked: &str) -> Option<&String> {
        self.0
            .iter()
            .filter(|(key, _)| key.strip_suffix(ANY).is_some_and(|start| asked.starts_with(start)))
            .max_by_key(|(key, _)| key.len())
            .map(|(_, sent)| sent)
    }

    /// Whether every model goes through unchanged.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, asked for and sent.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(asked, sent)| (asked.as_str(), sent.as_str()))
    }
}

impl<A: Into<String>, S: Into<String>> FromIterator<(A, S)> for ModelMap {
    fn from_iter<I: IntoIterator<Item = (A, S)>>(entries: I) -> Self {
        Self::new(entries)
    }
}

/// Models of the same provider to send instead of one, best first.
///
/// The key is the model *sent*; `*` stands for every model without an entry of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Downgrades(BTreeMap<String, Vec<String>>);

impl Downgrades {
    /// What to send instead of `model`.
    pub fn of(&self, model: Option<&str>) -> &[String] {
        let own = model.and_then(|model| self.0.get(model));
        own.or_else(|| self.0.get(ANY)).map_or(&[], Vec::as_slice)
    }

    /// Sets what to send instead of `model`.
    pub fn insert<F: Into<String>>(
        &mut self,
        model: impl Into<String>,
        fallbacks: impl IntoIterator<Item = F>,
    ) {
        self.0.insert(model.into(), fallbacks.into_iter().map(Into::into).collect());
    }

    /// The entries: a model sent, and what to send instead.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.0.iter().map(|(model, fallbacks)| (model.as_str(), fallbacks.as_slice()))
    }

    /// The longest list.
    pub(crate) fn longest(&self) -> usize {
        self.0.values().map(Vec::len).max().unwrap_or(0)
    }
}

impl<M: Into<String>> FromIterator<(M, Vec<String>)> for Downgrades {
    fn from_iter<I: IntoIterator<Item = (M, Vec<String>)>>(entries: I) -> Self {
        Self(entries.into_iter().map(|(model, fallbacks)| (model.into(), fallbacks)).collect())
    }
}
