//! What is written down of a request: one log line, and the counters.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use steadfast::limit::Prices;
use steadfast_chat::Head;
use steadfast_client::dialect::translation::LeftOut;
use steadfast_core::{
    CallContext, Deadline, Dialect, Failure, FaultSide, Reason, RecoveryLog, Target, TraceContext,
    Usage, time::later,
};
use tokio::time::Instant;

use super::{reader::Reader, reply};
use crate::{
    admission::Admitted,
    metrics::Metrics,
    responses::Keeper,
    stack::Lesson,
    stories::{Draft, Ending, Outcome, Stories, Underway},
    traces::{RequestSpan, Traces},
};

/// What is written down of one request: once, when it is over, however it is over.
pub(super) struct Record(Option<Entry>);

struct Entry {
    metrics: Metrics,
    stories: Arc<Stories>,
    /// From when it has been read.
    underway: Option<Underway>,
    /// Where it is traced.
    span: Option<RequestSpan>,
    /// Held until it is over.
    admitted: Option<Admitted>,
    started: Instant,
    dialect: Dialect,
    id: HeaderValue,
    reader: Option<Arc<Reader>>,
    tenant: Option<Box<str>>,
    model: String,
    route: Option<Arc<str>>,
    stream: bool,
    log: RecoveryLog,
    target: Option<Target>,
    attempts: u32,
    usage: Usage,
    lesson: Option<Box<Lesson>>,
    keeper: Option<Box<Keeper>>,
    left_out: Option<Box<str>>,
    failed: Option<Refusal>,
}

/// What the caller was answered in place of an answer.
struct Refusal {
    reason: Reason,
    evidence: Box<str>,
    /// Unless it may quote what the caller or the model has written.
    error: Option<Box<str>>,
}

impl Record {
    pub(super) fn begin(
        metrics: Metrics,
        stories: Arc<Stories>,
        dialect: Dialect,
        id: HeaderValue,
        reader: Option<Arc<Reader>>,
    ) -> Self {
        Self(Some(Entry {
            metrics,
            stories,
            underway: None,
            span: None,
            admitted: None,
            started: Instant::now(),
            dialect,
            id,
            reader,
            tenant: None,
            model: String::new(),
            route: None,
            stream: false,
            log: RecoveryLog::disabled(),
            target: None,
            attempts: 0,
            usage: Usage::default(),
            lesson: None,
            keeper: None,
            left_out: None,
            failed: None,
        }))
    }

    /// It is traced by `traces`, as a part of what its `headers` say.
    pub(super) fn traced(mut self, traces: &Traces, headers: &HeaderMap) -> Self {
        if let Some(entry) = &mut self.0 {
            entry.span = traces.begin(headers, entry.started);
        }
        self
    }

    /// Which trace it belongs to, where it is traced.
    pub(super) fn trace(&self) -> Option<Arc<TraceContext>> {
        self.0.as_ref()?.trace()
    }

    /// It asks for embeddings.
    pub(super) fn embeds(&mut self) {
        if let Some(span) = self.0.as_mut().and_then(|entry| entry.span.as_mut()) {
            span.embeds();
        }
    }

    /// It was let in, and is in progress until it is over.
    pub(super) fn admitted(&mut self, admitted: Admitted) {
        if let Some(entry) = &mut self.0 {
            entry.admitted = Some(admitted);
        }
    }

    /// The request has been read.
    pub(super) fn asked(
        &mut self,
        context: &CallContext,
        model: &str,
        stream: bool,
        route: &Arc<str>,
        prices: &Arc<Prices>,
    ) {
        if let Some(entry) = &mut self.0 {
            entry.tenant = context.tenant().map(Into::into);
            entry.model.push_str(model);
            entry.route = Some(route.clone());
            entry.stream = stream;
            entry.log = context.log.clone();
            let mut draft = entry.draft().with_context(context);
            draft.prices = Some(prices.clone());
            entry.underway = Some(entry.stories.begin(draft, entry.log.clone()));
        }
    }

    /// Its usage shows how tokens are counted.
    pub(super) fn teaches(&mut self, lesson: Option<Lesson>) {
        if let Some(entry) = &mut self.0 {
            entry.lesson = lesson.map(Box::new);
        }
    }

    /// Its answer is remembered, for requests that name it.
    pub(super) fn keeps(&mut self, keeper: Option<Keeper>) {
        if let Some(entry) = &mut self.0 {
            entry.keeper = keeper.map(Box::new);
        }
    }

    /// The answer as its caller is given it.
    pub(super) fn keep_whole(&mut self, body: &Bytes) {
        if let Some(keeper) = self.0.as_mut().and_then(|entry| entry.keeper.take()) {
            keeper.whole(body);
        }
    }

    /// The last frames of a streamed one.
    pub(super) fn keep_end(&mut self, frames: &[u8]) {
        if let Some(keeper) = self.0.as_mut().and_then(|entry| entry.keeper.take()) {
            keeper.ended(frames);
        }
    }

    /// What the layers did so far.
    pub(super) fn log(&self) -> RecoveryLog {
        self.0.as_ref().map_or_else(RecoveryLog::disabled, |entry| entry.log.clone())
    }

    /// The answer has started.
    pub(super) fn answered(&mut self, head: &Head) {
        if let Some(entry) = &mut self.0 {
            entry.target.clone_from(&head.target);
            entry.attempts = head.attempts;
            entry.left_out = head.extensions.get::<LeftOut>().map(|out| out.to_string().into());
            if let Some(keeper) = &mut entry.keeper {
                keeper.answered(head);
            }
            let trace = entry.trace();
            entry.metrics.head(entry.dialect, entry.started.elapsed(), trace.as_deref());
        }
    }

    /// The provider has reported usage; reports of one answer are cumulative.
    pub(super) fn used(&mut self, usage: &Usage) {
        if let Some(entry) = &mut self.0 {
            entry.usage.update(usage);
        }
    }

    /// The answer is one in pieces, whose call ends at `deadline`, or by the limit `pipeline`.
    pub(super) fn streams(&self, deadline: Option<Deadline>, pipeline: Duration) {
        if let Some(entry) = &self.0
            && let Some(reader) = &entry.reader
        {
            let own = later(entry.started, pipeline);
            reader.ends_at(deadline.map_or(own, |deadline| own.min(deadline.instant())));
        }
    }

    /// The answer has arrived whole.
    pub(super) fn done(&mut self) {
        self.close(Outcome::Ok);
    }

    /// The caller got `failure`.
    pub(super) fn failed(&mut self, failure: &Failure, in_stream: bool) {
        if let Some(entry) = &mut self.0 {
            entry.metrics.failed(failure, in_stream);
            entry.attempts = entry.attempts.max(failure.attempts());
            entry.target = failure.target().cloned().or(entry.target.take());
            let id = reply::text(&entry.id);
            let error = failure.message();
            // What is wrong with a request or an answer may be shown by a piece of it, and neither is logged
            // unasked.
            let quotes = matches!(failure.fault(), FaultSide::Caller | FaultSide::Model);
            entry.failed = Some(Refusal {
                reason: failure.reason(),
                evidence: failure.evidence().into(),
                error: (!quotes).then(|| error.into()),
            });
            tracing::warn!(
                name: "steadfast::gateway::failed",
                target: "steadfast::gateway",
                id,
                reason = %failure.reason(),
                in_stream,
                because = failure.evidence(),
                error = (!quotes).then_some(error),
                "a caller got a failure",
            );
            if quotes {
                tracing::debug!(
                    name: "steadfast::gateway::quoted",
                    target: "steadfast::gateway",
                    id,
                    error,
                    "what the caller was answered",
                );
            }
        }
        self.close(Outcome::Failed);
    }

    fn close(&mut self, outcome: Outcome) {
        let Some(mut entry) = self.0.take() else { return };
        let took = entry.started.elapsed();
        // The head and a failure know only what came before them.
        let attempts = entry.attempts.max(entry.log.attempts());
        let (dialect, stream) = (entry.dialect, entry.stream);
        let unread = outcome == Outcome::Cancelled
            && entry.reader.as_ref().is_some_and(|reader| reader.is_unread());
        let trace = entry.trace();
        entry.metrics.end(dialect, stream, outcome.as_str(), attempts, &entry.log);
        entry.metrics.whole(dialect, took, trace.as_deref());
        if let Some(route) = &entry.route {
            entry.metrics.routed(route, outcome.as_str());
        }
        if let Some(target) = &entry.target {
            entry.metrics.tokens(target.provider(), &entry.usage);
            // One answer to the request as it came.
            if let Some(lesson) = &entry.lesson
                && (outcome, attempts) == (Outcome::Ok, 1)
                && entry.log.is_empty()
            {
                lesson.learn(target, &entry.usage);
            }
        }
        tracing::info!(
            name: "steadfast::gateway::request",
            target: "steadfast::gateway",
            id = reply::text(&entry.id),
            tenant = entry.tenant.as_deref(),
            dialect = entry.dialect.as_str(),
            model = entry.model.as_str(),
            route = entry.route.as_deref(),
            stream = entry.stream,
            outcome = outcome.as_str(),
            because = unread.then_some("the caller did not read the answer"),
            target = entry.target.as_ref().map(Target::as_str).map(tracing::field::display),
            attempts,
            input_tokens = entry.usage.input,
            output_tokens = entry.usage.output,
            ms = steadfast_core::time::millis(took),
            recovery = (!entry.log.is_empty()).then(|| tracing::field::display(&entry.log)),
            trace_id = trace.as_ref().map(|trace| tracing::field::display(trace.trace_id())),
            "a request is over",
        );
        entry.end_story(outcome, took, attempts);
    }
}

impl Entry {
    fn trace(&self) -> Option<Arc<TraceContext>> {
        self.span.as_ref().map(|span| span.trace().clone())
    }

    fn draft(&self) -> Draft {
        let mut draft = Draft::new(reply::text(&self.id).to_owned());
        (draft.started, draft.dialect, draft.stream) = (self.started, self.dialect, self.stream);
        draft.began = draft.began.checked_sub(self.started.elapsed()).unwrap_or(draft.began);
        (draft.model, draft.route) = (self.model.clone(), self.route.clone());
        draft.trace = self.span.as_ref().map(|span| span.trace().trace_id());
        draft
    }

    fn end_story(&mut self, outcome: Outcome, took: Duration, asked: u32) {
        let underway = self.underway.take();
        let underway =
            underway.unwrap_or_else(|| self.stories.begin(self.draft(), self.log.clone()));
        let mut ending = Ending::new(outcome);
        (ending.took, ending.asked, ending.usage) = (took, asked, self.usage);
        (ending.target, ending.left_out) = (self.target.take(), self.left_out.take());
        if let Some(Refusal { reason, evidence, error }) = self.failed.take() {
            (ending.reason, ending.error) = (Some(reason), error);
            ending.evidence = Some(evidence).filter(|text| !text.is_empty());
        }
        let story = underway.end(ending);
        if let Some(span) = self.span.take() {
            span.end(&story, &self.log);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.close(Outcome::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use parking_lot::Mutex;
    use tracing::Level;

    use super::{super::reader::Activity, *};
    use crate::config::ObserveConfig;

    /// What is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stories() -> Arc<Stories> {
        Arc::new(Stories::new(&ObserveConfig::default()))
    }

    #[test]
    fn what_may_quote_a_prompt_is_logged_at_debug_alone() {
        for (fault, level, shown) in [
            (FaultSide::Provider, Level::INFO, true),
            (FaultSide::Local, Level::INFO, true),
            (FaultSide::Caller, Level::INFO, false),
            (FaultSide::Model, Level::INFO, false),
            (FaultSide::Caller, Level::DEBUG, true),
        ] {
            let log = Log::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(level)
                .with_writer(move || writer.clone())
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                let id = HeaderValue::from_static("id");
                let mut record =
                    Record::begin(Metrics::default(), stories(), Dialect::OpenAi, id, None);
                let failure = Failure::new(Reason::Format, "`my dear diary` is no number")
                    .with_fault(fault)
                    .with_evidence("status:400");
                record.failed(&failure, false);
            });
            let text = String::from_utf8(log.0.lock().clone()).unwrap();
            assert_eq!(text.contains("my dear diary"), shown, "{fault:?} {level}: {text}");
            assert!(text.contains("status:400"), "{text}");
        }
    }

    #[test]
    fn a_record_of_a_cancelled_call_has_its_reason() {
        for unread in [false, true] {
            let log = Log::default();
            let writer = log.clone();
            let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
            tracing::subscriber::with_default(subscriber, || {
                let connection = Arc::new(Activity::new(Instant::now()));
                let reader = Arc::new(Reader::new(connection.clone()));
                let id = HeaderValue::from_static("id");
                let record =
                    Record::begin(Metrics::default(), stories(), Dialect::OpenAi, id, Some(reader));
                if unread {
                    connection.end_unread();
                }
                drop(record);
            });
            let line = String::from_utf8(log.0.lock().clone()).unwrap();
            assert!(line.contains("cancelled"), "{line}");
            assert_eq!(line.contains("the caller did not read the answer"), unread, "{line}");
        }
    }
}
