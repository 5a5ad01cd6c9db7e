//! The tables, in Markdown.

use std::{collections::HashMap, fmt::Write as _};

use tokio::runtime::Runtime;

use crate::{Case, measure, tables, threads};

const COLUMNS: [&str; 3] = ["steadfast", "tower", "tower-resilience 0.13"];

/// Allocations a call, by table, column and case: what the binary `allocations` prints.
#[derive(Debug, Default)]
pub struct Allocations(HashMap<(String, String, String), f64>);

impl Allocations {
    /// Reads lines of four fields between tabs.
    pub fn parse(text: &str) -> Self {
        let read = |line: &str| {
            let mut fields = line.split('\t');
            let mut next = || fields.next().map(str::to_owned);
            let key = (next()?, next()?, next()?);
            Some((key, next()?.parse().ok()?))
        };
        Self(text.lines().filter_map(read).collect())
    }

    fn get(&self, table: &str, column: &str, case: &str) -> Option<f64> {
        self.0.get(&(table.to_owned(), column.to_owned(), case.to_owned())).copied()
    }
}

/// Measures everything; returns the tables.
pub fn markdown(runtime: &Runtime, rounds: usize, allocations: &Allocations) -> String {
    let _inside = runtime.enter();
    let mut out = String::new();
    for mut table in tables(runtime) {
        let mut cases: Vec<&mut Case> = vec![&mut table.bare];
        cases.extend(table.columns.iter_mut().flatten());
        let nanos = measure::nanos(&mut cases, rounds);
        let bare = nanos[0];
        let per_call = f64::from(table.per_call);
        let _ = writeln!(out, "### {}\n\n{}\n", capital(table.title), table.about);
        let _ = writeln!(out, "Bare: {:.1} ns.\n", bare / per_call);
        let _ = writeln!(out, "| whose | layer | ns | allocations |\n|---|---|---:|---:|");
        let mut nanos = nanos[1..].iter();
        for (column, cases) in COLUMNS.into_iter().zip(&table.columns) {
            for (case, nanos) in cases.iter().zip(&mut nanos) {
                let count = allocations
                    .get(table.title, column, case.name)
                    .map_or_else(|| "?".to_owned(), |count| format!("{:.2}", count / per_call));
                let own = (nanos - bare) / per_call;
                let count = count.trim_end_matches(".00");
                let _ = writeln!(out, "| {column} | {} | {own:.1} | {count} |", case.name);
            }
        }
        out.push('\n');
    }
    out.push_str(&shared(runtime, rounds));
    out
}

fn shared(runtime: &Runtime, rounds: usize) -> String {
    let mut out = String::from(
        "### Calls on several threads\n\n\
         Plain replies; each thread has its own service from one layer value. Nanoseconds of core \
         time per call, over bare.\n\n\
         | layer | 1 thread | 2, one key | 8, one key | 8, sixteen keys |\n|---|---:|---:|---:|---:|\n",
    );
    for row in threads::rows(runtime.handle(), rounds.min(25)) {
        let [one, two, eight, spread] = row.nanos;
        let _ = writeln!(out, "| {} | {one:.0} | {two:.0} | {eight:.0} | {spread:.0} |", row.name);
    }
    out
}

/// Counts the allocations of every case, one a line; runs under a counting allocator.
pub fn count(runtime: &Runtime, mut measure: impl FnMut(&mut dyn FnMut()) -> u64) -> String {
    const CALLS: u32 = 200;
    let _inside = runtime.enter();
    let mut out = String::new();
    for mut table in tables(runtime) {
        let mut of = |case: &mut Case| {
            (case.run)(CALLS);
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let counted = measure(&mut || (case.run)(CALLS)) as f64;
            counted / f64::from(CALLS)
        };
        let bare = of(&mut table.bare);
        for (column, cases) in COLUMNS.into_iter().zip(&mut table.columns) {
            for case in cases {
                let count = of(case) - bare;
                let _ = writeln!(out, "{}\t{column}\t{}\t{count}", table.title, case.name);
            }
        }
    }
    out
}

fn capital(title: &str) -> String {
    let mut chars = title.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>())
        + chars.as_str()
}
