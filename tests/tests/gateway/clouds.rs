//! Clouds in front of simulations of them that take nothing but what they document: exact answers, truthful breaks,
//! errors by what they mean, and credentials that expire.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use steadfast::sim::{
    Answer, Dialect, ErrorKind, Fault, FaultPlan, How, Model, RawResponse, SimPlatform,
    SimProvider, SimProviderBuilder, default_models,
};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask,
    http::HttpRequest,
    model, provider, rich_answer,
    wire_answer::{WireAnswer, error_message},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

/// A cloud with a dialect that it speaks, and what a configuration says of it.
#[derive(Clone, Copy, Debug)]
struct Cloud {
    dialect: Dialect,
    lines: &'static str,
}

const AZURE: &str = "kind = \"azure\"\n";
const AZURE_VERSION: &str = "kind = \"azure\"\napi_version = \"2024-10-21\"\n";
const VERTEX: &str = "kind = \"vertex\"\nproject = \"my-project\"\nlocation = \"us-east5\"\n";
const BEDROCK: &str = "kind = \"bedrock\"\nregion = \"eu-central-1\"\n";

impl Cloud {
    const ALL: [Self; 12] = {
        use Dialect::{Anthropic, Gemini, OpenAi, Responses};
        [
            Self { dialect: OpenAi, lines: AZURE },
            Self { dialect: Responses, lines: AZURE },
            Self { dialect: Anthropic, lines: AZURE },
            Self { dialect: OpenAi, lines: AZURE_VERSION },
            Self { dialect: Responses, lines: AZURE_VERSION },
            Self { dialect: OpenAi, lines: VERTEX },
            Self { dialect: Responses, lines: VERTEX },
            Self { dialect: Anthropic, lines: VERTEX },
            Self { dialect: Gemini, lines: VERTEX },
            Self { dialect: OpenAi, lines: BEDROCK },
            Self { dialect: Responses, lines: BEDROCK },
            Self { dialect: Anthropic, lines: BEDROCK },
        ]
    };

    fn platform(self) -> SimPlatform {
        match self.lines {
            AZURE => SimPlatform::azure(),
            AZURE_VERSION => SimPlatform::azure_version("2024-10-21"),
            VERTEX => SimPlatform::vertex("my-project", "us-east5"),
            _ => SimPlatform::bedrock("eu-central-1").into(),
        }
    }

    /// The name that its models have there.
    fn model(self) -> &'static str {
        match (self.dialect, self.lines) {
            (Dialect::Anthropic, BEDROCK) => "eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
            (Dialect::Anthropic, VERTEX) => "claude-sonnet-4-5@20250929",
            (dialect, _) => model(dialect),
        }
    }

    fn provider(self) -> SimProviderBuilder {
        let known = default_models(self.dialect);
        let known = known.into_iter().find(|known| known.name == model(self.dialect)).unwrap();
        let own = Model { name: self.model().to_owned(), ..known };
        provider(self.dialect).with_name("cloud").with_models([own]).on(self.platform())
    }

    /// The lines of a provider that answers for every model.
    fn lines(self) -> String {
        format!("{}models = {{ \"*\" = \"{}\" }}\n", self.lines, self.model())
    }

    async fn rig(self, provider: SimProvider, config: &str) -> Rig {
        Rig::builder().provider_with(provider, &self.lines()).config(config).start().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_is_answered_exactly_by_every_cloud() {
    for cloud in Cloud::ALL {
        let sim = cloud.provider().respond(|_| Some(rich_answer())).build();
        let rig = cloud.rig(sim, "").await;
        for (caller, stream) in DIALECTS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let case = format!("{caller} <- {cloud:?}, stream {stream}");
            let reply = ask(caller, model(caller), stream).send(rig.addr).await;
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            let answer = match stream {
                true => WireAnswer::stream(caller, &reply.body),
                false => WireAnswer::whole(caller, &reply.body),
            };
            assert!(answer.errors.is_empty() && answer.stop.is_some(), "{case}: {answer:?}");
            assert!(!stream || !answer.ends.is_empty(), "{case}: {answer:?}");
            let sent = rig.last().sent.unwrap();
            answer.assert_prefix_of(&sent, &case);
            assert_eq!((&answer.text, answer.calls.len()), (&sent.text, 2), "{case}");
        }
        assert_eq!(rig.asked(), 2 * DIALECTS.len(), "{cloud:?}: each was asked once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_break_truthfully() {
    let ways = [
        How::Reset,
        How::Close,
        How::End,
        How::TruncatedJson,
        How::MalformedJson,
        How::Garbage,
        How::ErrorEvent(ErrorKind::Overloaded),
    ];
    let mut cases = JoinSet::new();
    for cloud in Cloud::ALL {
        for how in ways.clone() {
            cases.spawn(async move {
                for after in [3, 12, 24] {
                    breaks(cloud, how.clone(), after).await;
                }
            });
        }
    }
    while let Some(case) = cases.join_next().await {
        case.unwrap();
    }
}

async fn breaks(cloud: Cloud, how: How, after: usize) {
    let case = format!("{cloud:?}, {how:?} after {after}");
    let plan = FaultPlan::always(Fault::break_after(after, how));
    let sim = cloud.provider().respond(|_| Some(rich_answer())).with_faults(plan).build();
    let rig = cloud.rig(sim, "[resume]\nenabled = false\n").await;
    let caller = if after == 12 { Dialect::Anthropic } else { cloud.dialect };
    let reply = ask(caller, model(caller), true).send(rig.addr).await;
    assert_eq!(reply.status, 200, "{case}: {}", reply.text());
    let answer = WireAnswer::stream(caller, &reply.body);
    assert_eq!(answer.errors.len(), 1, "{case}: {answer:?}");
    error_message(caller, &answer.errors[0]);
    assert_eq!(answer.ends, Vec::<String>::new(), "{case}: nothing looks like an end");
    answer.assert_prefix_of(&rig.last().sent.unwrap(), &case);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_goes_on_unnoticed() {
    for cloud in Cloud::ALL {
        let answer = Answer::text("One, two, three, four, five, six, seven.").in_chunks_of(4);
        let plan = FaultPlan::first(1, Fault::break_after(4, How::Reset));
        let sim = cloud.provider().respond(move |_| Some(answer.clone())).with_faults(plan).build();
        let rig = cloud.rig(sim, "").await;
        let reply = ask(cloud.dialect, model(cloud.dialect), true).send(rig.addr).await;
        let answer = WireAnswer::stream(cloud.dialect, &reply.body);
        assert!(answer.errors.is_empty() && !answer.ends.is_empty(), "{cloud:?}: {answer:?}");
        assert!(answer.text.starts_with("One, two"), "{cloud:?}: {answer:?}");
        assert!(rig.asked() > 1, "{cloud:?}: it was resumed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_means_what_it_does_at_the_vendor() {
    let kinds = [
        ErrorKind::ServerError,
        ErrorKind::Overloaded,
        ErrorKind::RateLimit(Default::default()),
        ErrorKind::Auth,
        ErrorKind::ModelNotFound,
        ErrorKind::ContextOverflow,
    ];
    let reason = async |rig: &Rig, dialect: Dialect, kind: &ErrorKind| {
        rig.sims[0].provider().set_faults(FaultPlan::always(Fault::Error(kind.clone())));
        let once = ask(dialect, model(dialect), false).header("x-steadfast-max-attempts", "1");
        let reply = once.send(rig.addr).await;
        assert!(!reply.text().contains("x-amzn") && reply.status >= 400, "{}", reply.text());
        error_message(dialect, &reply.json());
        reply.header("x-steadfast-reason").unwrap().to_owned()
    };
    for cloud in Cloud::ALL {
        for kind in &kinds {
            let rig = cloud.rig(cloud.provider().build(), "").await;
            let vendor = Rig::of(provider(cloud.dialect).build()).await;
            let expected = reason(&vendor, cloud.dialect, kind).await;
            assert_eq!(reason(&rig, cloud.dialect, kind).await, expected, "{cloud:?}, {kind:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_is_that_and_the_vendor_takes_over() {
    for cloud in Cloud::ALL {
        let sim = cloud.provider().keys(["another-key-entirely"]).build();
        let vendor = provider(cloud.dialect).with_name("vendor").build();
        let rig = Rig::builder().provider_with(sim, &cloud.lines()).provider(vendor).start().await;
        let reply = ask(cloud.dialect, model(cloud.dialect), false).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{cloud:?}: {}", reply.text());
        let target = reply.header("x-steadfast-target").unwrap();
        assert!(target.starts_with("vendor/"), "{cloud:?}: {target}");
        let recovery = reply.header("x-steadfast-recovery").unwrap();
        assert!(recovery.contains("auth"), "{cloud:?}: {recovery}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_counted_where_a_cloud_counts_them() {
    for cloud in Cloud::ALL.into_iter().filter(|cloud| cloud.dialect == Dialect::Anthropic) {
        let rig = cloud.rig(cloud.provider().build(), "").await;
        let body = json!({
            "model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "How long is this?"}],
        });
        let count = HttpRequest::post("/v1/messages/count_tokens", body.to_string());
        let reply = count.header("anthropic-version", "2023-06-01").send(rig.addr).await;
        assert_eq!(reply.status, 200, "{cloud:?}: {}", reply.text());
        assert!(reply.json()["input_tokens"].as_u64().unwrap() > 3, "{cloud:?}");
        let asked = rig.sims[0].provider().journal().last().unwrap();
        assert_eq!(asked.status, Some(200), "{cloud:?}: by the cloud, at {}", asked.path);
        assert!(asked.path.contains("count"), "{}", asked.path);
    }
}

/// A key that opens nothing.
const TEST_KEY: &str = include_str!("../data/test-key.pem");

/// Where tokens of Google come from: gives `token-0`, `token-1` and so on. How many it gave.
async fn token_endpoint() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/token", listener.local_addr().unwrap());
    let given = Arc::new(AtomicUsize::new(0));
    let count = given.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !String::from_utf8_lossy(&read).contains("assertion=") {
                if stream.read_buf(&mut read).await.unwrap() == 0 {
                    break;
                }
            }
            let number = count.fetch_add(1, Ordering::Relaxed);
            let token = json!({
                "access_token": format!("google-token-{number}"), "expires_in": 3_600, "token_type": "Bearer",
            });
            let token = token.to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                token.len()
            );
            stream.write_all((head + &token).as_bytes()).await.unwrap();
        }
    });
    (address, given)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_google_no_longer_takes_is_replaced_and_nothing_rests() {
    let (endpoint, given) = token_endpoint().await;
    let cloud = Cloud { dialect: Dialect::Gemini, lines: VERTEX };
    let echo = |request: &steadfast::sim::SimRequest| {
        Some(Answer::text(format!("asked {}", request.number)))
    };
    let sim = cloud.provider().keys(["google-token-0"]).respond(echo).build();
    let builder = Rig::builder();
    let account = json!({
        "type": "service_account", "project_id": "my-project", "private_key_id": "1",
        "private_key": TEST_KEY, "client_email": "me@my-project.iam.gserviceaccount.com",
        "client_id": "1", "auth_uri": endpoint, "token_uri": endpoint,
        "auth_provider_x509_cert_url": endpoint, "client_x509_cert_url": endpoint,
    });
    let file = builder.secret("google-account", &account.to_string());
    let file = PathBuf::from(file.strip_prefix("file:").unwrap());
    let credential = format!("google:{}", file.display());
    let rig = builder.provider_by(sim, &credential, &cloud.lines()).start().await;
    let ask = async || ask(Dialect::Gemini, model(Dialect::Gemini), false).send(rig.addr).await;
    for _ in 0..3 {
        assert_eq!(ask().await.status, 200);
    }
    assert_eq!(given.load(Ordering::Relaxed), 1, "it is kept");
    rig.sims[0].provider().set_keys(["google-token-1"]);
    let reply = ask().await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let recovery = reply.header("x-steadfast-recovery").unwrap();
    assert!(recovery.contains("client.credential_renewed"), "{recovery}");
    assert_eq!(reply.header("x-steadfast-attempts"), Some("2"), "it was sent twice");
    assert_eq!(given.load(Ordering::Relaxed), 2);
    let reply = ask().await;
    assert_eq!((reply.status, reply.header("x-steadfast-recovery")), (200, None), "nothing rests");

    // A token is masked wherever it would be seen.
    rig.sims[0].provider().set_keys(["another"]);
    let shown = Fault::Status(RawResponse {
        status: 400,
        headers: Default::default(),
        body:
            r#"{"error":{"code":400,"message":"bad: google-token-1","status":"INVALID_ARGUMENT"}}"#
                .into(),
    });
    rig.sims[0].provider().set_faults(FaultPlan::always(shown));
    let reply = ask().await;
    assert!(!reply.everything().contains("google-token-1"), "{}", reply.everything());
    assert!(reply.text().contains("[redacted]"), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_cloud_is_reported_with_its_key() {
    let cases = [
        ("kind = \"azure\"", "base_url"),
        ("kind = \"vertex\"\nproject = \"p\"", "location"),
        ("kind = \"bedrock\"", "region"),
        ("kind = \"bedrock\"\nregion = \"a/b\"", "region is made of"),
        ("region = \"eu-central-1\"", "kind = \"bedrock\""),
        ("kind = \"azure\"\nbase_url = \"http://x\"\nproject = \"p\"", "kind = \"vertex\""),
    ];
    for (lines, expected) in cases {
        let text = format!("[[providers]]\nname = \"p\"\ndialect = \"openai\"\n{lines}\n");
        let source = steadfast_gateway::config::Source::text(&text);
        let errors = source.parse().unwrap().validate(&source).unwrap_err().to_string();
        assert!(errors.contains(expected), "{lines}: {errors}");
    }
    for credential in ["aws:", "aws:profile/", "aws:x", "google:"] {
        let text = format!(
            "[[providers]]\nname = \"p\"\ndialect = \"openai\"\ncredentials = [\"{credential}\"]\n"
        );
        let source = steadfast_gateway::config::Source::text(&text);
        let errors = source.parse().unwrap().validate(&source).unwrap_err().to_string();
        assert!(errors.contains("credentials[0]"), "{credential}: {errors}");
    }
}
