//! A conversation and its answer, in no dialect.

mod adapt;
mod completion;
mod event;
mod headers;
mod json;
mod message;
mod model_name;
mod params;
mod part;
mod request;
mod response;
mod shared;
mod tool;

pub use self::{
    completion::Completion,
    event::{Delta, Deltas, Event, Frame, FrameKind},
    headers::ReplyHeaders,
    json::{Extra, InvalidJson, RawJson},
    message::{Message, Role},
    model_name::ModelName,
    params::{Params, ResponseFormat, SharedParams, ThinkingConfig},
    part::{Media, MediaKind, MediaSource, Opaque, Part, Text, Thinking, ToolCall, ToolResult},
    request::{ChatRequest, Origin},
    response::{ChatResponse, Collect, EventStream, Events, Head, Stop, StopReason},
    shared::SharedVec,
    tool::{Tool, ToolChoice},
};
