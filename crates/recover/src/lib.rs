//! Continues truncated answers, and resumes broken streams.
//!
//! Three layers. Two are for what goes wrong *after* an answer has begun:
//!
//! * [`StreamResumeLayer`]: the connection breaks half way. The caller's stream continues, from another
//!   call: the text so far is sent back, and the overlap of the two answers is found and cut, so that
//!   nothing is repeated and nothing is missing.
//! * [`ContinuationLayer`]: the model reaches its output limit. The limit is raised once, when nothing
//!   has been delivered yet; after that the answer is continued, and its parts reach the caller as one
//!   answer, with their usage added up.
//!
//! The third, [`ThinkingMemoryLayer`], is for what comes after that: it remembers who signed which thinking
//! behind what, as an answer that was joined, advised or moved comes back in a history which that signature
//! does not hold for.
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
//! // A client whose first answer breaks half way, and whose second reaches the output limit.
//! let client = service_fn(|request: ChatRequest| async move {
//!     let last = request.messages.last().expect("it asks something").text();
//!     let events = if last.contains("connection broke") {
//!         // The request asks it to begin with the end of its text.
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
//! Continuation        sees an answer only after a break in it was resumed
//! StreamResume
//! CooldownFailover    each resume is a new call, and can go to another target
//! ...
//! ```
//!
//! `ThinkingMemory` is next to the client, around the classifier.
//!
//! **Wrong:** `ThinkingMemory` outside of `Compaction` or `RetryBackoff`. It would take what was sent for what
//! the caller wrote, and would send back thinking that was written behind a summary or a retry's message.
//!
//! **Wrong:** `StreamResume` inside `CooldownFailover`. Inside it there is only the target whose
//! connection has just broken, and when that is down the resume fails too, while the next target of
//! the chain, which could have continued the answer, is not called.
//!
//! **Wrong too:** `StreamResume(Continuation(..))`. When a continuation breaks, the outer resume
//! requests the rest of the whole answer, which is cut off again, and continued again: up to three
//! continuations for each of two resumes, where one would have been enough.
//!
//! # What is resumed
//!
//! A stream that fails after its first content, and one that ends without its terminal event. Before
//! content the failure is passed on, since the inner layers have handled it.
//!
//! | where it broke | what happens |
//! |---|---|
//! | in text, or between blocks after it | it continues after the overlap |
//! | in thinking, and nothing else is there | a new block of thinking begins; the old one is kept, unsigned |
//! | in a tool call | the call, of which nothing was delivered, is made again, after the text before it |
//! | in a tool call larger than what is held back | the failure is passed on: a part of the call was delivered |
//! | after a complete tool call, or after the stop reason | the failure is passed on: the turn is finished, and its end is not invented |
//! | after a block that only its own dialect knows | the failure is passed on |
//!
//! What is [final](steadfast_core::Retry::Forbidden), the caller's own fault, or a time limit of the
//! caller's own is never resumed. Without an [overlap](Overlap) the caller gets the failure that broke
//! the stream, once; nothing of the other answer has been delivered. There are at most 2 resumes, each
//! within the request's deadline, attempts and [budget](steadfast_core::RetryBudget), and none at a target
//! whose failure says that it is not to be asked [again](steadfast_core::Failure::retry).
//!
//! Tool calls of a stream are held back until they are complete, so that a call that breaks can be made
//! again. What the caller gets when an answer can not be resumed ends before such a call.
//!
//! The start of the second answer is left out, its blocks are renumbered, and its thinking about how to
//! continue is dropped. The usage of the broken part was not reported; it is estimated (four bytes to a
//! token), added to the usage and recorded in the recovery log. Events after the overlap have no wire
//! frames, so they are encoded again.
//!
//! # What is continued
//!
//! An answer that stopped at an output limit which the caller did not set, and whose tool calls, if any,
//! are all cut off. (With a complete call the turn is complete in spite of the limit: another call that
//! was cut off is dropped.) A limit that the caller set is the caller's: the answer ends there, unchanged,
//! unless the request has the header [`CONTINUE`] or the policy
//! [says otherwise](ContinuationPolicy::when_callers_limit).
//!
//! 1. When nothing has been delivered (an answer that is not streamed, or
//!    [`withhold`](ContinuationLayer::with_withhold)) the limit is raised once to 64,000 and the
//!    request sent again; when that is refused, the truncated answer is continued instead.
//! 2. Then it is continued, at most 3 times; not after 3 in a row that brought fewer than 500 tokens.
//! 3. Then it ends as the model ended it: with the reason [`MaxTokens`](steadfast_chat::StopReason).
//!    A truncated answer is not an error. A continuation that breaks half way is one.
//!
//! Tool calls of a stream are held back until their arguments are complete JSON, so that a call that is
//! cut off is neither delivered nor executed: it is dropped, and the model is asked to make it again,
//! with the number of bytes that had come. Calls that are ambiguous on Anthropic's wire count as cut
//! off: at the limit, a call without arguments looks like one cut off before its first byte, and in an
//! answer that is not streamed, partial arguments arrive as a complete object. An answer to a request for
//! several is not continued, nor, by the policy alone, one to a request for fewer than 256 tokens.
//!
//! Continuations draw from no retry budget, as nothing failed; they keep the request's deadline and
//! its number of attempts.
//!
//! # Attempts and the log
//!
//! Each further call carries the number of attempts before it in its context, and a failure has the sum of
//! all. The head of the answer gets the recovery log of the request, whatever service is at the bottom.
//!
//! # What is reported
//!
//! Each action is one step of layer `recover` in the recovery log and one `tracing` event,
//! `steadfast::recover::ACTION`: `resuming` (with the waste), `resumed`, `not_resumed` (with why), `escalated`,
//! `continued`, `truncated`.
//!
//! # Cancellation
//!
//! Dropping the future or the answer ends whatever is under way, and the reservation of a resume that
//! was not sent goes back into the budget.
//!
//! # Cost
//!
//! Both keep the text that was delivered, in buffers that each thread reuses: a successful answer
//! allocates nothing, up to 16 KiB of text; beyond, once each time the text doubles.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod buffers;
mod call;
mod calls;
mod continuation;
mod error;
mod event;
mod events;
mod held_calls;
mod hold_back;
mod join;
mod layer;
mod overlap;
mod partial;
mod policy;
mod request;
mod resume;
mod service;
mod thinking;

pub use self::{
    continuation::{
        CONTINUE, Continuation, ContinuationFuture, ContinuationHandle, ContinuationLayer,
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
    thinking::{
        ThinkingEvents, ThinkingFuture, ThinkingMemory, ThinkingMemoryHandle, ThinkingMemoryLayer,
        ThinkingMemorySnapshot, ThinkingPolicy,
    },
};
