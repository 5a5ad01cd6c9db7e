//! Requests, answers and events in OpenAI's dialect.

use std::{fmt, sync::OnceLock, time::Duration};

use bytes::Bytes;

/// The first event of a stream.
pub(crate) const FIRST: &[u8] = b"data: {\"id\":\"chatcmpl-bench0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";

/// Different words of a stream: the safety guard would stop a repeated one.
const WORDS: usize = 1_024;

/// Event `number` of a stream: 204 bytes, another word in each.
pub(crate) fn event(number: u32) -> Bytes {
    static EVENTS: OnceLock<Vec<Bytes>> = OnceLock::new();
    let events = EVENTS.get_or_init(|| (0..WORDS).map(|at| worded(at).into()).collect());
    events[number as usize % WORDS].clone()
}

/// The word of an event.
pub(crate) fn word(at: usize) -> String {
    let letter = |by: usize| char::from(b'a' + (at / by % 26) as u8);
    [1, 26, 7, 3].map(letter).into_iter().collect()
}

fn worded(at: usize) -> String {
    let word = word(at);
    format!(
        "data: {{\"id\":\"chatcmpl-bench0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
         \"created\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{{\"index\":0,\
         \"delta\":{{\"content\":\" {word}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

/// The last events of a stream.
pub(crate) const TAIL: [&[u8]; 2] = [
    b"data: {\"id\":\"chatcmpl-bench0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    b"data: [DONE]\n\n",
];

/// The model that answers whole.
pub(crate) const WHOLE: &str = "bench-whole";

/// A stream as a model's name describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// How many events with content.
    pub(crate) events: u32,
    /// The time between bursts.
    pub(crate) gap: Duration,
    /// How many events come together.
    pub(crate) burst: u32,
}

impl Stream {
    /// Reads `bench-stream-N-GAP-BURST`.
    pub(crate) fn parse(model: &str) -> Option<Self> {
        let mut numbers =
            model.strip_prefix("bench-stream-")?.split('-').map(|n| n.parse::<u32>().ok());
        let (events, gap, burst) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let gap = Duration::from_millis(gap.into());
        Some(Self { events, gap, burst: burst.max(1) })
    }

    /// How many events the whole stream has.
    pub(crate) fn all(&self) -> u64 {
        u64::from(self.events) + 1 + TAIL.len() as u64
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bench-stream-{}-{}-{}", self.events, self.gap.as_millis(), self.burst)
    }
}

/// The model that a request's body asks for.
pub(crate) fn model(body: &[u8]) -> Option<&str> {
    let at = memchr::memmem::find(body, b"\"model\"")? + 7;
    let rest = body.get(at..)?;
    let open = memchr::memchr(b'"', rest)? + 1;
    let rest = rest.get(open..)?;
    std::str::from_utf8(rest.get(..memchr::memchr(b'"', rest)?)?).ok()
}

/// A request's body: about a kilobyte.
pub(crate) fn request(model: &str, stream: bool) -> String {
    let words = "Say what the weather will be like, and why you think so. ".repeat(12);
    let stream = if stream { ",\"stream\":true" } else { "" };
    format!(
        "{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"system\",\"content\":\"You are brief and \
         exact.\"}},{{\"role\":\"user\",\"content\":\"{words}\"}},{{\"role\":\"assistant\",\"content\":\
         \"Where?\"}},{{\"role\":\"user\",\"content\":\"In Trondheim.\"}}],\"temperature\":0.7,\
         \"max_tokens\":512{stream}}}"
    )
}

/// An answer's body: about a kilobyte.
pub(crate) fn answer() -> String {
    let words = "It will rain, since it has rained on most days of this month. ".repeat(9);
    format!(
        "{{\"id\":\"chatcmpl-bench0123456789abcdef\",\"object\":\"chat.completion\",\"created\":\
         1760000000,\"model\":\"gpt-4o-mini-2024-07-18\",\"choices\":[{{\"index\":0,\"message\":\
         {{\"role\":\"assistant\",\"content\":\"{words}\",\"refusal\":null,\"annotations\":[]}},\
         \"logprobs\":null,\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":190,\
         \"completion_tokens\":120,\"total_tokens\":310,\"prompt_tokens_details\":{{\"cached_tokens\":\
         0,\"audio_tokens\":0}},\"completion_tokens_details\":{{\"reasoning_tokens\":0}}}},\
         \"service_tier\":\"default\",\"system_fingerprint\":\"fp_0123456789\"}}"
    )
}
