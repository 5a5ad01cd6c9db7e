//! Cut-off answers continued, and broken streams resumed.
//!
//! Two layers for what goes wrong *after* the beginning of an answer:
//!
//! * [`StreamResumeLayer`]: the connection dies half way. The same stream of the caller's goes on, from
//!   another call: what had been shown is sent back, and the overlap of the two answers is found and
//!   cut, so that nothing comes twice and nothing is missing.
//! * [`ContinuationLayer`]: the model runs into its output limit. The limit is raised once, where
//!   nobody has seen anything yet; after that the answer is continued, and its pieces reach the
//!   caller as one, with their usage added up.
//!
//! ```
//! use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, StopReason};
//! use steadfast_core::{Dialect, Failure, Reason};
//! use steadfast_recover::{ContinuationLayer, StreamResumeLayer};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Failure> {
//! # fn text(text: &str) -> Event {
//! #     Event::new([Delta::Text { index: 0, text: text.into() }])
//! # }
//! # fn ends(reason: StopReason) -> Event {
//! #     Event::new([Delta::Stop(reason.into()), Delta::End])
//! # }
//! // Somebody's client. It dies in the middle of its first answer, and its second is too long.
//! let client = service_fn(|request: ChatRequest| async move {
//!     let last = request.messages.last().expect("it asks something").text();
//!     let events = if last.contains("connection broke") {
//!         // It was asked to begin with the end of its text, and does.
//!         vec![Ok(text("The stars are many")), Ok(text(", and f")), Ok(ends(StopReason::MaxTokens))]
//!     } else if last.contains("output limit") {
//!         vec![Ok(text("ar away.")), Ok(ends(StopReason::EndTurn))]
//!     } else {
//!         vec![Ok(text("The stars ")), Ok(text("are many")), Err(Failure::new(Reason::Network, "cut"))]
//!     };
//!     Ok::<_, Failure>(ChatResponse::new(Head::new(Dialect::OpenAi), futures_util::stream::iter(events)))
//! });
//!
//! let llm = ServiceBuilder::new()
//!     .layer(ContinuationLayer::default())
//!     .layer(StreamResumeLayer::default())
//!     .service(client);
//! let answer = llm.oneshot(ChatRequest::user("What of the stars?").streaming()).await?;
//! assert_eq!(answer.collect().await?.text(), "The stars are many, and far away.");
//! # Ok(())
//! # }
//! ```
//!
//! # Where to put these layers
//!
//! ```text
//! SafetyGuard
//! Continuation        a piece that breaks is repaired before it is judged to be cut
//! StreamResume
//! CooldownFailover    each resume is a call of its own: it goes where the broken one failed not
//! ...
//! ```
//!
//! **Wrong:** `StreamResume` inside `CooldownFailover`. Below it there is only the target whose
//! connection has just died, and when that is down for good the resume fails with it, while the next
//! target of the chain, which could have gone on with the answer, is never asked.
//!
//! **Wrong too:** `StreamResume(Continuation(..))`. When a continuation breaks, the resume outside
//! asks for the whole answer to be gone on with, is cut off again, and is continued again: up to
//! three continuations for each of two resumes, where one would have done.
//!
//! # What is resumed
//!
//! A stream that fails after its first content, and one that ends without its terminal event. Before
//! content the layers inside have done what can be done, and the failure is passed on.
//!
//! | where it broke | what happens |
//! |---|---|
//! | in text, or between blocks after it | it goes on, behind the overlap |
//! | in thinking, and nothing else is there | a new block of thinking begins; the old one is kept, unsigned |
//! | in a tool call's arguments | the failure is passed on: half of the call is the caller's already |
//! | after a whole tool call, or after the model reported why it stopped | the failure is passed on: the turn is finished, and its end is never made up |
//! | behind a block that only its own dialect knows | the failure is passed on |
//!
//! What is [final](steadfast_core::Retry::Forbidden), the caller's own fault, or a time limit of the
//! caller's own is never resumed. Where no [overlap](Overlap) is found the caller is given the failure that
//! broke the stream, once; nothing of the other answer has been shown. There are at most 2 resumes,
//! each within the request's deadline, attempts and [budget](steadfast_core::RetryBudget).
//!
//! The second answer has no second beginning for the caller: its beginning is left out, its blocks are
//! numbered on, its thinking about how to go on is dropped. What the broken part used was never
//! reported; it is estimated (four bytes to a token), added to the usage and noted in the recovery log.
//! Events behind the overlap have no wire frames, so they are encoded anew.
//!
//! # What is continued
//!
//! An answer that stopped at the output limit and whose tool calls, if any, are all cut off. (With
//! a whole call the turn is complete, whatever the limit: a call cut off beside it is dropped.)
//!
//! 1. Where nobody has seen anything (an answer that is not streamed, or
//!    [`withhold`](ContinuationLayer::with_withhold)) the limit is raised once to 64,000 and the
//!    request sent again; when that is refused, what there was is continued instead.
//! 2. Then it is continued, at most 3 times; not after 3 in a row that brought fewer than 500 tokens.
//! 3. Then it ends as the model ended it: with the reason [`MaxTokens`](steadfast_chat::StopReason).
//!    Being cut off is never an error. A continuation that breaks half way is one.
//!
//! Tool calls of a stream are held back until their arguments are whole JSON, so that a call
//! that is cut off is never seen, let alone executed: it is dropped, and the model is asked to make it
//! again, and given how many bytes had come. What Anthropic's wire leaves open is taken to be cut: right at
//! the limit a call without arguments is there the same as one cut off before its first byte, and of an
//! answer that is not streamed half an object arrives as a whole one. A request for fewer than 256 tokens, or for several answers,
//! is left alone.
//!
//! Continuations draw from no retry budget, as nothing failed; they keep the request's deadline and
//! its number of attempts.
//!
//! # What is reported
//!
//! Each action is one step of layer `recover` in the recovery log and one `tracing` event:
//! `steadfast::recover::resuming` (with the waste), `resumed`, `not_resumed` (with why), `escalated`,
//! `continued`, `truncated`.
//!
//! # Cancellation
//!
//! Dropping the future or the answer ends whatever is under way, and what was paid for a resume that was
//! not sent yet goes back into the budget.
//!
//! # Cost
//!
//! Both keep the text the caller has seen, in buffers that each thread uses again: an answer that needs
//! nothing allocates nothing, up to 16 KiB of text; beyond, once each time the text doubles.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod buffers;
mod call;
mod calls;
mod continuation;
mod error;
mod event;
mod events;
mod hold_back;
mod join;
mod layer;
mod overlap;
mod partial;
mod policy;
mod request;
mod resume;
mod service;

pub use self::{
    continuation::{
        Continuation, ContinuationFuture, ContinuationHandle, ContinuationLayer,
        ContinuationPolicy, ContinuationSnapshot, ContinuedEvents, OutputLimits,
    },
    error::PolicyError,
    events::RecoveredEvents,
    layer::{RecoverHandle, RecoverLayer},
    overlap::{Overlap, OverlapFound, OverlapPolicy},
    partial::{Partial, ResumePoint},
    resume::{
        ResumeFuture, ResumeHandle, ResumePolicy, ResumeSnapshot, ResumedEvents, StreamResume,
        StreamResumeLayer,
    },
    service::{Recover, RecoverFuture},
};
