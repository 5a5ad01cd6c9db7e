//! Server-sent events, written.

use crate::json::Object;

/// Writes a frame with an object that `fill` fills as its data, under `event` if there is one.
pub(crate) fn frame(out: &mut Vec<u8>, event: Option<&str>, fill: impl FnOnce(&mut Object<'_>)) {
    if let Some(event) = event {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    let start = out.len();
    fill(&mut Object::new(out));
    one_line(&mut out[start..]);
    out.extend_from_slice(b"\n\n");
}

/// JSON that was taken over as text may have line ends between its tokens (inside strings JSON
/// allows none). They would end the data line: spaces mean the same.
pub(crate) fn one_line(json: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\r', b'\n', &json[at..]) {
        at += found;
        json[at] = b' ';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_line_of_data() {
        let mut out = Vec::new();
        frame(&mut out, Some("x"), |object| {
            object.raw("args", "{\r\n \"a\": \"\\n\"\n}");
        });
        assert_eq!(out, b"event: x\ndata: {\"args\":{   \"a\": \"\\n\" }}\n\n");
    }
}
