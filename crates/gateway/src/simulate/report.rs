//! A simulation in figures: for a terminal and for a page.

use std::fmt::Write as _;

use super::{Figures, Simulation, SimulationOptions};

/// A figure of each run.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
}

/// The figures of all runs, one below the other.
pub(crate) fn rows(all: &[Figures]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: &dyn Fn(&Figures) -> String| {
        rows.push(Row { name: name.to_owned(), values: all.iter().map(value).collect() });
    };
    row("calls", &|one| one.asked.to_string());
    row("answered", &|one| format!("{:.3} %", 100.0 * one.answered_share()));
    row("lost", &|one| one.lost_calls().to_string());
    row("recovered", &|one| one.recovered.to_string());
    for (name, share) in [("half", 0.5), ("95 %", 0.95), ("99 %", 0.99)] {
        row(&format!("first content, {name} within"), &|one| seconds(one.first.quantile(share)));
    }
    for (name, share) in [("half", 0.5), ("95 %", 0.95), ("99 %", 0.99)] {
        row(&format!("of that added, {name} within"), &|one| seconds(one.added.quantile(share)));
    }
    row("attempts a call", &|one| format!("{:.3}", one.attempts_a_call()));
    row("cost", &|one| format!("${:.2}", one.dollars()));
    row("cached tokens lost", &|one| format!("{:.1} M", one.cache_lost as f64 / 1e6));
    let targets = all.first().map_or(&[][..], |first| &first.targets);
    for (at, (name, _)) in targets.iter().enumerate() {
        row(&format!("{name}, asked"), &|one| one.targets[at].1.asked.to_string());
        row(&format!("{name}, answered"), &|one| one.targets[at].1.answered.to_string());
        row(&format!("{name}, hours of waiting"), &|one| {
            format!("{:.1}", one.targets[at].1.time.as_secs_f64() / 3_600.0)
        });
    }
    rows
}

pub(crate) fn seconds(ms: Option<u32>) -> String {
    ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.2} s", f64::from(ms) / 1e3))
}

/// What was simulated: what happens, and the numbers.
pub(crate) fn title(of: &Simulation) -> (String, String) {
    let SimulationOptions { length, rate, seed, .. } = of.options();
    let world = of.world();
    let hours = length.as_secs_f64() / 3_600.0;
    (
        format!("{}: {}", world.name, world.about),
        format!(
            "{} h at {rate:.1} calls a second in the mean, seed {seed}, asking for {}",
            number(hours),
            of.model
        ),
    )
}

/// A number without what says nothing.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// For a terminal.
pub(crate) fn text(of: &Simulation, all: &[Figures]) -> String {
    let (title, numbers) = title(of);
    let mut out = format!("{title}\n{numbers}\n\n");
    let mut line = |name: &str, values: &[String]| {
        let values: String = values.iter().map(|value| format!("{value:>16}")).collect();
        let _ = writeln!(out, "{name:<32}{values}");
    };
    let names: Vec<String> = all.iter().map(|one| one.name.clone()).collect();
    line("", &names);
    for Row { name, values } in rows(all) {
        line(&name, &values);
    }
    let Some(ours) = all.first() else { return out };
    if !ours.lost.is_empty() {
        let lost = ours.lost.iter().map(|(reason, count)| format!("{count} {}", reason.as_str()));
        let _ = writeln!(out, "\nlost: {}", lost.collect::<Vec<_>>().join(", "));
    }
    if !ours.steps.is_empty() {
        let _ = writeln!(out, "\nwhat was done");
        for ((layer, action), count) in &ours.steps {
            let _ = writeln!(out, "{count:>12}  {layer}.{action}");
        }
    }
    out
}
