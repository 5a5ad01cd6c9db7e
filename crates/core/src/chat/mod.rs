//! A conversation and its answer, in no dialect.

mod adapt;
mod completion;
mod deltas;
mod event;
mod headers;
mod json;
mod message;
mod params;
mod part;
mod request;
mod response;
mod shared;
mod tool;

pub use self::{
    completion::Completion,
    deltas::{EventDeltas, Gist},
    event::{Delta, Event, Frame, FrameKind},
    headers::ReplyHeaders,
    json::{Extra, InvalidJson, RawJson},
    message::{Message, Role},
    params::{Params, ResponseFormat, SharedParams, ThinkingConfig},
    part::{Media, MediaKind, MediaSource, Opaque, Part, Text, Thinking, ToolCall, ToolResult},
    request::{ChatRequest, Origin},
    response::{ChatResponse, Collect, EventStream, Events, Head, Stop, StopReason},
    shared::SharedVec,
    tool::{Tool, ToolChoice},
};
