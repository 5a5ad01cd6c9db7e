//! What passes over a WebSocket (RFC 6455), as far as answers are counted by it.
//!
//! It is read on the agent's side, as requests are: the gateway's own count would not show what the agent met.

use super::tap::Exchange;

/// The message that asks for an answer; it is an exchange's method.
pub(super) const CREATE: &str = "response.create";

/// The messages of a socket that was opened at `path`, from what passed each way behind the handshake. Each is
/// answered once: by the first event of an answer, which is a 200 here, or by an error with a status.
pub(super) fn exchanges(
    path: &str,
    asked: &[u8],
    answered: &[u8],
) -> Result<Vec<Exchange>, String> {
    let events = messages(answered)?;
    let mut statuses = events.iter().filter_map(|event| status(event));
    let asked = messages(asked)?;
    let asked = asked.iter().map(|message| match message {
        _ if !has(message, r#""type":"response.create""#) => "a message",
        _ if has(message, r#""generate":false"#) => "response.create (generate: false)",
        _ => CREATE,
    });
    let exchange = |method: &str| Exchange {
        method: method.to_owned(),
        path: path.to_owned(),
        status: statuses.next(),
    };
    Ok(asked.map(exchange).collect())
}

/// How an event answers a message; `None` if it goes on with an answer.
fn status(event: &str) -> Option<u16> {
    if has(event, r#""type":"response.created""#) {
        return Some(200);
    }
    // The status of a response is a word.
    let (_, status) =
        event.split_once(r#""status":"#).filter(|_| has(event, r#""type":"error""#))?;
    status.get(..3)?.parse().ok()
}

/// Whether the JSON of `message` has `member`. In a text it would have backslashes before its quotes.
fn has(message: &str, member: &str) -> bool {
    message.contains(member)
}

/// The messages of one direction, to the last that is whole.
fn messages(mut bytes: &[u8]) -> Result<Vec<String>, String> {
    let (mut messages, mut message) = (Vec::new(), Vec::new());
    while let Some((first, payload, rest)) = frame(bytes) {
        bytes = rest;
        if first & 0x70 != 0 {
            return Err("a WebSocket has an extension, which can not be read here".to_owned());
        }
        // Pings and the like may come between the frames of a message.
        if first & 0x0f >= 8 {
            continue;
        }
        message.extend(payload);
        if first & 0x80 != 0 {
            messages.push(String::from_utf8_lossy(&message).into_owned());
            message.clear();
        }
    }
    Ok(messages)
}

/// The first byte of a frame, its payload without the mask, and what is behind it; `None` if it is not whole.
fn frame(bytes: &[u8]) -> Option<(u8, Vec<u8>, &[u8])> {
    let (&[first, second], rest) = bytes.split_first_chunk()?;
    let short = usize::from(second & 0x7f);
    let (long, rest) = rest.split_at_checked(match short {
        126 => 2,
        127 => 8,
        _ => 0,
    })?;
    let length = match short {
        126.. => long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
        _ => short,
    };
    let (mask, rest) = rest.split_at_checked(if second & 0x80 == 0 { 0 } else { 4 })?;
    let (payload, rest) = rest.split_at_checked(length)?;
    let mask = |n: usize| mask.get(n % 4).copied().unwrap_or(0);
    let payload = payload.iter().enumerate().map(|(n, byte)| byte ^ mask(n)).collect();
    Some((first, payload, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    fn framed(first: u8, masked: bool, text: &str) -> Vec<u8> {
        let mut frame = vec![first];
        let mask = if masked { 0x80 } else { 0 };
        match u16::try_from(text.len()).unwrap() {
            short @ ..=125 => frame.push(u8::try_from(short).unwrap() | mask),
            long => {
                frame.push(126 | mask);
                frame.extend(long.to_be_bytes());
            }
        }
        let mask = if masked { MASK } else { [0; 4] };
        frame.extend(masked.then_some(mask).into_iter().flatten());
        frame.extend(text.bytes().zip(mask.into_iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[test]
    fn the_examples_of_the_specification_are_read() {
        for bytes in [
            &[0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f][..],
            &[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58],
            // In two frames, with a ping between them, and a third that is not whole.
            &[1, 3, 0x48, 0x65, 0x6c, 0x89, 0, 0x80, 2, 0x6c, 0x6f, 0x81, 5, 0x48],
        ] {
            assert_eq!(messages(bytes).unwrap(), ["Hello"]);
        }
        assert!(messages(&[0xc1, 0]).is_err(), "a compressed one");
    }

    #[test]
    fn what_is_asked_over_a_socket_is_counted_with_how_it_was_answered() {
        let text = "x".repeat(300);
        let create = |more: &str| format!(r#"{{"type":"response.create","input":"{text}"{more}}}"#);
        let in_a_text = r#","instructions":"no \"generate\":false""#;
        let asked = [
            framed(0x81, true, &create(r#","generate":false"#)),
            framed(0x81, true, &create(in_a_text)),
            framed(0x81, true, &create("")),
            framed(0x89, true, "ping"),
            framed(0x81, true, r#"{"type":"response.cancel"}"#),
            framed(0x81, true, &create("")),
        ];
        let created = r#"{"type":"response.created","response":{"status":"in_progress"},"sequence_number":0}"#;
        let delta = format!(r#"{{"type":"response.output_text.delta","delta":"{text}"}}"#);
        let answered = [
            framed(0x81, false, created),
            framed(0x81, false, created),
            framed(0x81, false, &delta),
            framed(0x81, false, r#"{"type":"error","code":"server_error","sequence_number":3}"#),
            framed(0x81, false, r#"{"error":{"code":"x"},"status":429,"type":"error"}"#),
            framed(0x81, false, r#"{"type":"error","status":400,"error":{}}"#),
        ];
        let read = exchanges("/v1/responses", &asked.concat(), &answered.concat()).unwrap();
        let read: Vec<_> = read.iter().map(|one| (one.generates(), one.status)).collect();
        let wanted = [
            (false, Some(200)),
            (true, Some(200)),
            (true, Some(429)),
            (false, Some(400)),
            (true, None),
        ];
        assert_eq!(read, wanted);
    }
}
