//! A target that limits requests and tokens a minute, and says so in the headers of its answers, or lies.

use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;
use http::{HeaderMap, HeaderName, HeaderValue};
use steadfast_core::time::wall;

const MINUTE: f64 = 60.0;

/// What a target limits, and what it states of that.
#[derive(Clone, Debug)]
pub(crate) struct StatedQuota {
    pub(crate) form: Form,
    /// A minute; all of it may be used at once.
    pub(crate) requests: f64,
    pub(crate) tokens: f64,
    pub(crate) lie: Option<Lie>,
    /// Its 429s have a hint.
    pub(crate) hints: bool,
}

/// Whose headers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// Durations in whole seconds.
    OpenAi,
    /// Moments in whole seconds.
    Anthropic,
}

/// What of the headers is not true.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lie {
    /// Nothing is limited, and nothing ever left.
    NothingLeft,
    /// Nothing is limited, and stated is a twentieth of what there would be.
    MuchLess,
    /// There is a tenth of what is stated.
    MuchMore,
    /// All is stated to be back tomorrow.
    Tomorrow,
    /// Its clock is ten minutes fast.
    Clock,
}

impl StatedQuota {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let one_of = |rng: &mut Rng, choices: &[f64]| choices[rng.usize(..choices.len())];
        let lies = [Lie::NothingLeft, Lie::MuchLess, Lie::MuchMore, Lie::Tomorrow, Lie::Clock];
        Self {
            form: if rng.bool() { Form::OpenAi } else { Form::Anthropic },
            requests: one_of(rng, &[30.0, 120.0, 300.0, 600.0, 1_200.0]),
            tokens: one_of(rng, &[60_000.0, 300_000.0, 1_000_000.0]),
            lie: rng.bool().then(|| lies[rng.usize(..lies.len())]),
            hints: rng.u8(..4) > 0,
        }
    }

    fn is_enforced(&self) -> bool {
        !matches!(self.lie, Some(Lie::NothingLeft | Lie::MuchLess))
    }
}

/// What is left of it.
#[derive(Debug)]
pub(crate) struct QuotaState {
    quota: StatedQuota,
    /// Of requests and of tokens; below zero in debt.
    levels: [f64; 2],
    at: Duration,
}

impl QuotaState {
    pub(crate) fn new(quota: StatedQuota) -> Self {
        Self { levels: [quota.requests, quota.tokens], quota, at: Duration::ZERO }
    }

    fn limits(&self) -> [f64; 2] {
        [self.quota.requests, self.quota.tokens]
    }

    fn refill(&mut self, now: Duration) {
        let minutes = now.saturating_sub(self.at).as_secs_f64() / MINUTE;
        for (level, limit) in self.levels.iter_mut().zip([self.quota.requests, self.quota.tokens]) {
            *level = (*level + minutes * limit).min(limit);
        }
        self.at = now;
    }

    /// Takes a call with so much input, or says how long until there is room, if it says so.
    pub(crate) fn admit(&mut self, now: Duration, input: f64) -> Result<(), Duration> {
        self.refill(now);
        let wants = [1.0, input];
        if self.quota.is_enforced() {
            let missing = self.levels.iter().zip(wants).zip(self.limits());
            let wait = missing.map(|((level, want), limit)| (want - level) / limit * MINUTE);
            let wait = wait.fold(0.0, f64::max);
            if wait > 0.0 {
                let hint = if self.quota.hints { wait.ceil() } else { 0.0 };
                return Err(Duration::from_secs_f64(hint));
            }
        }
        self.levels.iter_mut().zip(wants).for_each(|(level, want)| *level -= want);
        Ok(())
    }

    /// An answer has ended with so much output.
    pub(crate) fn charge(&mut self, output: f64) {
        self.levels[1] -= output;
    }

    /// What its headers state now.
    pub(crate) fn headers(&mut self, now: Duration) -> HeaderMap {
        self.refill(now);
        let mut headers = HeaderMap::new();
        let mut set = |name: String, value: String| {
            let name = HeaderName::try_from(name).unwrap();
            headers.insert(name, HeaderValue::try_from(value).unwrap());
        };
        let limits = self.limits();
        for (kind, (level, limit)) in self.levels.into_iter().zip(limits).enumerate() {
            let kind = ["requests", "tokens"][kind];
            let share = match self.quota.lie {
                Some(Lie::MuchLess) => 0.05,
                Some(Lie::MuchMore) => 10.0,
                _ => 1.0,
            };
            let left = match self.quota.lie {
                Some(Lie::NothingLeft) => 0.0,
                _ => (level * share).max(0.0).floor(),
            };
            let limit = (limit * share).max(1.0).floor();
            let reset = match self.quota.lie {
                Some(Lie::Tomorrow) => 86_400.0,
                _ => ((limit - left) / limit * MINUTE).ceil(),
            };
            match self.quota.form {
                Form::OpenAi => {
                    set(format!("x-ratelimit-limit-{kind}"), limit.to_string());
                    set(format!("x-ratelimit-remaining-{kind}"), left.to_string());
                    set(format!("x-ratelimit-reset-{kind}"), format!("{reset}s"));
                }
                Form::Anthropic => {
                    let fast = if matches!(self.quota.lie, Some(Lie::Clock)) { 600.0 } else { 0.0 };
                    let moment = moment(reset + fast);
                    set(format!("anthropic-ratelimit-{kind}-limit"), limit.to_string());
                    set(format!("anthropic-ratelimit-{kind}-remaining"), left.to_string());
                    set(format!("anthropic-ratelimit-{kind}-reset"), moment);
                }
            }
        }
        headers
    }
}

/// The moment in so many seconds, in RFC 3339.
fn moment(seconds: f64) -> String {
    let since = wall().duration_since(UNIX_EPOCH).unwrap().as_secs() + seconds as u64;
    let (mut days, second) = (since / 86_400, since % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4); // until 2100
    let mut year = 1_970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{:02}Z", month + 1, days + 1, second % 60)
}
