//! What the demo prints.

use std::{collections::HashMap, fmt, time::Duration};

use serde::Serialize;

use super::{load::Answered, scenario::Scenario, scripts::Script};
use crate::{metrics::StepCount, server::App};

/// The outcome of the fixed scenario.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    asked: u32,
    answered: u32,
    /// Answers without tool calls whose text is, byte for byte, one that a provider sent.
    exact: usize,
    compared: usize,
    seconds: f64,
    wrongs: Vec<(String, String, usize)>,
    steps: Vec<StepCount>,
    failures: Vec<String>,
    /// Played after the load.
    pub(super) scripts: Vec<Script>,
}

impl Report {
    pub(super) fn of(app: &App, scenario: &Scenario, answered: &Answered, took: Duration) -> Self {
        let mut truths: HashMap<String, usize> = HashMap::new();
        for truth in scenario.truths() {
            *truths.entry(truth).or_default() += 1;
        }
        let exact = answered
            .texts
            .iter()
            .filter(|text| match truths.get_mut(*text) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    true
                }
                _ => false,
            })
            .count();
        Self {
            asked: answered.asked,
            answered: answered.answered,
            exact,
            compared: answered.texts.len(),
            seconds: took.as_secs_f64(),
            wrongs: scenario.wrongs(),
            steps: app.metrics().steps(),
            failures: answered.failures.clone(),
            scripts: Vec::new(),
        }
    }

    /// Every request was answered, and with what a provider sent, and every script ended well.
    pub(super) fn is_good(&self) -> bool {
        let scripts = self.scripts.iter().all(|script| script.good);
        self.answered == self.asked && self.exact == self.compared && scripts
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12}{:<34}{:>5}", "provider", "what it did wrong", "times")?;
        for (provider, what, times) in &self.wrongs {
            writeln!(f, "{provider:<12}{what:<34}{times:>5}")?;
        }
        writeln!(f, "\n{:<12}{:<18}{:<16}{:>5}", "layer", "what it did", "because of", "times")?;
        for StepCount { layer, action, reason, times } in &self.steps {
            writeln!(f, "{layer:<12}{action:<18}{reason:<16}{times:>5}")?;
        }
        writeln!(f)?;
        for failure in &self.failures {
            writeln!(f, "NOT ANSWERED  {failure}")?;
        }
        writeln!(
            f,
            "{} of {} requests answered in {:.1} s; {} of {} texts are byte for byte what a provider sent",
            self.answered, self.asked, self.seconds, self.exact, self.compared,
        )?;
        writeln!(f, "\nThen, one at a time:")?;
        for script in &self.scripts {
            writeln!(f, "  {script}")?;
        }
        Ok(())
    }
}

/// The lines of the live view.
pub(super) fn live(app: &App, totals: &str) -> Vec<String> {
    let status = app.gateway().status();
    let mut lines = vec![totals.to_owned(), String::new()];
    lines.push(format!("{:<34}{:<10}{:>7}  {}", "target", "status", "errors", "resting"));
    for target in status["targets"].as_array().into_iter().flatten() {
        let resting = match &target["cooling"] {
            serde_json::Value::Null => String::new(),
            cooling => format!(
                "{} for {} s",
                cooling["reason"].as_str().unwrap_or_default(),
                cooling["for_s"],
            ),
        };
        lines.push(format!(
            "{:<34}{:<10}{:>7}  {resting}",
            target["target"].as_str().unwrap_or_default(),
            target["status"].as_str().unwrap_or_default(),
            target["errors"].to_string(),
        ));
    }
    lines.push(String::new());
    lines.push(format!("{:<12}{:<18}{:<16}{:>7}", "layer", "what it did", "because of", "times"));
    for StepCount { layer, action, reason, times } in app.metrics().steps() {
        lines.push(format!("{layer:<12}{action:<18}{reason:<16}{times:>7}"));
    }
    lines
}
