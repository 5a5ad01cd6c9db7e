//! A strict reader of HTTP/1 requests, to compare the server with: RFC 9112, and nothing beyond it.

use http::{Method, Uri};

/// What a connection's bytes come to.
#[derive(Debug)]
pub(super) struct Connection {
    /// Those whose head has come whole, in order.
    pub(super) requests: Vec<Expected>,
    /// Why there are no more.
    pub(super) end: End,
}

/// A request.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// As far as it has come.
    pub(super) body: Vec<u8>,
    /// The body has ended.
    pub(super) whole: bool,
    /// No server has a reason to refuse it.
    pub(super) plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The bytes are over, perhaps within a request.
    Input,
    /// What follows is no request.
    Refused,
    /// The last request has asked for no other to follow it.
    Closed,
    /// The last request's trailers have an empty line of which one end is an LF alone. hyper ignores what is between
    /// that and the next one by CRLF; what comes then is not compared.
    Disputed,
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
}

struct Head {
    method: Method,
    uri: Uri,
    framing: Framing,
    /// It is the last of its connection.
    closes: bool,
    plain: bool,
}

/// Reads all of `bytes`.
pub(super) fn read(mut bytes: &[u8]) -> Connection {
    let mut requests = Vec::new();
    let end = loop {
        while let Some(rest) = bytes.strip_prefix(b"\r\n").or(bytes.strip_prefix(b"\n")) {
            bytes = rest;
        }
        let Some(length) = head_length(bytes) else { break End::Input };
        let (head, rest) = bytes.split_at(length);
        let Some(head) = read_head(head) else { break End::Refused };
        let (body, after) = match head.framing {
            Framing::Length(length) => read_length(rest, length),
            Framing::Chunked => read_chunks(rest),
        };
        let whole = matches!(after, After::Next(_));
        let Head { method, uri, closes, plain, .. } = head;
        requests.push(Expected { method, uri, body, whole, plain });
        bytes = match after {
            After::Next(_) if closes => break End::Closed,
            After::Next(next) => next,
            After::Input => break End::Input,
            After::Refused => break End::Refused,
            After::Disputed => break End::Disputed,
        };
    };
    Connection { requests, end }
}

/// What comes after a body.
enum After<'a> {
    Next(&'a [u8]),
    Input,
    Refused,
    Disputed,
}

/// With the empty line at its end, if that has come.
fn head_length(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    loop {
        let line = bytes[start..].iter().position(|byte| *byte == b'\n')?;
        let is_empty = matches!(&bytes[start..start + line], b"" | b"\r");
        start += line + 1;
        if is_empty {
            return Some(start);
        }
    }
}

fn read_head(head: &[u8]) -> Option<Head> {
    let mut lines = lines(head);
    let (method, uri, is_11, mut plain) = request_line(lines.next()?)?;
    let (mut lengths, mut encodings) = (Vec::new(), Vec::new());
    let (mut hosts, mut fields) = (0, 0);
    let (mut asks_to_close, mut is_kept_alive) = (false, false);
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = field(line)?;
        fields += 1;
        match name.to_ascii_lowercase().as_slice() {
            b"content-length" => lengths.push(value),
            b"transfer-encoding" => encodings.push(value.to_ascii_lowercase()),
            b"connection" => {
                let tokens = || value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                asks_to_close |= tokens().any(|token| token.eq_ignore_ascii_case(b"close"));
                is_kept_alive |= tokens().any(|token| token.eq_ignore_ascii_case(b"keep-alive"));
                plain = false;
            }
            b"host" => {
                hosts += 1;
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b".-:".contains(byte);
                plain &= hosts == 1 && value.iter().all(is_name);
            }
            b"expect" | b"upgrade" | b"te" | b"trailer" => plain = false,
            _ => {}
        }
    }
    let framing = match encodings.as_slice() {
        [] => Framing::Length(length(&lengths)?),
        [encoding] if is_11 && encoding == b"chunked" => Framing::Chunked,
        _ => return None,
    };
    // Two lengths: somebody before this reader may have gone by the other one.
    let is_ambiguous = framing == Framing::Chunked && !lengths.is_empty();
    let closes = asks_to_close || is_ambiguous || !(is_11 || is_kept_alive);
    Some(Head { method, uri, framing, closes, plain: plain && !is_ambiguous && fields <= 50 })
}

/// Without their ends.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// Method and target, whether it is HTTP/1.1, and whether it is plain.
fn request_line(line: &[u8]) -> Option<(Method, Uri, bool, bool)> {
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    let is_target = |byte: &u8| byte.is_ascii_graphic() || !byte.is_ascii();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._~-?=&".contains(byte);
    if words.next().is_some() || !is_token(method) || !target.iter().all(is_target) {
        return None;
    }
    let plain = target.starts_with(b"/") && target.iter().all(is_plain);
    let plain = plain && matches!(method, b"GET" | b"POST" | b"PUT" | b"DELETE" | b"OPTIONS");
    let (method, uri) = (Method::from_bytes(method).ok()?, Uri::try_from(target).ok()?);
    Some((method, uri, is_11, plain))
}

/// Name and value of a header or trailer.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_value = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    if !is_token(name) || !value.iter().all(is_value) {
        return None;
    }
    let Some(start) = value.iter().position(|byte| !is_blank(byte)) else {
        return Some((name, b""));
    };
    let end = value.iter().rposition(|byte| !is_blank(byte)).unwrap_or(start);
    Some((name, &value[start..=end]))
}

fn is_token(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_part)
}

/// The one length that all of `values` are, in digits alone.
fn length(values: &[&[u8]]) -> Option<u64> {
    let Some((first, others)) = values.split_first() else { return Some(0) };
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u64>().ok();
    let is_number = |value: &&[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let length = number(first)?;
    let agree = others.iter().all(|other| number(other) == Some(length));
    (agree && values.iter().all(is_number)).then_some(length)
}

fn read_length(bytes: &[u8], length: u64) -> (Vec<u8>, After<'_>) {
    match usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length)) {
        Some((body, next)) => (body.to_vec(), After::Next(next)),
        None => (bytes.to_vec(), After::Input),
    }
}

fn read_chunks(mut bytes: &[u8]) -> (Vec<u8>, After<'_>) {
    let mut body = Vec::new();
    loop {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return (body, After::Input);
        };
        let Some(size) = bytes[..end].strip_suffix(b"\r").and_then(chunk_size) else {
            return (body, After::Refused);
        };
        bytes = &bytes[end + 1..];
        if size == 0 {
            return (body, read_trailers(bytes));
        }
        let (chunk, after) = read_length(bytes, size);
        body.extend_from_slice(&chunk);
        let After::Next(next) = after else { return (body, After::Input) };
        bytes = match next {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return (body, After::Input),
            _ => return (body, After::Refused),
        };
    }
}

/// Hexadecimal digits, blanks, and extensions that say nothing here.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let size = line.split(|byte| *byte == b';').next()?;
    let digits = size.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    if digits == 0 || !size[digits..].iter().all(is_blank) || line.contains(&b'\r') {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(&size[..digits]).ok()?, 16).ok()
}

fn read_trailers(bytes: &[u8]) -> After<'_> {
    let (mut rest, mut is_refused) = (bytes, false);
    loop {
        let Some(end) = rest.windows(2).position(|end| end == b"\r\n") else { return After::Input };
        let (line, next) = (&rest[..end], &rest[end + 2..]);
        rest = next;
        let is_ended = line.starts_with(b"\n") || line.ends_with(b"\n");
        if is_ended || line.windows(2).any(|two| two == b"\n\n") {
            return After::Disputed;
        }
        if line.is_empty() {
            return if is_refused { After::Refused } else { After::Next(rest) };
        }
        // A server may read to the end first.
        is_refused |= field(line).is_none();
    }
}
