//! Server-sent events as a JSON array: what Gemini's dialect streams unless asked for events.

use bytes::Bytes;

/// Turns frames of `data: {...}` into the items of a JSON array.
#[derive(Debug, Default)]
pub(super) struct ArrayEncoder {
    begun: bool,
}

impl ArrayEncoder {
    /// The items in `frames`.
    pub(super) fn frames(&mut self, frames: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(frames.len());
        for line in frames.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            out.extend_from_slice(if self.begun { b",\r\n" } else { b"[" });
            self.begun = true;
            out.extend_from_slice(data.trim_ascii_start());
        }
        out.into()
    }

    /// The item that tells of an error, and the end: an array that stays open is no JSON.
    pub(super) fn error(&mut self, frame: &[u8]) -> Bytes {
        let mut out = self.frames(frame).to_vec();
        out.extend_from_slice(&self.end());
        out.into()
    }

    /// The end of the array.
    pub(super) fn end(&mut self) -> Bytes {
        Bytes::from_static(if self.begun { b"]" } else { b"[]" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_become_an_array() {
        let mut array = ArrayEncoder::default();
        let mut all = Vec::new();
        for frames in ["data: {\"a\":1}\r\n\r\n", "\n", "data:{\"a\":2}\n\ndata: {\"a\":3}\n\n"] {
            all.extend_from_slice(&array.frames(frames.as_bytes()));
        }
        all.extend_from_slice(&array.end());
        let value: serde_json::Value = serde_json::from_slice(&all).unwrap();
        assert_eq!(value, serde_json::json!([{"a": 1}, {"a": 2}, {"a": 3}]));
    }

    #[test]
    fn an_error_is_the_last_item_and_the_array_is_json_all_the_same() {
        let mut array = ArrayEncoder::default();
        let mut all = array.frames(b"data: {\"a\":1}\n\n").to_vec();
        all.extend_from_slice(&array.error(b"data: {\"error\":{\"code\":503}}\n\n"));
        let value: serde_json::Value = serde_json::from_slice(&all).unwrap();
        assert_eq!(value[1]["error"]["code"], 503);
        assert_eq!(&*ArrayEncoder::default().end(), b"[]");
    }
}
