//! Secrets, by value, so that none leaves the process: what an error, a status, a metric or a line of the log
//! would show of one is masked, whatever it begins with and however it is written.

mod fetched;
mod forms;
mod mask;
mod recent;
mod sample;

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, OnceLock, Weak},
};

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use parking_lot::Mutex;
use steadfast_core::MASK;

pub(crate) use self::fetched::Fetched;
pub(crate) use self::mask::{Mask, credential, likely_secret};
use self::sample::Sample;

/// The shortest secret of a configuration, in bytes: a shorter one is found in words.
pub(crate) const SHORTEST: usize = 8;

/// Finds secrets in a text.
#[derive(Clone)]
pub(crate) struct Secrets {
    /// What is searched for.
    forms: Vec<Vec<u8>>,
    /// Of these: hardly a text has a secret in it, and a search takes twenty times as long.
    sample: Sample,
    /// Made for the first text that may have one; `None` when there are more of them than can be searched for at
    /// once.
    finder: OnceLock<Option<AhoCorasick>>,
}

impl Secrets {
    /// Finds each of `secrets`, in every form in which it may be written.
    pub(crate) fn of<S: AsRef<[u8]>>(secrets: impl IntoIterator<Item = S>) -> Self {
        let forms = secrets.into_iter().flat_map(|secret| forms::of(secret.as_ref()));
        let forms: Vec<_> = forms.collect();
        Self { sample: Sample::of(&forms), forms, finder: OnceLock::new() }
    }

    /// `text` with a mask in the place of each secret, and as it is when it has none.
    pub(crate) fn mask<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        #[cfg(test)]
        tests::SEARCHES.set(tests::SEARCHES.get() + 1);
        match self.sample.find(text) {
            Some(_) => self.search(text),
            None => Cow::Borrowed(text),
        }
    }

    /// The same for lines, none of which holds a line end: only those are searched in which there may be a secret.
    fn mask_lines<'t>(&self, lines: &'t [u8]) -> Cow<'t, [u8]> {
        let is_end = |byte: &u8| *byte == b'\n';
        let (mut out, mut kept, mut from) = (Vec::new(), 0, 0);
        while let Some(at) = self.sample.find(&lines[from..]) {
            let at = from + at;
            let start = lines[from..at].iter().rposition(is_end).map_or(from, |end| from + end + 1);
            let end = lines[at..].iter().position(is_end).map_or(lines.len(), |end| at + end + 1);
            if let Cow::Owned(masked) = self.search(&lines[start..end]) {
                out.extend_from_slice(&lines[kept..start]);
                out.extend_from_slice(&masked);
                kept = end;
            }
            from = end;
        }
        if kept == 0 {
            return Cow::Borrowed(lines);
        }
        out.extend_from_slice(&lines[kept..]);
        Cow::Owned(out)
    }

    fn search<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        let finder = self.finder.get_or_init(|| finder(&self.forms));
        let Some(finder) = finder else { return Cow::Owned(MASK.into()) };
        // Each match, not the leftmost ones alone: of two secrets that overlap neither shows its end.
        let mut found: Vec<(usize, usize)> = Vec::new();
        for secret in finder.find_overlapping_iter(text) {
            let (mut start, end) = (secret.start(), secret.end());
            // Matches come in the order of their ends.
            while let Some((before, _)) = found.pop_if(|(_, before)| *before >= start) {
                start = start.min(before);
            }
            found.push((start, end));
        }
        if found.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = Vec::with_capacity(text.len());
        let mut rest = 0;
        for (start, end) in found {
            out.extend_from_slice(&text[rest..start]);
            out.extend_from_slice(MASK.as_bytes());
            rest = end;
        }
        out.extend_from_slice(&text[rest..]);
        Cow::Owned(out)
    }
}

/// Few texts are searched, so that what is built fastest is best.
fn finder(forms: &[Vec<u8>]) -> Option<AhoCorasick> {
    let kind = Some(AhoCorasickKind::NoncontiguousNFA);
    AhoCorasick::builder().kind(kind).prefilter(false).build(forms).ok()
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

/// Those of all configurations by which there may still be calls.
static CONFIGURED: Mutex<Vec<Weak<Secrets>>> = Mutex::new(Vec::new());

/// From now on `secrets` are masked in the log too, as long as somebody has them.
pub(crate) fn keep_configured(secrets: &Arc<Secrets>) {
    let mut configured = CONFIGURED.lock();
    configured.retain(|secrets| secrets.strong_count() > 0);
    configured.push(Arc::downgrade(secrets));
}

/// Lines of the log, which belong to no request, without any secret.
pub(crate) fn mask_lines(lines: &[u8]) -> Cow<'_, [u8]> {
    let configured: Vec<_> = CONFIGURED.lock().iter().filter_map(Weak::upgrade).collect();
    let mut lines = Cow::Borrowed(lines);
    let mut mask = |secrets: &Secrets| {
        if let Cow::Owned(masked) = secrets.mask_lines(&lines) {
            lines = Cow::Owned(masked);
        }
    };
    configured.iter().for_each(|secrets| mask(secrets));
    fetched::fetched().iter().for_each(|secrets| mask(secrets));
    recent::RECENT.each(mask);
    lines
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use axum::body::Body;
    use http::Request;
    use http_body_util::BodyExt;
    use steadfast::client::{Credential, LlmClient, Provider, Providers};
    use steadfast_core::Dialect;
    use steadfast_sim::{ErrorKind, Fault, FaultPlan, RawResponse, SimProvider};
    use tower::ServiceExt;

    use super::*;
    use crate::{config::Source, server::App, stack::Gateway};

    thread_local! {
        /// How often a text was searched for secrets.
        pub(super) static SEARCHES: Cell<usize> = const { Cell::new(0) };
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_succeeds_is_not_searched() {
        let sim = SimProvider::builder(Dialect::OpenAi).build();
        let source = Source::text(
            "[server]\nauth = 'none'\n[retry]\nretries = 0\n[failover]\nattempts = 1\n\
             [[providers]]\nname = 'p'\ndialect = 'openai'\n",
        );
        let config = source.parse().unwrap();
        let own = Provider::new("p", Dialect::OpenAi)
            .with_base_url("http://p/v1")
            .with_credential(Credential::new("main", "a-provider-secret"));
        let client = LlmClient::with_service(Providers::new([own]).unwrap(), sim.clone());
        let gateway = Gateway::with_client(&config, &source, client).unwrap();
        let router = App::new(&config, &source, gateway).unwrap().router();
        let searches = async |path: &str, stream: bool| {
            let body = format!(
                r#"{{"model":"gpt-4o","stream":{stream},"max_tokens":9,"messages":[{{"role":"user","content":"hi"}}]}}"#
            );
            let request = Request::post(path).header("host", "localhost");
            let request = request.header("authorization", "Bearer a-callers-own-key");
            SEARCHES.set(0);
            let answer =
                router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
            let status = answer.status();
            let headers = answer.headers().iter();
            let from_provider =
                headers.filter(|(name, _)| steadfast_client::headers::goes_down(name));
            // For the secrets of the configuration, and for the caller's.
            let from_provider = from_provider.count();
            answer.into_body().collect().await.unwrap();
            (status.as_u16(), SEARCHES.get().saturating_sub(2 * from_provider))
        };
        for (path, stream) in [
            ("/v1/chat/completions", false),
            ("/v1/chat/completions", true),
            ("/v1/messages", false),
            ("/v1/messages", true),
        ] {
            assert_eq!(searches(path, stream).await, (200, 0), "{path}, {stream}");
        }
        sim.set_faults(FaultPlan::always(Fault::Error(ErrorKind::Auth)));
        let (status, times) = searches("/v1/chat/completions", false).await;
        assert!(status != 200 && times > 0, "{status}, {times}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_not_cut_in_a_tenants_key() {
        let key = "the-key-of-acme-0123456789-abcdefghij";
        let name = format!("steadfast-key-{}-{}", std::process::id(), fastrand::u64(..));
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, key).unwrap();
        let source = Source::text(format!(
            "[retry]\nretries = 0\n[failover]\nattempts = 1\n[[tenants]]\nname = 'acme'\nkeys = ['file:{}']\n\
             [[providers]]\nname = 'p'\ndialect = 'openai'\n",
            file.display()
        ));
        let config = source.parse().unwrap();
        // It was in a prompt, and stands where the message is cut.
        let filled = "x ".repeat(steadfast_core::MAX_MESSAGE / 2 - 10);
        let body = serde_json::json!({"error": {"message": format!("{filled}{key}")}}).to_string();
        let fault = RawResponse { status: 500, headers: [].into(), body };
        let sim = SimProvider::builder(Dialect::OpenAi);
        let sim = sim.with_faults(FaultPlan::always(Fault::Status(fault))).build();
        let own = Provider::new("p", Dialect::OpenAi)
            .with_base_url("http://p/v1")
            .with_credential(Credential::new("main", "a-provider-secret"));
        let client = LlmClient::with_service(Providers::new([own]).unwrap(), sim);
        let gateway = Gateway::with_client(&config, &source, client).unwrap();
        let router = App::new(&config, &source, gateway).unwrap().router();
        std::fs::remove_file(&file).unwrap();
        let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
        let request = Request::post("/v1/chat/completions").header("x-api-key", key);
        let answer = router.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 502);
        let shown = answer.into_body().collect().await.unwrap().to_bytes();
        let shown = String::from_utf8_lossy(&shown);
        assert!(shown.contains("x x [redacted"), "{shown}");
        assert!(!shown.contains(&key[..8]), "{shown}");
    }

    fn masked(secrets: &[&str], text: &str) -> String {
        String::from_utf8(Secrets::of(secrets).mask(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn what_is_no_secret_is_left_as_it_is() {
        let secrets = Secrets::of(["correct horse"]);
        let text = b"the correct hors, \xff and nothing else";
        assert!(
            matches!(secrets.mask(text), Cow::Borrowed(same) if same.as_ptr() == text.as_ptr())
        );
        assert!(matches!(Secrets::of([""; 0]).mask(text), Cow::Borrowed(_)));
        assert_eq!(format!("{secrets:?}"), "Secrets { .. }");
        let too_many = Secrets { finder: OnceLock::from(None), ..secrets };
        assert!(matches!(too_many.mask(text), Cow::Owned(all) if all == MASK.as_bytes()));
    }

    #[test]
    fn secrets_are_masked_whole_wherever_they_stand() {
        for (secrets, text, expected) in [
            (
                &["correct horse"][..],
                "a correct horse, twice: correct horse",
                "a [redacted], twice: [redacted]",
            ),
            (&["correct horse"], "correct horse", "[redacted]"),
            // One begins as the other ends, is in the other, goes on where it ends, or is its own end.
            (&["12345678", "567890ab"], "<1234567890ab>", "<[redacted]>"),
            (&["12345678", "34567890123"], "<1234567890123>", "<[redacted]>"),
            (&["1234567890", "34567890"], "<1234567890>, <34567890>", "<[redacted]>, <[redacted]>"),
            (&["aaaaaaaa"], "<aaaaaaaaaaa>", "<[redacted]>"),
            (&["12345678", "abcdefgh"], "<12345678abcdefgh>", "<[redacted]>"),
            // As others write it.
            (&["a\"b\\c/d-é"], r#"{"key":"a\"b\\c\/d-\u00e9"}"#, r#"{"key":"[redacted]"}"#),
            (&["a+b/c=d&e"], "?key=a%2Bb%2fc%3Dd%26e", "?key=a%2Bb%2fc%3Dd%26e"),
            (&["a+b/c=d&e"], "?key=a%2Bb%2Fc%3Dd%26e&x", "?key=[redacted]&x"),
            (&["a\tb\u{1b}c-8-bytes"], "log=a\\tb\\u{1b}c-8-bytes.", "log=[redacted]."),
        ] {
            assert_eq!(masked(secrets, text), expected, "{text}");
        }
    }

    #[test]
    fn secrets_are_masked_line_by_line() {
        let secrets = Secrets::of(["correct horse", "battery-staple-0123"]);
        let plain = "a line\n\nanother one\n";
        for (lines, masked) in [
            (plain.to_owned(), plain.to_owned()),
            ("correct horse".into(), "[redacted]".into()),
            (format!("{plain}<correct horse>"), format!("{plain}<[redacted]>")),
            (
                format!("correct horse\n{plain}x=battery-staple-0123, correct horse\n{plain}"),
                format!("[redacted]\n{plain}x=[redacted], [redacted]\n{plain}"),
            ),
            // It ends in the next line.
            ("a correct\n horse\ncorrect horse\n".into(), "a correct\n horse\n[redacted]\n".into()),
        ] {
            // Wherever the samples fall.
            for before in 0..20 {
                let before = "-".repeat(before);
                let shown = secrets.mask_lines(format!("{before}{lines}").as_bytes()).into_owned();
                assert_eq!(String::from_utf8(shown).unwrap(), format!("{before}{masked}"));
            }
        }
    }

    #[test]
    fn the_log_knows_the_secrets_that_somebody_has() {
        let shown =
            |text: &str| String::from_utf8(mask_lines(text.as_bytes()).into_owned()).unwrap();
        let old = Arc::new(Secrets::of(["an-old-secret-1"]));
        let new = Arc::new(Secrets::of(["a-new-secret-22"]));
        keep_configured(&old);
        keep_configured(&new);
        assert_eq!(shown("an-old-secret-1, a-new-secret-22"), "[redacted], [redacted]");
        drop(old);
        assert_eq!(shown("an-old-secret-1, a-new-secret-22"), "an-old-secret-1, [redacted]");
    }
}
