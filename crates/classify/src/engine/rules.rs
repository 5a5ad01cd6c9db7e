//! What the phrases of a message mean: `data/rules.txt` has the rules, this is what asks them.

use std::sync::LazyLock;

use steadfast_core::Reason;

use super::{
    codes::Effect,
    phrases::{self, Found, Set},
    table::{Row, Table, TableError, built_in, table},
    vendors::{self, Vendor},
};

const FILE: Table = table!("rules.txt");

/// When a rule is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// The text leaves no doubt: before the codes that have several meanings.
    Exact,
    /// After those codes.
    Loose,
}

#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) reason: Reason,
    pub(crate) effect: Effect,
    certainty: Certainty,
    needs: Vec<Condition>,
    unless: Vec<Condition>,
    statuses: Statuses,
    /// The phrases follow each other in order within so many bytes.
    within: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Condition {
    /// The text contains a phrase of it.
    Phrase(Set),
    /// It is an error of that vendor's.
    Vendor(Vendor),
}

/// Statuses a rule applies to. Without a status every rule applies.
#[derive(Debug)]
enum Statuses {
    All,
    Only(Vec<u16>),
    Not(Vec<u16>),
    /// None at all, and no code either; and the text has at most so many bytes, or begins with the
    /// phrase.
    Bare(usize),
}

/// What is known of an error besides its texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// Whose it is.
    pub(crate) vendors: &'a [Vendor],
    pub(crate) status: Option<u16>,
    /// It has a code of the table.
    pub(crate) coded: bool,
}

/// Asked in this order; the first that holds decides.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| built_in(read(FILE)));

fn read(table: Table) -> Result<Vec<Rule>, TableError> {
    table.rows(3, 7)?.iter().map(rule).collect()
}

fn rule(row: &Row) -> Result<Rule, TableError> {
    let condition = |name: &str| {
        let condition = match name.strip_prefix('@') {
            Some(vendor) => vendors::named(vendor).map(Condition::Vendor),
            None => phrases::set(name).map(Condition::Phrase),
        };
        condition.ok_or_else(|| {
            row.error(format!("`{name}` is no set of phrases.txt and no @vendor of vendors.txt"))
        })
    };
    let conditions = |column: usize, separator: char| {
        let names = row.text(column).split(separator).map(str::trim);
        names.filter(|name| !name.is_empty()).map(condition).collect::<Result<Vec<_>, _>>()
    };
    let within = match row.text(5) {
        "" => None,
        _ => Some(row.number(5)?),
    };
    let statuses = statuses(row, 4)?;
    let reason = match (row.text(0), &statuses) {
        ("safety", Statuses::Bare(_)) => Reason::Safety,
        ("safety", _) => {
            return Err(row.error("`safety` forbids every retry: only a `bare` text may mean it"));
        }
        _ => row.reason(0)?,
    };
    Ok(Rule {
        reason,
        certainty: row.one_of(1, &[("exact", Certainty::Exact), ("loose", Certainty::Loose)])?,
        needs: conditions(2, '&')?,
        unless: conditions(3, ',')?,
        statuses,
        within,
        effect: Effect::of(row, 6)?,
    })
}

fn statuses(row: &Row, column: usize) -> Result<Statuses, TableError> {
    let text = row.text(column);
    let list = |list: &str| {
        let statuses = list.split(',').map(|status| status.trim().parse());
        statuses.collect::<Result<Vec<u16>, _>>().ok()
    };
    let statuses = match text.split_once(' ') {
        None if text.is_empty() => Some(Statuses::All),
        Some(("only", rest)) => list(rest).map(Statuses::Only),
        Some(("not", rest)) => list(rest).map(Statuses::Not),
        Some(("bare", rest)) => rest.trim().parse().ok().map(Statuses::Bare),
        _ => None,
    };
    statuses.ok_or_else(|| {
        row.error(format!(
            "`{text}` is neither empty nor like `only 400,422`, `not 429` or `bare 80`"
        ))
    })
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&RULES);
}

/// The first rule of `certainty` that holds for an error, with the phrase that it was found by.
pub(crate) fn decide(
    certainty: Certainty,
    found: &Found,
    known: Known<'_>,
) -> Option<(&'static Rule, &'static str)> {
    let asked = RULES.iter().filter(|rule| rule.certainty == certainty);
    let rule = asked.into_iter().find(|rule| rule.holds(found, known))?;
    let phrase = rule.sets().find_map(|set| found.first(set));
    Some((rule, phrase.unwrap_or_default()))
}

impl Rule {
    fn holds(&self, found: &Found, known: Known<'_>) -> bool {
        let met = |condition: &Condition| match condition {
            Condition::Phrase(set) => found.has(*set),
            Condition::Vendor(vendor) => known.vendors.contains(vendor),
        };
        self.needs.iter().all(met)
            && !self.unless.iter().any(met)
            && self.applies(found, known)
            && self.within.is_none_or(|within| {
                let sets: Vec<Set> = self.sets().collect();
                found.in_order(&sets, within)
            })
    }

    fn applies(&self, found: &Found, known: Known<'_>) -> bool {
        match (&self.statuses, known.status) {
            (Statuses::Bare(most), None) => {
                !known.coded && self.sets().all(|set| found.is_about(set, *most))
            }
            (Statuses::Bare(_), Some(_)) => false,
            (Statuses::All, _) | (_, None) => true,
            (Statuses::Only(statuses), Some(status)) => statuses.contains(&status),
            (Statuses::Not(statuses), Some(status)) => !statuses.contains(&status),
        }
    }

    /// The sets of which a phrase is needed.
    fn sets(&self) -> impl Iterator<Item = Set> {
        self.needs.iter().filter_map(|condition| match condition {
            Condition::Phrase(set) => Some(*set),
            Condition::Vendor(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Sets that code asks for rather than a rule.
    const ASKED_BY_CODE: [&str; 13] = [
        "bucket.input",
        "bucket.output",
        "bucket.tokens",
        "bucket.requests",
        "current-quota",
        "retry-in",
        "tls-certificate",
        "not-tls-certificate",
        "parameter.temperature",
        "parameter.top-k",
        "parameter.thinking",
        "parameter.logprobs",
        "parameter.penalty",
    ];

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        for (text, error) in [
            ("auth | sure | auth", "`sure` is none of: exact, loose"),
            (
                "auth | exact | auth & nobody",
                "`nobody` is no set of phrases.txt and no @vendor of vendors.txt",
            ),
            (
                "auth | exact | @nobody",
                "`@nobody` is no set of phrases.txt and no @vendor of vendors.txt",
            ),
            (
                "auth | exact | auth | | 400",
                "`400` is neither empty nor like `only 400,422`, `not 429` or `bare 80`",
            ),
            (
                "auth | exact | auth | | bare few",
                "`bare few` is neither empty nor like `only 400,422`, `not 429` or `bare 80`",
            ),
            (
                "safety | exact | auth",
                "`safety` forbids every retry: only a `bare` text may mean it",
            ),
            ("auth | exact | auth | | | near", "`near` is no number that fits here"),
        ] {
            let found = read(Table { file: "rules.txt", text }).unwrap_err().to_string();
            assert_eq!(found, format!("data/rules.txt:1: {error}"));
        }
    }

    #[test]
    fn every_set_is_used() {
        for (set, (name, _)) in phrases::sets().iter().enumerate() {
            let used = RULES.iter().any(|rule| {
                let mut conditions = rule.needs.iter().chain(&rule.unless);
                conditions.any(|condition| matches!(condition, Condition::Phrase(s) if *s == set))
            });
            assert!(used || ASKED_BY_CODE.contains(name), "no rule uses the set `{name}`");
        }
        for name in ASKED_BY_CODE {
            assert!(phrases::set(name).is_some(), "{name}");
        }
    }

    #[test]
    fn no_overflow_is_found_in_the_wording_of_a_throttle() {
        let throttle = phrases::set("throttle").unwrap();
        for rule in RULES.iter().filter(|rule| rule.reason == Reason::ContextOverflow) {
            let vetoed = |c: &Condition| matches!(c, Condition::Phrase(set) if *set == throttle);
            assert!(rule.unless.iter().any(vetoed), "{rule:?}");
        }
    }

    /// Each phrase that a rule needs, with some phrase of each other set of that rule, decides
    /// with some status: it is not always preceded by another rule. So does each rule.
    #[test]
    fn every_phrase_and_every_rule_can_decide() {
        const STATUSES: [u16; 16] =
            [400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 501, 502, 503, 504, 520, 529];
        let sets = phrases::sets();
        let mut reachable = HashSet::new();
        let mut needed = HashSet::new();
        for (line, rule) in RULES.iter().enumerate() {
            let mut decided = false;
            let vendors: Vec<Vendor> = rule
                .needs
                .iter()
                .filter_map(|condition| match condition {
                    Condition::Vendor(vendor) => Some(*vendor),
                    Condition::Phrase(_) => None,
                })
                .collect();
            let own: Vec<Set> = rule.sets().collect();
            for (position, set) in own.iter().enumerate() {
                for phrase in &sets[*set].1 {
                    needed.insert((*set, *phrase));
                    if decided && reachable.contains(&(*set, *phrase)) {
                        continue;
                    }
                    let decides = |turn: usize| {
                        let parts = own.iter().enumerate().map(|(number, set)| {
                            let members = &sets[*set].1;
                            if number == position { phrase } else { members[turn % members.len()] }
                        });
                        let text = parts.collect::<Vec<_>>().join(" ");
                        let found = phrases::find(&text);
                        STATUSES.into_iter().map(Some).chain([None]).any(|status| {
                            let known = Known { vendors: &vendors, status, coded: false };
                            decide(rule.certainty, &found, known)
                                .is_some_and(|(decided, _)| std::ptr::eq(decided, rule))
                        })
                    };
                    if (0..40).any(decides) {
                        decided = true;
                        reachable.insert((*set, *phrase));
                    }
                }
            }
            assert!(decided, "rule {} of the file never decides: {rule:?}", line + 1);
        }
        let mut unreachable: Vec<String> = needed
            .difference(&reachable)
            .map(|(set, phrase)| format!("{} | {phrase}", sets[*set].0))
            .collect();
        unreachable.sort();
        assert_eq!(unreachable, [""; 0], "other rules always come first");
    }

    #[test]
    fn overlapping_phrases_are_all_found_and_vetoes_hold() {
        let known = Known { vendors: &[], status: None, coded: false };
        let reason = |text: &str| {
            decide(Certainty::Exact, &phrases::find(text), known).map(|(rule, _)| rule.reason)
        };
        assert_eq!(reason("prompt is too long"), Some(Reason::ContextOverflow));
        assert_ne!(reason("prompt is too long, rate limit"), Some(Reason::ContextOverflow));
        assert_eq!(reason("not insufficient balance"), Some(Reason::Billing));
    }
}
