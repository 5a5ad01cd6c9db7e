//! AWS's Signature Version 4, as its receiver verifies it.

use std::fmt;
use std::time::{Duration, SystemTime};

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::unescaped;

/// The only algorithm.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The end of every scope, and of every key.
const TERMINATOR: &str = "aws4_request";

/// How far the caller's clock may be off.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// Credentials that sign requests.
#[derive(Clone)]
pub struct AwsSigner {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl AwsSigner {
    /// An access key and its secret.
    pub fn new(access_key_id: impl Into<String>, secret_access_key: impl Into<String>) -> Self {
        Self {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token: None,
        }
    }

    /// Temporary credentials: requests have to have this token.
    #[must_use]
    pub fn with_session_token(mut self, session_token: impl Into<String>) -> Self {
        self.session_token = Some(session_token.into());
        self
    }

    /// What names it in its signatures.
    #[must_use]
    pub fn access_key_id(&self) -> &str {
        &self.access_key_id
    }
}

impl fmt::Debug for AwsSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsSigner")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// What is signed of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signed<'a> {
    pub(super) method: &'a str,
    /// As it was received.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) headers: &'a HeaderMap,
    /// Of the address, where no header names the host.
    pub(super) authority: Option<&'a str>,
    pub(super) body: &'a [u8],
}

/// For what a signature has to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'a> {
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

/// Why a signature is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignatureError {
    /// Fields of it are missing.
    Incomplete(String),
    /// Nobody has this key, or not with this session token.
    UnknownSigner,
    /// It signs something else, or for something else.
    Invalid(String),
}

/// The fields of the `authorization` header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Authorization<'a> {
    pub(super) access_key_id: &'a str,
    date: &'a str,
    region: &'a str,
    service: &'a str,
    terminator: &'a str,
    signed_headers: &'a str,
    signature: &'a str,
}

impl<'a> Authorization<'a> {
    /// Reads a header; `None` where it is of another scheme.
    pub(super) fn read(header: &'a str) -> Option<Result<Self, SignatureError>> {
        let fields = header.strip_prefix(ALGORITHM)?;
        Some(Self::of_fields(fields).map_err(SignatureError::Incomplete))
    }

    fn of_fields(fields: &'a str) -> Result<Self, String> {
        let field = |name: &str| {
            let found = fields.split(',').find_map(|field| {
                field.trim().strip_prefix(name)?.strip_prefix('=').filter(|value| !value.is_empty())
            });
            found.ok_or_else(|| format!("Authorization header requires '{name}' parameter."))
        };
        let credential = field("Credential")?;
        let signature = field("Signature")?;
        let signed_headers = field("SignedHeaders")?;
        let mut parts = credential.rsplitn(5, '/');
        let mut part = || parts.next().filter(|part| !part.is_empty());
        let scope = (part(), part(), part(), part(), part());
        let (Some(terminator), Some(service), Some(region), Some(date), Some(id)) = scope else {
            return Err(format!(
                "Credential must have exactly 5 slash-delimited elements, e.g. \
                 keyid/date/region/service/term, got '{credential}'"
            ));
        };
        let access_key_id = id;
        Ok(Self { access_key_id, date, region, service, terminator, signed_headers, signature })
    }

    /// Verifies everything but the signature itself: the scope, the time and the session token.
    pub(super) fn check(
        &self,
        signed: &Signed<'_>,
        scope: Scope<'_>,
        signer: &AwsSigner,
        now: SystemTime,
    ) -> Result<(), SignatureError> {
        let invalid = |message: String| Err(SignatureError::Invalid(message));
        let token = header_text(signed.headers, "x-amz-security-token");
        if token != signer.session_token.as_deref() {
            return Err(SignatureError::UnknownSigner);
        }
        let date = header_text(signed.headers, "x-amz-date").ok_or_else(|| {
            SignatureError::Incomplete(
                "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' \
                 header."
                    .to_owned(),
            )
        })?;
        if self.terminator != TERMINATOR {
            return invalid(format!(
                "Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{}'.",
                self.terminator
            ));
        }
        if self.service != scope.service {
            return invalid(format!(
                "Credential should be scoped to correct service: '{}'.",
                scope.service
            ));
        }
        if self.region != scope.region {
            return invalid("Credential should be scoped to a valid region.".to_owned());
        }
        let Some(at) = time(date) else {
            return invalid(format!(
                "Date must be in ISO-8601 'basic format'. Got '{date}'. See \
                 http://en.wikipedia.org/wiki/ISO_8601"
            ));
        };
        if date.get(..8) != Some(self.date) {
            return invalid(format!(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date \
                 from HTTP: '{}' != '{}', from '{date}'.",
                self.date,
                date.get(..8).unwrap_or_default()
            ));
        }
        in_time(at, now)?;
        self.covers(signed.headers)
    }

    /// Whether it signs the host, and all headers of AWS.
    fn covers(&self, headers: &HeaderMap) -> Result<(), SignatureError> {
        let signs = |name: &str| self.signed_headers.split(';').any(|signed| signed == name);
        let must =
            headers.keys().map(|name| name.as_str()).filter(|name| name.starts_with("x-amz-"));
        match std::iter::once(header::HOST.as_str()).chain(must).find(|name| !signs(name)) {
            None => Ok(()),
            Some("host") => Err(SignatureError::Invalid(
                "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization."
                    .to_owned(),
            )),
            Some(name) => Err(SignatureError::Invalid(format!(
                "'{name}' must be a 'SignedHeader' in the AWS Authorization."
            ))),
        }
    }

    /// Verifies the signature.
    pub(super) fn verify(
        &self,
        signed: &Signed<'_>,
        signer: &AwsSigner,
    ) -> Result<(), SignatureError> {
        let date = header_text(signed.headers, "x-amz-date").unwrap_or_default();
        let body = hex(&Sha256::digest(signed.body));
        let stated = header_text(signed.headers, "x-amz-content-sha256");
        let canonical = self.canonical_request(signed, &body);
        let text = self.string_to_sign(date, &canonical);
        let expected = mac(&self.signing_key(&signer.secret_access_key), text.as_bytes());
        let matches = expected.is_some_and(|expected| hex(&expected) == self.signature);
        if matches && stated.is_none_or(|stated| stated == body) {
            return Ok(());
        }
        Err(SignatureError::Invalid(
            "The request signature we calculated does not match the signature you provided. Check \
             your AWS Secret Access Key and signing method. Consult the service documentation for \
             details."
                .to_owned(),
        ))
    }

    fn canonical_request(&self, signed: &Signed<'_>, body: &str) -> String {
        let mut headers = String::new();
        for name in self.signed_headers.split(';') {
            headers.push_str(name);
            headers.push(':');
            headers.push_str(&canonical_value(signed, name));
            headers.push('\n');
        }
        [
            signed.method,
            &canonical_path(signed.path),
            &canonical_query(signed.query),
            &headers,
            self.signed_headers,
            body,
        ]
        .join("\n")
    }

    fn string_to_sign(&self, date: &str, canonical: &str) -> String {
        let Self { date: day, region, service, terminator, .. } = self;
        let digest = hex(&Sha256::digest(canonical.as_bytes()));
        format!("{ALGORITHM}\n{date}\n{day}/{region}/{service}/{terminator}\n{digest}")
    }

    fn signing_key(&self, secret: &str) -> Vec<u8> {
        let start = format!("AWS4{secret}").into_bytes();
        [self.date, self.region, self.service, self.terminator]
            .iter()
            .fold(start, |key, part| mac(&key, part.as_bytes()).unwrap_or_default())
    }
}

fn in_time(at: SystemTime, now: SystemTime) -> Result<(), SignatureError> {
    let (earliest, latest) = (now - SKEW, now + SKEW);
    let message = if at < earliest {
        format!(
            "Signature expired: {} is now earlier than {} ({} - 5 min.)",
            basic(at),
            basic(earliest),
            basic(now)
        )
    } else if at > latest {
        format!(
            "Signature not yet current: {} is still later than {} ({} + 5 min.)",
            basic(at),
            basic(latest),
            basic(now)
        )
    } else {
        return Ok(());
    };
    Err(SignatureError::Invalid(message))
}

/// The time that `20150830T123600Z` is.
fn time(basic: &str) -> Option<SystemTime> {
    let digits = |from: usize, to: usize| {
        basic.get(from..to).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if basic.len() != 16 || basic.get(8..9) != Some("T") || basic.get(15..) != Some("Z") {
        return None;
    }
    let text = format!(
        "{}-{}-{}T{}:{}:{}Z",
        digits(0, 4)?,
        digits(4, 6)?,
        digits(6, 8)?,
        digits(9, 11)?,
        digits(11, 13)?,
        digits(13, 15)?
    );
    humantime::parse_rfc3339(&text).ok()
}

/// `20150830T123600Z`.
fn basic(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "")
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Without dot segments and empty ones, and escaped once more than it was sent.
fn canonical_path(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut out = String::new();
    for segment in &segments {
        out.push('/');
        escape(segment.as_bytes(), &mut out);
    }
    let is_folder = path.ends_with('/') && !segments.is_empty();
    if out.is_empty() || is_folder {
        out.push('/');
    }
    out
}

/// Its parameters in the order of their names, each escaped once.
fn canonical_query(query: &str) -> String {
    let escaped = |text: &str| {
        let mut out = String::new();
        escape(&unescaped(text.as_bytes()), &mut out);
        out
    };
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (escaped(name), escaped(value)))
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// The values of a header, without the space that means nothing.
fn canonical_value(signed: &Signed<'_>, name: &str) -> String {
    let trimmed = |text: &str| text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let values: Vec<String> = signed
        .headers
        .get_all(name)
        .iter()
        .map(|value| trimmed(&String::from_utf8_lossy(value.as_bytes())))
        .collect();
    match signed.authority {
        Some(authority) if values.is_empty() && name == "host" => authority.to_owned(),
        _ => values.join(","),
    }
}

fn escape(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(*byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `None` never: a key of any length is one.
fn mac(key: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(text);
    Some(mac.finalize().into_bytes().to_vec())
}

#[cfg(test)]
mod tests;
