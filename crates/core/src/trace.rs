//! Trace contexts: which trace a call belongs to, as the W3C's recommendation "Trace Context" has it.
//!
//! Nothing here depends on OpenTelemetry: the ids have to be there while a call is under way, so that a provider can be
//! sent them, and what exports spans is a layer around the call.

use std::{fmt, num::NonZeroU64, num::NonZeroU128, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that has the ids.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The header that has what tracing systems add.
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The longest `tracestate` that is passed on: 512 bytes, what the recommendation asks everybody to pass on at least.
const MAX_STATE: usize = 512;

/// The most members of a `tracestate`, by the recommendation.
const MAX_MEMBERS: usize = 32;

/// The flag of a trace that its root has decided to record.
const SAMPLED: u8 = 1;

/// The id of a trace; its [`Display`](fmt::Display) has 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(NonZeroU128);

/// The id of a span; its [`Display`](fmt::Display) has 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(NonZeroU64);

impl TraceId {
    /// A new one.
    pub fn random() -> Self {
        Self(NonZeroU128::new(fastrand::u128(1..)).unwrap_or(NonZeroU128::MIN))
    }

    /// The id with this value; `None` for 0, which is none.
    pub fn new(value: u128) -> Option<Self> {
        NonZeroU128::new(value).map(Self)
    }

    /// Its value.
    pub const fn get(self) -> u128 {
        self.0.get()
    }
}

impl SpanId {
    /// A new one.
    pub fn random() -> Self {
        Self(NonZeroU64::new(fastrand::u64(1..)).unwrap_or(NonZeroU64::MIN))
    }

    /// The id with this value; `None` for 0, which is none.
    pub fn new(value: u64) -> Option<Self> {
        NonZeroU64::new(value).map(Self)
    }

    /// Its value.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A span, as others learn of it: the trace that it belongs to, and its id.
///
/// A call has that of its own span in its [context](crate::CallContext::trace) while somebody traces it, and each attempt
/// that of the attempt.
///
/// ```
/// use steadfast_core::TraceContext;
///
/// let caller = TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None).unwrap();
/// assert!(caller.is_sampled());
/// let attempt = caller.child();
/// assert_eq!(attempt.trace_id(), caller.trace_id());
/// assert_ne!(attempt.span_id(), caller.span_id());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: TraceId,
    span: SpanId,
    sampled: bool,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// The span `span` of `trace`, and whether the trace is recorded.
    pub const fn new(trace: TraceId, span: SpanId, sampled: bool) -> Self {
        Self { trace, span, sampled, state: None }
    }

    /// With this `tracestate`; without one where it is not valid, or too long.
    #[must_use]
    pub fn with_state(mut self, state: &str) -> Self {
        self.state = is_state(state).then(|| state.into());
        self
    }

    /// What the two headers say. `None` where `traceparent` is not valid: a new trace begins then. A `tracestate` that is
    /// not valid is as good as none.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let bytes = traceparent.as_bytes();
        let (known, rest) = bytes.split_at_checked(55)?;
        let [a, b, b'-', ids @ .., b'-', high, low] = known else { return None };
        let version = hex(&[*a, *b])?;
        // Those of later versions may have more behind another dash.
        let is_whole =
            if version == 0 { rest.is_empty() } else { rest.first().is_none_or(is_dash) };
        if version == 0xff || !is_whole {
            return None;
        }
        let (trace, rest) = ids.split_at_checked(32)?;
        let (dash, span) = rest.split_first()?;
        if !is_dash(dash) {
            return None;
        }
        let flags = hex(&[*high, *low])?;
        let trace = TraceId::new(hex(trace)?)?;
        let span = SpanId::new(u64::try_from(hex(span)?).ok()?)?;
        let context = Self::new(trace, span, flags & u128::from(SAMPLED) != 0);
        Some(match tracestate {
            Some(state) => context.with_state(state),
            None => context,
        })
    }

    /// What the headers of a request say; `None` where they have no valid `traceparent`, or several.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let parent = parents.next()?.to_str().ok()?;
        if parents.next().is_some() {
            return None;
        }
        let mut states = headers.get_all(TRACESTATE).iter().map(HeaderValue::to_str);
        let state = match (states.next(), states.next()) {
            (None, _) => None,
            (Some(state), None) => state.ok().map(str::to_owned),
            // Several are one list.
            _ => {
                let all: Option<Vec<_>> =
                    headers.get_all(TRACESTATE).iter().map(|state| state.to_str().ok()).collect();
                all.map(|all| all.join(","))
            }
        };
        Self::parse(parent, state.as_deref())
    }

    /// Puts it into `headers`, in the position of any that are there.
    pub fn write_to(&self, headers: &mut HeaderMap) {
        headers.remove(TRACESTATE);
        if let Ok(value) = HeaderValue::try_from(self.to_string()) {
            headers.insert(TRACEPARENT, value);
        }
        if let Some(Ok(value)) = self.state().map(HeaderValue::from_str) {
            headers.insert(TRACESTATE, value);
        }
    }

    /// A new span beneath this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span: SpanId::random(), ..self.clone() }
    }

    /// The trace.
    pub const fn trace_id(&self) -> TraceId {
        self.trace
    }

    /// The span.
    pub const fn span_id(&self) -> SpanId {
        self.span
    }

    /// Whether the trace is recorded.
    pub const fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// What tracing systems have added.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

impl fmt::Display for TraceContext {
    /// As the header `traceparent` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.sampled { SAMPLED } else { 0 };
        write!(f, "00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

const fn is_dash(byte: &u8) -> bool {
    *byte == b'-'
}

/// The value of hexadecimal digits, of which the recommendation allows the small ones alone.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

/// Whether `text` is a list of members `key=value` that may be passed on.
fn is_state(text: &str) -> bool {
    let is_member = |member: &str| {
        let Some((key, value)) = member.split_once('=') else { return false };
        let in_key =
            |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
        let in_value = |byte| matches!(byte, b' '..=b'~') && byte != b'=';
        !key.is_empty() && key.bytes().all(in_key) && value.bytes().all(in_value)
    };
    let members = || text.split(',').map(str::trim).filter(|member| !member.is_empty());
    !text.is_empty()
        && text.len() <= MAX_STATE
        && members().count() <= MAX_MEMBERS
        && members().count() > 0
        && members().all(is_member)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_valid_is_read_and_written_as_it_was() {
        let read = |text: &str| TraceContext::parse(text, None);
        assert_eq!(read(VALID).unwrap().to_string(), VALID);
        assert!(!read(&VALID.replace("-01", "-00")).unwrap().is_sampled());
        assert!(
            read(&VALID.replace("-01", "-fd")).unwrap().is_sampled(),
            "other flags are no matter"
        );
        // A later version may have more.
        assert!(read(&VALID.replacen("00", "cc", 1)).is_some());
        assert!(read(&format!("{}-what-else", VALID.replacen("00", "cc", 1))).is_some());
        for wrong in [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}-"),
            &format!("{VALID}0"),
            &format!("{}.x", VALID.replacen("00", "cc", 1)),
            &VALID.replacen("00", "ff", 1),
            &VALID.replacen("00", "0g", 1),
            &VALID.replace("4bf9", "4BF9"),
            &VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &VALID.replace("736-00f", "736_00f"),
            &VALID.replace("-01", "-0 "),
            &VALID.replace("4bf9", "4bé"),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn headers_are_read_strictly_and_the_state_is_bounded() {
        let headers = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_str(value).unwrap());
            }
            headers
        };
        let read = |pairs: &[(&'static str, &str)]| TraceContext::from_headers(&headers(pairs));
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("traceparent", VALID), ("traceparent", VALID)]), None);
        let both = [("traceparent", VALID), ("tracestate", "a=1,b=2"), ("tracestate", "c@x=3")];
        let context = read(&both).unwrap();
        assert_eq!(context.state(), Some("a=1,b=2,c@x=3"));
        let many = (0..33).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        for state in
            ["", ",", "novalue", "A=1", "a=1;b\u{e9}", &many, &format!("a={}", "x".repeat(600))]
        {
            let context = read(&[("traceparent", VALID), ("tracestate", state)]).unwrap();
            assert_eq!(context.state(), None, "{state}");
        }
        let mut written = headers(&[("traceparent", "x"), ("tracestate", "old=1")]);
        context.write_to(&mut written);
        assert_eq!(TraceContext::from_headers(&written), Some(context.clone()));
        TraceContext { state: None, ..context.child() }.write_to(&mut written);
        assert_eq!(written.len(), 1);
    }
}
