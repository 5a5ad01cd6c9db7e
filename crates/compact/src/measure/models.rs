//! Windows and output limits, by model.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::RwLock;
use steadfast_chat::ModelFacts;
use steadfast_core::{
    RefusedParameter, Target,
    model_names::{find, names},
    time::later,
};
use tokio::time::Instant;

use crate::decide::Refused;

/// What one model takes and gives, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenLimits {
    /// The window: input and output together.
    pub window: u64,
    /// The most it writes in one answer, when known.
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

/// Refused parameters that are remembered of one target, at most, the newest: a deployment's programs have a handful
/// of values.
const MAX_REFUSED: usize = 32;

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

/// Who has refused a parameter: provider and model.
type RefusedBy = (Box<str>, Box<str>);

/// A parameter that a provider has refused for a model.
#[derive(Clone, Debug)]
struct LearnedRefusal {
    refused: Refused,
    /// From when on it does not hold any more.
    until: Instant,
}

/// What is known of models: a built-in table, overrides, and limits learned from providers.
///
/// Names are matched as [`ModelFacts::of`] matches them.
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
    /// By provider and model.
    refused: RwLock<HashMap<RefusedBy, Vec<LearnedRefusal>>>,
    /// Moves on when something is learned or forgotten.
    epoch: AtomicU64,
    /// Other processes, when what is learned here is shared with them.
    #[cfg(feature = "shared")]
    pub(super) fleet: std::sync::OnceLock<super::shared::Fleet>,
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
        let stated = stated.copied().or_else(|| ModelFacts::of(model).map(TokenLimits::from));
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
        self.overrides.contains_key(model) || ModelFacts::named(model).is_some()
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
        let until = later(Instant::now(), LEARNED_FOR);
        let is_news = self.learn_until(model, LearnedWindow { window, until });
        #[cfg(feature = "shared")]
        if let Some(fleet) = self.fleet.get().filter(|_| is_news) {
            fleet.learned(model, window, until);
        }
        #[cfg(not(feature = "shared"))]
        let _ = is_news;
    }

    /// Takes over a window for as long as that holds; whether it is not larger than what is known.
    pub(super) fn learn_until(&self, model: &str, stated: LearnedWindow) -> bool {
        let now = Instant::now();
        let mut learned = self.learned.write();
        if learned.len() >= MAX_LEARNED {
            learned.retain(|_, known| now < known.until);
        }
        let known = learned.get(model).filter(|known| now < known.until);
        if known.is_some_and(|known| known.window < stated.window) {
            return false;
        }
        if learned.len() < MAX_LEARNED || learned.contains_key(model) {
            learned.insert(model.into(), stated);
        }
        self.epoch.fetch_add(1, Ordering::Release);
        true
    }

    /// Forgets what was learned of `model`, its window and the parameters that were refused, for instance once its
    /// provider has raised the limit. Returns
    /// whether there was anything.
    pub fn forget(&self, model: &str) -> bool {
        #[cfg(feature = "shared")]
        if let Some(fleet) = self.fleet.get() {
            fleet.forgotten(model);
        }
        self.forget_here(model)
    }

    /// Forgets it in this process.
    pub(super) fn forget_here(&self, model: &str) -> bool {
        let known = self.learned.write().remove(model);
        let now = Instant::now();
        let mut was_refused = false;
        self.refused.write().retain(|(_, of), known| {
            was_refused |= **of == *model && known.iter().any(|one| now < one.until);
            **of != *model
        });
        self.epoch.fetch_add(1, Ordering::Release);
        was_refused || known.is_some_and(|known| now < known.until)
    }

    /// Takes over, for an hour, that a provider has refused a parameter.
    pub(crate) fn learn_refused(&self, target: Option<&Target>, model: &str, refused: Refused) {
        let now = Instant::now();
        let mut all = self.refused.write();
        if all.len() >= MAX_LEARNED {
            all.retain(|_, known| known.iter().any(|one| now < one.until));
        }
        let by = refused_by(target, model);
        if all.len() < MAX_LEARNED || all.contains_key(&by) {
            let known = all.entry(by).or_default();
            known.retain(|one| !one.refused.is_same(&refused) && now < one.until);
            if known.len() == MAX_REFUSED {
                known.remove(0);
            }
            known.push(LearnedRefusal { refused, until: later(now, LEARNED_FOR) });
        }
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// The parameters that a provider has refused for a model, and how long the first of them is remembered.
    pub(crate) fn refused(
        &self,
        target: Option<&Target>,
        model: &str,
    ) -> Option<(Box<[Refused]>, Instant)> {
        let now = Instant::now();
        let all = self.refused.read();
        let holding = || {
            let known = all.get(&refused_by(target, model)).into_iter().flatten();
            known.filter(|known| now < known.until)
        };
        let until = holding().map(|known| known.until).min()?;
        Some((holding().map(|known| known.refused.clone()).collect(), until))
    }

    /// The windows that providers have stated and that hold, by model, in no order.
    pub fn all_learned(&self) -> Vec<(Box<str>, u64)> {
        let now = Instant::now();
        let learned = self.learned.read();
        let holding = learned.iter().filter(|(_, known)| now < known.until);
        holding.map(|(model, known)| (model.clone(), known.window)).collect()
    }

    /// The parameters that providers have refused and that are remembered, by provider and model, in no order.
    pub fn all_refused(&self) -> Vec<(Box<str>, Box<str>, RefusedParameter)> {
        let now = Instant::now();
        let all = self.refused.read();
        let each = all.iter().flat_map(|(by, known)| known.iter().map(move |one| (by, one)));
        each.filter(|(_, one)| now < one.until)
            .map(|((provider, model), one)| {
                (provider.clone(), model.clone(), one.refused.parameter)
            })
            .collect()
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

fn refused_by(target: Option<&Target>, model: &str) -> RefusedBy {
    (target.map_or("", Target::provider).into(), model.into())
}

impl From<&ModelFacts> for TokenLimits {
    fn from(facts: &ModelFacts) -> Self {
        Self { window: facts.window, output: facts.output }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_chat::Params;
    use steadfast_core::Dialect;

    use super::*;

    #[test]
    fn what_nobody_knows_has_the_usual_window() {
        let models = Models::default();
        assert!(models.has("gpt-4o") && !models.has("gpt-4o-of-my-own"));
        assert_eq!(models.limits("nobody-knows"), UNKNOWN);
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
    async fn refused_parameters_are_remembered_of_a_target_for_an_hour() {
        let models = Models::default();
        let refused = |name, most| Refused {
            parameter: RefusedParameter { name, most },
            value: Params::default(),
            field: None,
            dialect: Some(Dialect::OpenAi),
        };
        let (one, other) = (Target::new("one"), Target::new("other"));
        let of = |target| models.refused(Some(target), "m").map(|(known, _)| known.into_vec());
        let before = models.epoch();
        models.learn_refused(Some(&one), "m", refused("top_p", None));
        assert_ne!(models.epoch(), before);
        tokio::time::advance(Duration::from_secs(1_800)).await;
        models.learn_refused(Some(&one), "m", refused("max_tokens", Some(8_192)));
        models.learn_refused(Some(&one), "m", refused("max_tokens", Some(4_096)));
        let limit = refused("max_tokens", Some(4_096));
        for number in 0..2 * MAX_REFUSED {
            let mut one = refused("temperature", None);
            one.value.temperature = Some(number as f64);
            models.learn_refused(Some(&other), "n", one);
        }
        let (known, _) = models.refused(Some(&other), "n").unwrap();
        assert_eq!(known.len(), MAX_REFUSED, "the newest");
        models.forget("n");
        assert_eq!(of(&one), Some(vec![refused("top_p", None), limit.clone()]));
        assert_eq!((of(&other), models.refused(Some(&one), "n")), (None, None));
        tokio::time::advance(Duration::from_secs(1_800)).await;
        assert_eq!(of(&one), Some(vec![limit.clone()]), "each for its own hour");
        assert_eq!(models.all_refused(), [("one".into(), "m".into(), limit.parameter)]);
        assert!(models.forget("m") && !models.forget("m"));
        assert_eq!((of(&one), models.all_refused()), (None, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_learned_is_bounded() {
        let models = Models::default();
        for number in 0..2 * MAX_LEARNED {
            models.learn(&format!("model {number}"), 8_192);
            let parameter = RefusedParameter { name: "top_p", most: None };
            let refused =
                Refused { parameter, value: Params::default(), field: None, dialect: None };
            models.learn_refused(None, &format!("model {number}"), refused);
        }
        assert_eq!(models.learned.read().len(), MAX_LEARNED);
        assert_eq!(models.refused.read().len(), MAX_LEARNED);
        tokio::time::advance(LEARNED_FOR).await;
        models.learn("another", 8_192);
        assert_eq!(models.all_learned().len(), 1, "those that do not hold any more make room");
    }
}
