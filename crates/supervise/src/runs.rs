//! Every run and where it is: the state machine of the registry. It has no clock, no disk and no log.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    NoticeState, NoticeVia, RunId, RunNotice, RunRecord, RunState, record::RunEnd, run::RunHandle,
};

/// How many ended runs are kept, for late results and for people. A few hours of a busy agent.
pub(crate) const KEPT: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: HashMap<RunId, Entry>,
    /// The ended ones whose notice is not pending, the oldest first.
    ended: VecDeque<RunId>,
    /// Those that have changed since they were last taken to be written.
    changed: BTreeSet<RunId>,
    running: usize,
    /// Notices that are pending.
    pending: usize,
}

#[derive(Debug)]
struct Entry {
    record: RunRecord,
    age: Age,
    /// Of a run of this process, until it ends.
    handle: Option<RunHandle>,
    /// The ordinal of the last record of it on disk.
    written: Option<u64>,
    /// That record, or one before it, has the terminal state.
    is_end_written: bool,
    /// Of use while its notice is pending.
    attempt: NoticeAttempt,
}

/// What is to be done about a notice that nobody has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoticeAttempt {
    /// It is sent once the end of its run is on disk.
    Due,
    Sending,
    /// It could not be sent, or is of an earlier process: it is sent with the next sweep.
    Later,
}

/// How old a run is, by a clock that does not jump.
#[derive(Clone, Copy, Debug)]
struct Age {
    at: Instant,
    then: Duration,
}

/// What an end has changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The run's terminal state.
    First,
    /// It had one, this one; the late result was recorded.
    Late(RunState),
    /// The run is not known any more.
    Unknown,
}

impl Runs {
    /// Registers a run; false when its name is known.
    pub(crate) fn start(&mut self, record: RunRecord, handle: RunHandle, now: Instant) -> bool {
        if self.runs.contains_key(&record.id) {
            return false;
        }
        self.changed.insert(record.id.clone());
        self.running += 1;
        let age = Age { at: now, then: Duration::ZERO };
        let id = record.id.clone();
        let entry = Entry {
            record,
            age,
            handle: Some(handle),
            written: None,
            is_end_written: false,
            attempt: NoticeAttempt::Due,
        };
        self.runs.insert(id, entry);
        true
    }

    /// A record that was read from the disk; the last one of a run counts.
    pub(crate) fn read(&mut self, record: RunRecord, ordinal: u64, now: Instant, wall_ms: u64) {
        // A start in the future, of a clock that was set back, is no age.
        let then = Duration::from_millis(wall_ms.saturating_sub(record.started_ms));
        let age = Age { at: now, then };
        let id = record.id.clone();
        let entry = Entry {
            is_end_written: record.state.is_terminal(),
            record,
            age,
            handle: None,
            written: Some(ordinal),
            attempt: NoticeAttempt::Later,
        };
        self.runs.insert(id, entry);
    }

    /// After all records were read.
    pub(crate) fn loaded(&mut self) {
        let all = self.runs.values().map(|entry| &entry.record);
        self.running = all.clone().filter(|record| !record.state.is_terminal()).count();
        self.pending = all.clone().filter(|record| record.notice == NoticeState::Pending).count();
        let ended = all.filter(|record| is_over(record));
        let mut ended: Vec<_> = ended.map(|record| (record.ended_ms, record.id.clone())).collect();
        ended.sort_unstable();
        self.ended = ended.into_iter().map(|(_, id)| id).collect();
        self.forget();
    }

    /// A run has ended.
    pub(crate) fn end(&mut self, id: &RunId, end: RunEnd, announces: bool, wall_ms: u64) -> Ended {
        let Some(entry) = self.runs.get_mut(id) else { return Ended::Unknown };
        let record = &mut entry.record;
        self.changed.insert(id.clone());
        if record.state.is_terminal() {
            record.late = Some(record.late.unwrap_or(end.state));
            return Ended::Late(record.state);
        }
        (record.state, record.ended_ms) = (end.state, Some(wall_ms));
        record.reason = end.reason.map(Box::from);
        if announces && end.state.is_announced() {
            record.notice = NoticeState::Pending;
            entry.attempt = NoticeAttempt::Due;
            self.pending += 1;
        }
        entry.handle = None;
        self.running -= 1;
        if is_over(&entry.record) {
            self.ended.push_back(id.clone());
            self.forget();
        }
        Ended::First
    }

    /// The process is about to end while these run: the next one's sweep takes them.
    pub(crate) fn interrupt(&mut self) {
        let Self { runs, changed, .. } = self;
        for entry in runs.values_mut().filter(|entry| entry.handle.is_some()) {
            if !entry.record.state.is_terminal() {
                entry.record.interrupted = true;
                changed.insert(entry.record.id.clone());
            }
        }
    }

    /// How many were interrupted, and have not ended since.
    pub(crate) fn interrupted(&self) -> usize {
        let all = self.records().filter(|record| record.interrupted);
        all.filter(|record| !record.state.is_terminal()).count()
    }

    /// As above, for one run that was dropped meanwhile.
    pub(crate) fn interrupt_one(&mut self, id: &RunId) {
        if let Some(entry) = self.runs.get_mut(id)
            && !entry.record.state.is_terminal()
        {
            entry.record.interrupted = true;
            entry.handle = None;
            self.changed.insert(id.clone());
        }
    }

    /// Those that run longer than `grace`, or were left by an earlier process that ended in good order, or by any if `orphans`.
    pub(crate) fn ghosts(&self, grace: Duration, orphans: bool, now: Instant) -> Vec<Ghost> {
        let running = self.runs.values().filter(|entry| !entry.record.state.is_terminal());
        let ghosts = running.filter_map(|entry| {
            let age = entry.age.then + now.saturating_duration_since(entry.age.at);
            let is_left = entry.handle.is_none() && (orphans || entry.record.interrupted);
            (age >= grace || is_left).then(|| Ghost {
                id: entry.record.id.clone(),
                age,
                handle: entry.handle.clone(),
            })
        });
        let mut ghosts: Vec<_> = ghosts.collect();
        ghosts.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        ghosts
    }

    /// The notices that are due, which count as being sent now; `again`: those too that could not be sent before. `only_written`: those of
    /// runs whose end is on disk.
    pub(crate) fn take_notices(&mut self, only_written: bool, again: bool) -> Vec<RunNotice> {
        if self.pending == 0 {
            return Vec::new();
        }
        let idle = self.runs.values_mut().filter(|entry| {
            let is_due = match entry.attempt {
                NoticeAttempt::Due => true,
                NoticeAttempt::Sending => false,
                NoticeAttempt::Later => again,
            };
            is_due && (entry.is_end_written || !only_written)
        });
        let notices = idle.filter_map(|entry| {
            let notice = entry.record.notice()?;
            entry.attempt = NoticeAttempt::Sending;
            Some(notice)
        });
        notices.collect()
    }

    /// A notice was taken by somebody (`Some`), or could not be sent. Whether it was the first time.
    pub(crate) fn notified(&mut self, id: &RunId, via: Option<NoticeVia>) -> bool {
        let Some(entry) = self.runs.get_mut(id) else { return false };
        entry.attempt = NoticeAttempt::Later;
        let Some(via) = via.filter(|_| entry.record.notice == NoticeState::Pending) else {
            return false;
        };
        entry.record.notice = NoticeState::Sent(via);
        self.pending -= 1;
        self.changed.insert(id.clone());
        self.ended.push_back(id.clone());
        self.forget();
        true
    }

    /// Gives up the oldest notice that nobody takes, if there are too many: a sink that is broken for days must not fill the memory. Whose it was.
    pub(crate) fn drop_notice(&mut self) -> Option<RunId> {
        if self.pending <= KEPT {
            return None;
        }
        let pending = self.runs.values_mut().filter(|entry| {
            entry.record.notice == NoticeState::Pending && entry.attempt != NoticeAttempt::Sending
        });
        let record = &mut pending.min_by_key(|entry| entry.record.ended_ms)?.record;
        record.notice = NoticeState::Dropped;
        let id = record.id.clone();
        self.pending -= 1;
        self.changed.insert(id.clone());
        self.ended.push_back(id.clone());
        self.forget();
        Some(id)
    }

    /// What has to be written, and counts as written unless [`not_written`](Self::not_written).
    pub(crate) fn take_changed(&mut self) -> Vec<RunRecord> {
        let changed = std::mem::take(&mut self.changed);
        changed.iter().filter_map(|id| Some(self.runs.get(id)?.record.clone())).collect()
    }

    /// These were not written.
    pub(crate) fn not_written(&mut self, records: &[RunRecord]) {
        for record in records {
            if self.runs.contains_key(&record.id) {
                self.changed.insert(record.id.clone());
            }
        }
    }

    /// These were written, with these ordinals.
    pub(crate) fn written(&mut self, records: &[RunRecord], first: u64) {
        for (ordinal, record) in (first..).zip(records) {
            if let Some(entry) = self.runs.get_mut(&record.id) {
                entry.written = Some(ordinal);
                entry.is_end_written |= record.state.is_terminal();
            }
        }
    }

    /// What the disk has to have, in the order of the ordinals.
    pub(crate) fn on_disk(&self) -> Vec<(u64, RunRecord)> {
        let entries = self.runs.values();
        let known = entries.filter_map(|entry| Some((entry.written?, entry.record.clone())));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        known
    }

    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(crate) fn changed(&self) -> usize {
        self.changed.len()
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Those of this process that run.
    pub(crate) fn own_running(&self) -> usize {
        let own = self.runs.values().filter(|entry| entry.handle.is_some());
        own.filter(|entry| !entry.record.state.is_terminal()).count()
    }

    /// A notice is being sent, or will be without a sweep.
    pub(crate) fn has_notices_to_send(&self) -> bool {
        let mut entries = self.runs.values();
        self.pending > 0
            && entries.any(|entry| {
                entry.record.notice == NoticeState::Pending && entry.attempt != NoticeAttempt::Later
            })
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn handle(&self, id: &RunId) -> Option<RunHandle> {
        self.runs.get(id)?.handle.clone()
    }

    pub(crate) fn get(&self, id: &RunId) -> Option<&RunRecord> {
        self.runs.get(id).map(|entry| &entry.record)
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &RunRecord> {
        self.runs.values().map(|entry| &entry.record)
    }

    fn forget(&mut self) {
        let mut unwritten = 0;
        while self.ended.len() > KEPT + unwritten {
            let Some(id) = self.ended.pop_front() else { return };
            // The disk still has it as running, and would have it swept.
            let is_needed = self.changed.contains(&id)
                && self.runs.get(&id).is_some_and(|entry| entry.written.is_some());
            if is_needed {
                self.ended.push_back(id);
                unwritten += 1;
            } else {
                self.runs.remove(&id);
                self.changed.remove(&id);
            }
        }
    }
}

/// A run that the sweep takes.
#[derive(Debug)]
pub(crate) struct Ghost {
    pub(crate) id: RunId,
    pub(crate) age: Duration,
    pub(crate) handle: Option<RunHandle>,
}

/// Whether nothing more has to happen with it.
fn is_over(record: &RunRecord) -> bool {
    record.state.is_terminal() && record.notice != NoticeState::Pending
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{AgentRun, WatchdogPolicy};

    fn record(id: &str, started_ms: u64) -> (RunRecord, RunHandle) {
        let run = AgentRun::new(()).with_id(id);
        (RunRecord::of(&run, started_ms), run.handle().clone())
    }

    fn start(runs: &mut Runs, id: &str, now: Instant) -> bool {
        let (record, handle) = record(id, 0);
        runs.start(record, handle, now)
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Start(u8),
        End(u8, RunState),
        Notify(u8, bool),
        Write(bool),
        Crash,
    }

    fn event() -> impl Strategy<Value = Event> {
        let state = prop::sample::select(vec![
            RunState::Completed,
            RunState::Failed,
            RunState::Cancelled,
            RunState::WatchdogTimeout,
            RunState::GhostSweep,
        ]);
        prop_oneof![
            3 => (0..6_u8).prop_map(Event::Start),
            4 => (0..6_u8, state).prop_map(|(id, state)| Event::End(id, state)),
            2 => (0..6_u8, any::<bool>()).prop_map(|(id, taken)| Event::Notify(id, taken)),
            2 => any::<bool>().prop_map(Event::Write),
            1 => Just(Event::Crash),
        ]
    }

    /// A run, as simply as can be.
    #[derive(Clone, Debug, PartialEq)]
    struct Simple {
        state: RunState,
        late: Option<RunState>,
        sent: bool,
    }

    proptest! {
        #[test]
        fn every_run_has_one_terminal_state_in_memory_and_on_disk(
            events in proptest::collection::vec(event(), 0..60),
        ) {
            let now = Instant::now();
            let mut runs = Runs::default();
            let mut disk: Vec<(u64, RunRecord)> = Vec::new();
            let (mut model, mut saved) = (BTreeMap::new(), BTreeMap::new());
            for event in events {
                match event {
                    Event::Start(id) => {
                        let fresh = !model.contains_key(&id);
                        prop_assert_eq!(start(&mut runs, &id.to_string(), now), fresh);
                        let new = Simple { state: RunState::Running, late: None, sent: false };
                        model.entry(id).or_insert(new);
                    }
                    Event::End(id, state) => {
                        let ended = runs.end(&id.to_string().into(), RunEnd::of(state), true, 1);
                        match model.get_mut(&id) {
                            None => prop_assert_eq!(ended, Ended::Unknown),
                            Some(run) if run.state == RunState::Running => {
                                prop_assert_eq!(ended, Ended::First);
                                run.state = state;
                            }
                            Some(run) => {
                                prop_assert_eq!(ended, Ended::Late(run.state));
                                run.late = run.late.or(Some(state));
                            }
                        }
                    }
                    Event::Notify(id, taken) => {
                        runs.take_notices(false, true);
                        let via = taken.then_some(NoticeVia::Direct);
                        let first = runs.notified(&id.to_string().into(), via);
                        let run = model.get_mut(&id);
                        let due = run.filter(|run| run.state.is_announced() && !run.sent && taken);
                        prop_assert_eq!(first, due.is_some());
                        if let Some(run) = due {
                            run.sent = true;
                        }
                    }
                    Event::Write(succeeds) => {
                        let changed = runs.take_changed();
                        if succeeds {
                            let first = disk.len() as u64 + 1;
                            runs.written(&changed, first);
                            disk.extend((first..).zip(changed));
                            saved = model.clone();
                        } else {
                            runs.not_written(&changed);
                        }
                    }
                    Event::Crash => {
                        runs = Runs::default();
                        for (ordinal, record) in &disk {
                            runs.read(record.clone(), *ordinal, now, 0);
                        }
                        runs.loaded();
                        model = saved.clone();
                    }
                }
                for (id, run) in &model {
                    let record = runs.get(&id.to_string().into()).unwrap();
                    prop_assert_eq!((record.state, record.late), (run.state, run.late));
                    let notice = match (run.state.is_announced(), run.sent) {
                        (false, _) => NoticeState::None,
                        (true, false) => NoticeState::Pending,
                        (true, true) => NoticeState::Sent(NoticeVia::Direct),
                    };
                    prop_assert_eq!(record.notice, notice);
                }
                let running = model.values().filter(|run| run.state == RunState::Running).count();
                prop_assert_eq!((runs.len(), runs.running()), (model.len(), running));
            }
        }
    }

    #[test]
    fn ended_runs_are_forgotten_except_what_the_disk_has_as_running() {
        let now = Instant::now();
        let mut runs = Runs::default();
        start(&mut runs, "on disk", now);
        let changed = runs.take_changed();
        runs.written(&changed, 1);
        // From here on the disk is full.
        runs.end(&"on disk".into(), RunEnd::of(RunState::Completed), true, 1);
        for n in 0..3 * KEPT {
            let id = n.to_string();
            start(&mut runs, &id, now);
            runs.end(&(*id).into(), RunEnd::of(RunState::Completed), true, 1);
            assert!(runs.len() <= KEPT + 2, "{}", runs.len());
        }
        assert!(runs.get(&"0".into()).is_none());
        let changed = runs.take_changed();
        let first = changed.iter().find(|record| record.id.as_str() == "on disk").unwrap();
        assert_eq!(first.state, RunState::Completed);
    }

    #[test]
    fn a_notice_waits_until_the_end_of_its_run_is_on_disk() {
        let now = Instant::now();
        let mut runs = Runs::default();
        start(&mut runs, "r", now);
        let running = runs.take_changed();
        runs.end(&"r".into(), RunEnd::of(RunState::Failed), true, 1);
        // It is being written as running when it ends.
        runs.written(&running, 1);
        assert!(runs.take_notices(true, false).is_empty());
        let ended = runs.take_changed();
        assert!(runs.take_notices(true, false).is_empty(), "on its way to the disk");
        runs.written(&ended, 2);
        assert_eq!(runs.take_notices(true, false).len(), 1);
        assert!(runs.take_notices(true, false).is_empty(), "it is being sent");
    }

    #[test]
    fn notices_that_nobody_takes_are_bounded() {
        let now = Instant::now();
        let mut runs = Runs::default();
        for n in 0..=KEPT {
            let id = n.to_string();
            start(&mut runs, &id, now);
            runs.end(&(*id).into(), RunEnd::of(RunState::Failed), true, n as u64);
            let expected = (n == KEPT).then(|| RunId::from("0"));
            assert_eq!(runs.drop_notice(), expected, "the oldest, once there are too many");
        }
        assert_eq!(runs.get(&"0".into()).unwrap().notice, NoticeState::Dropped);
        assert_eq!(runs.take_notices(false, false).len(), KEPT);
        // What is being sent is not dropped.
        start(&mut runs, "new", now);
        runs.end(&"new".into(), RunEnd::of(RunState::Failed), true, 9_999);
        assert_eq!(runs.drop_notice(), Some("new".into()));
    }

    #[test]
    fn the_age_of_what_was_read_is_by_wall_time_and_never_negative() {
        let now = Instant::now();
        let grace = crate::GhostPolicy::after(&WatchdogPolicy::default()).grace;
        let ms = Duration::from_millis;
        for (started_ms, opened_ms, later, ghost) in [
            (1_000_000, 1_000_000 + 719_999, ms(0), false),
            (1_000_000, 1_000_000 + 720_000, ms(0), true),
            (1_000_000, 1_000_000 + 719_999, ms(1), true),
            // The clock was set back by a day.
            (90_000_000, 3_600_000, ms(719_999), false),
            (90_000_000, 3_600_000, ms(720_000), true),
        ] {
            let mut runs = Runs::default();
            runs.read(record("r", started_ms).0, 1, now, opened_ms);
            runs.loaded();
            let ghosts = runs.ghosts(grace, false, now + later);
            assert_eq!(ghosts.len(), usize::from(ghost), "{started_ms} {opened_ms} {later:?}");
            assert_eq!(runs.ghosts(grace, true, now).len(), 1, "an orphan");
        }
    }
}
