//! Each fault in process, on a paused clock.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use std::io;
use std::time::Duration;

use common::{ask, events, is_terminated, streamed_text};
use http_body_util::BodyExt;
use serde_json::json;
use steadfast_sim::{
    Answer, Dialect, Drip, End, ErrorKind, Fault, FaultPlan, FirstToken, How, RateLimit,
    RawResponse, SimError, SimErrorKind, SimProvider,
};
use tokio::time::Instant;

const TEXT: &str = "one two three four five six seven eight nine ten naïve 日本 🦀";

fn with(dialect: Dialect, fault: Fault) -> SimProvider {
    SimProvider::builder(dialect)
        .respond(|_| Some(Answer::text(TEXT)))
        .with_faults(FaultPlan::always(fault))
        .build()
}

fn io_kind(error: &SimError) -> io::ErrorKind {
    let mut last: &(dyn std::error::Error + 'static) = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.downcast_ref::<io::Error>().unwrap().kind()
}

#[tokio::test(start_paused = true)]
async fn connections_fail_before_the_headers() {
    for dialect in Dialect::ALL {
        for (fault, kind, io) in [
            (Fault::Refused, SimErrorKind::Refused, io::ErrorKind::ConnectionRefused),
            (Fault::Reset, SimErrorKind::Reset, io::ErrorKind::ConnectionReset),
            (Fault::Close, SimErrorKind::Closed, io::ErrorKind::UnexpectedEof),
            (Fault::HalfHeaders, SimErrorKind::HalfHeaders, io::ErrorKind::UnexpectedEof),
        ] {
            let provider = with(dialect, fault.clone());
            let error = ask(&provider, true).await.unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(io_kind(&error), io);
            assert_eq!(error.before_headers(), kind != SimErrorKind::HalfHeaders);
            let entry = provider.journal().last().unwrap();
            assert_eq!((entry.end, entry.fault, entry.status), (End::Broken, Some(fault), None));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hang_has_no_headers_and_its_end_is_recorded_as_dropped() {
    let provider = with(Dialect::OpenAi, Fault::Hang);
    let waited = tokio::time::timeout(Duration::from_secs(86_400), ask(&provider, false)).await;
    assert!(waited.is_err());
    let entry = provider.journal().last().unwrap();
    assert_eq!((entry.end, entry.status, entry.events), (End::Dropped, None, 0));
    assert_eq!(entry.ended_at.unwrap() - entry.at, Duration::from_secs(86_400));
}

#[tokio::test]
async fn a_literal_response_is_sent_as_given() {
    let raw = RawResponse {
        status: 418,
        headers: [("x-pot".to_owned(), "tea".to_owned())].into(),
        body: "short".into(),
    };
    let read = ask(&with(Dialect::Gemini, Fault::Status(raw)), false).await.unwrap();
    assert_eq!((read.status, read.text().as_str()), (418, "short"));
    assert_eq!(read.header("x-pot"), Some("tea"));
    assert_eq!(read.header("content-type"), Some("text/plain"));
}

#[tokio::test]
async fn each_kind_of_error_has_its_providers_status_and_discriminator() {
    // Status, type or status word, code (OpenAI) and a piece of the sentence.
    let rate = || ErrorKind::RateLimit(RateLimit::default());
    let o = |k, s, t, c: Option<&'static str>, w| (Dialect::OpenAi, k, s, t, c, w);
    let a = |k, s, t, w| (Dialect::Anthropic, k, s, t, None, w);
    let g = |k, s, t, w| (Dialect::Gemini, k, s, t, None, w);
    let invalid = "invalid_request_error";
    let table = [
        o(rate(), 429, "requests", Some("rate_limit_exceeded"), "Rate limit reached for gpt-4o"),
        o(
            ErrorKind::InsufficientQuota,
            429,
            "insufficient_quota",
            Some("insufficient_quota"),
            "You exceeded your current quota",
        ),
        o(
            ErrorKind::Overloaded,
            503,
            "service_unavailable_error",
            Some("server_is_overloaded"),
            "currently overloaded",
        ),
        o(ErrorKind::ServerError, 500, "server_error", None, "The server had an error"),
        o(ErrorKind::GatewayTimeout, 504, "server_error", Some("cf_gateway_timeout"), "timed out"),
        o(ErrorKind::Auth, 401, invalid, Some("invalid_api_key"), "Incorrect API key provided"),
        o(
            ErrorKind::Permission,
            403,
            invalid,
            Some("model_not_found"),
            "does not have access to model",
        ),
        o(
            ErrorKind::ModelNotFound,
            404,
            invalid,
            Some("model_not_found"),
            "The model `gpt-4o` does not exist",
        ),
        o(
            ErrorKind::ContextOverflow,
            400,
            invalid,
            Some("context_length_exceeded"),
            "maximum context length is 128000 tokens",
        ),
        o(
            ErrorKind::Format,
            400,
            invalid,
            Some("missing_required_parameter"),
            "Missing required parameter",
        ),
        o(
            ErrorKind::ContentFilter,
            400,
            invalid,
            Some("content_policy_violation"),
            "safety system",
        ),
        o(ErrorKind::PayloadTooLarge, 413, invalid, None, "too large"),
        a(rate(), 429, "rate_limit_error", "exceed your organization's rate limit"),
        a(ErrorKind::InsufficientQuota, 400, invalid, "credit balance is too low"),
        a(ErrorKind::Overloaded, 529, "overloaded_error", "Overloaded"),
        a(ErrorKind::ServerError, 500, "api_error", "Internal server error"),
        a(ErrorKind::GatewayTimeout, 504, "timeout_error", "timed out"),
        a(ErrorKind::Auth, 401, "authentication_error", "invalid x-api-key"),
        a(ErrorKind::Permission, 403, "permission_error", "permission"),
        a(ErrorKind::ModelNotFound, 404, "not_found_error", "model: claude-sonnet-4-5"),
        a(
            ErrorKind::ContextOverflow,
            400,
            invalid,
            "prompt is too long: 220000 tokens > 200000 maximum",
        ),
        a(ErrorKind::Format, 400, invalid, "Field required"),
        a(ErrorKind::ContentFilter, 400, invalid, "Output blocked by content filtering policy"),
        a(ErrorKind::PayloadTooLarge, 413, "request_too_large", "maximum size"),
        g(rate(), 429, "RESOURCE_EXHAUSTED", "You exceeded your current quota"),
        g(ErrorKind::InsufficientQuota, 429, "RESOURCE_EXHAUSTED", "per_day"),
        g(ErrorKind::Overloaded, 503, "UNAVAILABLE", "The model is overloaded"),
        g(ErrorKind::ServerError, 500, "INTERNAL", "internal error"),
        g(ErrorKind::GatewayTimeout, 504, "DEADLINE_EXCEEDED", "Deadline expired"),
        g(ErrorKind::Auth, 400, "INVALID_ARGUMENT", "API key not valid"),
        g(ErrorKind::Permission, 403, "PERMISSION_DENIED", "does not have permission"),
        g(
            ErrorKind::ModelNotFound,
            404,
            "NOT_FOUND",
            "models/gemini-2.5-pro is not found for API version",
        ),
        g(
            ErrorKind::ContextOverflow,
            400,
            "INVALID_ARGUMENT",
            "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576)",
        ),
        g(ErrorKind::Format, 400, "INVALID_ARGUMENT", "must not be empty"),
        g(ErrorKind::ContentFilter, 400, "INVALID_ARGUMENT", "SAFETY"),
        g(ErrorKind::PayloadTooLarge, 400, "INVALID_ARGUMENT", "payload size exceeds"),
    ];
    for (dialect, kind, status, word, code, sentence) in table {
        for stream in [false, true] {
            let read = ask(&with(dialect, Fault::Error(kind.clone())), stream).await.unwrap();
            let what = format!("{dialect} {kind:?}");
            assert_eq!(read.status, status, "{what}");
            let error = &read.json()["error"];
            match dialect {
                Dialect::OpenAi | Dialect::Responses => {
                    assert_eq!(error["type"], word, "{what}");
                    assert_eq!(error["code"], json!(code), "{what}");
                    assert!(error.get("param").is_some(), "{what}");
                }
                Dialect::Anthropic => {
                    assert_eq!(read.json()["type"], "error", "{what}");
                    assert_eq!(error["type"], word, "{what}");
                    assert_eq!(read.json()["request_id"], read.header("request-id").unwrap());
                }
                Dialect::Gemini => {
                    assert_eq!(error["status"], word, "{what}");
                    assert_eq!(error["code"], status, "{what}");
                }
            }
            assert!(read.error_message().contains(sentence), "{what}: {}", read.error_message());
        }
        // The same under 200.
        let read = ask(&with(dialect, Fault::ErrorInOk(kind)), false).await.unwrap();
        assert_eq!(read.status, 200);
        assert!(read.error_message().contains(sentence));
    }
}

#[tokio::test]
async fn a_proxys_page_is_html_in_every_dialect() {
    for dialect in Dialect::ALL {
        let read =
            ask(&with(dialect, Fault::Error(ErrorKind::BadGatewayHtml)), true).await.unwrap();
        assert_eq!((read.status, read.header("content-type")), (502, Some("text/html")));
        assert!(read.text().contains("<h1>502 Bad Gateway</h1>"));
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limits_carry_the_hints_as_given() {
    let epoch = std::time::UNIX_EPOCH + Duration::from_secs(1_793_862_489);
    let headers = async |hints: RateLimit| {
        let provider = SimProvider::builder(Dialect::OpenAi)
            .with_epoch(epoch)
            .with_faults(FaultPlan::always(Fault::rate_limit(hints)))
            .build();
        ask(&provider, false).await.unwrap()
    };
    let read = headers(RateLimit::after("1.5")).await;
    assert_eq!(read.header("retry-after"), Some("1.5"));
    assert_eq!(read.header("retry-after-ms"), None);
    let read = headers(RateLimit::after_ms(1_500)).await;
    assert_eq!(read.header("retry-after-ms"), Some("1500"));
    assert_eq!(read.header("retry-after"), None);
    let read = headers(RateLimit::reset("1.5s")).await;
    assert_eq!(read.header("x-ratelimit-reset-requests"), Some("1.5s"));
    assert_eq!(read.header("x-ratelimit-remaining-requests"), Some("0"));
    let read = headers(RateLimit { retry_after_date_s: Some(2), ..RateLimit::default() }).await;
    assert_eq!(read.header("retry-after"), Some("Thu, 05 Nov 2026 07:08:11 GMT"));
    let read = headers(RateLimit { anthropic_reset_s: Some(60), ..RateLimit::default() }).await;
    assert_eq!(read.header("anthropic-ratelimit-requests-reset"), Some("2026-11-05T07:09:09Z"));
    let read = headers(RateLimit { should_retry: Some(false), ..RateLimit::default() }).await;
    assert_eq!(read.header("x-should-retry"), Some("false"));
    let read =
        headers(RateLimit { in_message: Some("7m12s".into()), ..RateLimit::default() }).await;
    assert!(read.error_message().contains("Please try again in 7m12s."));

    let hints = RateLimit { retry_info: Some("34.4s".into()), ..RateLimit::default() };
    let read = ask(&with(Dialect::Gemini, Fault::rate_limit(hints)), false).await.unwrap();
    let details = read.json()["error"]["details"].clone();
    assert_eq!(
        details[2],
        json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.4s"})
    );
    assert_eq!(
        details[0]["violations"][0]["quotaId"],
        "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"
    );
}

#[tokio::test]
async fn an_empty_answer_is_empty() {
    for dialect in Dialect::ALL {
        let whole = ask(&with(dialect, Fault::Empty), false).await.unwrap();
        assert_eq!((whole.status, whole.text().as_str()), (200, ""));
        let stream = ask(&with(dialect, Fault::Empty), true).await.unwrap();
        let expected = if dialect == Dialect::OpenAi { "data: [DONE]\n\n" } else { "" };
        assert_eq!((stream.status, stream.text().as_str()), (200, expected));
        assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
    }
}

#[tokio::test(start_paused = true)]
async fn streams_break_after_n_events_and_what_arrived_is_a_prefix() {
    for dialect in Dialect::ALL {
        for events in [0, 1, 8, 13, 99] {
            for (how, kind) in [
                (How::Reset, Some(SimErrorKind::Reset)),
                (How::Close, Some(SimErrorKind::Closed)),
                (How::End, None),
            ] {
                let provider = with(dialect, Fault::break_after(events, how.clone()));
                let read = ask(&provider, true).await.unwrap();
                assert_eq!(read.error.as_ref().map(SimError::kind), kind);
                let text = read.text();
                assert!(!is_terminated(dialect, &text), "{dialect} {how:?} {events}: {text}");
                let got = streamed_text(dialect, &text);
                let entry = provider.journal().last().unwrap();
                let all = steadfast_sim::tokens::count_output(TEXT);
                assert_eq!(all, 13);
                assert_eq!(entry.events, events.min(all), "{dialect} {how:?}");
                let expected: String = steadfast_sim::tokens::pieces(TEXT).take(events).collect();
                assert_eq!(got, expected);
                if events == 0 {
                    assert_eq!(text, "", "not even the opening frames");
                }
                assert_eq!(entry.sent.unwrap().text, TEXT, "the journal has the whole truth");
                let end = if kind.is_some() { End::Broken } else { End::Complete };
                assert_eq!(entry.end, end);
                assert_eq!(entry.bytes, text.len());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_stream_sends_nothing_more_and_does_not_end() {
    for dialect in Dialect::ALL {
        let provider = with(dialect, Fault::break_after(8, How::Stall));
        let whole = tokio::time::timeout(Duration::from_secs(86_400), ask(&provider, true)).await;
        assert!(whole.is_err());
        let entry = provider.journal().last().unwrap();
        assert_eq!((entry.events, entry.end), (8, End::Dropped));
        assert_eq!(entry.status, Some(200));
    }
}

#[tokio::test]
async fn error_events_come_first_or_in_the_middle_and_are_the_last() {
    for dialect in Dialect::ALL {
        for after in [0, 8] {
            let fault = Fault::break_after(after, How::ErrorEvent(ErrorKind::Overloaded));
            let read = ask(&with(dialect, fault), true).await.unwrap();
            assert_eq!((read.status, read.error.is_none()), (200, true));
            let text = read.text();
            let events = events(&text);
            let last = events.last().unwrap();
            match dialect {
                Dialect::OpenAi => assert_eq!(
                    *last,
                    json!({"error": {
                        "message": "The engine is currently overloaded, please try again later",
                        "type": "service_unavailable_error", "param": null,
                        "code": "server_is_overloaded",
                    }})
                ),
                Dialect::Responses => {
                    assert_eq!(last["type"], "response.failed");
                    let error = &last["response"]["error"];
                    assert_eq!(error["code"], "server_is_overloaded");
                    let numbers = events.iter().map(|event| event["sequence_number"].as_u64());
                    let wanted = (0..events.len() as u64).map(Some);
                    assert!(numbers.eq(wanted), "{text}");
                }
                Dialect::Anthropic => {
                    let frame = format!(
                        "event: error\ndata: {}\n\n",
                        json!({
                            "type": "error",
                            "error": {"type": "overloaded_error", "message": "Overloaded"},
                            "request_id": read.header("request-id").unwrap(),
                        })
                    );
                    assert!(text.ends_with(&frame), "{text}");
                }
                Dialect::Gemini => assert_eq!(
                    *last,
                    json!({"error": {
                        "code": 503, "status": "UNAVAILABLE",
                        "message": "The model is overloaded. Please try again later.",
                    }})
                ),
            }
            assert!(!is_terminated(dialect, &text));
            assert_eq!(events.len() == 1, after == 0);
        }
    }
}

#[tokio::test]
async fn a_gemini_array_with_an_error_is_still_json() {
    for after in [0, 3] {
        let fault = Fault::break_after(after, How::ErrorEvent(ErrorKind::Overloaded));
        let path = "/v1beta/models/gemini-2.5-pro:streamGenerateContent";
        let body = common::question(Dialect::Gemini, "x", true).to_string();
        let request = common::request(Dialect::Gemini, path, body);
        let read = common::send(&with(Dialect::Gemini, fault), request).await.unwrap();
        let array = read.json();
        assert_eq!(array.as_array().unwrap().len(), after + 1);
        assert_eq!(array[after]["error"]["status"], "UNAVAILABLE");
    }
}

#[tokio::test]
async fn damaged_frames_lose_content_that_a_careless_reader_will_not_miss() {
    for dialect in Dialect::ALL {
        for how in [How::MalformedJson, How::Garbage] {
            let read = ask(&with(dialect, Fault::break_after(8, how.clone())), true).await.unwrap();
            assert!(read.error.is_none());
            let lossy = String::from_utf8_lossy(&read.bytes()).into_owned();
            assert!(is_terminated(dialect, &lossy), "the rest of the stream is fine");
            assert_eq!(String::from_utf8(read.bytes()).is_err(), how == How::Garbage);
            let bad: Vec<usize> = events(&lossy)
                .iter()
                .enumerate()
                .filter(|(_, e)| e.is_string() && *e != "[DONE]")
                .map(|(n, _)| n)
                .collect();
            assert_eq!(bad.len(), 1, "{dialect} {how:?}: {lossy}");
            let got = streamed_text(dialect, &lossy);
            let mut pieces: Vec<&str> = steadfast_sim::tokens::pieces(TEXT).collect();
            pieces.remove(8);
            assert_eq!(got, pieces.concat());
        }
        let read =
            ask(&with(dialect, Fault::break_after(8, How::TruncatedJson)), true).await.unwrap();
        let text = read.text();
        assert!(read.error.is_none() && !is_terminated(dialect, &text));
        assert!(!text.ends_with('\n'), "the last frame is cut: {text}");
    }
}

#[tokio::test]
async fn bytes_are_counted_across_frames_and_may_fall_inside_the_end() {
    for dialect in Dialect::ALL {
        let provider = SimProvider::builder(dialect).respond(|_| Some(Answer::text(TEXT))).build();
        let whole = ask(&provider, true).await.unwrap().bytes();
        for cut in [0, 1, 7, whole.len() / 2, whole.len() - 3, whole.len() - 1] {
            let provider = with(dialect, Fault::break_after_bytes(cut, How::Reset));
            let read = ask(&provider, true).await.unwrap();
            // The ids of both depend on seed and number alone: the same bytes.
            assert_eq!(read.bytes(), whole[..cut], "{dialect} {cut}");
            assert_eq!(read.error.unwrap().kind(), SimErrorKind::Reset);
        }
        let read = ask(&with(dialect, Fault::break_after_bytes(1 << 20, How::End)), true).await;
        let read = read.unwrap();
        assert!(whole.starts_with(&read.bytes()));
        assert!(!is_terminated(dialect, &read.text()));
    }
}

#[tokio::test(start_paused = true)]
async fn whole_bodies_break_too() {
    for dialect in Dialect::ALL {
        let provider = SimProvider::builder(dialect).respond(|_| Some(Answer::text(TEXT))).build();
        let whole = ask(&provider, false).await.unwrap();
        let truth = whole.bytes();
        let half = truth.len() / 2;
        for (how, error) in [
            (How::Reset, Some(SimErrorKind::Reset)),
            (How::Close, Some(SimErrorKind::Closed)),
            (How::End, None),
            (How::TruncatedJson, None),
        ] {
            let read = ask(&with(dialect, Fault::break_after(3, how)), false).await.unwrap();
            assert_eq!(read.bytes(), truth[..half]);
            assert_eq!(read.error.map(|e| e.kind()), error);
        }
        let read =
            ask(&with(dialect, Fault::break_after_bytes(10, How::End)), false).await.unwrap();
        assert_eq!(read.bytes(), truth[..10]);
        let read = ask(&with(dialect, Fault::break_after(0, How::MalformedJson)), false).await;
        let read = read.unwrap();
        assert_eq!(read.bytes().len(), truth.len());
        assert!(serde_json::from_slice::<serde_json::Value>(&read.bytes()).is_err());
        let read = ask(&with(dialect, Fault::break_after(0, How::Garbage)), false).await.unwrap();
        assert!(String::from_utf8(read.bytes()).is_err());
        let fault = Fault::break_after(0, How::ErrorEvent(ErrorKind::ServerError));
        let read = ask(&with(dialect, fault), false).await.unwrap();
        assert_eq!(read.status, 200);
        assert!(read.json()["error"]["message"].is_string());
        let provider = with(dialect, Fault::break_after(0, How::Stall));
        let stalled = tokio::time::timeout(Duration::from_secs(86_400), ask(&provider, false));
        assert!(stalled.await.is_err());
        assert_eq!(provider.journal().last().unwrap().bytes, half);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_token_is_late_by_exactly_that_much() {
    for dialect in Dialect::ALL {
        for ping_every_ms in [None, Some(6_000)] {
            let first = FirstToken { after_ms: 20_000, ping_every_ms };
            let provider = with(dialect, Fault::FirstToken(first));
            let start = Instant::now();
            let request = common::request(
                dialect,
                &common::path(dialect, common::model(dialect), true),
                common::question(dialect, "hello", true).to_string(),
            );
            let response = tower::ServiceExt::oneshot(provider.clone(), request).await.unwrap();
            assert_eq!(start.elapsed(), Duration::ZERO, "headers are on time");
            let mut body = response.into_body();
            let mut pings = Vec::new();
            while provider.journal().last().unwrap().events == 0 {
                let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                if start.elapsed() > Duration::ZERO
                    && provider.journal().last().unwrap().events == 0
                {
                    pings.push((start.elapsed().as_millis(), text));
                }
            }
            assert_eq!(start.elapsed(), Duration::from_secs(20), "{dialect}");
            let times: Vec<u128> = pings.iter().map(|(at, _)| *at).collect();
            if ping_every_ms.is_some() {
                assert_eq!(times, [6_000, 12_000, 18_000]);
                assert!(
                    pings.iter().all(|(_, text)| text.contains("ping") || text.starts_with(':'))
                );
            } else {
                assert!(times.is_empty());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn drip_and_coalesce_change_the_pieces_and_not_the_bytes() {
    for dialect in Dialect::ALL {
        let plain = SimProvider::builder(dialect).respond(|_| Some(Answer::text(TEXT))).build();
        let truth = ask(&plain, true).await.unwrap();
        let read = ask(&with(dialect, Fault::drip(1)), true).await.unwrap();
        assert_eq!(read.bytes(), truth.bytes());
        assert!(read.chunks.iter().all(|chunk| chunk.len() == 1));
        assert!(
            read.chunks.iter().any(|chunk| std::str::from_utf8(chunk).is_err()),
            "characters are split"
        );
        let all = Fault::Coalesce(steadfast_sim::Coalesce { frames: 0 });
        let read = ask(&with(dialect, all), true).await.unwrap();
        assert_eq!((read.chunks.len(), read.bytes()), (1, truth.bytes()));
        let three = Fault::Coalesce(steadfast_sim::Coalesce { frames: 3 });
        let read = ask(&with(dialect, three), true).await.unwrap();
        assert_eq!(read.chunks.len(), truth.chunks.len().div_ceil(3));
        assert_eq!(read.bytes(), truth.bytes());

        let start = Instant::now();
        let provider = with(dialect, Fault::Drip(Drip { bytes: 100, every_ms: 10 }));
        let read = ask(&provider, true).await.unwrap();
        assert_eq!(read.bytes(), truth.bytes());
        let pauses = u64::try_from(read.chunks.len()).unwrap() - 1;
        assert_eq!(start.elapsed(), Duration::from_millis(10 * pauses));
        assert_eq!(provider.journal().last().unwrap().events, 13, "events count once");
    }
}

#[tokio::test]
async fn faults_combine() {
    let fault = Fault::Many(vec![Fault::drip(1), Fault::break_after(8, How::Reset)]);
    let provider = with(Dialect::OpenAi, fault);
    let read = ask(&provider, true).await.unwrap();
    assert!(read.chunks.iter().all(|chunk| chunk.len() == 1));
    assert_eq!(read.error.as_ref().unwrap().kind(), SimErrorKind::Reset);
    assert_eq!(
        streamed_text(Dialect::OpenAi, &read.text()),
        "one two three four five six seven eight"
    );
}

#[tokio::test]
async fn a_wrong_content_type_on_a_right_body() {
    for dialect in Dialect::ALL {
        let read = ask(&with(dialect, Fault::ContentType("text/html".into())), true).await.unwrap();
        assert_eq!(read.header("content-type"), Some("text/html"));
        assert_eq!(streamed_text(dialect, &read.text()), TEXT);
    }
}

#[tokio::test]
async fn the_output_limit_cuts_anywhere() {
    let answer =
        Answer::thinking("a b c").then_text("d e f").then_tool_call("t", r#"{"x": "y z"}"#);
    assert_eq!(answer.output_tokens(), 3 + 3 + 3);
    for dialect in Dialect::ALL {
        for limit in 1..9 {
            let provider = SimProvider::builder(dialect)
                .with_script([answer.clone()])
                .with_faults(FaultPlan::always(Fault::OutputLimit(limit)))
                .build();
            let read = ask(&provider, true).await.unwrap();
            let sent = provider.journal().last().unwrap().sent.unwrap();
            assert!(sent.truncated);
            assert!(is_terminated(dialect, &read.text()), "a cut answer ends cleanly");
            let word = match dialect {
                Dialect::OpenAi => "length",
                Dialect::Anthropic => "max_tokens",
                Dialect::Gemini => "MAX_TOKENS",
                Dialect::Responses => "max_output_tokens",
            };
            assert_eq!(sent.stop, word);
            assert!(read.text().contains(&format!("\"{word}\"")));
            assert_eq!(sent.usage.output, limit);
            assert!("a b c".starts_with(&sent.thinking) && "d e f".starts_with(&sent.text));
            if limit > 6 && dialect != Dialect::Gemini {
                let arguments = &sent.tool_calls[0].arguments;
                assert!(r#"{"x": "y z"}"#.starts_with(arguments.as_str()) && arguments.len() < 12);
            } else if limit > 6 {
                assert!(sent.tool_calls.is_empty(), "Gemini's calls come whole or not at all");
            }
        }
    }
}
