//! What models cost.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use parking_lot::Mutex;
use serde::Deserialize;
use steadfast_core::{
    Spend, Usage,
    model_names::{find, names},
};

/// What a model costs: micro-dollars (a millionth of a US dollar) for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// Of input tokens that no cache is involved in.
    pub input: u64,
    /// Of output tokens.
    pub output: u64,
    /// Of input tokens read from a cache; those of `input` when it is not stated.
    #[serde(default)]
    pub cache_read: Option<u64>,
    /// Of input tokens written to a cache; those of `input` when it is not stated.
    #[serde(default)]
    pub cache_write: Option<u64>,
    /// What a call with a long input costs instead.
    #[serde(default)]
    pub long: Option<LongInputPrice>,
}

/// What a call costs whose input is longer than a limit; all its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LongInputPrice {
    /// The limit, in tokens.
    pub above: u64,
    /// As in [`ModelPrice`].
    pub input: u64,
    /// As in [`ModelPrice`].
    pub output: u64,
    /// As in [`ModelPrice`].
    #[serde(default)]
    pub cache_read: Option<u64>,
    /// As in [`ModelPrice`].
    #[serde(default)]
    pub cache_write: Option<u64>,
}

impl ModelPrice {
    /// Nothing.
    pub const FREE: Self = Self::new(0, 0);

    /// So much for a million tokens of input and of output, cached or not.
    pub const fn new(input: u64, output: u64) -> Self {
        Self { input, output, cache_read: None, cache_write: None, long: None }
    }

    /// What `usage` costs, rounded up to the micro-dollar.
    pub fn cost(&self, usage: &Usage) -> u64 {
        let all = usage.input.unwrap_or(0);
        let price = match self.long {
            Some(long) if all > long.above => Self {
                input: long.input,
                output: long.output,
                cache_read: long.cache_read.or(self.cache_read),
                cache_write: long.cache_write.or(self.cache_write),
                long: None,
            },
            _ => *self,
        };
        let read = usage.cache_read.unwrap_or(0).min(all);
        let written = usage.cache_write.unwrap_or(0).min(all - read);
        let fresh = all - read - written;
        let parts = [
            (fresh, price.input),
            (read, price.cache_read.unwrap_or(price.input)),
            (written, price.cache_write.unwrap_or(price.input)),
            (usage.output.unwrap_or(0), price.output),
        ];
        let sum: u128 =
            parts.iter().map(|(tokens, price)| u128::from(*tokens) * u128::from(*price)).sum();
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The most that so many tokens can cost: with the input written to a cache, where that is dearer.
    pub(crate) fn most(&self, usage: &Usage) -> Spend {
        let mut written = *usage;
        written.cache_write = usage.input;
        let cost = self.cost(usage).max(self.cost(&written));
        Spend::new(usage.total().unwrap_or(0), cost)
    }

    /// What `usage` costs, with its tokens.
    pub(crate) fn spend(&self, usage: &Usage) -> Spend {
        Spend::new(usage.total().unwrap_or(0), self.cost(usage))
    }
}

/// What a model costs that nobody has stated a price for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum UnpricedModel {
    /// Nothing, reported once for each model: most models without a price are one's own.
    #[default]
    Free,
    /// As much as the dearest one of the table: no model passes below a cap on money unnoticed.
    Dearest,
}

/// The table, made from `data/prices.jsonl`, whose first line has its date and source.
static TABLE: LazyLock<HashMap<Box<str>, ModelPrice>> = LazyLock::new(|| {
    read(include_str!("../../data/prices.jsonl")).into_iter().filter_map(Result::ok).collect()
});

fn read(text: &str) -> Vec<Result<(Box<str>, ModelPrice), serde_json::Error>> {
    #[derive(Deserialize)]
    struct Row {
        model: Box<str>,
        input: u64,
        output: u64,
        cache_read: Option<u64>,
        cache_write: Option<u64>,
        long: Option<LongInputPrice>,
    }
    let rows = text.lines().skip(1).map(|line| {
        let Row { model, input, output, cache_read, cache_write, long } =
            serde_json::from_str(line)?;
        Ok((model, ModelPrice { input, output, cache_read, cache_write, long }))
    });
    rows.collect()
}

/// Models whose missing price was reported, at most.
const MAX_REPORTED: usize = 1_024;

/// The prices of models: a built-in table, and overrides.
///
/// A name is found without the vendor and region in front of it, and by the longest known name that it
/// continues: `us.anthropic.claude-sonnet-4-5-20250929-v1:0` is `claude-sonnet-4-5`.
///
/// ```
/// use steadfast_limit::{ModelPrice, Prices};
///
/// let prices = Prices::default().with_override("house-model", ModelPrice::new(100_000, 400_000));
/// assert_eq!(prices.get("house-model-q4").unwrap().output, 400_000);
/// assert_eq!(prices.get("openai/gpt-4o-2024-08-06").unwrap().input, 2_500_000);
/// ```
#[derive(Debug, Default)]
pub struct Prices {
    overrides: HashMap<Box<str>, ModelPrice>,
    unpriced: UnpricedModel,
    reported: Mutex<HashSet<Box<str>>>,
}

impl Prices {
    /// With this price of `name`, and of names that continue it. It wins over the table.
    #[must_use]
    pub fn with_override(mut self, name: impl Into<Box<str>>, price: ModelPrice) -> Self {
        self.overrides.insert(name.into(), price);
        self
    }

    /// With this price of models that are not known.
    #[must_use]
    pub fn with_unpriced(mut self, unpriced: UnpricedModel) -> Self {
        self.unpriced = unpriced;
        self
    }

    /// The price of `model`, if it is known.
    pub fn get(&self, model: &str) -> Option<ModelPrice> {
        let own = |name: &str| self.overrides.get(name).copied();
        let table = |name: &str| TABLE.get(name).copied();
        let in_table = |model: &str| names(model).find_map(|name| find(name, table));
        names(model)
            .take_while(|_| !self.overrides.is_empty())
            .find_map(|name| find(name, own))
            .or_else(|| in_table(model))
            .or_else(|| in_table(&model.to_ascii_lowercase()))
    }

    /// The price of `model`, or what is taken for it.
    pub fn price(&self, model: &str) -> ModelPrice {
        self.get(model).unwrap_or_else(|| {
            let mut reported = self.reported.lock();
            let is_new = reported.len() < MAX_REPORTED && reported.insert(model.into());
            drop(reported);
            if is_new {
                super::event::unpriced(model, self.unpriced);
            }
            match self.unpriced {
                UnpricedModel::Free => ModelPrice::FREE,
                UnpricedModel::Dearest => self.dearest(),
            }
        })
    }

    fn dearest(&self) -> ModelPrice {
        let all = TABLE.values().chain(self.overrides.values());
        all.copied().max_by_key(|price| (price.output, price.input)).unwrap_or(ModelPrice::FREE)
    }

    /// What `usage` of `model` costs.
    pub fn spend(&self, model: &str, usage: &Usage) -> Spend {
        self.price(model).spend(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_valid() {
        let text = include_str!("../../data/prices.jsonl");
        let head: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert!(head["as_of"].is_string() && head["source"].is_string(), "{head}");
        let rows = read(text);
        let count = rows.len();
        for row in rows {
            let (model, price) = row.unwrap();
            // Embeddings write nothing.
            assert!(price.output >= price.input || price.output == 0, "{model}");
            assert!(price.input > 0, "{model}");
            assert!(price.cache_read.is_none_or(|read| read < price.input), "{model}");
            assert!(price.cache_write.is_none_or(|write| write < 2 * price.input), "{model}");
            assert!(price.long.is_none_or(|long| long.input > price.input), "{model}");
        }
        assert_eq!(TABLE.len(), count, "a row stands twice");
    }

    #[test]
    fn usage_is_priced_by_its_parts() {
        let prices = Prices::default();
        let mut usage = Usage::new(1_000_000, 100_000);
        assert_eq!(prices.spend("claude-sonnet-4-5", &usage).cost, 3_000_000 + 1_500_000);
        usage.cache_read = Some(800_000);
        usage.cache_write = Some(100_000);
        let cost = 300_000 + 240_000 + 375_000 + 1_500_000;
        assert_eq!(prices.spend("anthropic/claude-sonnet-4-5-20250929", &usage).cost, cost);
        assert_eq!(prices.spend("claude-sonnet-4-5", &usage).tokens, 1_100_000);
        // One token is not free.
        assert_eq!(prices.spend("gpt-5-nano", &Usage::new(1, 0)).cost, 1);
        // A long input costs more, all of it.
        let long = prices.price("gemini-2.5-pro");
        assert_eq!(long.cost(&Usage::new(200_000, 0)), 250_000);
        assert_eq!(long.cost(&Usage::new(200_001, 0)), 500_003);
        assert_eq!(ModelPrice::new(u64::MAX, u64::MAX).cost(&Usage::new(u64::MAX, 1)), u64::MAX);
    }

    #[test]
    fn the_most_includes_a_cache_that_is_written() {
        let price = Prices::default().price("claude-sonnet-4-5");
        let most = price.most(&Usage::new(1_000_000, 0));
        assert_eq!(most, Spend::new(1_000_000, 3_750_000));
    }

    #[test]
    fn unknown_models_cost_what_the_policy_says() {
        let usage = Usage::new(1_000_000, 0);
        assert_eq!(Prices::default().spend("house", &usage), Spend::new(1_000_000, 0));
        let dearest = Prices::default().with_unpriced(UnpricedModel::Dearest);
        assert!(dearest.spend("house", &usage).cost >= 15_000_000);
        let own = Prices::default().with_override("house", ModelPrice::new(7, 7));
        assert_eq!(own.spend("house", &usage).cost, 7);
        assert_eq!(own.price("gpt-4o").output, 10_000_000);
    }
}
