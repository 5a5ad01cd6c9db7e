//! The end of a stream: only the provider's own terminal event is one.

use bytes::Bytes;
use steadfast_chat::Event;
use steadfast_client::dialect::{StreamDecoder, codec};
use steadfast_core::{Dialect, Failure, Reason, Retry};

use crate::fixtures::{body, completion, frames, read_stream, stream, write_stream};

fn read(dialect: Dialect, text: &str) -> (Vec<Event>, Option<Failure>) {
    read_stream(dialect, [Bytes::copy_from_slice(text.as_bytes())])
}

/// The frames of a stream with their separators.
fn split(dialect: Dialect) -> Vec<String> {
    let text = stream(dialect);
    let end = if dialect == Dialect::Gemini { "\r\n\r\n" } else { "\n\n" };
    text.split_inclusive(end).map(str::to_owned).collect()
}

#[test]
fn a_stream_that_is_cut_anywhere_is_a_failure() {
    for dialect in Dialect::ALL {
        let frames = split(dialect);
        let whole = completion(dialect, &read(dialect, &frames.concat()).0);
        for cut in 0..frames.len() {
            for half in [false, true] {
                let mut text = frames[..cut].concat();
                if half {
                    text.push_str(&frames[cut][..frames[cut].len() / 2]);
                }
                let (events, failure) = read(dialect, &text);
                let failure = failure.unwrap_or_else(|| panic!("{dialect} ended after {text}"));
                assert_eq!(failure.reason(), Reason::Network, "{failure}");
                assert_eq!(failure.retry(), Retry::Yes);
                assert_eq!(failure.evidence(), "stream ended without its terminal event");
                assert!(!events.iter().any(Event::is_end));

                let partial = completion(dialect, &events);
                assert!(whole.text().starts_with(&partial.text()), "a prefix of the answer");
                assert_eq!(failure.usage().map(|u| u.input), partial.usage.input.map(Some));
                for to in Dialect::ALL {
                    let mut written = write_stream(dialect, to, &events);
                    assert!(!written.contains("[DONE]") && !written.contains("message_stop"));
                    let before = frames_of(&written);
                    let error = codec(to).encode_stream_error(&failure);
                    written.push_str(std::str::from_utf8(&error).unwrap());
                    assert_eq!(frames_of(&written), before + 1, "one error event");
                    let (_, again) = read(to, &written);
                    assert!(again.unwrap().upstream().is_some(), "{dialect} to {to}:\n{written}");
                }
            }
        }
    }
}

fn frames_of(text: &str) -> usize {
    frames(&text.replace("\r\n", "\n")).len()
}

#[test]
fn what_is_no_end() {
    for (dialect, text) in [
        (Dialect::OpenAi, "data: [DONE]\n\n"),
        (
            Dialect::OpenAi,
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n",
        ),
        (
            Dialect::OpenAi,
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\n",
        ),
        (Dialect::OpenAi, ""),
        (Dialect::Anthropic, "data: [DONE]\n\n"),
        (
            Dialect::Anthropic,
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
        ),
        // An end without a reason.
        (Dialect::Anthropic, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
        (
            Dialect::Gemini,
            "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"x\"}]}}]}\n\n",
        ),
        (Dialect::Gemini, "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\ndata: {\"cand"),
    ] {
        let (events, failure) = read(dialect, text);
        let failure = failure.unwrap_or_else(|| panic!("{dialect} {text:?}"));
        assert_eq!(failure.retry(), Retry::Yes, "{dialect} {text:?}: {failure}");
        assert!(!events.iter().any(Event::is_end), "{dialect} {text:?}");
    }
}

#[test]
fn a_terminal_event_counts_without_the_empty_line_after_it() {
    let text = stream(Dialect::OpenAi);
    for cut in ["\n\n", "\n"] {
        let (events, failure) = read(Dialect::OpenAi, text.strip_suffix(cut).unwrap());
        assert!(failure.is_none(), "{failure:?}");
        let written = write_stream(Dialect::OpenAi, Dialect::OpenAi, &events);
        assert_eq!(written, text, "and the caller gets it whole");
    }
}

#[test]
fn errors_inside_a_stream_are_classified_as_the_providers() {
    for (dialect, frame) in [
        (
            Dialect::Anthropic,
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"details\":null,\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
        ),
        (Dialect::Anthropic, "event: error\ndata: not json\n\n"),
        (Dialect::OpenAi, "data: {\"error\":{\"message\":\"Overloaded\",\"code\":429}}\n\n"),
        (Dialect::OpenAi, "event: error\ndata: {\"message\":\"Overloaded\"}\n\n"),
        (Dialect::OpenAi, "data: {\"id\":\"x\",\"choices\":[],\"error\":\"Overloaded\"}\n\n"),
        (
            Dialect::OpenAi,
            "data: {\"id\":7,\"choices\":7,\"error\":{\"message\":\"Overloaded\"}}\n\n",
        ),
        (Dialect::OpenAi, "data: {\"object\":\"error\",\"message\":\"Overloaded\"}\n\n"),
        (Dialect::OpenAi, "data: {\"detail\":\"Overloaded\"}\n\n"),
        (
            Dialect::Gemini,
            "data: {\"error\":{\"code\":503,\"message\":\"Overloaded\",\"status\":\"UNAVAILABLE\"}}\n\n",
        ),
        (Dialect::Gemini, "data: {\"detail\":\"Overloaded\"}\n\n"),
    ] {
        for before in [String::new(), split(dialect)[..3].concat()] {
            let text = format!("{before}{frame}{}", split(dialect).concat());
            let (_, failure) = read(dialect, &text);
            let failure = failure.unwrap_or_else(|| panic!("{dialect} {frame}"));
            let upstream = failure.upstream().unwrap_or_else(|| panic!("{frame}: {failure}"));
            let data = frame.rsplit_once("data: ").unwrap().1.trim_end();
            assert_eq!(upstream.body, data);
            assert_eq!(
                (upstream.status, upstream.dialect),
                (Some(http::StatusCode::OK), Some(dialect))
            );
        }
    }
}

#[test]
fn broken_json_and_utf8_are_retryable_failures() {
    for (dialect, frame) in [
        (Dialect::OpenAi, "data: {\"choices\":[{\"delta\":{\"conte\n\n"),
        (Dialect::OpenAi, "data: garbage\n\n"),
        (Dialect::OpenAi, "data: {\"choices\":[{\"delta\":{\"content\":7}}]}\n\n"),
        (Dialect::OpenAi, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}\n\n"),
        (
            Dialect::OpenAi,
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"network_error\"}]}\n\n",
        ),
        (Dialect::Anthropic, "event: message_stop\ndata: {\n\n"),
        (
            Dialect::Gemini,
            "data: {\"candidates\":[{\"finishReason\":\"MALFORMED_FUNCTION_CALL\"}]}\n\n",
        ),
        (Dialect::Gemini, "data: {\"candidates\":7}\n\n"),
    ] {
        let (_, failure) = read(dialect, &format!("{frame}{}", stream(dialect)));
        let failure = failure.unwrap_or_else(|| panic!("{dialect} {frame}"));
        assert_eq!(failure.reason(), Reason::ServerError, "{frame}: {failure}");
        assert_eq!(failure.retry(), Retry::Yes);
    }
}

#[test]
fn over_is_over() {
    for dialect in Dialect::ALL {
        // After the first error.
        let mut decoder = StreamDecoder::new(dialect);
        decoder.push("data: {\n\n".into());
        assert!(decoder.next_event().unwrap().is_err());
        decoder.push(stream(dialect).into());
        assert!(decoder.next_event().is_none() && decoder.finish().is_none());
        assert!(decoder.is_over());
    }
    for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
        // After the end: whatever follows.
        let text = format!("{}data: {{\"error\":{{}}}}\n\n{}", stream(dialect), stream(dialect));
        let (events, failure) = read(dialect, &text);
        assert!(failure.is_none());
        assert_eq!(events.iter().filter(|event| event.is_end()).count(), 1);
        assert!(events.last().unwrap().is_end());
    }
}

#[test]
fn an_event_that_is_too_large_is_a_typed_failure() {
    let mut decoder = StreamDecoder::with_limit(Dialect::OpenAi, 1_000);
    decoder.push(Bytes::from(vec![b'x'; 2_000]));
    let failure = decoder.next_event().unwrap().unwrap_err();
    assert_eq!(failure.evidence(), "limit:event");
    assert!(failure.message().contains("1000 bytes"), "{failure}");
}

#[test]
fn whole_answers_without_their_end_are_failures() {
    for dialect in Dialect::ALL {
        let text = body(dialect)
            .replace("\"finish_reason\":\"tool_calls\"", "\"finish_reason\":null")
            .replace("\"stop_reason\":\"tool_use\"", "\"stop_reason\":null")
            .replace("\"finishReason\":\"STOP\",", "")
            .replacen("\"status\":\"completed\"", "\"status\":\"in_progress\"", 1);
        let failure = codec(dialect).decode_answer(&text.into()).unwrap_err();
        assert_eq!(failure.evidence(), "incomplete", "{dialect}: {failure}");
        let cut = &body(dialect)[..body(dialect).len() - 9];
        let failure = codec(dialect).decode_answer(&cut.to_owned().into()).unwrap_err();
        assert_eq!(failure.evidence(), "malformed", "{dialect}: {failure}");
        for error in ["{\"error\":{\"message\":\"no\"}}", "{\"error\":\"no\"}"] {
            let failure = codec(dialect).decode_answer(&error.into()).unwrap_err();
            assert_eq!(failure.upstream().unwrap().body, error, "{dialect}");
        }
    }
    let empty = codec(Dialect::OpenAi).decode_answer(&"{\"success\":false}".into());
    assert_eq!(empty.unwrap_err().evidence(), "incomplete");
}

#[test]
fn a_frame_with_a_damaged_field_name_is_not_ignored() {
    for dialect in Dialect::ALL {
        let frames = split(dialect);
        let spoils = ["\u{fffd}data: {\"x\":1}", "dadata: {}", "data"];
        for (at, spoil) in (0..frames.len()).zip(spoils.iter().cycle()) {
            let mut damaged = frames.clone();
            damaged[at] = format!("{spoil}\n\n");
            let (events, failure) = read(dialect, &damaged.concat());
            assert!(failure.is_some(), "{dialect}: frame {at} is lost in {spoil:?}");
            assert!(!events.iter().any(Event::is_end));
        }
        let mut damaged = frames.concat().into_bytes();
        damaged.splice(0..0, *b"event: contdata: \xff\xfe\n\n");
        let (_, failure) = read_stream(dialect, [Bytes::from(damaged)]);
        assert!(failure.is_some(), "{dialect}: bytes that are no text");
        // Fields of the specification, and comments, are still accepted.
        let harmless = ["id: 7\n\n", ": hello\n\n", "retry: 100\n\n", "event: ping\n\n"].concat();
        assert!(read(dialect, &(harmless + &frames.concat())).1.is_none(), "{dialect}");
    }
}
