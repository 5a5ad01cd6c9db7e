//! Runs the checks, category by category, and prints a line a check and a table of counts.

use std::{path::Path, sync::Arc};

use tokio::{
    task::JoinSet,
    time::{Duration, Instant, timeout},
};

use crate::{
    check::{Category, Check, Failed, Seen},
    checks::CATEGORIES,
    site::Site,
    text::shown,
};

/// What came of a category.
#[derive(Debug, Default)]
struct Count {
    ok: usize,
    failed: Vec<String>,
}

impl Count {
    /// Prints a line, and counts it.
    fn note(&mut self, name: &str, took: Duration, seen: &Seen) {
        let (word, text) = match seen {
            Ok(text) => ("ok  ", text),
            Err(Failed(text)) => ("FAIL", text),
        };
        let text = shown(text);
        // What was seen may be an attacker's.
        println!("{word} {name}: {text} [{:.1} s]", took.as_secs_f64());
        match seen {
            Ok(_) => self.ok += 1,
            Err(_) => {
                let brief: String = text.chars().take(200).collect();
                self.failed.push(format!("{name}: {brief}"));
            }
        }
    }
}

/// Runs the checks whose name has all of `words` in it; whether each passed.
pub(crate) async fn run(binary: &Path, quick: bool, words: &[String]) -> bool {
    let started = Instant::now();
    let mut counts = Vec::new();
    for category in CATEGORIES {
        let named = |check: &Check| {
            let name = format!("{}: {}", category.name, check.name);
            words.iter().all(|word| name.contains(word.as_str()))
        };
        let checks: Vec<_> = (category.checks)()
            .into_iter()
            .filter(|check| (check.is_quick || !quick) && named(check))
            .collect();
        if !checks.is_empty() {
            let from = Instant::now();
            let count = run_category(binary, category, checks).await;
            counts.push((category.name, count, from.elapsed()));
        }
    }
    summary(&counts, started.elapsed())
}

/// Prints the table; whether there were checks, and none failed.
fn summary(counts: &[(&str, Count, Duration)], took: Duration) -> bool {
    let failed: Vec<_> = counts.iter().flat_map(|(_, count, _)| &count.failed).collect();
    println!("\n{:<14} {:>5} {:>7} {:>8}", "category", "ok", "failed", "seconds");
    for (name, count, took) in counts {
        let seconds = took.as_secs_f64();
        println!("{name:<14} {:>5} {:>7} {seconds:>8.1}", count.ok, count.failed.len());
    }
    let ok: usize = counts.iter().map(|(_, count, _)| count.ok).sum();
    println!("{:<14} {ok:>5} {:>7} {:>8.1}", "all", failed.len(), took.as_secs_f64());
    if !failed.is_empty() {
        println!("\nfailed:");
        failed.iter().for_each(|line| println!("  {line}"));
    }
    if counts.is_empty() {
        println!("no check has that name");
    }
    failed.is_empty() && !counts.is_empty()
}

/// Runs the checks of one category against a process of its own. A process that a check ends is started again.
async fn run_category(binary: &Path, category: &Category, checks: Vec<Check>) -> Count {
    let mut count = Count::default();
    let from = Instant::now();
    let start = || async { timeout(Duration::from_secs(30), Site::start(binary, category)).await };
    let mut site = match start().await {
        Ok(Ok(site)) => site,
        Ok(Err(why)) => {
            count.note(&format!("{}: start", category.name), from.elapsed(), &Err(why));
            return count;
        }
        Err(late) => {
            count.note(&format!("{}: start", category.name), from.elapsed(), &Err(late.into()));
            return count;
        }
    };
    let mut waiting = checks.into_iter();
    let mut running = JoinSet::new();
    loop {
        while running.len() < category.at_once
            && let Some(check) = waiting.next()
        {
            running.spawn(run_check(category.name, check, site.clone()));
        }
        let Some(ended) = running.join_next().await else { break };
        match ended {
            Ok((name, took, seen)) => count.note(&name, took, &seen),
            Err(error) => {
                let name = format!("{}: a check", category.name);
                count.note(&name, Duration::ZERO, &Err(error.into()));
            }
        }
        if let Some(status) = site.gateway.exited() {
            let why = format!("the process has ended, {status}: {}", site.gateway.log());
            count.note(&format!("{}: it lives", category.name), Duration::ZERO, &Err(why.into()));
            while running.join_next().await.is_some() {}
            match start().await {
                Ok(Ok(again)) => site = again,
                _ => return count,
            }
        }
    }
    let from = Instant::now();
    let seen = site.is_as_before().await;
    count.note(&format!("{}: as before", category.name), from.elapsed(), &seen);
    count
}

async fn run_check(category: &str, check: Check, site: Arc<Site>) -> (String, Duration, Seen) {
    let from = Instant::now();
    let bound = check.bound;
    let seen = timeout(bound, (check.run)(site)).await;
    let seen = seen.unwrap_or_else(|_| Err(Failed(format!("not over after {bound:?}"))));
    (format!("{category}: {}", check.name), from.elapsed(), seen)
}
