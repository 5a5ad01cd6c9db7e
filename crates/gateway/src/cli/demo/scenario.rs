//! What the demo's providers do wrong.

use std::io;

use steadfast::client::{Credential, Provider, Providers};
use steadfast_sim::{
    Answer, Dialect, End, ErrorKind, Fault, FaultPlan, How, Journal, Latency, PlanRule, RateLimit,
    SimProvider, SimServer, Summaries, SummaryReply,
};

use crate::{
    config::{ConfigErrors, Source},
    server::App,
    stack::Gateway,
};

/// The configuration of the demo: what a person would write, with waits short enough to watch.
const CONFIG: &str = r#"
[server]
auth = "none"

[[providers]]
name = "anthropic"
dialect = "anthropic"
models = { "claude-*" = "*", "*" = "claude-sonnet-4-5" }
downgrades = { "claude-opus-9" = ["claude-sonnet-4-5"] }

[[providers]]
name = "openai"
dialect = "openai"
models = { "gpt-*" = "*", "*" = "gpt-4o" }

[[providers]]
name = "google"
dialect = "gemini"
models = { "gemini-*" = "*", "*" = "gemini-2.5-flash" }

[failover]
chain = ["anthropic", "openai", "google"]
own_vendor_first = true

[retry]
base_ms = 100
cap_ms = 1000

[timeout]
stall_ms = 1500
whole_ms = 1500
pipeline_ms = 30000

[compaction]
summariser = { provider = "google", model = "gemini-2.5-flash" }

[cooldown]
server_error = 1
overloaded = 2
timeout = 1
network = 1
rate_limit = 1
unknown = 1
"#;

/// The key of the demo's OpenAI that works. Its first key does not.
const GOOD_KEY: &str = "demo-good-key";

/// The simulated providers.
pub(super) struct Scenario {
    servers: Vec<SimServer>,
}

impl Scenario {
    /// Each fault at a fixed request.
    pub(super) async fn fixed(seed: u64) -> io::Result<Self> {
        Self::start(seed, fixed).await
    }

    /// Faults by chance.
    pub(super) async fn live(seed: u64) -> io::Result<Self> {
        Self::start(seed, move |_| by_chance(seed)).await
    }

    async fn start(seed: u64, plan: impl Fn(Dialect) -> FaultPlan) -> io::Result<Self> {
        let mut servers = Vec::new();
        for (dialect, name) in [
            (Dialect::Anthropic, "anthropic"),
            (Dialect::OpenAi, "openai"),
            (Dialect::Gemini, "google"),
        ] {
            let mut provider = SimProvider::builder(dialect)
                .with_name(name)
                .with_seed(seed)
                .with_latency(Latency {
                    headers: std::time::Duration::from_millis(15),
                    per_token: std::time::Duration::from_millis(1),
                    jitter: 0.5,
                })
                .with_journal(&Journal::keeping(100_000))
                .with_summaries(
                    Summaries::to("You keep the record of a conversation").then(SummaryReply::Good),
                )
                .with_faults(plan(dialect));
            if dialect == Dialect::OpenAi {
                provider = provider.keys([GOOD_KEY]);
            }
            servers.push(SimServer::local(provider.build()).await?);
        }
        Ok(Self { servers })
    }

    /// The gateway in front of them.
    pub(super) fn app(&self) -> Result<App, ConfigErrors> {
        let source = Source::text(CONFIG);
        let mut config = source.parse()?;
        config.validate(&source)?;
        let mut providers = Vec::new();
        for (server, given) in self.servers.iter().zip(&mut config.providers) {
            let mut provider =
                Provider::new(given.name.as_str(), given.dialect).with_base_url(server.base_url());
            let keys: &[(&str, &str)] = if given.dialect == Dialect::OpenAi {
                &[("stale", "demo-stale-key"), ("good", GOOD_KEY)]
            } else {
                &[("main", "demo-key")]
            };
            for (name, secret) in keys {
                provider = provider.with_credential(Credential::new(*name, *secret));
                given.credentials.push(format!("env:{name}"));
            }
            providers.push(provider);
        }
        let providers = Providers::new(providers)
            .map_err(|error| source.error("providers", error.to_string()))?;
        let gateway = Gateway::with_providers(&config, &source, providers)?;
        App::new(&config, &source, gateway)
    }

    /// Each provider's name and address.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (&str, String)> {
        self.servers.iter().map(|server| (server.provider().name(), server.base_url()))
    }

    /// What went wrong, by provider and fault, and how often.
    pub(super) fn wrongs(&self) -> Vec<(String, String, usize)> {
        let mut all: Vec<(String, String, usize)> = Vec::new();
        for entry in self.servers.iter().flat_map(|server| server.provider().journal().entries()) {
            let what = match (&entry.fault, &entry.refused) {
                (Some(fault), _) => describe(fault),
                (None, Some(_)) if entry.status == Some(401) => "bad key".to_owned(),
                (None, Some(_)) if entry.status == Some(404) => "missing model".to_owned(),
                (None, Some(message)) => message.clone(),
                (None, None) => continue,
            };
            match all.iter_mut().find(|(name, known, _)| *name == entry.provider && *known == what)
            {
                Some((.., times)) => *times += 1,
                None => all.push((entry.provider, what, 1)),
            }
        }
        all
    }

    /// From now on each provider does this wrong, and says this next.
    pub(super) fn set(&self, plan: &FaultPlan, answers: &[Answer]) {
        for server in &self.servers {
            server.provider().set_faults(plan.clone());
            server.provider().set_script(answers.to_vec());
        }
    }

    /// Every text that a provider sent to its end.
    pub(super) fn truths(&self) -> Vec<String> {
        self.servers
            .iter()
            .flat_map(|server| server.provider().journal().entries())
            .filter(|entry| entry.end == End::Complete)
            .filter_map(|entry| entry.sent.map(|sent| sent.text))
            .collect()
    }

    pub(super) async fn stop(self) {
        for server in self.servers {
            server.abort().await;
        }
    }
}

/// The faults of the fixed scenario. Requests are counted a provider, retries included.
fn fixed(dialect: Dialect) -> FaultPlan {
    let nth = |n, fault| PlanRule::new(fault).nth(n);
    match dialect {
        Dialect::Anthropic => FaultPlan::none()
            .rule(nth(2, Fault::rate_limit(RateLimit::after("1"))))
            .rule(nth(6, Fault::Error(ErrorKind::ServerError)))
            .rule(nth(10, error_first()))
            .rule(nth(14, Fault::Reset))
            .rule(nth(18, Fault::Hang))
            .rule(PlanRule::new(Fault::Error(ErrorKind::Overloaded)).from(30).to(39)),
        Dialect::OpenAi | Dialect::Responses => FaultPlan::none()
            .rule(nth(6, Fault::Error(ErrorKind::BadGatewayHtml)))
            .rule(nth(10, Fault::ErrorInOk(ErrorKind::ServerError)))
            .rule(nth(14, Fault::break_after(0, How::Reset)))
            .rule(nth(18, Fault::rate_limit(RateLimit::after_ms(700))))
            .rule(nth(22, Fault::Hang)),
        Dialect::Gemini => FaultPlan::none()
            .rule(nth(4, Fault::Error(ErrorKind::ServerError)))
            .rule(nth(
                8,
                Fault::rate_limit(RateLimit {
                    retry_info: Some("0.8s".to_owned()),
                    ..RateLimit::default()
                }),
            ))
            .rule(nth(12, error_first()))
            .rule(nth(16, Fault::Close))
            .rule(nth(20, Fault::Error(ErrorKind::Overloaded))),
    }
}

fn by_chance(seed: u64) -> FaultPlan {
    let maybe = |probability, fault| PlanRule::new(fault).probability(probability);
    FaultPlan::none()
        .seed(seed)
        .rule(maybe(0.04, Fault::rate_limit(RateLimit::after("1"))))
        .rule(maybe(0.04, Fault::Error(ErrorKind::Overloaded)))
        .rule(maybe(0.03, Fault::Error(ErrorKind::ServerError)))
        .rule(maybe(0.02, Fault::Error(ErrorKind::BadGatewayHtml)))
        .rule(maybe(0.02, Fault::Reset))
        .rule(maybe(0.02, error_first()))
        .rule(maybe(0.02, Fault::ErrorInOk(ErrorKind::ServerError)))
        .rule(maybe(0.01, Fault::Hang))
}

/// A stream whose first event is an error; a whole answer is an error object under a 200.
fn error_first() -> Fault {
    Fault::Many(vec![Fault::break_after(0, How::ErrorEvent(ErrorKind::Overloaded))])
}

fn describe(fault: &Fault) -> String {
    match fault {
        Fault::Error(ErrorKind::RateLimit(_)) => "429 with a hint".to_owned(),
        Fault::Error(ErrorKind::ServerError) => "500".to_owned(),
        Fault::Error(ErrorKind::Overloaded) => "529/503 overloaded".to_owned(),
        Fault::Error(ErrorKind::BadGatewayHtml) => "502 with HTML".to_owned(),
        Fault::Error(other) => format!("{other:?}"),
        Fault::ErrorInOk(_) => "200 with an error object".to_owned(),
        Fault::Hang => "hang before headers".to_owned(),
        Fault::Reset => "reset before headers".to_owned(),
        Fault::Close => "closed before headers".to_owned(),
        Fault::Break(broken) => match broken.how {
            How::ErrorEvent(_) => "error event before content".to_owned(),
            How::Reset => "reset before content".to_owned(),
            _ => "broken before content".to_owned(),
        },
        Fault::Many(faults) => faults.iter().map(describe).collect::<Vec<_>>().join(" + "),
        other => format!("{other:?}"),
    }
}
