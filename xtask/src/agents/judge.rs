//! What one run has shown.

use std::{collections::BTreeSet, fmt};

use super::{setting::Setting, tap::Exchange};

/// How an agent does the task when nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Healthy {
    /// How many answers it asks for.
    pub(super) generations: usize,
    /// The lines of its output.
    lines: BTreeSet<String>,
}

/// What is known of a run when it is over.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Its exit code; `None` if it did not end in its time, or by a signal.
    pub(super) exit: Option<i32>,
    pub(super) output: String,
    pub(super) exchanges: Vec<Exchange>,
    /// Whether it was to ask over a WebSocket.
    pub(super) socket: bool,
    /// What of its script was set for its column.
    pub(super) setting: Option<Setting>,
    /// On how many connections a conversation was compacted.
    pub(super) compactions: usize,
    /// How many of its faults have not come, as far as that is known.
    pub(super) missing: usize,
    /// What is not as it should be in the repository.
    pub(super) undone: Option<String>,
}

/// From good to bad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The task is done, and the agent met nothing unusual.
    Done,
    /// The task is done; the agent met a failure, and this is how it shows.
    Noticed(String),
    /// The task is not done, and why.
    Failed(String),
}

impl Verdict {
    /// Whether it is worse than `other`.
    pub(super) fn is_worse_than(&self, other: &Self) -> bool {
        let rank = |verdict: &Self| match verdict {
            Self::Done => 0,
            Self::Noticed(_) => 1,
            Self::Failed(_) => 2,
        };
        rank(self) > rank(other)
    }

    /// What the table has of it.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Done => "yes",
            Self::Noticed(_) => "retried",
            Self::Failed(_) => "no",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Noticed(how) => write!(f, "done, but noticed: {how}"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

/// What agents write when a call fails, in lower case.
const SIGNS: [&str; 10] = [
    "retry",
    "retried",
    "error",
    "failed",
    "failure",
    "overload",
    "rate limit",
    "interrupt",
    "terminated",
    "timed out",
];

/// The same as a word by itself: an id may have it, too.
const STATUSES: [&str; 3] = ["429", "503", "529"];

impl Facts {
    /// How many answers it asked for.
    fn generations(&self) -> usize {
        self.exchanges.iter().filter(|exchange| exchange.generates()).count()
    }

    /// What a run without a fault is to the others of its agent.
    pub(super) fn healthy(&self) -> Healthy {
        let lines = self.output.lines().map(|line| line.trim().to_owned()).collect();
        Healthy { generations: self.generations(), lines }
    }

    /// The verdict, beside `healthy` unless it is that run itself, for a task of so many `answers`.
    pub(super) fn verdict(&self, healthy: Option<&Healthy>, answers: usize) -> Verdict {
        let asked = self.generations();
        let expected = healthy.map_or(asked, |healthy| healthy.generations);
        if asked > 4 * answers + 8 {
            return Verdict::Failed(format!("it asked {asked} times, for {answers} answers"));
        }
        let why = match (&self.undone, self.exit) {
            (None, Some(0)) => None,
            (Some(undone), Some(code)) => Some(format!("{undone}; exit code {code}")),
            (Some(undone), None) => Some(format!("{undone}; it did not end")),
            (None, Some(code)) => Some(format!("the exit code is {code}, though all is done")),
            (None, None) => Some("it did not end, though all is done".to_owned()),
        };
        if let Some(why) = why {
            let last = self.output.lines().rev().find(|line| is_sign(line));
            let last = last.map(|line| format!(" ({})", short(line))).unwrap_or_default();
            return Verdict::Failed(format!("{why}{last}"));
        }
        if self.socket && asked < answers {
            // What was not seen can not be judged.
            return Verdict::Failed(format!("only {asked} of {answers} questions were seen"));
        }
        let refused = self
            .exchanges
            .iter()
            .find(|exchange| exchange.generates() && exchange.status != Some(200));
        if let Some(refused) = refused {
            let status = refused.status.map_or("none".to_owned(), |status| status.to_string());
            return Verdict::Noticed(format!("an answer with status {status}"));
        }
        let by_request = |one: &Exchange| one.generates() && !one.is_message();
        if self.socket && self.exchanges.iter().any(by_request) {
            return Verdict::Noticed("it asked by a request, not over the socket".to_owned());
        }
        let compacts = self.setting.is_some_and(Setting::compacts);
        if compacts && self.compactions == 0 {
            return Verdict::Failed("the conversation was never compacted".to_owned());
        }
        // Providers count tokens differently, so that it is compacted at different steps.
        if asked > expected && !compacts {
            return Verdict::Noticed(format!("it asked {asked} times instead of {expected}"));
        }
        if self.setting == Some(Setting::Models) && !self.knows_models() {
            return Verdict::Noticed("it does not know the model".to_owned());
        }
        let new = |line: &&str| healthy.is_some_and(|known| !known.lines.contains(line.trim()));
        match self.output.lines().filter(new).find(|line| is_sign(line)) {
            Some(line) => Verdict::Noticed(short(line)),
            // It is no merit to have met nothing then.
            None if self.missing > 0 => {
                Verdict::Failed(format!("{} of its faults did not come", self.missing))
            }
            None => Verdict::Done,
        }
    }

    /// Whether it was given a list of models, and found its own in there.
    fn knows_models(&self) -> bool {
        let is_list = |one: &Exchange| one.path == "/v1/models" && one.status == Some(200);
        self.exchanges.iter().any(is_list) && !self.output.contains("metadata")
    }

    /// What it asked for beside answers, and how that was answered.
    pub(super) fn aside(&self) -> BTreeSet<String> {
        let others = self.exchanges.iter().filter(|exchange| !exchange.generates());
        others
            .map(|one| {
                let status = one.status.map_or("none".to_owned(), |status| status.to_string());
                format!("{} {}: {status}", one.method, one.path)
            })
            .collect()
    }
}

fn is_sign(line: &str) -> bool {
    let line = line.to_lowercase();
    let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
    SIGNS.iter().any(|sign| line.contains(sign)) || words.any(|word| STATUSES.contains(&word))
}

fn short(line: &str) -> String {
    line.trim().chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::socket::CREATE, *};

    fn facts(statuses: &[u16], output: &str, exit: Option<i32>, undone: Option<&str>) -> Facts {
        let exchange = |status: &u16| Exchange {
            method: "POST".to_owned(),
            path: "/v1/messages".to_owned(),
            status: Some(*status),
        };
        Facts {
            exit,
            output: output.to_owned(),
            exchanges: statuses.iter().map(exchange).collect(),
            socket: false,
            setting: None,
            compactions: 0,
            missing: 0,
            undone: undone.map(str::to_owned),
        }
    }

    #[test]
    fn a_run_is_judged_by_its_files_its_exit_and_what_it_met() {
        let healthy = facts(&[200; 5], "0 errors\nDone.", Some(0), None).healthy();
        for (facts, word) in [
            (facts(&[200; 5], "0 errors\nDone.", Some(0), None), "yes"),
            (facts(&[200; 6], "Done.", Some(0), None), "retried"),
            (facts(&[200, 529, 200, 200, 200], "Done.", Some(0), None), "retried"),
            (facts(&[200; 5], "Retrying in 3 s\nDone.", Some(0), None), "retried"),
            (facts(&[200; 5], "HTTP 503.\nDone.", Some(0), None), "retried"),
            (facts(&[200; 5], "session 01-cc503e06\nDone.", Some(0), None), "yes"),
            (facts(&[200; 5], "Done.", Some(0), Some("a.txt is not there")), "no"),
            (facts(&[200; 5], "Done.", Some(1), None), "no"),
            (facts(&[200; 5], "Done.", None, None), "no"),
            (facts(&[200; 29], "Done.", Some(0), None), "no"),
        ] {
            assert_eq!(facts.verdict(Some(&healthy), 5).word(), word, "{facts:?}");
        }
        // The same over a socket is not what was to be.
        let mut over_socket = facts(&[200; 5], "Done.", Some(0), None);
        over_socket.socket = true;
        assert_eq!(over_socket.verdict(Some(&healthy), 5).word(), "retried");
        for exchange in &mut over_socket.exchanges {
            CREATE.clone_into(&mut exchange.method);
        }
        assert_eq!(over_socket.verdict(Some(&healthy), 5), Verdict::Done);
        over_socket.exchanges.pop();
        assert_eq!(over_socket.verdict(Some(&healthy), 5).word(), "no");
        let mut compacts = facts(&[200; 6], "Done.", Some(0), None);
        compacts.setting = Some(Setting::Summary);
        assert_eq!(compacts.verdict(Some(&healthy), 5).word(), "no");
        compacts.compactions = 1;
        assert_eq!(compacts.verdict(Some(&healthy), 5), Verdict::Done);
        let mut lists = facts(&[200; 5], "Done.", Some(0), None);
        lists.setting = Some(Setting::Models);
        assert_eq!(lists.verdict(Some(&healthy), 5).word(), "retried");
        lists.exchanges.push(Exchange {
            method: "GET".to_owned(),
            path: "/v1/models".to_owned(),
            status: Some(200),
        });
        assert_eq!(lists.verdict(Some(&healthy), 5), Verdict::Done);
        lists.output = "Model metadata for `gpt-5.4` not found.".to_owned();
        assert_eq!(lists.verdict(Some(&healthy), 5).word(), "retried");
        let nothing_came = Facts { missing: 1, ..facts(&[200; 5], "Done.", Some(0), None) };
        assert_eq!(nothing_came.verdict(Some(&healthy), 5).word(), "no");
        let long = facts(&[200; 105], "Done.", Some(0), None);
        assert_eq!(long.verdict(None, 101), Verdict::Done);
        assert_eq!(long.verdict(None, 5).word(), "no");
        assert!(Verdict::Failed(String::new()).is_worse_than(&Verdict::Noticed(String::new())));
    }
}
