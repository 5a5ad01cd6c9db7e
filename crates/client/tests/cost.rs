//! Allocations of encoding a request.

use allocation_counter::measure;
use bytes::Bytes;
use steadfast_client::dialect::{Route, Wire, codec};
use steadfast_core::Dialect;

/// A stream whose caller did not request usage, which the client needs: one field is new, and the
/// conversation beside it is copied once, into the new body.
#[test]
fn a_conversation_beside_a_changed_field_is_copied_once() {
    let words = "a word ".repeat(100_000);
    let body = Bytes::from(format!(
        r#"{{"model":"gpt-4o","stream":true,"messages":[{{"role":"user","content":"{words}"}}]}}"#
    ));
    let openai = codec(Dialect::OpenAi);
    let request = openai.decode_request(&body, Route::default()).unwrap();
    let mut written = None;
    let counted =
        measure(|| written = Some(openai.encode_request(&request, &Wire::default()).unwrap()));
    let written = written.unwrap();
    assert!(written.ends_with(br#","stream_options":{"include_usage":true}}"#));
    let once = u64::try_from(body.len()).unwrap() + 4_096;
    assert!(counted.bytes_max < once, "{counted:?} for {} bytes", body.len());
}
