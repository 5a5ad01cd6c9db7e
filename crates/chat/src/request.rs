//! A request to a model.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{
    Media, MediaSource, Message, ModelName, Part, ProviderState, SharedHeaders, SharedParams,
    SharedVec, Tool, transcript::TranscriptRule,
};
use steadfast_core::{
    Beginning, Call, CallContext, Dialect, Failure, Needs, OnUnsupported, Profile, PromptDigest,
    Target,
};

/// A conversation to be continued by a model. Cheap to clone.
///
/// Typed for what layers read and change; lossless for the rest: a request that was read from the
/// wire keeps its body ([`Origin`]), so that sending it on in the same dialect keeps unknown fields
/// and sends unchanged fields byte for byte.
///
/// ```
/// use steadfast_chat::{ChatRequest, Message};
///
/// let request = ChatRequest::user("hello").with_model("claude-sonnet-4-5");
/// assert_eq!(request.messages.len(), 1);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The context of the call, shared by its attempts.
    pub context: CallContext,
    /// The model asked for; failover maps it to each target's own.
    pub model: ModelName,
    /// The conversation, oldest first. Instructions are messages of [`Role::System`](crate::Role).
    pub messages: SharedVec<Message>,
    /// The tools that the model may call.
    pub tools: SharedVec<Tool>,
    /// Parameters of the answer.
    pub params: SharedParams,
    /// Whether the answer is to come in pieces.
    pub stream: bool,
    /// What to do with what the target's dialect has no word for and an answer can do without: set from the
    /// target's profile, read by a client that translates.
    pub on_unsupported: OnUnsupported,
    /// Headers to pass on to the provider, such as `anthropic-beta`. A client sends them only to a
    /// provider of the request's own dialect, and never lets one override its credentials.
    pub headers: SharedHeaders,
    /// The query of the caller's address to pass on, such as `beta=true`, without what is no provider's business. A
    /// client sends it only to a provider of the request's own dialect.
    pub query: Option<Arc<str>>,
    /// The rules by which a repair has taken something from the conversation when it was fitted to a target of
    /// another dialect: thinking, and results without their calls. A client that translates names it.
    pub taken_out: Option<Arc<[TranscriptRule]>>,
    /// The most tokens of answer that its target has room for beside the conversation, and writes: set by who knows
    /// both, read by a client whose dialect needs a limit where the caller asked for none.
    pub answer_room: Option<u64>,
    /// What it leaves to its provider to remember: `None` in dialects that leave nothing.
    pub state: Option<Arc<ProviderState>>,
    origin: Option<Arc<Origin>>,
}

/// A request as it was read from the wire.
#[derive(Clone)]
pub struct Origin {
    /// The dialect it was read in.
    pub dialect: Dialect,
    /// The body.
    pub body: Bytes,
    /// The parsed request: where the request still equals this, it has not been changed.
    read: ChatRequest,
}

impl Origin {
    /// The request as it was parsed.
    pub fn read(&self) -> &ChatRequest {
        &self.read
    }
}

impl ChatRequest {
    /// A conversation, for the model that the stack selects. It keeps a recovery log.
    pub fn new(messages: impl Into<SharedVec<Message>>) -> Self {
        Self {
            context: CallContext::recording(),
            model: ModelName::default(),
            messages: messages.into(),
            tools: SharedVec::default(),
            params: SharedParams::default(),
            stream: false,
            on_unsupported: OnUnsupported::default(),
            headers: SharedHeaders::default(),
            query: None,
            taken_out: None,
            answer_room: None,
            state: None,
            origin: None,
        }
    }

    /// One message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(vec![Message::user(text)])
    }

    /// With this model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<ModelName>) -> Self {
        self.model = model.into();
        self
    }

    /// With these tools.
    #[must_use]
    pub fn with_tools(mut self, tools: impl Into<SharedVec<Tool>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// With at most this many tokens of answer.
    #[must_use]
    pub fn with_max_output(mut self, tokens: u64) -> Self {
        self.params.max_output = Some(tokens);
        self
    }

    /// Streamed.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.stream = true;
        self
    }

    /// With this context.
    #[must_use]
    pub fn with_context(mut self, context: CallContext) -> Self {
        self.context = context;
        self
    }

    /// Keeps the body that the request was read from. Called by its reader, as the last step.
    #[must_use]
    pub fn with_origin(mut self, dialect: Dialect, body: Bytes) -> Self {
        self.origin = None;
        let context = std::mem::take(&mut self.context);
        let read = self.clone();
        self.context = context;
        self.origin = Some(Arc::new(Origin { dialect, body, read }));
        self
    }

    /// What it was read from, when that was in `dialect`.
    pub fn origin(&self, dialect: Dialect) -> Option<&Origin> {
        self.origin.as_deref().filter(|origin| origin.dialect == dialect)
    }

    /// The body it was read from, when its conversation is still the one in it.
    pub fn unchanged_body(&self) -> Option<&Bytes> {
        let origin = self.origin.as_deref()?;
        origin.read.messages.same(&self.messages).then_some(&origin.body)
    }

    /// Says again what the request leaves to its provider: `messages` are the conversation with it, of which `at`
    /// keeps what was left out. There the request is sent [as it was read](Self::leave_kept), elsewhere whole.
    pub fn replay(&mut self, at: Option<Target>, messages: impl Into<SharedVec<Message>>) {
        let messages = messages.into();
        let state = self.state.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        self.state = Some(Arc::new(state.replayed(at, messages.clone())));
        self.messages = messages;
    }

    /// Leaves out again what `target` keeps, if nobody has changed the conversation since it was
    /// [replayed](Self::replay): for the client, directly before the request is written.
    pub fn leave_kept(&mut self, target: &Target) {
        let Some(state) = &self.state else { return };
        if !(state.is_kept_at(target) && state.is_unchanged(&self.messages)) {
            return;
        }
        if let Some(origin) = self.origin.clone() {
            self.messages = origin.read.messages.clone();
            self.state = origin.read.state.clone();
        }
    }

    /// Whether some of the conversation was written elsewhere than at `target`, as far as this request knows.
    pub(crate) fn is_replayed_for(&self, target: &Target) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_replayed() && !state.is_kept_at(target))
    }

    /// The dialect it was read in.
    pub fn dialect(&self) -> Option<Dialect> {
        self.origin.as_ref().map(|origin| origin.dialect)
    }
}

/// Bytes of text to a token, an upper bound: so the estimate of tokens is a lower bound.
const BYTES_PER_TOKEN: usize = 5;

impl Call for ChatRequest {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }

    fn model(&self) -> Option<&str> {
        (!self.model.is_empty()).then_some(self.model.as_str())
    }

    /// Of the last turn of a user, or of its tool results.
    fn prompt_digest(&self) -> Option<u64> {
        let turn = self.messages.iter().rfind(|message| message.role() == crate::Role::User)?;
        let mut digest = PromptDigest::default();
        for part in turn.parts() {
            match part {
                Part::Text(text) => digest.add(text.text.as_bytes()),
                Part::ToolResult(result) => {
                    digest.add(result.id.as_bytes());
                    for part in &result.content {
                        digest.add(part.as_text().unwrap_or_default().as_bytes());
                    }
                }
                Part::Media(Media { source: MediaSource::Base64 { data, .. }, .. }) => {
                    digest.add(data.as_bytes());
                }
                _ => {}
            }
        }
        Some(digest.finish())
    }

    fn beginning(&self) -> Option<Beginning> {
        let mut turns = self.turns();
        turns.next()?;
        let mut digest = PromptDigest::default();
        self.beginning_texts(&mut |text| digest.add(text));
        Some(Beginning::new(digest.finish(), turns.next().is_none()))
    }

    fn beginning_texts(&self, add: &mut dyn FnMut(&[u8])) {
        let first = self.turns().next().map_or(&[][..], Message::parts);
        first.iter().filter_map(Part::as_text).for_each(|text| add(text.as_bytes()));
    }

    fn is_whole(&self) -> Option<bool> {
        Some(!self.stream)
    }

    fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        needs.tools = !self.tools.is_empty();
        needs.stream = self.stream;
        needs.max_output = self.params.max_output;
        let mut bytes = 0;
        for part in self.messages.iter().flat_map(Message::parts) {
            needs.vision |= part.has_image();
            bytes += part.text_len();
        }
        needs.input_tokens = (bytes / BYTES_PER_TOKEN) as u64;
        needs.most_input_tokens = self.most_tokens() as u64;
        needs
    }

    fn adapt(&mut self, profile: &Profile) -> Result<(), Failure> {
        super::adapt::adapt(self, profile)
    }

    fn nudge(&mut self, text: &str) -> bool {
        self.messages.make_mut().push(Message::new(crate::Role::User, vec![Part::text(text)]));
        true
    }
}

/// What vendors put around a message, at most, in tokens.
const PER_MESSAGE: usize = 8;

/// What vendors say to a model that may call tools, at most, in tokens.
const ABOUT_TOOLS: usize = 1_024;

impl ChatRequest {
    /// All that is no instruction.
    fn turns(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(|message| message.role() != crate::Role::System)
    }

    /// The most tokens that it can be taken to be, whoever counts.
    fn most_tokens(&self) -> usize {
        let parts = self.messages.iter().flat_map(Message::parts).map(Part::most_tokens);
        let tools = self.tools.iter().map(Tool::most_tokens);
        let about = if self.tools.is_empty() { 0 } else { ABOUT_TOOLS };
        PER_MESSAGE * self.messages.len() + parts.sum::<usize>() + tools.sum::<usize>() + about
    }
}

impl fmt::Debug for ChatRequest {
    /// Shows shapes, not contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatRequest")
            .field("model", &self.model)
            .field("messages", &self.messages.len())
            .field("tools", &self.tools.len())
            .field("stream", &self.stream)
            .field("dialect", &self.dialect())
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin")
            .field("dialect", &self.dialect)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_read_from_the_conversation() {
        let request = ChatRequest::new(vec![
            Message::system("x".repeat(500)),
            Message::new(crate::Role::User, vec![Part::image("image/png", "AAAA")]),
        ])
        .streaming();
        let needs = request.needs();
        assert!(needs.vision && needs.stream && !needs.tools);
        assert_eq!(needs.input_tokens, 100);
        assert_eq!(needs.most_input_tokens, 8 + 167 + 8 + 4_096);
    }

    #[test]
    fn all_that_is_sent_is_in_the_most_that_a_request_can_be() {
        let base = ChatRequest::user("hello").needs().most_input_tokens;
        let schema = format!(r#"{{"type":"object","title":"{}"}}"#, "x".repeat(30_000));
        let raw = || crate::RawJson::parse(&schema).unwrap();
        let opaque = crate::Opaque { dialect: Dialect::Anthropic, kind: "x".into(), json: raw() };
        let result = crate::ToolResult {
            content: vec![Part::text("x".repeat(30_000))],
            ..crate::ToolResult::of(&crate::ToolCall::default(), "")
        };
        let document = Media {
            kind: crate::MediaKind::Document,
            source: MediaSource::Base64 {
                mime: "application/pdf".into(),
                data: "x".repeat(80_000).into(),
            },
            extra: None,
        };
        for part in [
            Part::Redacted { data: "x".repeat(30_000) },
            Part::Opaque(opaque),
            Part::ToolResult(result),
            Part::Media(document),
        ] {
            let request =
                ChatRequest::new(vec![Message::new(crate::Role::User, vec![part.clone()])]);
            let most = request.needs().most_input_tokens;
            assert!((10_000..10_100).contains(&most), "{most} for {part:?}");
        }
        let mut request = ChatRequest::user("hello");
        request.tools.make_mut().push(Tool::function("f", "", raw()));
        let most = request.needs().most_input_tokens - base;
        assert!((11_000..11_200).contains(&most), "{most}");
    }

    #[test]
    fn the_origin_keeps_what_was_read() {
        let mut request = ChatRequest::user("hi")
            .with_model("m")
            .with_origin(Dialect::OpenAi, Bytes::from_static(b"{}"));
        assert!(request.origin(Dialect::Gemini).is_none());
        request.nudge("go on");
        request.model = "n".into();
        let read = request.origin(Dialect::OpenAi).unwrap().read();
        assert_eq!((read.model.as_str(), read.messages.len()), ("m", 1));
        assert!(!read.messages.same(&request.messages));
        assert_eq!(request.unchanged_body(), None);
    }
}
