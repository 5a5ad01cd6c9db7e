//! A conversation and its answer, in no dialect.
//!
//! This crate has no policy and knows no provider's JSON. It has what the layers that read
//! conversations share:
//!
//! * [`ChatRequest`], [`ChatResponse`], [`Event`] and [`Completion`]: the request and the answer.
//! * [`EmbedRequest`] and [`EmbedResponse`]: texts, and their vectors.
//! * [`ToolRequest`] and [`ToolResult`]: a call of a tool, for those who run tools, and what came of it.
//! * [`transcript`]: what a provider accepts as a conversation, and how to repair one.
//! * [`ModelFacts`]: what is publicly known of models.
//! * [`surrogates`]: text that was cut in the middle of a character.

mod adapt;
mod annotation;
mod completion;
mod embed;
mod event;
mod headers;
mod invocation;
mod json;
mod message;
mod model_facts;
mod model_name;
mod params;
mod part;
mod request;
mod response;
mod shared;
mod state;
pub mod surrogates;
mod tool;
mod tool_failure;
mod track;
pub mod transcript;

pub use self::{
    annotation::{Citation, TokenLogprob},
    completion::Completion,
    embed::{EmbedInput, EmbedOrigin, EmbedRequest, EmbedResponse, Embedding},
    event::{Delta, Deltas, Event, Frame, FrameKind},
    headers::{ReplyHeaders, SharedHeaders},
    invocation::{ToolInvocation, ToolRequest},
    json::{Extra, InvalidJson, RawJson},
    message::{Message, Role},
    model_facts::ModelFacts,
    model_name::ModelName,
    params::{Params, ResponseFormat, SharedParams, ThinkingConfig},
    part::{Media, MediaKind, MediaSource, Opaque, Part, Text, Thinking, ToolCall, ToolResult},
    request::{ChatRequest, Origin},
    response::{ChatResponse, Collect, EventStream, Events, Head, Stop, StopReason},
    shared::SharedVec,
    state::ProviderState,
    tool::{Tool, ToolChoice},
    tool_failure::{ToolFailure, ToolFailureKind},
    track::TrackedEvents,
};
