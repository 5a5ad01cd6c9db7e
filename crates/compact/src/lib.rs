//! Keeps a conversation inside its model's window.
//!
//! A conversation grows until the provider refuses it, in the middle of the work. [`CompactionLayer`]
//! counts each request against the window of the target it goes to, warns when that fills, makes older
//! parts smaller before it is full, and repairs a request that was refused as too large.
//!
//! ```
//! use steadfast_compact::{CompactionLayer, TokenLimits, Notice, TargetFacts};
//! use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, Message, StopReason};
//! use steadfast_core::{Dialect, Failure, Target};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Failure> {
//! // A client, and a small model that writes summaries.
//! let client = |text: &'static str| service_fn(move |_: ChatRequest| async move {
//!     let say = Delta::Text { index: 0, text: text.into() };
//!     let end = Event::new([say, Delta::Stop(StopReason::EndTurn.into()), Delta::End]);
//!     let events = tokio_stream::iter([Ok(end)]);
//!     Ok::<_, Failure>(ChatResponse::new(Head::new(Dialect::Anthropic), events))
//! });
//! let layer = CompactionLayer::new(client("The user counts; all is well so far."))
//!     .with_targets(|_| TargetFacts::default().with_limits(TokenLimits::new(8_192)));
//! let llm = ServiceBuilder::new().layer(layer).service(client("One hundred."));
//!
//! let mut history = vec![Message::user("Count with me.")];
//! for number in 1..100 {
//!     history.push(Message::assistant(format!("{number}. {}", "What comes next? ".repeat(15))));
//!     history.push(Message::user(format!("After {number} comes {}.", number + 1)));
//! }
//! let mut request = ChatRequest::new(history).with_model("claude-sonnet-4-5");
//! request.context = request.context.with_target(Target::new("anthropic")).with_session("s-1");
//! let answer = llm.oneshot(request).await?;
//!
//! let notice = Notice::of(&answer.head).expect("the answer's head has a notice");
//! let report = notice.reports[0];
//! assert!(report.before > 6_000 && report.after <= report.target);
//! let sent = &notice.compacted.as_ref().expect("something else was sent").messages;
//! assert!(sent.iter().any(|message| message.text().contains("all is well so far")));
//! assert_eq!(answer.collect().await?.text(), "One hundred.");
//! # Ok(())
//! # }
//! ```
//!
//! # Where to put this layer
//!
//! ```text
//! CooldownFailover    picks the target: only below it the window is known
//! Compaction
//! RetryBackoff        a retry sends the compacted request and does not compact again
//! CircuitBreaker
//! ```
//!
//! **Wrong:** outside `CooldownFailover`. There a request has no target yet, so it is counted for the
//! model the caller named; the fallback with a quarter of its window refuses it, and a request that is
//! too large is failed over to targets with larger windows only: all fail, as nothing compacts it.
//!
//! **Also wrong:** inside `RetryBackoff`. Each attempt would count the request again, and the wait for
//! a summariser would count as the attempt's own.
//!
//! # When it compacts
//!
//! | used of the window, with what is kept for the answer | |
//! |---|---|
//! | below 80 % | nothing: the request is not copied, nothing is allocated |
//! | 80 % | the answer's head and the recovery log report it |
//! | 90 % | older parts are made smaller, to 60 % or less |
//! | the provider refuses it as too large | compacted below that size and sent again; a second time only when the size that the provider reports went down |
//!
//! | tier | what becomes of older messages |
//! |---|---|
//! | 1 | large results and arguments become markers |
//! | 2 | a summariser's summary replaces them, made of chunks in parallel |
//! | 3 | the same for the oldest half, where all of it is too much for the budget or for [`max_chunks`](SummaryPolicy::max_chunks) |
//! | 4 | a list of facts, marked as an emergency truncation |
//!
//! A tier counts when its result is smaller and fits; otherwise the next is tried. The summariser is not
//! called where tier 1 is enough, or where no tier would help: that is a failure of
//! [`Reason::ContextOverflow`](steadfast_core::Reason::ContextOverflow) with the numbers
//! ([`TooLarge`]), before any call. A request for an unknown window ([`UNKNOWN`]) is never refused by the
//! layer: the provider decides.
//!
//! A summary that is unusable ([`Unusable`]), not finished in [`time`](SummaryPolicy::time) or not
//! permitted (by the summariser's [breaker](CompactionHandle::summariser) for the tenant, by the
//! [tenant's cap](SpendPolicy)) is not requested again in the same call: tiers 1 and 4 are used instead,
//! and [`Notice::degraded`] has the reason. Retries in the summariser's own layers are cut short: once an
//! attempt has failed, a caller waits [`patience`](SummaryPolicy::patience) longer. They are known by
//! the recovery log of the summariser's requests.
//!
//! # Other refusals
//!
//! Five more refusals are repaired, once each in a call, and nothing of them shows when that helps; a
//! second refusal is passed on:
//!
//! | the provider refuses | |
//! |---|---|
//! | its bytes | the largest results and media become markers, until half of the bytes are gone; the rest is compacted where these are too few |
//! | an image or another medium | it becomes a marker: the one that [`transcript`](steadfast_chat::transcript)'s rules find fault with, else all; not where another target may read it |
//! | a parameter that an answer can do without, of a request that was not written for this model | it is left out, or lowered to the most that the provider states; and for an hour the same value is left out of other requests to this target |
//! | its transcript, where those rules find fault with it, too | it is [repaired](steadfast_chat::transcript::repair) |
//! | its thinking: bound to another history, or not signed | it is [dropped](steadfast_chat::transcript::keep_thinking), all of it |
//!
//! A refusal comes at the head of an answer. Where [`withhold`](CompactionPolicy::withhold) is on, one in the
//! middle of a stream is repaired too: the caller gets the answer when its end is known.
//!
//! # Conversations
//!
//! Callers send their whole history in every turn. What was compacted replaces its beginning
//! in every turn after, byte for byte, so that the provider's prompt cache holds until the next
//! compaction; the caller's own list is never changed. A conversation is known by tenant, agent and
//! session; without a session, by the beginning of its first message. In either case a compaction
//! is used only for the same messages it was made of. Names that are empty, padded,
//! too long or hold control characters, and two histories that use one name in turn, get a compaction
//! for the one request and nothing is kept ([`fail_closed_rollover`](CompactionLayer::with_fail_closed_rollover)).
//!
//! One request of a conversation is compacted at a time; others of it wait, and then send the same. In
//! [`deferred`](CompactionLayer::with_deferred) mode none waits as long as the request fits as it is.
//!
//! After three compactions in a row that did not help, a conversation is not summarised any more; after
//! three internal errors (a panic in a closure it was given, a result that is not valid or that the
//! provider refuses) without an answer to a compacted request between, it is not compacted any more, and
//! every answer reports that.
//!
//! # What it costs
//!
//! A request far from the limit passes by an upper bound: the length of its body, or of its texts.
//! Otherwise its new messages are counted, and the old ones recognised. The next count starts from the
//! usage that the provider reports.
//!
//! # Cancellation
//!
//! Dropping the future drops the call and the summariser's calls; tokens that were reserved for those and
//! not used are returned to the tenant's budget, and the next request of the conversation is compacted.
//! The usage of an answer that is dropped is not learned.
//!
//! # Features
//!
//! `exact-tokens`: the tokens of OpenAI's models are counted exactly, by tables of 47 MB. Off by default: the
//! count is then an estimate that learns from reported usage ([`Encoding`]).
//!
//! # How the crate is laid out
//!
//! | module | |
//! |---|---|
//! | `measure` | counting tokens: schemes, calibration, limits of models and targets |
//! | `decide` | when to compact and how far, the plan of a cut, the compaction of one request, what a refusal calls for |
//! | `summarise` | calls of a summariser: prompts, budget, breaker |
//! | `apply` | markers, summaries as messages, facts kept by rule, what is reported |
//! | `state` | the state of the layer and of each conversation |
//!
//! # Without a service
//!
//! The parts that need no model and no clock can be used alone:
//!
//! * [`Counter`] and [`CountedHistory`] count tokens, each message once, and learn from reported usage.
//! * [`Models`] knows windows and output limits.
//! * [`CompactionPolicy`]: when to compact and how far.
//! * [`strip`] (tier 1) replaces large results and arguments of older messages by markers.
//! * [`Ledger`] (tier 4) keeps what can be kept by rule; [`render`] makes a message of
//!   it that can not be taken for an instruction.
//! * [`Applied`] repeats a compaction for callers who send their whole history in every turn.
//! * [`chunks`], [`ask`] and [`accept`] (tiers 2 and 3) make the requests to a summariser and check which
//!   of its answers may replace history.
//! * [`Compactor`] combines them: it makes a request fit, or returns an error with the reason. A
//!   summariser's answer is passed to it ([`CompactionTask::written`]).
//!
//! ```
//! use steadfast_compact::{Compactor, Counter, Models, CompactionPolicy, CountedHistory, CompactionTask};
//! use steadfast_chat::{ChatRequest, transcript::TranscriptRules};
//! use steadfast_core::Dialect;
//!
//! let (models, counter) = (Models::default(), Counter::default());
//! let compactor = Compactor::new(CompactionPolicy::default())?;
//! let (model, rules) = ("claude-sonnet-4-5", TranscriptRules::for_dialect(Dialect::Anthropic));
//!
//! // Once a turn; the history belongs to the conversation.
//! let mut history = CountedHistory::default();
//! let mut request = ChatRequest::user("hello").with_model(model);
//! let count = counter.count(&mut history, &request, model);
//! let count_message = |message: &_| counter.message(message, model);
//! let mut task = CompactionTask::new(&rules, &count_message);
//! let asked = request.params.max_output;
//! task.room = compactor.policy().room(models.limits(model), asked, rules.output_counts);
//! task.fixed = count.fixed;
//! task.measured = Some(count.upper);
//! task.growth = history.growth(&counter.calibration(model));
//! let run = compactor.run(&mut request, &task, &mut fastrand::Rng::new())?;
//! assert!(run.is_none(), "there is room enough");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is never changed
//!
//! Instructions, pinned messages, the user's current request, and the most recent messages (four,
//! and the calls that go with their results). Calls and results go together or stay together. Only media
//! that a provider refused become markers wherever they are.
//!
//! # What is sent
//!
//! A request that the provider accepts, by [`transcript::validate`](steadfast_chat::transcript::validate):
//! cuts are tried until one is valid. A request that fits is not changed.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod apply;
mod body;
mod decide;
mod error;
mod event;
mod fleet;
pub mod future;
mod handle;
mod id;
mod layer;
mod measure;
mod resend;
mod service;
#[cfg(feature = "shared")]
mod shared;
mod state;
mod summarise;
mod withheld;

pub use self::{
    apply::{
        Applied, Compacted, CompactionReport, EMERGENCY, Effect, Ledger, Notice, Stripped, Summary,
        SummaryHeader, Tier, escape, render, strip,
    },
    body::CompactionEvents,
    decide::{
        CompactionPolicy, CompactionResult, CompactionTask, Compactor, Goal, Level, Room,
        SummaryInput,
    },
    error::{PolicyError, TooLarge},
    handle::{CompactionCounts, CompactionHandle, CompactionSnapshot, ConversationSnapshot},
    id::ConversationId,
    layer::CompactionLayer,
    measure::{
        Calibration, Count, CountedHistory, Counter, Encoding, Models, Scheme, TargetFacts,
        TokenLimits, UNKNOWN,
    },
    service::Compaction,
    summarise::{Degraded, SpendPolicy, SummaryPolicy, Unusable, accept, ask, chunks},
};
