//! What is required of a simulation: `answered >= 99.9%`.

use std::{fmt, str::FromStr, sync::Arc};

use super::figures::{Figures, Times};
use crate::stories::Story;

/// A bound of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    metric: Metric,
    at_least: bool,
    bound: f64,
    text: String,
}

/// What can be bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Answered,
    Lost,
    Recovered,
    First(Share),
    Added(Share),
    Attempts,
    Cost,
    CacheLost,
}

/// The share of calls that is within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Half,
    Most,
    Nearly,
    All,
}

impl Share {
    const fn number(self) -> f64 {
        match self {
            Self::Half => 0.5,
            Self::Most => 0.95,
            Self::Nearly => 0.99,
            Self::All => 1.0,
        }
    }
}

/// Names, what they are, and the unit of their bound.
const METRICS: [(&str, Metric, Unit); 14] = [
    ("answered", Metric::Answered, Unit::Percent),
    ("lost", Metric::Lost, Unit::Percent),
    ("recovered", Metric::Recovered, Unit::Percent),
    ("p50_first", Metric::First(Share::Half), Unit::Time),
    ("p95_first", Metric::First(Share::Most), Unit::Time),
    ("p99_first", Metric::First(Share::Nearly), Unit::Time),
    ("max_first", Metric::First(Share::All), Unit::Time),
    ("p50_added", Metric::Added(Share::Half), Unit::Time),
    ("p95_added", Metric::Added(Share::Most), Unit::Time),
    ("p99_added", Metric::Added(Share::Nearly), Unit::Time),
    ("max_added", Metric::Added(Share::All), Unit::Time),
    ("attempts", Metric::Attempts, Unit::Number),
    ("cost", Metric::Cost, Unit::Dollars),
    ("cache_lost", Metric::CacheLost, Unit::Number),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Percent,
    Time,
    Number,
    Dollars,
}

impl Unit {
    fn parse(self, text: &str) -> Option<f64> {
        let number: f64 = match self {
            Self::Percent => text.strip_suffix('%')?.trim().parse().ok()?,
            Self::Time => {
                let time = humantime::parse_duration(text).ok();
                time.map(|time| time.as_secs_f64() * 1e3).or_else(|| fraction(text))?
            }
            Self::Dollars => text.trim_start_matches('$').trim().parse().ok()?,
            Self::Number => text.replace('_', "").parse().ok()?,
        };
        (number.is_finite() && number >= 0.0).then_some(number)
    }

    fn show(self, number: f64) -> String {
        match self {
            Self::Percent => format!("{number:.4} %"),
            Self::Time => format!("{:.3} s", number / 1e3),
            Self::Dollars => format!("${number:.2}"),
            Self::Number => format!("{number:.3}"),
        }
    }

    const fn example(self) -> &'static str {
        match self {
            Self::Percent => "99.9%",
            Self::Time => "2s or 800ms",
            Self::Dollars => "$120",
            Self::Number => "1.2",
        }
    }
}

/// Seconds with a fraction, which `humantime` has none of.
fn fraction(text: &str) -> Option<f64> {
    text.strip_suffix('s')?.trim().parse::<f64>().ok().map(|seconds| seconds * 1e3)
}

impl Metric {
    fn unit(self) -> Unit {
        METRICS.iter().find(|(_, metric, _)| *metric == self).map_or(Unit::Number, |row| row.2)
    }

    fn of(self, figures: &Figures) -> f64 {
        let share = |count: u64| 100.0 * count as f64 / figures.asked.max(1) as f64;
        let time =
            |times: &Times, share: Share| f64::from(times.quantile(share.number()).unwrap_or(0));
        match self {
            Self::Answered => share(figures.answered),
            Self::Lost => share(figures.lost_calls()),
            Self::Recovered => share(figures.recovered),
            Self::First(share) => time(&figures.first, share),
            Self::Added(share) => time(&figures.added, share),
            Self::Attempts => figures.attempts_a_call(),
            Self::Cost => figures.dollars(),
            Self::CacheLost => figures.cache_lost as f64,
        }
    }

    /// The call that shows it best, of those that there are.
    fn call(self, figures: &Figures) -> Option<Arc<Story>> {
        match self {
            Self::Answered | Self::Lost => figures.lost_calls.first().cloned(),
            Self::First(_) => figures.slowest.as_ref().map(|(_, story)| story.clone()),
            Self::Added(_) => figures.most_added.as_ref().map(|(_, story)| story.clone()),
            _ => None,
        }
    }
}

/// An assertion that does not hold.
#[derive(Debug)]
pub struct Violation {
    text: String,
    found: String,
    pub(crate) call: Option<Arc<Story>>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` does not hold: it is {}", self.text, self.found)
    }
}

impl Assertion {
    /// Whether it holds.
    ///
    /// # Errors
    ///
    /// What was found instead, and a call that shows it.
    pub fn check(&self, figures: &Figures) -> Result<(), Violation> {
        let found = self.metric.of(figures);
        let holds = if self.at_least { found >= self.bound } else { found <= self.bound };
        if holds {
            return Ok(());
        }
        Err(Violation {
            text: self.text.clone(),
            found: self.metric.unit().show(found),
            call: self.metric.call(figures),
        })
    }
}

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, at_least, bound) = match (text.split_once(">="), text.split_once("<=")) {
            (Some((name, bound)), _) => (name, true, bound),
            (None, Some((name, bound))) => (name, false, bound),
            (None, None) => {
                return Err(format!(
                    "`{text}` is no assertion; write `answered >= 99.9%` or `p99_added <= 2s`"
                ));
            }
        };
        let (name, bound) = (name.trim(), bound.trim());
        let Some((_, metric, unit)) = METRICS.iter().find(|(known, ..)| *known == name) else {
            let known: Vec<_> = METRICS.iter().map(|(name, ..)| *name).collect();
            return Err(format!("there is no figure `{name}`; there are {}", known.join(", ")));
        };
        let Some(bound) = unit.parse(bound) else {
            return Err(format!(
                "`{bound}` is no bound of `{name}`; write it like {}",
                unit.example()
            ));
        };
        Ok(Self { metric: *metric, at_least, bound, text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_are_read_and_what_is_none_is_explained() {
        for (text, metric, at_least, bound) in [
            ("answered >= 99.9%", Metric::Answered, true, 99.9),
            ("answered>=99.9 %", Metric::Answered, true, 99.9),
            ("p99_added <= 2s", Metric::Added(Share::Nearly), false, 2_000.0),
            ("p50_first <= 1.5s", Metric::First(Share::Half), false, 1_500.0),
            ("max_added <= 800ms", Metric::Added(Share::All), false, 800.0),
            ("cost <= $120", Metric::Cost, false, 120.0),
            ("cache_lost <= 1_000", Metric::CacheLost, false, 1_000.0),
        ] {
            let read: Assertion = text.parse().unwrap();
            assert_eq!(
                (read.metric, read.at_least, read.bound),
                (metric, at_least, bound),
                "{text}"
            );
        }
        for (text, part) in [
            ("answered", "no assertion"),
            ("answered = 5", "no assertion"),
            ("speed >= 5", "there are answered, lost"),
            ("answered >= 5", "write it like 99.9%"),
            ("p99_added <= soon", "write it like 2s"),
            ("cost <= -1", "write it like $120"),
            ("attempts <= NaN", "write it like 1.2"),
        ] {
            let error = text.parse::<Assertion>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn what_does_not_hold_names_what_was_found() {
        let figures =
            Figures { asked: 1_000, answered: 998, attempts: 1_100, ..Figures::default() };
        let check = |text: &str| text.parse::<Assertion>().unwrap().check(&figures);
        assert!(check("answered >= 99.8%").is_ok() && check("attempts <= 1.1").is_ok());
        let violation = check("answered >= 99.9%").unwrap_err();
        assert_eq!(violation.to_string(), "`answered >= 99.9%` does not hold: it is 99.8000 %");
    }
}
