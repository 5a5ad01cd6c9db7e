//! An answer's events, judged.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use pin_project_lite::pin_project;
use steadfast_chat::{Delta, Event, Events, StopReason};
use steadfast_core::{Failure, FaultSide, Reason, Scope, Target, Window};

use crate::{Classifier, Verdict, engine};

/// What judges one answer.
#[derive(Debug)]
pub struct Judge {
    pub(crate) classifier: Classifier,
    pub(crate) target: Option<Target>,
    pub(crate) window: Option<u64>,
}

impl Judge {
    /// A failure nobody reported: the answer gave itself away.
    pub(crate) fn silent(&self, verdict: Verdict) -> Failure {
        let failure = Failure::new(verdict.reason, &verdict.message);
        self.classifier.finish(verdict, failure, self.target.as_ref())
    }
}

pin_project! {
    /// Events whose failures are judged. Ends for good after its first error.
    ///
    /// Two things become failures here that arrived as none: a stream that ends without its terminal
    /// event, and, while nothing of the answer has been delivered, one that used more input than the
    /// target's window holds. An answer that ends and has nothing in it is an answer, unless
    /// [`ClassifyLayer::with_retry_empty`](crate::ClassifyLayer::with_retry_empty) is set.
    pub struct ClassifiedEvents<S> {
        #[pin]
        events: S,
        judge: Judge,
        progress: Progress,
    }
}

/// What has come so far.
#[derive(Debug, Default)]
struct Progress {
    content: bool,
    complete: bool,
    ended: bool,
    /// It stopped for a reason that explains an empty answer.
    explained: bool,
    /// An empty answer is to be asked for again.
    retry_empty: bool,
}

impl<S> ClassifiedEvents<S> {
    pub(crate) fn new(events: S, judge: Judge, retry_empty: bool) -> Self {
        Self { events, judge, progress: Progress { retry_empty, ..Progress::default() } }
    }
}

impl Progress {
    /// Takes note of an event; what it gives away, if anything.
    fn note(&mut self, event: &Event, judge: &Judge) -> Option<Verdict> {
        let delivered = self.content;
        self.content |= event.is_content();
        let mut used = None;
        let explains = |reason| {
            !matches!(reason, StopReason::EndTurn | StopReason::StopSequence | StopReason::ToolUse)
        };
        for delta in &event.deltas {
            match delta {
                Delta::Usage(usage) => used = usage.input.or(used),
                Delta::Stop(stop) => self.explained = explains(stop.reason),
                Delta::End => self.complete = true,
                _ => {}
            }
        }
        if delivered {
            return None;
        }
        if let (Some(limit), Some(used)) = (judge.window, used)
            && used > limit
        {
            let mut verdict = Verdict::new(Reason::ContextOverflow, "usage above the window");
            verdict.window = Some(Window { limit: Some(limit), requested: Some(used) });
            verdict.message = format!("{used} input tokens were reported for a window of {limit}");
            return Some(verdict);
        }
        if self.complete && !self.content && !self.explained {
            let provider = judge.target.as_ref().map(Target::provider);
            return engine::empty(provider).or_else(|| self.retry_empty.then(empty));
        }
        None
    }
}

/// An answer with nothing in it, where the policy wants another one. The target is fine.
fn empty() -> Verdict {
    let mut verdict = Verdict::new(Reason::ServerError, "empty answer");
    (verdict.scope, verdict.fault) = (Some(Scope::Request), Some(FaultSide::Model));
    verdict.message = "the answer has nothing in it".to_owned();
    verdict
}

impl<S: Events> Stream for ClassifiedEvents<S> {
    type Item = Result<Event, Failure>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let progress = this.progress;
        if progress.ended {
            return Poll::Ready(None);
        }
        let failure = match ready!(this.events.poll_next(cx)) {
            Some(Ok(event)) => match progress.note(&event, this.judge) {
                None => return Poll::Ready(Some(Ok(event))),
                Some(verdict) => {
                    // What gave it away is held back, content with it.
                    progress.content = false;
                    this.judge.silent(verdict)
                }
            },
            Some(Err(failure)) => {
                this.judge.classifier.failure(failure, this.judge.target.as_ref())
            }
            None if progress.complete => {
                progress.ended = true;
                return Poll::Ready(None);
            }
            None => {
                let mut verdict = Verdict::new(Reason::ServerError, "no terminal event");
                verdict.message = "the stream ended without its terminal event".to_owned();
                this.judge.silent(verdict)
            }
        };
        progress.ended = true;
        let failure = if progress.content { failure.with_delivered() } else { failure };
        Poll::Ready(Some(Err(failure)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.progress.ended {
            (0, Some(0))
        } else {
            (0, self.events.size_hint().1.map(|most| most.saturating_add(1)))
        }
    }
}

impl<S> fmt::Debug for ClassifiedEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClassifiedEvents")
            .field("judge", &self.judge)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}
