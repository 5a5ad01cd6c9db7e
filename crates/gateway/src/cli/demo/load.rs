//! The callers of the demo: a client of each dialect against the gateway.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast::{
    ChatRequest, Completion, Dialect, Failure, Message, Part, RawJson, Target, Tool,
    client::{LlmClient, Provider, ProviderError, Providers, transport::Transport},
};
use tokio::task::JoinHandle;
use tower::ServiceExt;

/// Requests in progress at once.
const CALLERS: u32 = 8;

/// A picture of one pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

/// The callers.
#[derive(Clone)]
pub(super) struct Load {
    client: LlmClient<Transport>,
    seed: u64,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub(super) struct Answered {
    pub(super) asked: u32,
    pub(super) answered: u32,
    /// The text of each answer that had no tool call.
    pub(super) texts: Vec<String>,
    /// What was asked, and why it failed.
    pub(super) failures: Vec<String>,
}

impl Load {
    pub(super) fn new(gateway: SocketAddr, seed: u64) -> Result<Self, ProviderError> {
        let providers = Dialect::ALL.map(|dialect| {
            let path = match dialect {
                Dialect::OpenAi | Dialect::Responses => "/v1",
                Dialect::Anthropic | Dialect::Gemini => "",
            };
            Provider::new(dialect.as_str(), dialect)
                .with_base_url(format!("http://{gateway}{path}"))
                .without_credential()
        });
        let client = LlmClient::with_service(Providers::new(providers)?, Transport::new());
        Ok(Self { client, seed })
    }

    /// Asks `requests` times.
    pub(super) async fn run(&self, requests: u32) -> Answered {
        let Endless { callers, so_far } = self.ask_until(requests, None);
        for caller in callers {
            // A panic of that task has reported itself.
            let _ = caller.await;
        }
        let answered = so_far.lock();
        answered.clone()
    }

    /// Asks until stopped.
    pub(super) fn endless(&self) -> Endless {
        self.ask_until(u32::MAX, Some(Duration::from_millis(100)))
    }

    /// Asks `requests` times, with a pause after each where a person reads along.
    fn ask_until(&self, requests: u32, pause: Option<Duration>) -> Endless {
        let next = Arc::new(AtomicU32::new(0));
        let so_far = Arc::new(Mutex::new(Answered::default()));
        let caller = |_| {
            let (load, next, so_far) = (self.clone(), next.clone(), so_far.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= requests {
                        break;
                    }
                    load.ask(number, &so_far).await;
                    if let Some(pause) = pause {
                        so_far.lock().texts.clear();
                        tokio::time::sleep(pause).await;
                    }
                }
            })
        };
        Endless { callers: (0..CALLERS).map(caller).collect(), so_far }
    }

    async fn ask(&self, number: u32, so_far: &Mutex<Answered>) {
        let request = self.request(number);
        let asked = format!(
            "request {number} ({}, {})",
            request.context.target.as_ref().map_or("", Target::provider),
            if request.stream { "streamed" } else { "whole" },
        );
        so_far.lock().asked += 1;
        let result = self.answer(request).await;
        let mut so_far = so_far.lock();
        match result {
            Ok(answer) if !answer.ended || answer.is_empty() => {
                so_far.failures.push(format!("{asked}: the answer is empty or has no end"));
            }
            Ok(answer) => {
                so_far.answered += 1;
                if answer.tool_calls().next().is_none() {
                    so_far.texts.push(answer.text());
                }
            }
            Err(failure) => so_far.failures.push(format!("{asked}: {failure}")),
        }
    }

    /// The answer to `request`, asked in the dialect of this name.
    pub(super) async fn answer_as(
        &self,
        dialect: &str,
        model: &str,
        mut request: ChatRequest,
    ) -> Result<Completion, Failure> {
        request.context.target = Some(Target::new(dialect).with_model(model));
        self.answer(request.with_model(model)).await
    }

    async fn answer(&self, request: ChatRequest) -> Result<Completion, Failure> {
        self.client.clone().oneshot(request).await?.collect().await
    }

    /// Request `number`: the dialects in turn, every second one streamed, some with a tool, some
    /// with a picture.
    fn request(&self, number: u32) -> ChatRequest {
        let dialect = Dialect::ALL[number as usize % Dialect::ALL.len()];
        let model = match (dialect, number) {
            // Once, a model that is not there.
            (Dialect::Anthropic, 33) => "claude-opus-9",
            (Dialect::Anthropic, _) => "claude-sonnet-4-5",
            (Dialect::Gemini, _) => "gemini-2.5-pro",
            (Dialect::OpenAi | Dialect::Responses, _) => "gpt-4o",
        };
        let question = format!("Question {number} of run {}: what keeps a service up?", self.seed);
        let mut request = match number % 10 {
            4 => ChatRequest::user(format!("{question} call look_up"))
                .with_tools(vec![Tool::function("look_up", "Looks something up.", schema())]),
            7 => ChatRequest::new(vec![Message::new(
                steadfast::Role::User,
                vec![Part::text(question), Part::image("image/png", PIXEL)],
            )]),
            _ => ChatRequest::user(question),
        };
        request.stream = (number / 3).is_multiple_of(2);
        request.params.max_output = Some(1_000);
        request.context.target = Some(Target::new(dialect.as_str()).with_model(model));
        request.with_model(model)
    }
}

/// What the demo's tools take.
pub(super) fn schema() -> RawJson {
    RawJson::from_value(&serde_json::json!({
        "type": "object",
        "properties": {"what": {"type": "string"}},
        "required": ["what"],
    }))
}

/// Callers that ask until stopped.
pub(super) struct Endless {
    callers: Vec<JoinHandle<()>>,
    so_far: Arc<Mutex<Answered>>,
}

impl Endless {
    pub(super) fn so_far(&self) -> Answered {
        self.so_far.lock().clone()
    }

    pub(super) fn stop(self) {
        for caller in self.callers {
            caller.abort();
        }
    }
}
