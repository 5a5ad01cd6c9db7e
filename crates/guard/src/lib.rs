//! Loop detection and limits for agents.
//!
//! An agent in a loop does not fail: it continues, and costs money. [`SafetyGuardLayer`] stops such a
//! task when it loops, and a task that has limits at its limits: with a failure that no layer retries, or
//! with a last answer that says so. One [`SafetyGuardHandle`] serves the model, the tools and the
//! operator.
//!
//! ```
//! use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, Message, Part, Role};
//! use steadfast_core::{Dialect, Failure, Reason};
//! use steadfast_guard::SafetyGuardLayer;
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Failure> {
//! // A client.
//! let client = service_fn(|_: ChatRequest| async {
//!     let events = [Delta::Text { index: 0, text: "hello".into() }, Delta::End];
//!     let events = tokio_stream::iter(events.map(|delta| Ok(Event::new([delta]))));
//!     Ok::<_, Failure>(ChatResponse::new(Head::new(Dialect::OpenAi), events))
//! });
//! let llm = SafetyGuardLayer::default().layer(client);
//!
//! // The conversation shows the same call with the same result for the fifth time.
//! let mut messages = vec![Message::user("find the bug")];
//! for round in 0..5 {
//!     let id = format!("call_{round}");
//!     let call = Part::tool_call(id.as_str(), "read_file", r#"{"path":"src/a.rs"}"#);
//!     messages.push(Message::new(Role::Assistant, vec![call]));
//!     messages.push(Message::tool(id, "fn main() {}"));
//! }
//! let stopped = llm.clone().oneshot(ChatRequest::new(messages.clone())).await.unwrap_err();
//! assert_eq!(stopped.reason(), Reason::Safety);
//! assert!(stopped.message().contains("Events processed: 15 | Tool calls: 5"));
//!
//! // After a turn of the user it may continue.
//! messages.push(Message::user("look into b.rs instead"));
//! let answer = llm.oneshot(ChatRequest::new(messages)).await?.collect().await?;
//! assert_eq!(answer.text(), "hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! Healthy agents edit one file ten times and call one tool a hundred times, so by default only loops
//! stop anybody. A caller that names a task ([`CallContext::task`](steadfast_core::CallContext::task))
//! wants it bounded: it has the limits [`GuardPolicy::named`], over all its conversations. Tasks that
//! nobody named have [`GuardPolicy::limits`], which are none, and [`GuardPolicy::codebuddy`] has the same
//! numbers for everybody. All of them are data ([`TaskLimits`], [`ToolSpec`]).
//!
//! | limit | of a named task |
//! |---|---|
//! | events: answers of the model, calls, results | 2,000 |
//! | tool calls | 400 |
//! | time | 10 min |
//! | one tool, unless listed | 20 |
//! | `edit_file`, `write_file` | 8 each |
//! | `delete_file` | 3 |
//! | `run_command` | 10 |
//! | `run_terminal_command` | 100 |
//! | `web_search` | 8 |
//! | edits of one file | 4 |
//!
//! A limit of n allows exactly n. The listed tools have their numbers where any tool has one
//! ([`TaskLimits::per_tool`]); a tool's own [`limit`](ToolSpec::limit) is everybody's. The result of an
//! allowed call is allowed too, even when the call was the last event. Other names of a tool (`Edit`,
//! `str_replace`, `apply_patch`) are counted with it. The message of a stop names the key that raises
//! the limit ([`SafetyStop::key`]). The agent can not lift a limit; an operator can, with
//! [`SafetyGuardHandle::extend`].
//!
//! # Loops
//!
//! | what | the model is advised | the task is stopped |
//! |---|---|---|
//! | the same call, the same result | at 3 | at 5 |
//! | the same call, the same error | at 2 | at 4 |
//! | two or three calls in turn, unchanged results | 3 cycles | 4 |
//! | one tool, the same result to different arguments | at 5 | at 8 |
//! | the same sentence in one answer, outside code and tables | | at 10 of the last 64 |
//!
//! What counts is whether anything changes. An edit with new text that succeeds is progress, however
//! often its file was edited. Calls are the same whatever the order of keys and the
//! spelling of a path; results are the same whatever their ids, times and temporary paths; but every
//! digit of an argument counts, so paging through a file is progress. Counts restart after a turn of
//! the user, after a successful call that changes something or may have ([`Kind`]), after a poll that
//! found a change, and after many new results ([`LoopRules::forget_after`]). Polls may find nothing new
//! four times as often, and are advised how long to wait. A stop and further advice need new evidence
//! after the advice: a batch of calls, however long, is advised once.
//!
//! Advice is appended as the last message, so that a cached prefix stays valid, or added to the tool's
//! result. It begins with [`MARK`], like every message of the guard, and counts neither as a turn of
//! the user nor as progress or repetition.
//!
//! # What a task is, and where its calls are counted
//!
//! | the request's context has | a task is | its limits |
//! |---|---|---|
//! | a task | that, over all its turns and conversations | [`named`](GuardPolicy::named) |
//! | a session | what happens since the user's last turn | [`limits`](GuardPolicy::limits) |
//! | neither | what happens since the user's last turn, by the request's history | the same, without time |
//!
//! The first two are known to the operator ([`SafetyGuardHandle::extend`]). Who calls the handle with a
//! name has named a task, unless the model's requests have it as their session.
//!
//! A task is identified by its name and its tenant ([`TaskId`]): tasks of two tenants with one name
//! are different tasks.
//!
//! Where tools run in the same process, put [`SafetyGuardHandle::tool_layer`] around them, or call
//! [`check_call`](SafetyGuardHandle::check_call) and [`observe_result`](SafetyGuardHandle::observe_result).
//! A call beyond a limit is then answered with a failed result that says why.
//!
//! Where they run elsewhere, as behind a gateway, nothing more is needed: the guard reads calls and
//! results from each request's history and comes to the same verdicts. Loops need no state for that.
//! Of a named task the guard remembers which answers it has counted, so that a history that is sent
//! again counts once, and several conversations add up. It knows a conversation by its session, else by
//! the user's first message: a client that replaces that, to shorten its history, names its session. The
//! calls of an answer are counted as they stream: one beyond a limit is replaced by text that says so, and
//! those before it are let through. So the caller runs no more than the limit, and each call that it
//! received has its result. Calls that another conversation of the task is just receiving are counted
//! with its next request. An edit that may be beyond its file's limit is held back until its file is
//! known.
//!
//! # Where to put this layer
//!
//! Outside all layers that make further attempts:
//!
//! ```text
//! Deadline
//! SafetyGuard         here: counts what the agent gets
//! Continuation
//! StreamResume
//! CooldownFailover
//! RetryBackoff
//! ```
//!
//! **Wrong:** `SafetyGuard` inside `RetryBackoff` or `CooldownFailover`. Each attempt is then an
//! event of the task: three overloaded providers use up more of its limits than the agent did, and
//! an answer that failed half way is counted as well as the one that replaced it. A stop is
//! still final there, since a failure of [`Reason::Safety`](steadfast_core::Reason::Safety) can not
//! be retried by any layer; it is only reached too early.
//!
//! # Streaming and cancellation
//!
//! A stop inside an answer drops the inner stream, which closes its connection, and ends with one
//! failure, or ([`StopAs::Answer`]) with the open block's end, the message, a stop reason and the
//! end. After a call has begun, time and repeated text no longer end the answer; the next request is
//! stopped. An answer that its caller drops is still counted.
//!
//! # What it costs
//!
//! A request without a task or session and without an answer in its history is not read further and
//! costs no allocation; nor does an event without a tool call. A history is read with every request,
//! in a time that grows with its calls; the hashes of long results are cached.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod admission;
mod automatic;
mod data;
mod error;
mod event;
mod events;
pub mod future;
mod handle;
mod history;
mod json;
mod known;
mod layer;
mod limits;
mod path;
mod policy;
mod progress;
mod repeat;
mod replay;
mod service;
mod signature;
mod state;
mod stop;
mod tasks;
mod tool;
mod tools;
mod volatile;

pub use self::{
    error::PolicyError,
    events::GuardEvents,
    handle::{GuardVerdict, SafetyGuardHandle, TaskSnapshot},
    layer::SafetyGuardLayer,
    limits::TaskLimits,
    policy::{GuardPolicy, LoopRules, StopAs, Strikes},
    replay::Replayed,
    service::SafetyGuard,
    stop::{Advice, LoopRule, MARK, SafetyStop, StopCause, StopText},
    tasks::TaskId,
    tool::{ToolFuture, ToolGuard, ToolGuardLayer},
    tools::{Kind, ToolSpec},
};
