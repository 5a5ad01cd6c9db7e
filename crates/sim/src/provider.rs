//! A provider: its settings, its state and its tower service.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use parking_lot::Mutex;
use serde_json::Value;
use steadfast_core::time::wall;
use tokio::time::Instant;
use tower_service::Service;

use crate::answer::Answer;
use crate::body::SimBody;
use crate::clock::WallClock;
use crate::continuation::{ContinuationMode, WholeAnswers, requested_part};
use crate::dialect::{self, Dialect, Memory};
use crate::error::SimError;
use crate::fault::Fault;
use crate::hash::Signer;
use crate::hosting::{Hosting, Vendor};
use crate::journal::Journal;
use crate::limit::{KeyLimits, Limiter};
use crate::models::{Model, default_models};
use crate::plan::{FaultPlan, RequestContext};
use crate::request::{SimRequest, has_text};
use crate::summary::Summaries;
use crate::task::{self, Task};

type Responder = dyn Fn(&SimRequest) -> Option<Answer> + Send + Sync;

/// A simulated provider. Clones are the same provider.
///
/// It is a `tower::Service<http::Request<B>>` for any request body `B`; [`SimServer`] puts it
/// behind a real socket.
///
/// [`SimServer`]: crate::SimServer
#[derive(Clone, Debug)]
pub struct SimProvider {
    pub(crate) inner: Arc<Inner>,
}

/// How long things take. All on tokio's clock; the default takes no time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// From the request to the headers of the response.
    pub headers: Duration,
    /// Before each content event of a stream; a whole answer takes the sum.
    pub per_token: Duration,
    /// The share by which `per_token` varies up and down, 0 to 1, from the seed.
    pub jitter: f64,
}

/// The line end of Gemini's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineEnd {
    /// `\r\n`, as the real service sends.
    #[default]
    Crlf,
    /// `\n`, as proxies make of it.
    Lf,
}

pub(crate) struct Inner {
    pub(crate) dialect: Dialect,
    pub(crate) name: String,
    pub(crate) models: Vec<Model>,
    pub(crate) hosting: Box<dyn Hosting>,
    pub(crate) seed: u64,
    pub(crate) latency: Latency,
    pub(crate) limiter: Limiter,
    pub(crate) journal: Journal,
    pub(crate) signer: Signer,
    pub(crate) wall: WallClock,
    pub(crate) refuse_unknown: bool,
    pub(crate) signatures: bool,
    pub(crate) bound_thinking: bool,
    pub(crate) compacts: SimCompaction,
    pub(crate) crlf: bool,
    pub(crate) memory: Memory,
    pub(crate) output_limit: Option<u64>,
    continuation: Option<ContinuationMode>,
    responder: Option<Box<Responder>>,
    state: Mutex<State>,
}

struct State {
    keys: Option<Arc<[String]>>,
    plan: FaultPlan,
    /// How often each rule of the plan was applied.
    applied: Vec<u64>,
    installed: Instant,
    number: u64,
    script: VecDeque<Answer>,
    whole_answers: WholeAnswers,
    summaries: Option<Summaries>,
    /// What requests for token counts meet.
    count_fault: Option<Fault>,
    /// Requests for summaries so far.
    summarised: usize,
    task: Option<Arc<Task>>,
}

/// Where the answer to a request comes from.
enum AnswerSource {
    /// A whole answer that the request asks to continue or to repeat.
    Remembered(Arc<Answer>),
    /// One of which only thinking arrived, without that.
    Unreceived(Arc<Answer>),
    /// A fault plan, the summaries or the script.
    Configured(Box<Answer>),
    /// The task, the responder, or else the seed.
    Generated,
}

impl SimProvider {
    /// A provider with everything at its default, named like its dialect.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        Self::builder(dialect).build()
    }

    /// A builder with everything at its default.
    pub fn builder(dialect: Dialect) -> SimProviderBuilder {
        SimProviderBuilder {
            dialect,
            name: dialect.as_str().to_owned(),
            models: default_models(dialect),
            hosting: Box::new(Vendor),
            keys: None,
            seed: 0,
            latency: Latency::default(),
            limits: KeyLimits::default(),
            journal: None,
            epoch: None,
            refuse_unknown: false,
            signatures: false,
            bound_thinking: true,
            compacts: SimCompaction::Made,
            line_end: LineEnd::Crlf,
            plan: FaultPlan::none(),
            script: VecDeque::new(),
            responder: None,
            output_limit: None,
            continuation: None,
            summaries: None,
            task: None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its dialect.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.inner.dialect
    }

    /// The models it serves.
    #[must_use]
    pub fn models(&self) -> &[Model] {
        &self.inner.models
    }

    /// The requests it received.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.inner.journal
    }

    /// Replaces the fault plan. Requests and time are counted from here; requests in flight keep
    /// their fault.
    pub fn set_faults(&self, plan: FaultPlan) {
        let mut state = self.inner.state.lock();
        state.plan = plan;
        state.applied.clear();
        state.installed = Instant::now();
        state.number = 0;
    }

    /// Adds answers to the script. Each request that gets an answer takes the next one, also if
    /// its response breaks half way. A request that asks to [continue](Answer::continuation) an
    /// answer, or for all of it again, takes none.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.inner.state.lock().script.extend(answers);
    }

    /// Replaces what is left of the script, and forgets the answers that could be continued.
    pub fn set_script(&self, answers: impl IntoIterator<Item = Answer>) {
        let mut state = self.inner.state.lock();
        state.script = answers.into_iter().collect();
        state.whole_answers = WholeAnswers::default();
    }

    /// Replaces the answers to requests for summaries and starts with the first; with `None` they
    /// are answered like all other requests.
    pub fn set_summaries(&self, summaries: Option<Summaries>) {
        let mut state = self.inner.state.lock();
        state.summaries = summaries;
        state.summarised = 0;
    }

    /// Replaces the task; with `None` there is none.
    pub fn set_task(&self, task: Option<Task>) {
        self.inner.state.lock().task = task.map(Arc::new);
    }

    /// What every request for a token count gets instead of one; with `None` they are counted. Fault plans do
    /// not apply to them.
    pub fn set_count_fault(&self, fault: Option<Fault>) {
        self.inner.state.lock().count_fault = fault;
    }

    /// Replaces the keys, or tokens, that it accepts: those before it are expired from now on.
    pub fn set_keys<K: Into<String>>(&self, keys: impl IntoIterator<Item = K>) {
        let keys = keys.into_iter().map(Into::into).collect();
        self.inner.state.lock().keys = Some(keys);
    }

    /// Makes the credentials of this signer expired from now on. Returns `false` where there are none: of a provider
    /// on Bedrock, those that it [was given](crate::SimBedrock::with_signer).
    #[cfg(feature = "clouds")]
    pub fn expire_signer(&self, access_key_id: &str) -> bool {
        self.inner.hosting.expire_signer(access_key_id)
    }

    /// How many scripted answers are left.
    #[must_use]
    pub fn script_left(&self) -> usize {
        self.inner.state.lock().script.len()
    }
}

impl Inner {
    pub(crate) fn model(&self, name: &str) -> Option<&Model> {
        self.models.iter().find(|model| model.name == name)
    }

    pub(crate) fn keys(&self) -> Option<Arc<[String]>> {
        self.state.lock().keys.clone()
    }

    pub(crate) fn count_fault(&self) -> Option<Fault> {
        self.state.lock().count_fault.clone()
    }

    /// Numbers a generation and picks its fault.
    pub(crate) fn next_fault(
        &self,
        model: &str,
        stream: bool,
        body: Option<&Value>,
    ) -> (u64, Option<Fault>) {
        let mut state = self.state.lock();
        state.number += 1;
        let context = RequestContext {
            provider: &self.name,
            model,
            number: state.number,
            elapsed: state.installed.elapsed(),
            stream,
            body,
            tool_results: body.map_or(0, |body| dialect::tool_results(self.dialect, body)),
        };
        let State { plan, applied, number, .. } = &mut *state;
        (*number, plan.pick(context, applied).cloned())
    }

    /// The answer, and whether it is a part of one that the client joins to what it has: `instead`, if a
    /// plan asked for that, else the rest of an answer that the request continues, else a summary, else the
    /// scripted answer, the task's, the responder's or its own.
    pub(crate) fn answer(
        &self,
        request: &SimRequest,
        limit: u64,
        (instead, continuation): (Option<&Answer>, Option<&ContinuationMode>),
        own: impl FnOnce() -> Answer,
    ) -> (Answer, bool) {
        let source = match instead {
            Some(answer) => AnswerSource::Configured(Box::new(answer.clone())),
            None => self.source(request, limit),
        };
        let is_unreceived = matches!(source, AnswerSource::Unreceived(_));
        let whole = match source {
            AnswerSource::Remembered(whole) | AnswerSource::Unreceived(whole) => whole,
            AnswerSource::Configured(answer) => self.prepare(request, limit, *answer),
            AnswerSource::Generated => {
                let task = self.state.lock().task.clone();
                let response = task.and_then(|task| task.answer(request));
                let response = response
                    .or_else(|| self.responder.as_ref().and_then(|respond| respond(request)));
                self.prepare(request, limit, response.unwrap_or_else(own))
            }
        };
        let how = whole.continuation.as_ref().map(|own| continuation.unwrap_or(own));
        let part = requested_part(&whole, how, request, limit);
        let is_part = is_unreceived || part.blocks != whole.blocks;
        (part, is_part)
    }

    fn source(&self, request: &SimRequest, limit: u64) -> AnswerSource {
        let mut state = self.state.lock();
        let answers = &state.whole_answers;
        if let Some(whole) = answers.find(request, limit) {
            return AnswerSource::Remembered(whole);
        }
        // A summary behind the first question would look like one.
        let is_summarised = state.task.is_some() && task::has_summary(request);
        if let Some(whole) = answers.unreceived(request).filter(|_| !is_summarised) {
            return AnswerSource::Unreceived(whole);
        }
        let summary = state
            .summaries
            .as_ref()
            .filter(|summaries| has_text(&request.body, &summaries.contains))
            .and_then(|summaries| summaries.at(state.summarised).cloned());
        if let Some(summary) = summary {
            state.summarised += 1;
            return AnswerSource::Configured(Box::new(Answer::summary(summary)));
        }
        match state.script.pop_front() {
            Some(answer) => AnswerSource::Configured(Box::new(answer)),
            None => AnswerSource::Generated,
        }
    }

    /// Makes a summary from the request, and remembers an answer that may be continued.
    fn prepare(&self, request: &SimRequest, limit: u64, mut answer: Answer) -> Arc<Answer> {
        if let Some(summary) = answer.summary.take() {
            let made = summary.answer(request, answer.limit.map_or(limit, |own| own.min(limit)));
            answer.blocks = made.blocks;
            answer.stop = made.stop;
            answer.endless = made.endless;
            answer.refuse = made.refuse;
        }
        answer.continuation = answer.continuation.or_else(|| self.continuation.clone());
        let whole = Arc::new(answer);
        if whole.continuation.is_some() && whole.refuse.is_none() {
            self.state.lock().whole_answers.remember(request, whole.clone());
        }
        whole
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("dialect", &self.dialect)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// What a provider does with a request that ends with a `compaction_trigger` (OpenAI responses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimCompaction {
    /// Answers with one compaction, which it alone can open: OpenAI.
    #[default]
    Made,
    /// Refuses it as an item that it does not know: other servers with the same endpoint.
    Refused,
    /// Answers as if it were not there: proxies that leave out what they do not know.
    Ignored,
}

/// Sets up a [`SimProvider`].
#[must_use = "a builder does nothing until it is built"]
pub struct SimProviderBuilder {
    dialect: Dialect,
    name: String,
    models: Vec<Model>,
    hosting: Box<dyn Hosting>,
    keys: Option<Arc<[String]>>,
    seed: u64,
    latency: Latency,
    limits: KeyLimits,
    journal: Option<Journal>,
    epoch: Option<SystemTime>,
    refuse_unknown: bool,
    signatures: bool,
    bound_thinking: bool,
    compacts: SimCompaction,
    line_end: LineEnd,
    plan: FaultPlan,
    script: VecDeque<Answer>,
    responder: Option<Box<Responder>>,
    output_limit: Option<u64>,
    continuation: Option<ContinuationMode>,
    summaries: Option<Summaries>,
    task: Option<Task>,
}

impl SimProviderBuilder {
    /// Its name in fault plans and journals.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The models it serves, instead of [`default_models`].
    pub fn with_models(mut self, models: impl IntoIterator<Item = Model>) -> Self {
        self.models = models.into_iter().collect();
        self
    }

    /// Adds a model, or replaces the one of the same name.
    pub fn with_model(mut self, model: Model) -> Self {
        self.models.retain(|other| other.name != model.name);
        self.models.push(model);
        self
    }

    /// Serves the models on this platform: requests have to have its addresses, credentials and envelopes, and get its
    /// errors and streams. One that has no models of the dialect (only Vertex AI has Gemini's) knows no address.
    #[cfg(feature = "clouds")]
    pub fn on(mut self, platform: impl Into<crate::SimPlatform>) -> Self {
        self.hosting = platform.into().hosting();
        self
    }

    /// The keys it accepts, on a platform also its tokens. Without this it accepts any that is not empty.
    pub fn keys<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.keys = Some(keys.into_iter().map(Into::into).collect());
        self
    }

    /// The seed of texts, ids, jitter and signatures. Two providers of the same dialect, name
    /// and seed accept each other's signatures.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long headers and tokens take.
    pub fn with_latency(mut self, latency: Latency) -> Self {
        self.latency = latency;
        self
    }

    /// What a key may do in a minute.
    pub fn with_limits(mut self, limits: KeyLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The journal to write, for several providers in one.
    pub fn with_journal(mut self, journal: &Journal) -> Self {
        self.journal = Some(journal.clone());
        self
    }

    /// The date at which it starts, for headers with dates; otherwise today's.
    pub fn with_epoch(mut self, epoch: SystemTime) -> Self {
        self.epoch = Some(epoch);
        self
    }

    /// Refuses top-level parameters it does not know, as the real services do. Off by default,
    /// so that tests can see whether unknown fields arrive.
    pub fn with_refuse_unknown(mut self, refuse: bool) -> Self {
        self.refuse_unknown = refuse;
        self
    }

    /// Demands thought signatures for every model that thinks, not only for those with
    /// [`Model::signatures`] (Gemini).
    pub fn with_require_signatures(mut self, require: bool) -> Self {
        self.signatures = require;
        self
    }

    /// Refuses thinking that is sent back behind another prefix than it was made with (Anthropic), as the
    /// vendor does for accounts made since the end of August 2026. On by default, for every model that
    /// thinks: stricter than the vendor, whose older models do not check it.
    pub fn with_bound_thinking(mut self, bound: bool) -> Self {
        self.bound_thinking = bound;
        self
    }

    /// What it does with a request that ends with a `compaction_trigger` (OpenAI responses).
    pub fn with_compaction(mut self, compacts: SimCompaction) -> Self {
        self.compacts = compacts;
        self
    }

    /// The line end of Gemini's events.
    pub fn with_line_end(mut self, line_end: LineEnd) -> Self {
        self.line_end = line_end;
        self
    }

    /// Cuts every answer after so many output tokens, whatever the request and the model allow: an
    /// undocumented limit of the provider.
    pub fn with_output_limit(mut self, tokens: u64) -> Self {
        self.output_limit = Some(tokens);
        self
    }

    /// Makes every answer one that may be [continued](crate::continuation); an answer with a
    /// [`continuation`](Answer::continuation) keeps its own.
    pub fn with_continuation(mut self, how: ContinuationMode) -> Self {
        self.continuation = Some(how);
        self
    }

    /// The answers to requests for summaries, apart from the script.
    pub fn with_summaries(mut self, summaries: Summaries) -> Self {
        self.summaries = Some(summaries);
        self
    }

    /// What the model does for the requests of this task, after the script.
    pub fn with_task(mut self, task: Task) -> Self {
        self.task = Some(task);
        self
    }

    /// The faults.
    pub fn with_faults(mut self, plan: FaultPlan) -> Self {
        self.plan = plan;
        self
    }

    /// Its answers, in order; after them it generates texts.
    pub fn with_script(mut self, answers: impl IntoIterator<Item = Answer>) -> Self {
        self.script.extend(answers);
        self
    }

    /// Makes the answer when the script is empty; on `None` it generates a text.
    pub fn respond(
        mut self,
        respond: impl Fn(&SimRequest) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        self.responder = Some(Box::new(respond));
        self
    }

    /// The provider.
    #[must_use]
    pub fn build(self) -> SimProvider {
        let inner = Inner {
            signer: Signer::new(self.dialect.as_str(), &self.name, self.seed),
            dialect: self.dialect,
            name: self.name,
            models: self.models,
            hosting: self.hosting,
            seed: self.seed,
            latency: self.latency,
            limiter: Limiter::new(self.limits),
            journal: self.journal.unwrap_or_default(),
            wall: WallClock::starting_at(self.epoch.unwrap_or_else(wall)),
            refuse_unknown: self.refuse_unknown,
            signatures: self.signatures,
            bound_thinking: self.bound_thinking,
            compacts: self.compacts,
            crlf: self.line_end == LineEnd::Crlf,
            memory: Memory::default(),
            responder: self.responder,
            output_limit: self.output_limit,
            continuation: self.continuation,
            state: Mutex::new(State {
                keys: self.keys,
                plan: self.plan,
                applied: Vec::new(),
                installed: Instant::now(),
                number: 0,
                script: self.script,
                whole_answers: WholeAnswers::default(),
                summaries: self.summaries,
                count_fault: None,
                summarised: 0,
                task: self.task.map(Arc::new),
            }),
        };
        SimProvider { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for SimProviderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimProviderBuilder")
            .field("name", &self.name)
            .field("dialect", &self.dialect)
            .finish_non_exhaustive()
    }
}

impl<B> Service<Request<B>> for SimProvider
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<SimBody>;
    type Error = SimError;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), SimError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let inner = self.inner.clone();
        ResponseFuture {
            inner: Box::pin(async move {
                let (head, body) = request.into_parts();
                let body: Bytes = http_body_util::BodyExt::collect(body)
                    .await
                    .map_err(|error| SimError::request_body(error.into()))?
                    .to_bytes();
                crate::serve::serve(&inner, head, body).await
            }),
        }
    }
}

/// The response of a [`SimProvider`]. Dropping it is a client that disconnects.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture {
    inner: Pin<Box<dyn Future<Output = Result<Response<SimBody>, SimError>> + Send>>,
}

impl Future for ResponseFuture {
    type Output = Result<Response<SimBody>, SimError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().inner.as_mut().poll(cx)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
