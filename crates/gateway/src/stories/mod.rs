//! What became of each request, for operators: a bounded memory without a word of what was asked or answered.

mod query;
mod story;
mod timeline;
mod traffic;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;
use steadfast_core::RecoveryLog;

pub(crate) use self::{
    query::StoryQuery,
    story::{Draft, Ending, Outcome, Story, cost, first_content, is_failed},
};
use self::{timeline::Timeline, traffic::Traffic};
use crate::config::ObserveConfig;

/// The part of what is remembered that requests may take which failed or needed recovery: three quarters. They are
/// kept longest, and those that went well still have the rest.
const NOTABLE: (usize, usize) = (3, 4);

/// The requests that are under way and those that are over, newest last; one for all configurations of a process.
pub(crate) struct Stories {
    policy: Mutex<Bounds>,
    kept: Mutex<Kept>,
}

/// How many are remembered, and in how many bytes.
#[derive(Clone, Copy)]
struct Bounds {
    requests: usize,
    bytes: usize,
}

impl Bounds {
    fn of(policy: &ObserveConfig) -> Self {
        Self { requests: policy.requests, bytes: policy.bytes() }
    }
}

struct Kept {
    running: BTreeMap<u64, (Arc<Draft>, RecoveryLog)>,
    /// Numbers what begins and what ends.
    next: u64,
    ordinary: Shelf,
    notable: Shelf,
    timeline: Timeline,
    traffic: Traffic,
}

/// Stories in the order in which they ended.
#[derive(Default)]
struct Shelf {
    stories: VecDeque<Arc<Story>>,
    bytes: usize,
}

impl Shelf {
    fn push(&mut self, story: Arc<Story>) {
        self.bytes += story.size();
        self.stories.push_back(story);
    }

    /// Forgets the oldest ones until the rest is within these bounds.
    fn trim(&mut self, requests: usize, bytes: usize) {
        while self.stories.len() > requests || self.bytes > bytes {
            let Some(oldest) = self.stories.pop_front() else { return };
            self.bytes -= oldest.size();
        }
    }
}

/// Ends the request's being under way when it is dropped.
pub(crate) struct Underway {
    stories: Arc<Stories>,
    number: u64,
    draft: Arc<Draft>,
    log: RecoveryLog,
}

impl Stories {
    pub(crate) fn new(policy: &ObserveConfig) -> Self {
        let kept = Kept {
            running: BTreeMap::new(),
            next: 0,
            ordinary: Shelf::default(),
            notable: Shelf::default(),
            timeline: Timeline::new(),
            traffic: Traffic::new(),
        };
        Self { policy: Mutex::new(Bounds::of(policy)), kept: Mutex::new(kept) }
    }

    /// Goes by `policy` from now on.
    pub(crate) fn set_policy(&self, policy: &ObserveConfig) {
        let bounds = Bounds::of(policy);
        *self.policy.lock() = bounds;
        self.kept.lock().trim(bounds);
    }

    /// A request has been read, whose steps and attempts are in `log`.
    pub(crate) fn begin(self: &Arc<Self>, draft: Draft, log: RecoveryLog) -> Underway {
        let draft = Arc::new(draft);
        let mut kept = self.kept.lock();
        kept.next += 1;
        let number = kept.next;
        kept.running.insert(number, (draft.clone(), log.clone()));
        Underway { stories: self.clone(), number, draft, log }
    }

    /// The stories that `query` asks for, newest first: those under way, then by their ends.
    pub(crate) fn find(&self, query: &StoryQuery) -> Vec<Arc<Story>> {
        let (running, over) = {
            let kept = self.kept.lock();
            let running: Vec<_> = kept.running.values().rev().cloned().collect();
            let over = kept.over().filter(|story| query.takes(story)).take(query.limit);
            (running, over.cloned().collect::<Vec<_>>())
        };
        let running = running.iter().map(|(draft, log)| Arc::new(Story::so_far(draft, log)));
        let running = running.filter(|story| query.takes(story));
        running.chain(over).take(query.limit).collect()
    }

    /// The newest stories: so many of those under way, and so many of those that are over.
    pub(crate) fn newest(&self, running: usize, over: usize) -> Vec<Arc<Story>> {
        let (running, over) = {
            let kept = self.kept.lock();
            let running: Vec<_> = kept.running.values().rev().take(running).cloned().collect();
            (running, kept.over().take(over).cloned().collect::<Vec<_>>())
        };
        let running = running.iter().map(|(draft, log)| Arc::new(Story::so_far(draft, log)));
        running.chain(over).collect()
    }

    /// Another number whenever a request has begun or ended.
    pub(crate) fn version(&self) -> u64 {
        self.kept.lock().next
    }

    /// Who was asked in the last five minutes.
    pub(crate) fn traffic(&self) -> Value {
        self.kept.lock().traffic.lately()
    }

    /// The story of the request with this id: the newest, where callers gave several the same.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Story>> {
        let kept = self.kept.lock();
        if let Some((draft, log)) = kept.running.values().rev().find(|(draft, _)| draft.id == id) {
            return Some(Arc::new(Story::so_far(draft, log)));
        }
        let is_it = |story: &&Arc<Story>| story.draft.id == id;
        let newest = |shelf: &Shelf| shelf.stories.iter().rev().find(is_it).cloned();
        [newest(&kept.ordinary), newest(&kept.notable)]
            .into_iter()
            .flatten()
            .max_by_key(|story| story.order)
    }

    /// How it went in the span `name`, in intervals.
    ///
    /// # Errors
    ///
    /// The names that there are.
    pub(crate) fn timeline(&self, name: &str) -> Result<Value, String> {
        let span = self.kept.lock().timeline.span(name);
        span.ok_or_else(|| format!("span: there are {}", timeline::names().join(", ")))
    }

    /// How it went in the last five minutes.
    pub(crate) fn lately(&self) -> Value {
        self.kept.lock().timeline.lately()
    }

    /// How many are under way, how many are remembered, and their size in bytes.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let Kept { running, ordinary, notable, .. } = &*self.kept.lock();
        let over = ordinary.stories.len() + notable.stories.len();
        (running.len(), over, ordinary.bytes + notable.bytes)
    }
}

impl Kept {
    /// What is over, newest first.
    fn over(&self) -> impl Iterator<Item = &Arc<Story>> {
        let mut ordinary = self.ordinary.stories.iter().rev().peekable();
        let mut notable = self.notable.stories.iter().rev().peekable();
        std::iter::from_fn(move || match (ordinary.peek(), notable.peek()) {
            (Some(one), Some(other)) if one.order < other.order => notable.next(),
            (None, _) => notable.next(),
            _ => ordinary.next(),
        })
    }

    fn trim(&mut self, Bounds { requests, bytes }: Bounds) {
        let part = |all: usize| all.saturating_mul(NOTABLE.0) / NOTABLE.1;
        self.notable.trim(part(requests), part(bytes));
        let left = |all: usize, taken: usize| all.saturating_sub(taken);
        let Shelf { stories, bytes: taken } = &self.notable;
        self.ordinary.trim(left(requests, stories.len()), left(bytes, *taken));
    }
}

impl Underway {
    /// The request is over, and this is what became of it.
    pub(crate) fn end(self, ending: Ending) -> Arc<Story> {
        let mut story = Story::new(self.draft.clone(), &self.log, ending);
        let bounds = *self.stories.policy.lock();
        let mut kept = self.stories.kept.lock();
        // At once, so that no list has it twice.
        kept.running.remove(&self.number);
        kept.next += 1;
        story.order = kept.next;
        kept.timeline.add(&story);
        kept.traffic.add(&story);
        let story = Arc::new(story);
        let shelf = if story.is_notable() { &mut kept.notable } else { &mut kept.ordinary };
        shelf.push(story.clone());
        kept.trim(bounds);
        story
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.stories.kept.lock().running.remove(&self.number);
    }
}

impl fmt::Debug for Stories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (running, over, bytes) = self.sizes();
        f.debug_struct("Stories")
            .field("running", &running)
            .field("over", &over)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::{Reason, Target};

    use super::*;

    fn stories(requests: usize, requests_mib: usize) -> Arc<Stories> {
        let policy = ObserveConfig { requests, requests_mib, ..ObserveConfig::default() };
        Arc::new(Stories::new(&policy))
    }

    fn end(stories: &Arc<Stories>, id: &str, outcome: Outcome) {
        let mut ending = Ending::new(outcome);
        if outcome == Outcome::Failed {
            ending.reason = Some(Reason::Overloaded);
        }
        stories.begin(read(id), RecoveryLog::enabled()).end(ending);
    }

    fn read(id: &str) -> Draft {
        Draft { route: Some("default".into()), ..Draft::new(id.to_owned()) }
    }

    fn ids(stories: &Stories) -> Vec<String> {
        let all = stories.find(&StoryQuery::default());
        all.iter().map(|story| story.draft.id.clone()).collect()
    }

    #[test]
    fn failures_are_kept_longest_and_never_all_there_is() {
        let stories = stories(8, 1);
        for n in 0..3 {
            end(&stories, &format!("bad{n}"), Outcome::Failed);
        }
        for n in 0..20 {
            end(&stories, &format!("ok{n}"), Outcome::Ok);
        }
        assert_eq!(ids(&stories), ["ok19", "ok18", "ok17", "ok16", "ok15", "bad2", "bad1", "bad0"]);
        for n in 3..20 {
            end(&stories, &format!("bad{n}"), Outcome::Failed);
        }
        let left = ids(&stories);
        assert_eq!(left.len(), 8);
        assert_eq!(left.iter().filter(|id| id.starts_with("ok")).count(), 2, "{left:?}");
        assert_eq!(left[0], "bad19");
    }

    #[test]
    fn bytes_are_bounded_too_and_what_is_left_out_is_gone() {
        let stories = stories(1_000_000, 1);
        for n in 0..3_000 {
            let draft = Draft { model: "m".repeat(512), ..read(&format!("{n}")) };
            let log = RecoveryLog::enabled();
            log.record_notice("failover", &Target::new("x".repeat(600)));
            stories.begin(draft, log).end(Ending::new(Outcome::Ok));
        }
        let (_, over, bytes) = stories.sizes();
        assert!((300..1_000).contains(&over), "{over}");
        assert!(bytes <= 1024 * 1024, "{bytes}");
        stories.set_policy(&ObserveConfig { requests: 0, ..ObserveConfig::default() });
        assert_eq!(stories.sizes(), (0, 0, 0));
        end(&stories, "x", Outcome::Failed);
        assert!(stories.get("x").is_none());
    }

    #[test]
    fn a_request_under_way_is_shown_and_ends_once() {
        let stories = stories(10, 1);
        let log = RecoveryLog::enabled();
        let underway = stories.begin(read("now"), log.clone());
        log.record_notice("failover", &Target::new("p"));
        let story = stories.get("now").unwrap();
        assert_eq!(story.outcome(), Outcome::Running);
        assert_eq!(story.whole()["steps"][0]["target"], "p");
        assert_eq!(ids(&stories), ["now"]);
        drop(underway);
        assert_eq!(ids(&stories), [""; 0], "nobody has ended it, so nothing is known of its end");
        end(&stories, "twice", Outcome::Failed);
        end(&stories, "twice", Outcome::Ok);
        assert_eq!(stories.get("twice").unwrap().outcome(), Outcome::Ok, "the newest");
        // What was refused at the door takes no room from those that somebody was asked for.
        let mut refused = Ending::new(Outcome::Failed);
        refused.reason = Some(Reason::Auth);
        stories.begin(Draft::new("door".to_owned()), RecoveryLog::disabled()).end(refused);
        assert!(!stories.get("door").unwrap().is_notable());
    }
}
