//! What a simulation happens in: callers, targets, and what goes wrong when.

use std::{collections::BTreeMap, fmt, path::Path, str::FromStr, time::Duration};

use serde::Deserialize;

/// A world as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct World {
    /// What it is called.
    pub name: String,
    /// What happens in it, in a sentence.
    #[serde(default)]
    pub about: String,
    /// Who asks.
    #[serde(default)]
    pub calls: Calls,
    /// How the targets are, by the provider's name or its position in the chain; `*` is all others.
    #[serde(default)]
    pub targets: BTreeMap<String, TargetTraits>,
    /// What goes wrong.
    #[serde(default)]
    pub events: Vec<WorldEvent>,
}

/// Who asks, and what.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calls {
    /// How many come over the day.
    pub shape: Shape,
    /// The share that is answered in pieces.
    pub streamed: f64,
    /// Tokens of the first turn of a conversation.
    pub input_tokens: u64,
    /// Tokens of an answer, at the median.
    pub output_tokens: u64,
    /// Turns of a conversation, each with all that came before it.
    pub turns: u32,
    /// From one turn to the next, in seconds.
    pub think_s: f64,
    /// The model that is asked for; without it one of the first provider's.
    pub model: Option<String>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            shape: Shape::Flat,
            streamed: 0.8,
            input_tokens: 3_000,
            output_tokens: 250,
            turns: 8,
            think_s: 20.0,
            model: None,
        }
    }
}

/// How many calls come over the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// As many at each time.
    #[default]
    Flat,
    /// A working day: few at night, 1.8 times the mean at its two peaks.
    Day,
}

impl Shape {
    /// How many come after this share of the time, of the mean.
    pub(super) fn at(self, share: f64) -> f64 {
        match self {
            Self::Flat => 1.0,
            Self::Day => {
                // Peaks at half past ten and at half past two. The sum over the day is 24.
                let hour = share * 24.0;
                let peak = |at: f64| (-(hour - at).powi(2) / (2.0 * 2.4f64.powi(2))).exp();
                0.20 + 1.597 * (peak(10.5) + peak(14.5))
            }
        }
    }

    /// The most that come, of the mean.
    pub(super) fn most(self) -> f64 {
        match self {
            Self::Flat => 1.0,
            Self::Day => 2.5,
        }
    }
}

/// How a target is when nothing is wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetTraits {
    /// Until the first content, at the median, in milliseconds.
    pub first_content_ms: f64,
    /// How much that differs from call to call: the standard deviation of its logarithm.
    pub spread: f64,
    /// Tokens a second from there on.
    pub tokens_per_s: f64,
    /// Calls that it answers at once; more are refused with 429.
    pub concurrency: Option<u32>,
    /// Calls a minute that it takes; more are refused with 429.
    pub requests_per_minute: Option<f64>,
    /// The same as a share of the calls that come, of the mean of the whole.
    pub requests_share: Option<f64>,
    /// Whether its 429 say when to come back.
    pub hints: bool,
    /// The share of calls that fail with 500.
    pub errors: f64,
    /// The share of streams that break.
    pub breaks: f64,
}

impl Default for TargetTraits {
    fn default() -> Self {
        Self {
            first_content_ms: 700.0,
            spread: 0.35,
            tokens_per_s: 80.0,
            concurrency: None,
            requests_per_minute: None,
            requests_share: None,
            hints: true,
            // What the vendors' status pages come to between outages.
            errors: 0.002,
            breaks: 0.0005,
        }
    }
}

/// Something that goes wrong for a while.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldEvent {
    /// When it begins.
    pub at: WorldTime,
    /// How long it lasts.
    #[serde(rename = "for")]
    pub lasts: WorldTime,
    /// The provider's name, its position in the chain from 1, or `all`.
    pub target: Selector,
    /// What goes wrong.
    pub what: Ill,
    /// The share of calls to which it happens.
    #[serde(default = "all")]
    pub share: f64,
    /// With `slow`: how many times as long the first content takes.
    #[serde(default = "ten")]
    pub factor: f64,
}

const fn all() -> f64 {
    1.0
}

const fn ten() -> f64 {
    10.0
}

/// A time since the beginning, or a share of the whole, such as `9h`, `90s` or `25%`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub enum WorldTime {
    /// So long.
    After(Duration),
    /// This share of the whole.
    Share(f64),
}

impl WorldTime {
    /// In a simulation that is so long.
    pub fn of(self, whole: Duration) -> Duration {
        match self {
            Self::After(time) => time,
            Self::Share(share) => whole.mul_f64(share),
        }
    }
}

impl FromStr for WorldTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no time; write `90s`, `10m`, `9h 30m` or `25%`");
        if let Some(share) = text.strip_suffix('%') {
            let share: f64 = share.trim().parse().map_err(|_| wrong())?;
            return match share {
                0.0..=100.0 => Ok(Self::Share(share / 100.0)),
                _ => Err(wrong()),
            };
        }
        humantime::parse_duration(text).map(Self::After).map_err(|_| wrong())
    }
}

impl TryFrom<String> for WorldTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Which targets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Selector {
    /// The provider at this position of the chain, from 1.
    Position(usize),
    /// The provider of this name; `all` is every one.
    Name(String),
}

impl Selector {
    /// Whether the provider `name` at `position` from 1 is meant.
    pub(super) fn takes(&self, position: usize, name: &str) -> bool {
        match self {
            Self::Position(wanted) => *wanted == position,
            Self::Name(wanted) => wanted == "all" || wanted == name,
        }
    }
}

/// What goes wrong with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ill {
    /// Connections are refused.
    Down,
    /// 500.
    Errors,
    /// 503, or 529 of those who say it so.
    Overloaded,
    /// 429 with a hint of half a minute.
    Throttled,
    /// Nothing comes.
    Hangs,
    /// The first content comes late.
    Slow,
    /// Streams break off half way.
    Breaks,
    /// 401.
    KeyRefused,
    /// The bill is not paid.
    Unpaid,
}

impl Ill {
    /// As reports name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Errors => "errors",
            Self::Overloaded => "overloaded",
            Self::Throttled => "throttled",
            Self::Hangs => "hangs",
            Self::Slow => "slow",
            Self::Breaks => "breaks",
            Self::KeyRefused => "key refused",
            Self::Unpaid => "unpaid",
        }
    }
}

/// Worlds that are there without a file.
const KNOWN: [(&str, &str); 5] = [
    ("outage", include_str!("worlds/outage.toml")),
    ("brownout", include_str!("worlds/brownout.toml")),
    ("throttle", include_str!("worlds/throttle.toml")),
    ("slow", include_str!("worlds/slow.toml")),
    ("monday", include_str!("worlds/monday.toml")),
];

/// Why there is no such world.
#[derive(Debug)]
pub struct WorldError(String);

impl fmt::Display for WorldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WorldError {}

impl World {
    /// The names of the worlds that need no file.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|(name, _)| *name)
    }

    /// The world of this name, or of this file.
    ///
    /// # Errors
    ///
    /// When there is none, or something in it is wrong.
    pub fn find(name: &str) -> Result<Self, WorldError> {
        if let Some((_, text)) = KNOWN.iter().find(|(known, _)| *known == name) {
            return Self::parse(text, name);
        }
        let path = Path::new(name);
        if !path.exists() {
            let known: Vec<_> = Self::names().collect();
            return Err(WorldError(format!(
                "there is no world and no file `{name}`; worlds without a file are {}",
                known.join(", ")
            )));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| WorldError(format!("{name} can not be read: {error}")))?;
        Self::parse(&text, name)
    }

    /// A world from the text of the file `name`.
    ///
    /// # Errors
    ///
    /// What is wrong in it.
    pub fn parse(text: &str, name: &str) -> Result<Self, WorldError> {
        let world: Self =
            toml::from_str(text).map_err(|error| WorldError(format!("{name}: {error}")))?;
        let wrong = |key: String, what: &str| Err(WorldError(format!("{name}: {key}: {what}")));
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        let is_time = |time: f64| time.is_finite() && time >= 0.0;
        let Calls { streamed, think_s, turns, .. } = world.calls;
        if !is_share(streamed) {
            return wrong("calls.streamed".to_owned(), "is a share from 0 to 1");
        }
        if !is_time(think_s) || turns == 0 {
            return wrong("calls".to_owned(), "`turns` is 1 at least, `think_s` 0 or more seconds");
        }
        for (target, traits) in &world.targets {
            let key = |name: &str| format!("targets.{target}.{name}");
            for (name, share) in [("errors", traits.errors), ("breaks", traits.breaks)] {
                if !is_share(share) {
                    return wrong(key(name), "is a share from 0 to 1");
                }
            }
            if !is_time(traits.first_content_ms) || !is_share(traits.spread / 3.0) {
                return wrong(
                    key("first_content_ms"),
                    "is in milliseconds, and `spread` from 0 to 3",
                );
            }
            if !(traits.tokens_per_s > 0.0 && traits.tokens_per_s.is_finite()) {
                return wrong(key("tokens_per_s"), "is more than 0");
            }
            for (name, rate) in [
                ("requests_per_minute", traits.requests_per_minute),
                ("requests_share", traits.requests_share),
            ] {
                if rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
                    return wrong(key(name), "is more than 0");
                }
            }
        }
        for (at, event) in world.events.iter().enumerate() {
            if !is_share(event.share) {
                return wrong(format!("events[{at}].share"), "is a share from 0 to 1");
            }
            if !(event.factor >= 1.0 && event.factor.is_finite()) {
                return wrong(format!("events[{at}].factor"), "is 1 at least");
            }
            if event.target == Selector::Position(0) {
                return wrong(format!("events[{at}].target"), "positions begin with 1");
            }
        }
        Ok(world)
    }

    /// How the provider `name` at `position` from 1 is.
    pub(super) fn traits(&self, position: usize, name: &str) -> TargetTraits {
        let position = position.to_string();
        let own = self.targets.get(name).or_else(|| self.targets.get(&position));
        own.or_else(|| self.targets.get("*")).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_worlds_are_valid() {
        for name in World::names() {
            let world = World::find(name).unwrap();
            assert_eq!(world.name, name);
            assert!(!world.about.is_empty() && !world.events.is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, part) in [
            ("", "missing field `name`"),
            ("name = 'x'\nspeed = 1", "unknown field `speed`"),
            ("name = 'x'\n[calls]\nstreamed = 2", "calls.streamed: is a share"),
            ("name = 'x'\n[calls]\nturns = 0", "calls: `turns`"),
            ("name = 'x'\n[targets.a]\nerrors = 1.5", "targets.a.errors"),
            ("name = 'x'\n[targets.a]\ntokens_per_s = 0", "targets.a.tokens_per_s"),
            ("name = 'x'\n[[events]]\nat = '1x'\nfor = '1h'\ntarget = 1\nwhat = 'down'", "no time"),
            (
                "name = 'x'\n[[events]]\nat = '120%'\nfor = '1h'\ntarget = 1\nwhat = 'down'",
                "no time",
            ),
            (
                "name = 'x'\n[[events]]\nat = '0s'\nfor = '1h'\ntarget = 0\nwhat = 'down'",
                "begin with 1",
            ),
            (
                "name = 'x'\n[[events]]\nat = '0s'\nfor = '1h'\ntarget = 'a'\nwhat = 'ill'",
                "unknown variant `ill`",
            ),
        ] {
            let error = World::parse(text, "file").unwrap_err().to_string();
            assert!(error.starts_with("file: ") && error.contains(part), "{text}: {error}");
        }
        let error = World::find("nowhere").unwrap_err().to_string();
        assert!(error.contains("outage, brownout, throttle, slow, monday"), "{error}");
    }

    #[test]
    fn a_day_has_its_mean_and_its_bound() {
        let shares: Vec<f64> = (0..2_400).map(|n| Shape::Day.at(f64::from(n) / 2_400.0)).collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        let most = shares.iter().copied().fold(0.0, f64::max);
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!(most <= Shape::Day.most(), "{most}");
    }
}
