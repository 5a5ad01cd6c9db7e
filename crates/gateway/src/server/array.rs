//! Server-sent events as a JSON array: what Gemini's dialect streams unless asked for events.

use bytes::Bytes;
use steadfast_client::sse::{Rest, SseParser};

/// Turns the data of frames into the items of a JSON array.
#[derive(Debug)]
pub(super) struct ArrayEncoder {
    has_items: bool,
    /// The provider's own frames come here as they were sent: with any line ends, and data on
    /// several lines.
    frames: SseParser,
}

impl Default for ArrayEncoder {
    fn default() -> Self {
        // The frames have been read before, so that they are of bounded size.
        Self { has_items: false, frames: SseParser::with_limit(usize::MAX) }
    }
}

impl ArrayEncoder {
    /// The items in `frames`, which are whole.
    pub(super) fn frames(&mut self, frames: &Bytes) -> Bytes {
        let mut out = Vec::with_capacity(frames.len());
        self.frames.push(frames.clone());
        while let Ok(Some(frame)) = self.frames.next_frame() {
            self.item(frame.data.as_deref(), &mut out);
        }
        // The last one may end with a carriage return, for which the parser would wait.
        if let Rest::Frame(frame) = self.frames.finish() {
            self.item(frame.data.as_deref(), &mut out);
        }
        out.into()
    }

    fn item(&mut self, data: Option<&[u8]>, out: &mut Vec<u8>) {
        if let Some(data) = data {
            out.extend_from_slice(if self.has_items { b",\r\n" } else { b"[" });
            self.has_items = true;
            out.extend_from_slice(data.trim_ascii_start());
        }
    }

    /// The item of an error, and the end: an array without its end is no JSON.
    pub(super) fn error(&mut self, frame: &Bytes) -> Bytes {
        let mut out = self.frames(frame).to_vec();
        out.extend_from_slice(&self.end());
        out.into()
    }

    /// The end of the array.
    pub(super) fn end(&mut self) -> Bytes {
        Bytes::from_static(if self.has_items { b"]" } else { b"[]" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The array that `frames` make, and whether it ends with an error.
    fn array(frames: &[&'static str], error: Option<&'static str>) -> serde_json::Value {
        let mut array = ArrayEncoder::default();
        let mut all = Vec::new();
        for frame in frames {
            all.extend_from_slice(&array.frames(&Bytes::from_static(frame.as_bytes())));
        }
        match error {
            Some(frame) => all.extend_from_slice(&array.error(&frame.into())),
            None => all.extend_from_slice(&array.end()),
        }
        serde_json::from_slice(&all).unwrap()
    }

    #[test]
    fn frames_become_an_array() {
        let frames = ["data: {\"a\":1}\r\n\r\n", "\n", "data:{\"a\":2}\n\ndata: {\"a\":3}\n\n"];
        assert_eq!(array(&frames, None), serde_json::json!([{"a": 1}, {"a": 2}, {"a": 3}]));
        assert_eq!(array(&[], None), serde_json::json!([]));
    }

    #[test]
    fn every_line_end_and_data_on_several_lines_are_read() {
        let frames = [
            "\u{feff}data: {\"a\":\rdata: 1}\r\r",
            ": note\rdata: {\ndata:\ndata: \"a\":2}\n\n",
            "\r",
            "data: {\"a\":3}\r\n\r",
            "data: {\"a\":4}\n\n",
        ];
        let wanted = serde_json::json!([{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]);
        assert_eq!(array(&frames, None), wanted);
    }

    #[test]
    fn an_error_is_the_last_item_and_the_array_is_json_all_the_same() {
        let error = Some("data: {\"error\":{\"code\":503}}\n\n");
        assert_eq!(array(&["data: {\"a\":1}\n\n"], error)[1]["error"]["code"], 503);
        assert_eq!(array(&[], error)[0]["error"]["code"], 503);
    }
}
