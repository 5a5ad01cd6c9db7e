//! Windows and output limits, by model.

use std::{
    collections::HashMap,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use serde::Deserialize;
use steadfast_core::{
    model_names::{find, names},
    time::later,
};
use tokio::time::Instant;

/// What one model takes and gives, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct TokenLimits {
    /// The window: input and output together.
    pub window: u64,
    /// The most it writes in one answer, when known.
    #[serde(default)]
    pub output: Option<u64>,
}

impl TokenLimits {
    /// A window of so many tokens, of whose output limit nothing is known.
    pub const fn new(window: u64) -> Self {
        Self { window, output: None }
    }

    /// With this output limit.
    #[must_use]
    pub const fn with_output(mut self, output: u64) -> Self {
        self.output = Some(output);
        self
    }
}

/// What a model is taken for that nobody knows: the window that every current model of the large
/// vendors has at least, and most models that people run themselves.
pub const UNKNOWN: TokenLimits = TokenLimits::new(128_000);

/// The least a learned limit may be: a provider that states less has stated something else.
const LEAST: u64 = 1_024;

/// Models whose limits were learned, at most. A deployment has dozens.
const MAX_LEARNED: usize = 1_024;

/// How long a learned limit holds: an hour. What a provider stated once may have been read wrongly, or
/// be true of one server of several, and must not keep requests from it for ever.
const LEARNED_FOR: Duration = Duration::from_secs(3_600);

/// A window that a provider has stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LearnedWindow {
    pub(crate) window: u64,
    /// From when on it does not hold any more.
    pub(crate) until: Instant,
}

/// The table, made from `data/models.jsonl`: public model tables as of November 2026.
static TABLE: LazyLock<HashMap<&'static str, TokenLimits>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Row<'a> {
        model: &'a str,
        #[serde(flatten)]
        limits: TokenLimits,
    }
    let lines = include_str!("../../data/models.jsonl").lines();
    let rows = lines.filter_map(|line| serde_json::from_str::<Row<'_>>(line).ok());
    rows.map(|row| (row.model, row.limits)).collect()
});

/// What is known of models: a built-in table, overrides, and limits learned from providers.
///
/// A name is matched as it is, without the vendor and region in front of it, and then by the
/// longest known name that it continues at a `-`, `@`, `:` or `[`: so
/// `us.anthropic.claude-sonnet-4-5-20250929-v1:0` is `claude-sonnet-4-5`.
///
/// ```
/// use steadfast_compact::{TokenLimits, Models};
///
/// let models = Models::default().with_override("house-model", TokenLimits::new(32_768));
/// assert_eq!(models.limits("openai/gpt-4o-2024-08-06").window, 128_000);
/// assert_eq!(models.limits("house-model-q4").window, 32_768);
/// models.learn("gpt-4o", 100_000);
/// assert_eq!(models.limits("gpt-4o").window, 100_000, "what the provider says, when it is less");
/// ```
#[derive(Debug, Default)]
pub struct Models {
    overrides: HashMap<Box<str>, TokenLimits>,
    learned: RwLock<HashMap<Box<str>, LearnedWindow>>,
    /// Moves on when something is learned or forgotten.
    epoch: AtomicU64,
}

impl Models {
    /// With these limits for `name`, and for names that continue it. They win over the table.
    #[must_use]
    pub fn with_override(mut self, name: impl Into<Box<str>>, limits: TokenLimits) -> Self {
        self.overrides.insert(name.into(), limits);
        self
    }

    /// What is known of `model`, if anything is.
    pub fn get(&self, model: &str) -> Option<TokenLimits> {
        let stated = names(model).find_map(|name| find(name, |known| self.overrides.get(known)));
        let stated = stated.copied().or_else(|| built_in(model));
        match (stated, self.learned(model).map(|learned| learned.window)) {
            (Some(limits), Some(learned)) if learned < limits.window => {
                Some(TokenLimits { window: learned, ..limits })
            }
            (None, Some(learned)) => Some(TokenLimits::new(learned)),
            (stated, _) => stated,
        }
    }

    /// Whether there is a row or an override of exactly this name, so that there are few.
    pub fn has(&self, model: &str) -> bool {
        self.overrides.contains_key(model) || TABLE.contains_key(model)
    }

    /// What is known of `model`, or [`UNKNOWN`].
    pub fn limits(&self, model: &str) -> TokenLimits {
        self.get(model).unwrap_or(UNKNOWN)
    }

    /// Takes over, for an hour, the window that a provider stated when a conversation did not fit. The
    /// smallest wins; less than 1,024 tokens is not believed.
    pub fn learn(&self, model: &str, window: u64) {
        if window < LEAST {
            return;
        }
        let now = Instant::now();
        let mut learned = self.learned.write();
        if learned.len() >= MAX_LEARNED {
            learned.retain(|_, known| now < known.until);
        }
        let known = learned.get(model).filter(|known| now < known.until);
        if known.is_some_and(|known| known.window < window) {
            return;
        }
        if learned.len() < MAX_LEARNED || learned.contains_key(model) {
            learned.insert(model.into(), LearnedWindow { window, until: later(now, LEARNED_FOR) });
        }
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Forgets what was learned of `model`, for instance once its provider has raised the limit. Returns
    /// whether there was anything.
    pub fn forget(&self, model: &str) -> bool {
        let known = self.learned.write().remove(model);
        self.epoch.fetch_add(1, Ordering::Release);
        known.is_some_and(|known| Instant::now() < known.until)
    }

    /// The windows that providers have stated and that hold, by model, in no order.
    pub fn all_learned(&self) -> Vec<(Box<str>, u64)> {
        let now = Instant::now();
        let learned = self.learned.read();
        let holding = learned.iter().filter(|(_, known)| now < known.until);
        holding.map(|(model, known)| (model.clone(), known.window)).collect()
    }

    /// The window that a provider has stated, while it holds.
    pub(crate) fn learned(&self, model: &str) -> Option<LearnedWindow> {
        let known = self.learned.read().get(model).copied();
        known.filter(|known| Instant::now() < known.until)
    }

    /// Another number than before means that limits asked for before may be others now.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

fn built_in(model: &str) -> Option<TokenLimits> {
    let lower = model.to_ascii_lowercase();
    let table = |name: &str| TABLE.get(name).copied();
    names(model).chain(names(&lower)).find_map(|name| find(name, table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_valid() {
        let rows = include_str!("../../data/models.jsonl").lines().count();
        assert_eq!(TABLE.len(), rows, "a row is damaged or stands twice");
        for (model, limits) in TABLE.iter() {
            assert!(limits.window >= 4_096, "{model}");
            assert!(limits.output.is_none_or(|output| output <= limits.window), "{model}");
        }
    }

    #[test]
    fn names_are_found_with_any_prefix_and_suffix() {
        let models = Models::default();
        for (name, window) in [
            ("claude-sonnet-4-5", 200_000),
            ("claude-sonnet-4-5-20250929", 200_000),
            ("claude-sonnet-4-5@20250929", 200_000),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
            ("bedrock/eu.anthropic.claude-opus-4-7-v1:0", 1_000_000),
            ("Claude-Opus-4-7", 1_000_000),
            ("openai/gpt-4o-2024-08-06", 128_000),
            ("models/gemini-2.5-pro", 1_048_576),
            ("publishers/google/models/gemini-2.5-pro-002", 1_048_576),
            ("gpt-5.4-mini-2026-01-01", 272_000),
            ("meta.llama3-3-70b-instruct-v1:0", 128_000),
            ("o4-mini-high", 200_000),
        ] {
            assert_eq!(models.get(name).map(|l| l.window), Some(window), "{name}");
        }
    }

    #[test]
    fn a_longer_number_is_another_model() {
        let models = Models::default();
        assert!(models.has("gpt-4o") && !models.has("gpt-4o-of-my-own"));
        assert_eq!(models.get("gpt-4.5"), None, "not gpt-4 with its 8,192");
        assert_eq!(models.get("o10"), None);
        assert_eq!(models.limits("nobody-knows"), UNKNOWN);
        assert_eq!(models.get(""), None);
        assert_eq!(models.get("///...---"), None);
    }

    #[test]
    fn overrides_win_and_learned_limits_only_lower() {
        let models =
            Models::default().with_override("gpt-4o", TokenLimits::new(64_000).with_output(4_000));
        assert_eq!(models.limits("gpt-4o-mini").window, 64_000, "an override covers the family");
        models.learn("gpt-4o", 90_000);
        assert_eq!(models.limits("gpt-4o").window, 64_000);
        models.learn("gpt-4o", 50_000);
        models.learn("gpt-4o", 70_000);
        models.learn("gpt-4o", 12);
        let limits = models.limits("gpt-4o");
        assert_eq!((limits.window, limits.output), (50_000, Some(4_000)));
        assert_eq!(models.all_learned(), [(Box::<str>::from("gpt-4o"), 50_000)]);
        assert!(models.forget("gpt-4o") && !models.forget("gpt-4o"));
        assert_eq!(models.limits("gpt-4o").window, 64_000);
        models.learn("local", 8_192);
        assert_eq!(models.limits("local").window, 8_192);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_learned_holds_for_an_hour() {
        let models = Models::default();
        let wait = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        models.learn("gpt-4o", 50_000);
        wait(1_800).await;
        models.learn("gpt-4o", 70_000);
        wait(1_799).await;
        assert_eq!(models.limits("gpt-4o").window, 50_000);
        wait(1).await;
        assert_eq!(models.limits("gpt-4o").window, 128_000, "a larger one does not renew it");
        assert!(models.all_learned().is_empty() && !models.forget("gpt-4o"));
        models.learn("gpt-4o", 70_000);
        wait(1_800).await;
        models.learn("gpt-4o", 70_000);
        wait(1_800).await;
        assert_eq!(models.limits("gpt-4o").window, 70_000, "stated again, it is renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_learned_is_bounded() {
        let models = Models::default();
        for number in 0..2 * MAX_LEARNED {
            models.learn(&format!("model {number}"), 8_192);
        }
        assert_eq!(models.learned.read().len(), MAX_LEARNED);
        tokio::time::advance(LEARNED_FOR).await;
        models.learn("another", 8_192);
        assert_eq!(models.all_learned().len(), 1, "those that do not hold any more make room");
    }
}
