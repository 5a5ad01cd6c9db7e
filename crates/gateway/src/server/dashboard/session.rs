//! Sessions of operators in a browser: a cookie that says until when, and proves by a MAC that it is from here.
//!
//! Nothing is kept of them. What changes something needs the token of the session as well, in a header: a page of
//! another origin can have a browser send the cookie, and can not read the token.

use std::{collections::HashMap, fmt, net::IpAddr, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header, request::Parts, uri::Authority};
use parking_lot::Mutex;
use sha2::Sha256;
use steadfast_core::time::wall;
use tokio::time::Instant;

use crate::authority;

/// How long a session lasts: 12 h, a shift with what comes after it.
const LASTS: Duration = Duration::from_secs(12 * 3_600);

/// The header with the token of the page.
pub(super) const TOKEN: HeaderName = HeaderName::from_static("x-steadfast-token");

/// The bytes of a session's id, and of the end beside it.
const ID: usize = 16;
const HEAD: usize = ID + 8;

/// Wrong keys that an address may try in [`PAUSE`]: 10, more than anybody mistypes.
const GUESSES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(60);

/// Addresses whose wrong keys are counted. Beyond them all others are one.
const GUESSERS: usize = 1_024;

/// What is the same for all sessions of a process.
pub(in crate::server) struct Sessions {
    /// For sessions that no admin key vouches for.
    process: [u8; 32],
    guesses: Mutex<HashMap<Option<IpAddr>, (Instant, u32)>>,
}

/// A session that has been proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    head: [u8; HEAD],
}

/// What a MAC is for.
#[derive(Clone, Copy)]
enum Purpose {
    Cookie,
    Token,
}

impl Sessions {
    /// Without a source of random numbers there are no sessions.
    pub(in crate::server) fn new() -> Self {
        Self { process: random().unwrap_or_default(), guesses: Mutex::default() }
    }

    /// The secret of this process, if it has one.
    pub(super) fn process(&self) -> Option<&[u8; 32]> {
        Some(&self.process).filter(|secret| **secret != [0; 32])
    }

    /// Whether whoever is at `from` may try another key: for how long not, otherwise.
    pub(super) fn may_guess(&self, from: Option<IpAddr>) -> Result<(), Duration> {
        let guesses = self.guesses.lock();
        let Some((since, wrong)) = guesses.get(&from) else { return Ok(()) };
        let left = PAUSE.saturating_sub(since.elapsed());
        if *wrong < GUESSES || left.is_zero() { Ok(()) } else { Err(left) }
    }

    /// A wrong key came from there.
    pub(super) fn guessed(&self, from: Option<IpAddr>) {
        let mut guesses = self.guesses.lock();
        if guesses.len() >= GUESSERS {
            guesses.retain(|_, (since, _)| since.elapsed() < PAUSE);
        }
        let from =
            from.filter(|from| guesses.len() < GUESSERS || guesses.contains_key(&Some(*from)));
        let entry = guesses.entry(from).or_insert((Instant::now(), 0));
        if entry.0.elapsed() >= PAUSE {
            *entry = (Instant::now(), 0);
        }
        entry.1 = entry.1.saturating_add(1);
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Session {
    /// A new one. `None` without a source of random numbers.
    pub(super) fn begin() -> Option<Self> {
        let mut head = [0; HEAD];
        let random = random()?;
        head[..ID].copy_from_slice(&random[..ID]);
        head[ID..].copy_from_slice(&(now() + LASTS.as_secs()).to_be_bytes());
        Some(Self { head })
    }

    /// The one that the cookie of `request` proves by `key`, while it lasts.
    pub(super) fn of(request: &Parts, key: &[u8; 32]) -> Option<Self> {
        let name = cookie_name(request);
        let cookies = request.headers.get_all(header::COOKIE).iter();
        let values = cookies.filter_map(|cookies| cookies.to_str().ok());
        let pairs = values.flat_map(|cookies| cookies.split(';'));
        let own = pairs.filter_map(|pair| pair.trim().split_once('='));
        // Another host of the same domain may have set one of the same name.
        own.filter(|(given, _)| *given == name)
            .take(8)
            .find_map(|(_, value)| Self::read(value, key))
    }

    fn read(value: &str, key: &[u8; 32]) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
        let (head, proof) = bytes.split_at_checked(HEAD)?;
        let session = Self { head: head.try_into().ok()? };
        session.mac(Purpose::Cookie, key).verify_slice(proof).ok()?;
        (session.ends() > now()).then_some(session)
    }

    /// Whether `headers` have its token.
    pub(super) fn has_token(&self, headers: &HeaderMap, key: &[u8; 32]) -> bool {
        let given = headers.get(&TOKEN).and_then(|token| URL_SAFE_NO_PAD.decode(token).ok());
        given.is_some_and(|given| self.mac(Purpose::Token, key).verify_slice(&given).is_ok())
    }

    /// Its token.
    pub(super) fn token(&self, key: &[u8; 32]) -> String {
        URL_SAFE_NO_PAD.encode(self.mac(Purpose::Token, key).finalize().into_bytes())
    }

    /// When it ends, in seconds since 1970.
    pub(super) fn ends(&self) -> u64 {
        let mut ends = [0; HEAD - ID];
        ends.copy_from_slice(&self.head[ID..]);
        u64::from_be_bytes(ends)
    }

    /// The header that has a browser keep it.
    pub(super) fn cookie(&self, request: &Parts, key: &[u8; 32]) -> Option<HeaderValue> {
        let proof = self.mac(Purpose::Cookie, key).finalize().into_bytes();
        let value = URL_SAFE_NO_PAD.encode([&self.head[..], &proof[..]].concat());
        cookie(request, &value, LASTS.as_secs())
    }

    fn mac(&self, purpose: Purpose, key: &[u8; 32]) -> Hmac<Sha256> {
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..key.len()].copy_from_slice(key);
        let label: &[u8] = match purpose {
            Purpose::Cookie => b"cookie",
            Purpose::Token => b"token",
        };
        Hmac::<Sha256>::new(&block).chain_update(label).chain_update(self.head)
    }
}

/// The header that has a browser forget a session.
pub(super) fn forgotten(request: &Parts) -> Option<HeaderValue> {
    cookie(request, "", 0)
}

fn cookie(request: &Parts, value: &str, lasts_s: u64) -> Option<HeaderValue> {
    let name = cookie_name(request);
    let secure = if is_tls(request) { "; Secure" } else { "" };
    let text =
        format!("{name}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&text).ok()
}

/// Cookies are the same for all ports of a host: each gateway has one of its own.
fn cookie_name(request: &Parts) -> String {
    let name = authority::of(&request.headers, &request.uri).ok().flatten();
    let port = name.and_then(|name| name.parse::<Authority>().ok()?.port_u16());
    match port {
        Some(port) => format!("steadfast_session_{port}"),
        None => "steadfast_session".to_owned(),
    }
}

/// Whether the page came by TLS, which ends before the gateway: its origin says so, or the proxy.
fn is_tls(request: &Parts) -> bool {
    let begins = |name: HeaderName, prefix: &str| {
        let value = request.headers.get(name);
        value.is_some_and(|value| value.as_bytes().starts_with(prefix.as_bytes()))
    };
    begins(header::ORIGIN, "https://")
        || begins(HeaderName::from_static("x-forwarded-proto"), "https")
}

/// Whether a request by this method changes nothing.
pub(super) fn is_safe(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

fn now() -> u64 {
    wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn random() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn asked(cookie: &str) -> Parts {
        let request = http::Request::builder().header("host", "localhost:8080");
        request.header("cookie", cookie).body(()).unwrap().into_parts().0
    }

    /// The cookie as a browser sends it back.
    fn sent_back(session: &Session) -> String {
        let set = session.cookie(&asked(""), &KEY).unwrap();
        set.to_str().unwrap().split(';').next().unwrap().to_owned()
    }

    #[test]
    fn a_session_is_proved_by_its_own_key_alone() {
        let session = Session::begin().unwrap();
        let cookie = sent_back(&session);
        assert_eq!(Session::of(&asked(&cookie), &KEY), Some(session));
        assert_eq!(Session::of(&asked(&format!("a=b; {cookie}; c")), &KEY), Some(session));
        let forged = cookie.replace("_8080=", "_8080=AAAA");
        assert_eq!(Session::of(&asked(&format!("{forged}; {cookie}")), &KEY), Some(session));
        assert_eq!(Session::of(&asked(&cookie), &[8; 32]), None);
        let (name, value) = cookie.split_once('=').unwrap();
        for wrong in ["", "x", "AAAA", &value[1..], &value[..value.len() - 1], &"A".repeat(75)] {
            assert_eq!(Session::of(&asked(&format!("{name}={wrong}")), &KEY), None, "{wrong}");
        }
        for at in 0..value.len() {
            let mut bytes = value.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = format!("{name}={}", String::from_utf8(bytes).unwrap());
            assert_eq!(Session::of(&asked(&changed), &KEY), None, "{at}");
        }
    }

    #[test]
    fn a_session_that_has_ended_is_none() {
        let mut session = Session::begin().unwrap();
        session.head[ID..].copy_from_slice(&now().to_be_bytes());
        assert_eq!(Session::of(&asked(&sent_back(&session)), &KEY), None);
    }

    #[test]
    fn a_token_is_of_its_session_and_no_cookie() {
        let (session, other) = (Session::begin().unwrap(), Session::begin().unwrap());
        let with = |token: &str| HeaderMap::from_iter([(TOKEN, token.parse().unwrap())]);
        assert!(session.has_token(&with(&session.token(&KEY)), &KEY));
        assert!(!session.has_token(&with(&other.token(&KEY)), &KEY));
        assert!(!session.has_token(&with(&session.token(&[8; 32])), &KEY));
        assert!(!session.has_token(&HeaderMap::new(), &KEY));
        let proof = session.mac(Purpose::Cookie, &KEY).finalize().into_bytes();
        assert!(!session.has_token(&with(&URL_SAFE_NO_PAD.encode(proof)), &KEY));
    }

    #[test]
    fn a_cookie_is_for_this_site_and_no_script() {
        let session = Session::begin().unwrap();
        let set = |parts: &Parts| session.cookie(parts, &KEY).unwrap().to_str().unwrap().to_owned();
        let mut parts = asked("");
        let cookie = set(&parts);
        assert!(cookie.starts_with("steadfast_session_8080="), "{cookie}");
        for attribute in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=43200"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        assert!(!cookie.contains("Secure"));
        parts.headers.insert("origin", HeaderValue::from_static("https://localhost:8080"));
        assert!(set(&parts).ends_with("; Secure"));
        assert!(forgotten(&parts).unwrap().to_str().unwrap().contains("Max-Age=0"));
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_keys_are_counted_by_address_for_a_while() {
        let sessions = Sessions::new();
        let (here, there) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        for _ in 0..GUESSES {
            assert_eq!(sessions.may_guess(here), Ok(()));
            sessions.guessed(here);
        }
        assert_eq!(sessions.may_guess(here), Err(PAUSE));
        assert_eq!(sessions.may_guess(there), Ok(()));
        tokio::time::advance(PAUSE).await;
        assert_eq!(sessions.may_guess(here), Ok(()));
        for n in 0..2_000_u32 {
            sessions.guessed(Some(IpAddr::from(n.to_be_bytes())));
        }
        assert!(sessions.guesses.lock().len() <= GUESSERS + 1);
    }
}
