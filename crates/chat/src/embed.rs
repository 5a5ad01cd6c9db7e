//! A request for embeddings, and its answer.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use steadfast_core::{
    BufferLimits, Call, CallContext, Dialect, Failure, FaultSide, Lease, Needs, Profile,
    PromptDigest, Reason, Scope, Track, UntilEnd, Usage,
};

use crate::{Head, ModelName, RawJson, SharedHeaders, SharedVec};

/// Texts to be embedded, all by one model. Cheap to clone.
///
/// Vectors of two models do not mix, so a stack for these requests has targets of one model alone. A request
/// that was read from the wire keeps its body, and is sent as it came, but for the model's name; it can not be
/// sent in another dialect.
///
/// ```
/// use steadfast_chat::EmbedRequest;
///
/// let request = EmbedRequest::new(["a text", "another"]).with_model("text-embedding-3-small");
/// assert_eq!(request.inputs().len(), 2);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct EmbedRequest {
    /// The context of the call, shared by its attempts.
    pub context: CallContext,
    /// The model asked for.
    pub model: ModelName,
    /// Headers to pass on to the provider. A client never lets one override its credentials.
    pub headers: SharedHeaders,
    /// The query of the caller's address to pass on, without what is no provider's business.
    pub query: Option<Arc<str>>,
    inputs: SharedVec<EmbedInput>,
    dimensions: Option<u64>,
    origin: Option<Arc<EmbedOrigin>>,
}

/// What is embedded as one vector.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EmbedInput {
    /// A text.
    Text(String),
    /// A text that its caller has split into tokens.
    Tokens(Vec<u64>),
    /// What has more than text in it, such as an image, in the dialect it was read in.
    Opaque(RawJson),
}

/// A request for embeddings as it was read from the wire.
#[derive(Clone)]
pub struct EmbedOrigin {
    /// The dialect it was read in.
    pub dialect: Dialect,
    /// The body.
    pub body: Bytes,
    /// The model that was asked for in it.
    pub model: ModelName,
    /// It asks for one vector by the dialect's method for one, where that is another one (Gemini).
    pub is_single: bool,
}

impl EmbedRequest {
    /// These texts, a vector each.
    pub fn new<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::of_inputs(texts.into_iter().map(|text| EmbedInput::Text(text.into())).collect())
    }

    /// These inputs, a vector each.
    pub fn of_inputs(inputs: Vec<EmbedInput>) -> Self {
        Self {
            context: CallContext::recording(),
            model: ModelName::default(),
            headers: SharedHeaders::default(),
            query: None,
            inputs: inputs.into(),
            dimensions: None,
            origin: None,
        }
    }

    /// With this model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<ModelName>) -> Self {
        self.model = model.into();
        self
    }

    /// With vectors of so many numbers, where the model can be asked for that.
    #[must_use]
    pub fn with_dimensions(mut self, dimensions: u64) -> Self {
        (self.dimensions, self.origin) = (Some(dimensions), None);
        self
    }

    /// With this context.
    #[must_use]
    pub fn with_context(mut self, context: CallContext) -> Self {
        self.context = context;
        self
    }

    /// Keeps what the request was read from. Called by its reader, as the last step.
    #[must_use]
    pub fn with_origin(mut self, dialect: Dialect, body: Bytes, is_single: bool) -> Self {
        let model = self.model.clone();
        self.origin = Some(Arc::new(EmbedOrigin { dialect, body, model, is_single }));
        self
    }

    /// What is embedded, in order.
    pub fn inputs(&self) -> &[EmbedInput] {
        &self.inputs
    }

    /// How many numbers a vector is to have, where that is asked.
    pub fn dimensions(&self) -> Option<u64> {
        self.dimensions
    }

    /// What it was read from.
    pub fn origin(&self) -> Option<&EmbedOrigin> {
        self.origin.as_deref()
    }

    /// The dialect it was read in.
    pub fn dialect(&self) -> Option<Dialect> {
        self.origin.as_ref().map(|origin| origin.dialect)
    }
}

impl EmbedInput {
    /// Tokens at least, and at most: five bytes to one, and three; of what is no text a byte each at most.
    fn tokens(&self) -> (usize, usize) {
        match self {
            Self::Text(text) => (text.len() / 5, text.len() / 3 + 1),
            Self::Tokens(tokens) => (tokens.len(), tokens.len()),
            Self::Opaque(json) => (0, json.get().len()),
        }
    }
}

impl Call for EmbedRequest {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }

    fn model(&self) -> Option<&str> {
        (!self.model.is_empty()).then_some(self.model.as_str())
    }

    fn is_whole(&self) -> Option<bool> {
        Some(true)
    }

    fn prompt_digest(&self) -> Option<u64> {
        let mut digest = PromptDigest::default();
        for input in &*self.inputs {
            match input {
                EmbedInput::Text(text) => digest.add(text.as_bytes()),
                EmbedInput::Tokens(tokens) => {
                    tokens.iter().for_each(|token| digest.add(&token.to_le_bytes()));
                }
                EmbedInput::Opaque(json) => digest.add(json.get().as_bytes()),
            }
        }
        Some(digest.finish())
    }

    /// An embedding has no output tokens.
    fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        for (least, most) in self.inputs.iter().map(EmbedInput::tokens) {
            needs.input_tokens += least as u64;
            needs.most_input_tokens += most as u64;
        }
        needs.max_output = Some(0);
        needs
    }

    fn adapt(&mut self, profile: &Profile) -> Result<(), Failure> {
        if let (Some(own), Some(dialect)) = (self.dialect(), profile.dialect)
            && own != dialect
        {
            let message = format!(
                "{} was passed over: embeddings are asked in the {own} dialect, and it speaks that of {dialect}",
                profile.target
            );
            return Err(Failure::refused(Reason::Unsupported, message)
                .with_target(profile.target.clone())
                .with_scope(Scope::Request)
                .with_evidence("capability"));
        }
        if let Some(model) = profile.target.model()
            && self.model != model
        {
            self.model = model.into();
        }
        Ok(())
    }
}

impl fmt::Debug for EmbedRequest {
    /// Without the texts, which are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbedRequest")
            .field("model", &self.model)
            .field("inputs", &self.inputs.len())
            .field("dimensions", &self.dimensions)
            .field("dialect", &self.dialect())
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EmbedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbedOrigin")
            .field("dialect", &self.dialect)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish_non_exhaustive()
    }
}

/// Vectors, one for each input of the [`EmbedRequest`] and in its order.
#[derive(Clone)]
#[non_exhaustive]
pub struct EmbedResponse {
    /// What is known of the answer. Boxed: every layer moves it.
    pub head: Box<Head>,
    /// The vectors.
    pub embeddings: Vec<Embedding>,
    /// The model that made them, as the provider names it.
    pub model: Option<String>,
    /// What it used.
    pub usage: Usage,
    /// The answer as the provider wrote it, in the dialect of the head; only vectors that came in another order
    /// than they were asked for have been sorted.
    pub body: Bytes,
}

impl EmbedResponse {
    /// An answer.
    pub fn new(head: Head, embeddings: Vec<Embedding>, body: Bytes) -> Self {
        let (model, usage) = (None, Usage::default());
        Self { head: Box::new(head), embeddings, model, usage, body }
    }

    /// With the model that made it, as the provider names it.
    #[must_use]
    pub fn with_model(mut self, model: Option<String>) -> Self {
        self.model = model;
        self
    }

    /// With what it used.
    #[must_use]
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }
}

impl fmt::Debug for EmbedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbedResponse")
            .field("head", &self.head)
            .field("embeddings", &self.embeddings.len())
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}

/// A vector as it was written: a list of numbers, or a string of base64 with its 32-bit floats. It is read when it
/// is asked for: most are passed on without that.
#[derive(Clone, PartialEq, Eq)]
pub struct Embedding(Bytes);

impl Embedding {
    /// The vector that stands in `json`, a JSON list or string.
    pub fn new(json: Bytes) -> Self {
        Self(json)
    }

    /// Its JSON.
    pub fn json(&self) -> &Bytes {
        &self.0
    }

    /// Its numbers.
    ///
    /// # Errors
    ///
    /// When it is no vector: a failure of the provider.
    pub fn values(&self) -> Result<Vec<f32>, Failure> {
        let broken = |why: String| {
            let message = format!("the provider sent an embedding that is none: {why}");
            Failure::new(Reason::ServerError, message)
                .with_fault(FaultSide::Provider)
                .with_evidence("malformed")
        };
        if !self.0.starts_with(b"\"") {
            return serde_json::from_slice(&self.0).map_err(|error| broken(error.to_string()));
        }
        let text: String =
            serde_json::from_slice(&self.0).map_err(|error| broken(error.to_string()))?;
        let bytes = STANDARD.decode(text).map_err(|error| broken(error.to_string()))?;
        let (floats, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(broken(format!("{} bytes are no row of 32-bit floats", bytes.len())));
        }
        Ok(floats.iter().map(|four| f32::from_le_bytes(*four)).collect())
    }
}

impl fmt::Debug for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedding({} bytes)", self.0.len())
    }
}

/// It is over when it is there: the client has read it whole.
impl Track<EmbedResponse> for UntilEnd {
    type Tracked = EmbedResponse;

    fn track(&self, reply: EmbedResponse) -> EmbedResponse {
        reply
    }

    fn poll_content(
        &self,
        _: &mut EmbedResponse,
        _: BufferLimits,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn attach(&self, reply: &mut EmbedResponse, mut lease: Lease) {
        if lease.log().is_enabled() {
            reply.head.log = lease.log().clone();
        }
        lease.received(0, || Some(reply.usage));
        lease.success();
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Target;

    use super::*;

    #[test]
    fn a_vector_is_read_from_numbers_and_from_base64() {
        let of = |json: &'static str| Embedding::new(json.into()).values();
        let values = vec![0.5, -1.25, 3.0e-2];
        assert_eq!(of("[0.5, -1.25, 3e-2]").unwrap(), values);
        let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        let text = format!("\"{}\"", STANDARD.encode(bytes));
        assert_eq!(Embedding::new(text.into()).values().unwrap(), values);
        for bad in ["[0.5", "[\"a\"]", "\"!\"", "\"AAAA\"", "{}"] {
            assert_eq!(of(bad).unwrap_err().reason(), Reason::ServerError, "{bad}");
        }
    }

    #[test]
    fn it_is_fitted_to_targets_of_its_own_dialect_alone() {
        let mut profile = Profile::new(Target::new("p").with_model("sent"));
        profile.dialect = Some(Dialect::Gemini);
        let own = EmbedRequest::new(["a"]).with_model("asked");
        let read = own.clone().with_origin(Dialect::OpenAi, Bytes::new(), false);
        let failure = read.clone().adapt(&profile).unwrap_err();
        assert!(failure.message().contains("openai") && failure.message().contains("gemini"));
        for (mut request, dialect) in [(own, Dialect::Gemini), (read, Dialect::OpenAi)] {
            profile.dialect = Some(dialect);
            request.adapt(&profile).unwrap();
            assert_eq!(request.model, "sent");
        }
    }

    #[test]
    fn what_is_asked_has_no_output_and_its_tokens_are_bounded() {
        let inputs = vec![
            EmbedInput::Text("x".repeat(30)),
            EmbedInput::Tokens(vec![1; 7]),
            EmbedInput::Opaque(RawJson::parse("[1,2]").unwrap()),
        ];
        let needs = EmbedRequest::of_inputs(inputs).needs();
        assert_eq!((needs.input_tokens, needs.most_input_tokens), (13, 23));
        assert_eq!(needs.max_output, Some(0));
    }
}
