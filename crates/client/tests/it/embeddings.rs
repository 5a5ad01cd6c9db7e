//! Embeddings and counts of tokens: bytes in, bytes out.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use steadfast_chat::{ChatRequest, EmbedInput, EmbedRequest, Head};
use steadfast_client::{
    AnswerLimits, ClientBody, Credential, LlmClient, Provider, Providers,
    dialect::{CountRequest, EmbedRoute, EmbedShape, Wire, count_codec, embed_codec},
};
use steadfast_core::{Dialect, Failure, Reason, Target};
use tower::{ServiceExt, service_fn};

fn read(dialect: Dialect, route: EmbedRoute<'_>, body: &str) -> EmbedRequest {
    let body = Bytes::copy_from_slice(body.as_bytes());
    embed_codec(dialect).unwrap().decode_request(&body, route).unwrap()
}

fn written(dialect: Dialect, request: &EmbedRequest) -> String {
    let body = embed_codec(dialect).unwrap().encode_request(request).unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn what_was_read_is_written_as_it_came_but_for_the_model() {
    let body = r#"{ "input" :["a",[1,2],{"image":"x"}],"model":"m", "dimensions":3,"x":1.50}"#;
    let mut request = read(Dialect::OpenAi, EmbedRoute::default(), body);
    assert_eq!(request.dimensions(), Some(3));
    let [EmbedInput::Text(text), EmbedInput::Tokens(tokens), EmbedInput::Opaque(json)] =
        request.inputs()
    else {
        panic!("{:?}", request.inputs())
    };
    assert_eq!((&**text, &**tokens, json.get()), ("a", &[1, 2][..], r#"{"image":"x"}"#));
    assert_eq!(written(Dialect::OpenAi, &request), body);
    request.model = "n".into();
    assert_eq!(
        written(Dialect::OpenAi, &request),
        r#"{"input":["a",[1,2],{"image":"x"}],"model":"n","dimensions":3,"x":1.50}"#
    );
    let failure = embed_codec(Dialect::Gemini).unwrap().encode_request(&request).unwrap_err();
    assert_eq!(failure.reason(), Reason::Unsupported, "it is not translated");

    let many = EmbedRoute { model: Some("m"), is_single: false };
    let body = r#"{"requests":[{"model":"models/m","content":{"parts":[{"text":"a"}]},"taskType":"X"},{"content":{"parts":[{"inlineData":{}}]},"output_dimensionality":4}],"y":2}"#;
    let mut request = read(Dialect::Gemini, many, body);
    assert_eq!((request.inputs().len(), request.dimensions()), (2, Some(4)));
    assert!(matches!(request.inputs()[1], EmbedInput::Opaque(_)));
    assert_eq!(written(Dialect::Gemini, &request), body);
    request.model = "n".into();
    assert_eq!(written(Dialect::Gemini, &request), body.replace("models/m", "models/n"));
    let path = embed_codec(Dialect::Gemini).unwrap().path(&request);
    assert_eq!(path, "/v1beta/models/n:batchEmbedContents");
}

#[test]
fn one_that_was_not_read_is_written_in_either_dialect() {
    let request = EmbedRequest::new(["a\"", "b"]).with_model("m").with_dimensions(7);
    assert_eq!(
        written(Dialect::OpenAi, &request),
        r#"{"model":"m","input":["a\"","b"],"dimensions":7}"#
    );
    assert_eq!(
        written(Dialect::Gemini, &request),
        r#"{"requests":[{"model":"models/m","content":{"parts":[{"text":"a\""}]},"outputDimensionality":7},{"model":"models/m","content":{"parts":[{"text":"b"}]},"outputDimensionality":7}]}"#
    );
    let tokens = EmbedRequest::of_inputs(vec![EmbedInput::Tokens(vec![1])]).with_model("m");
    assert!(embed_codec(Dialect::Gemini).unwrap().encode_request(&tokens).is_err());
    assert!(embed_codec(Dialect::Anthropic).is_none());
}

#[test]
fn an_answer_without_one_vector_for_each_input_is_none() {
    let decode = |dialect: Dialect, asked, is_single, body: &str| {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let asked = EmbedShape { inputs: asked, is_single };
        embed_codec(dialect).unwrap().decode_answer(Head::new(dialect), asked, &body)
    };
    for (dialect, asked, is_single, body) in [
        (Dialect::OpenAi, 2, false, r#"{"data":[{"index":0,"embedding":[1]}]}"#),
        (Dialect::OpenAi, 1, false, r#"{"data":[{"index":1,"embedding":[1]}]}"#),
        (Dialect::OpenAi, 1, false, r#"{"data":[{"index":0,"embedding":[]}]}"#),
        (Dialect::OpenAi, 1, false, r#"{"data":[{"index":0,"embedding":{}}]}"#),
        (Dialect::OpenAi, 1, false, r#"{"data":[{"index":0}]}"#),
        (Dialect::OpenAi, 1, false, r#"{"object":"list"}"#),
        (Dialect::OpenAi, 1, false, r#"{"data":[{"index":0,"embedding":[1"#),
        (Dialect::OpenAi, 1, false, r#"{"error":{"message":"The server is overloaded"}}"#),
        (Dialect::Gemini, 2, false, r#"{"embeddings":[{"values":[1]}]}"#),
        (Dialect::Gemini, 1, true, r#"{"embeddings":[{"values":[1]}]}"#),
        (Dialect::Gemini, 1, false, r#"{"embedding":{"values":[1]}}"#),
    ] {
        assert!(decode(dialect, asked, is_single, body).is_err(), "{body}");
    }
    let body = r#"{"data":[{"embedding":"AAAAPw=="}],"model":"m","usage":{"prompt_tokens":3}}"#;
    let answer = decode(Dialect::OpenAi, 1, false, body).unwrap();
    assert_eq!(answer.embeddings[0].values().unwrap(), [0.5]);
    assert_eq!((answer.model.as_deref(), answer.usage.input), (Some("m"), Some(3)));
    let answer = decode(
        Dialect::Gemini,
        1,
        true,
        r#"{"embedding":{"values":[1.5]},"usageMetadata":{"promptTokenCount":"x"}}"#,
    );
    assert_eq!(answer.unwrap().embeddings[0].values().unwrap(), [1.5]);
}

fn providers(dialect: Dialect) -> Providers {
    let provider = Provider::new("p", dialect).with_credential(Credential::new("k", "sk"));
    Providers::new([provider]).unwrap()
}

/// A client whose provider answers `status` and `body` to what it notes.
fn client(
    dialect: Dialect,
    status: u16,
    body: &'static str,
) -> LlmClient<
    impl tower::Service<
        Request<ClientBody>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send,
    > + Clone,
> {
    let provider = service_fn(move |request: Request<ClientBody>| async move {
        let (head, sent) = request.into_parts();
        let sent = sent.collect().await.unwrap().to_bytes();
        let answer = Response::builder()
            .status(status)
            .header("x-request-id", "r-1")
            .header("x-sent", format!("{} {}", head.uri.path(), sent.len()));
        Ok(answer.body(Full::from(body)).unwrap())
    });
    LlmClient::with_service(providers(dialect), provider)
}

#[tokio::test]
async fn a_client_reports_where_and_how_an_answer_failed() {
    let ask = |status, body| async move {
        let client = client(Dialect::OpenAi, status, body).embeddings();
        client.oneshot(EmbedRequest::new(["a"]).with_model("m")).await
    };
    let answer = ask(200, r#"{"data":[{"index":0,"embedding":[1]}]}"#).await.unwrap();
    assert_eq!(answer.head.target.as_ref().unwrap().to_string(), "p/m#k");
    assert_eq!(answer.head.request_id.as_deref(), Some("r-1"));
    for (status, body) in [
        (429, r#"{"error":{"message":"slow down"}}"#),
        (200, r#"{"error":{"message":"slow down"}}"#),
        (200, "<html>busy</html>"),
        (200, ""),
    ] {
        let failure: Failure = ask(status, body).await.unwrap_err();
        assert_eq!(failure.target().map(Target::as_str), Some("p/m#k"), "{body}");
        assert_eq!((failure.attempts(), failure.request_id()), (1, Some("r-1")), "{body}");
    }
    let mut limits = AnswerLimits::default();
    limits.embeddings = 10;
    let body = r#"{"data":[{"index":0,"embedding":[1]}]}"#;
    let small = client(Dialect::OpenAi, 200, body).with_limits(limits).embeddings();
    let failure = small.oneshot(EmbedRequest::new(["a"]).with_model("m")).await.unwrap_err();
    assert!(failure.message().contains("larger than 10 bytes"), "{failure}");
    for request in [EmbedRequest::new(["a"]), EmbedRequest::new(["a"]).with_model("m")] {
        let client = client(Dialect::Anthropic, 200, "{}").embeddings();
        let failure = client.oneshot(request).await.unwrap_err();
        assert_eq!(failure.attempts(), 0, "{failure}");
    }
}

fn count(dialect: Dialect, model: Option<&str>, body: &str) -> CountRequest {
    let body = Bytes::copy_from_slice(body.as_bytes());
    count_codec(dialect).unwrap().decode_request(&body, model).unwrap()
}

fn count_written(dialect: Dialect, request: &CountRequest) -> String {
    let body = count_codec(dialect).unwrap().encode_request(request, &Wire::default()).unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn a_request_to_count_goes_as_it_came_or_in_the_words_of_the_other() {
    let body =
        r#"{ "model":"m","messages":[{"role":"user","content":"hi"}],"context_management":{}}"#;
    let mut request = count(Dialect::Anthropic, None, body);
    assert_eq!(count_written(Dialect::Anthropic, &request), body);
    request.chat.model = "n".into();
    assert_eq!(
        count_written(Dialect::Anthropic, &request),
        r#"{"model":"n","messages":[{"role":"user","content":"hi"}],"context_management":{}}"#
    );
    assert_eq!(
        count_written(Dialect::Gemini, &request),
        r#"{"generateContentRequest":{"model":"models/n","contents":[{"role":"user","parts":[{"text":"hi"}]}]}}"#
    );

    let contents = r#"{"contents":[{"parts":[{"text":"hi"}]}],"x":1}"#;
    let mut request = count(Dialect::Gemini, Some("m"), contents);
    request.chat.model = "n".into();
    assert_eq!(count_written(Dialect::Gemini, &request), contents, "the address names the model");
    let whole = r#"{"generateContentRequest":{"model":"models/m","contents":[{"parts":[{"text":"hi"}]}],"tools":[]}}"#;
    let mut request = count(Dialect::Gemini, Some("m"), whole);
    assert_eq!(request.chat.messages.len(), 1);
    assert_eq!(count_written(Dialect::Gemini, &request), whole);
    request.chat.model = "n".into();
    assert_eq!(count_written(Dialect::Gemini, &request), whole.replace("models/m", "models/n"));
    let translated = count_written(Dialect::Anthropic, &request);
    assert_eq!(
        translated,
        r#"{"model":"n","messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]}"#
    );
    assert!(count_codec(Dialect::OpenAi).is_none());

    // What only an answer needs is not sent.
    let chat = ChatRequest::user("hi").with_model("m").with_max_output(9).streaming();
    let written = count_written(Dialect::Anthropic, &CountRequest::new(chat));
    assert!(!written.contains("max_tokens") && !written.contains("stream"), "{written}");
}

#[tokio::test]
async fn a_count_is_no_attempt() {
    let mut request = CountRequest::new(ChatRequest::user("hi").with_model("m"));
    request.chat.context.target = Some(Target::new("p").with_model("sent"));
    let log = request.chat.context.log.clone();
    let counting = client(Dialect::Gemini, 200, r#"{"totalTokens":7,"x":1}"#).counting();
    let count = counting.oneshot(request).await.unwrap();
    assert_eq!((count.tokens, count.dialect), (7, Dialect::Gemini));
    assert_eq!(count.body, r#"{"totalTokens":7,"x":1}"#);
    assert_eq!((log.attempts(), log.is_empty()), (0, true));
    let counting = client(Dialect::Anthropic, 200, r#"{"tokens":7}"#).counting();
    let request = CountRequest::new(ChatRequest::user("hi").with_model("m"));
    assert!(counting.oneshot(request).await.is_err());
}
