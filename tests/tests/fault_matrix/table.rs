//! The outcome as a page of the docs.

use std::{fmt::Write as _, fs, path::Path};

use steadfast::Dialect;

use crate::faults::{Expect, Gets, STALL};

/// The lines of the page, in order. Cells that came to the same share one.
#[derive(Default)]
pub(crate) struct Table(Vec<Group>);

struct Group {
    name: &'static str,
    expect: Expect,
    cells: Vec<(Dialect, bool)>,
}

const HEAD: &str = "\
# What each fault comes to

A primary that has one fault, always, and a healthy spare behind it; `retries = 2`, `stall_ms = \
5000`, everything else as it comes, without jitter. Made by `tests/tests/fault_matrix`, which fails \
when this page and what happens differ; `UPDATE_DOCS=1 cargo test -p steadfast-tests --test \
fault_matrix` writes it anew.

*waits* are those before the retries in place; the spare is asked in the moment the last attempt at \
the primary has ended, and a call that fails fails in that moment: nothing sleeps after the last \
attempt. *middle* is after 8 pieces of a stream's text, or in the middle of a whole body; of a \
body that is to come whole nothing has reached the caller by then, so it is asked for again.

| fault of the primary | primary speaks | call | primary asked | waits | spare asked | over after | the caller gets |
|---|---|---|---|---|---|---|---|
";

const TAIL: &str = "
A failure in the middle of a stream comes after every piece that had arrived and is the last thing \
that comes: no end is made up, and polled again the stream stays ended. With the default jitter a \
wait is up to a quarter longer; one that the provider asked for is up to 0.125 s longer and never \
shorter. An overflow goes on to the spare when that is known to have a larger window. Alarms are \
`tracing` events of the target `steadfast::failover::alarm`.
";

impl Table {
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        dialect: Dialect,
        stream: bool,
        expect: Expect,
    ) {
        match self.0.iter_mut().find(|group| group.name == name && group.expect == expect) {
            Some(group) => group.cells.push((dialect, stream)),
            None => self.0.push(Group { name, expect, cells: vec![(dialect, stream)] }),
        }
    }

    fn page(&self) -> String {
        let mut page = HEAD.to_owned();
        for group in &self.0 {
            let Group { name, expect, .. } = group;
            group.assert_even();
            let spare = usize::from(expect.got == Gets::Spare);
            let waits: Vec<String> = expect.waits.iter().map(|wait| seconds(*wait)).collect();
            let waits = if waits.is_empty() { "none".to_owned() } else { waits.join(", ") };
            let took = u64::try_from(expect.took().as_millis()).unwrap();
            writeln!(
                page,
                "| {name} | {} | {} | {} | {waits} | {spare} | {} | {} |",
                group.dialects(),
                group.calls(),
                expect.waits.len() + 1,
                seconds(took),
                gets(expect),
            )
            .unwrap();
        }
        page + TAIL
    }

    /// Compares the page with the file, or writes it when `UPDATE_DOCS` says so.
    pub(crate) fn check(&self) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fault-matrix.md");
        let page = self.page();
        if std::env::var_os("UPDATE_DOCS").is_some_and(|set| set == "1") {
            fs::write(&file, page).unwrap();
            return;
        }
        let kept = fs::read_to_string(&file).unwrap_or_default();
        let differs = kept.lines().zip(page.lines()).find(|(kept, made)| kept != made);
        assert!(
            kept == page,
            "docs/fault-matrix.md is not what happens; write it with UPDATE_DOCS=1. First \
             difference: {differs:#?}"
        );
    }
}

impl Group {
    fn dialects(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for (dialect, _) in &self.cells {
            let name = dialect.to_string();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.len() == Dialect::ALL.len() { "any".to_owned() } else { names.join(", ") }
    }

    /// One line speaks for all of its dialects in all of its calls.
    fn assert_even(&self) {
        for (dialect, _) in &self.cells {
            for (_, stream) in &self.cells {
                assert!(self.cells.contains(&(*dialect, *stream)), "{}: {dialect}", self.name);
            }
        }
    }

    fn calls(&self) -> &'static str {
        let has = |stream| self.cells.iter().any(|(_, other)| *other == stream);
        match (has(false), has(true)) {
            (true, true) => "both",
            (true, false) => "whole",
            _ => "stream",
        }
    }
}

fn seconds(ms: u64) -> String {
    match ms {
        0 => "at once".to_owned(),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{}.{} s", ms / 1_000, (ms % 1_000) / 100),
    }
}

fn gets(expect: &Expect) -> String {
    let mut text = match expect.got {
        Gets::Spare => "the spare's answer, exact".to_owned(),
        Gets::Refusal(reason) => format!("the primary's refusal: `{reason}`"),
        Gets::Truth(reason) => format!("what had come, then the failure `{reason}`"),
    };
    if expect.alarm {
        text.push_str("; the operator an alarm");
    }
    if expect.last == STALL && expect.got == Gets::Spare {
        text.push_str(", after one stall limit");
    }
    text
}
