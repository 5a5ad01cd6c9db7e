//! A caller's request: `dialect body`.

use bytes::Bytes;
use serde::de::IgnoredAny;
use steadfast_chat::{
    ChatRequest, Message, Part, Thinking,
    transcript::{TranscriptRules, repair, validate},
};
use steadfast_client::dialect::{EmbedRoute, Route, Wire, codec, count_codec, embed_codec};
use steadfast_core::{Dialect, Failure};

use crate::{content::check_failure, input::Input};

fn route(dialect: Dialect) -> Route<'static> {
    match dialect {
        Dialect::Gemini => Route { model: Some("gemini-2.5-flash"), stream: Some(false) },
        _ => Route::default(),
    }
}

/// * An invalid request is refused with a message that names the field; invalid JSON, and nothing
///   else, is refused as such.
/// * In its own dialect the same bytes are written.
/// * In another it is a request that the gateway itself accepts, of bounded size.
/// * Repaired for a dialect and written in it, it is one that the dialect's providers accept: read
///   again it passes `validate`.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let from = input.dialect();
    let body = input.rest();
    check_beside(from, &body);
    let valid = serde_json::from_slice::<IgnoredAny>(&body).is_ok();
    let request = match codec(from).decode_request(&body, route(from)) {
        Ok(request) => {
            assert!(valid && std::str::from_utf8(&body).is_ok(), "it is no JSON");
            request
        }
        Err(error) => {
            let invalid = error.path().is_empty() && error.problem().contains("is not valid JSON");
            assert!(!invalid || !valid || std::str::from_utf8(&body).is_err(), "{error}");
            assert!(invalid || valid, "what is no JSON is said to be none: {error}");
            assert!(!error.problem().is_empty());
            assert!(error.to_string().len() <= 8 * body.len() + 1_024, "{error}");
            return check_failure(&Failure::from(error));
        }
    };
    for to in Dialect::ALL {
        match codec(to).encode_request(&request, &Wire::default()) {
            Err(failure) => check_failure(&failure),
            Ok(written) => {
                if from == to && !request.stream && !drops_thinking(&request) {
                    assert_eq!(written, body, "{from} is passed on");
                }
                assert!(written.len() <= 64 * body.len() + 4_096, "{} bytes", written.len());
                let again = codec(to).decode_request(&written, route(to));
                assert!(again.is_ok(), "{from} to {to}: {again:?}\n{written:?}");
            }
        }
        check_repair(&request, to);
    }
}

/// The same body as a request for embeddings, and as one to count tokens: either is refused, or the same bytes are
/// written, and with another model a request that can be read again.
fn check_beside(dialect: Dialect, body: &Bytes) {
    for is_single in [false, true] {
        let route = EmbedRoute { model: route(dialect).model, is_single };
        let Some(codec) = embed_codec(dialect) else { break };
        match codec.decode_request(body, route) {
            Err(error) => check_failure(&Failure::from(error)),
            Ok(mut request) => {
                assert_eq!(codec.encode_request(&request).ok().as_ref(), Some(body));
                request.model = "another".into();
                let written = codec.encode_request(&request);
                let written = written.unwrap_or_else(|failure| panic!("{failure}"));
                let again = codec.decode_request(&written, route);
                let again = again.unwrap_or_else(|error| panic!("{error}\n{written:?}"));
                assert_eq!(again.inputs(), request.inputs());
            }
        }
    }
    let Some(codec) = count_codec(dialect) else { return };
    match codec.decode_request(body, route(dialect).model) {
        Err(error) => check_failure(&Failure::from(error)),
        Ok(request) => {
            for to in Dialect::ALL {
                let Some(other) = count_codec(to) else { continue };
                match other.encode_request(&request, &Wire::default()) {
                    Err(failure) => check_failure(&failure),
                    Ok(written) if to == dialect => assert_eq!(written, body),
                    Ok(written) => {
                        let again = other.decode_request(&written, route(to).model);
                        assert!(again.is_ok(), "{dialect} to {to}: {again:?}\n{written:?}");
                    }
                }
            }
        }
    }
}

/// Thinking without a signature is left out of requests to Anthropic; a valid request has none.
fn drops_thinking(request: &ChatRequest) -> bool {
    let unsigned = |part: &Part| {
        matches!(part, Part::Thinking(Thinking { signature, .. })
            if signature.as_ref().is_none_or(String::is_empty))
    };
    request.dialect() == Some(Dialect::Anthropic)
        && request.messages.iter().flat_map(Message::parts).any(unsigned)
}

fn check_repair(request: &ChatRequest, to: Dialect) {
    let mut rules = TranscriptRules::for_dialect(to);
    rules.foreign_history = request.dialect() != Some(to);
    let mut request = request.clone();
    let valid = validate(&request, &rules).is_ok();
    let before = request.clone();
    let repairs = repair(&mut request, &rules);
    if valid {
        assert!(repairs.is_empty() && request.messages.same(&before.messages));
    }
    if !repairs.unrepaired.is_empty() {
        assert!(request.messages.is_empty(), "{repairs:#?}");
        return;
    }
    let Ok(written) = codec(to).encode_request(&request, &Wire::default()) else { return };
    let again = codec(to).decode_request(&written, route(to));
    let again = again.unwrap_or_else(|error| panic!("to {to}: {error}\n{written:?}"));
    rules.foreign_history = false;
    if let Err(refused) = validate(&again, &rules) {
        panic!("to {to}: {refused:#?}\n{written:?}\nof {:#?}", &*request.messages);
    }
}
