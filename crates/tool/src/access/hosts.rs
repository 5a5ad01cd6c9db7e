//! The hosts of addresses.

use http::{Uri, uri::Authority};

/// A host that may be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostPattern {
    /// In lower case, without the dot of a whole name.
    name: String,
    /// What is beneath it, and not itself.
    beneath: bool,
    port: Option<u16>,
}

impl HostPattern {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (text, beneath) = match text.strip_prefix("*.") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let authority: Authority = text.parse().ok()?;
        if text.contains(['@', '*', '%']) || authority.host().is_empty() {
            return None;
        }
        Some(Self { name: canonical(authority.host()), beneath, port: authority.port_u16() })
    }

    pub(super) fn matches(&self, host: &str, port: Option<u16>) -> bool {
        let named = match self.beneath {
            true => host
                .strip_suffix(self.name.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            false => host == self.name,
        };
        named && (self.port.is_none() || self.port == port)
    }
}

fn canonical(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    host.strip_suffix('.').map_or_else(|| host.clone(), str::to_owned)
}

/// The host of an address and its port; `None` where readers of addresses might disagree about it: with user
/// data, backslashes, white space, percent signs in the host, or letters that are not ASCII.
pub(super) fn host_of(url: &str) -> Option<(String, Option<u16>)> {
    let doubtful = |c: char| !c.is_ascii_graphic() || c == '\\';
    if url.contains(doubtful) {
        return None;
    }
    // Without a scheme it is `https` for most tools.
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let port = match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => 80,
        "https" | "wss" => 443,
        _ => return None,
    };
    // Neither a path, a query nor a fragment is a part of it, and one that begins with a slash has none.
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains(['@', '%']) {
        return None;
    }
    let uri: Uri = format!("http://{authority}/").parse().ok()?;
    let host = uri.host().filter(|host| !host.is_empty())?;
    Some((canonical(host), uri.port_u16().or(Some(port))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_matched_whole() {
        for (pattern, url, allowed) in [
            ("example.com", "https://example.com/a?b#c", true),
            ("example.com", "example.com/a", true),
            ("example.com", "HTTPS://EXAMPLE.com.:8443", true),
            ("example.com", "https://www.example.com", false),
            ("example.com", "https://example.com.evil.test/", false),
            ("example.com", "https://evil.test/example.com", false),
            ("example.com", "https://evil.test?example.com", false),
            ("example.com", "https://evil.test#@example.com", false),
            ("example.com", "https://example.com@evil.test/", false),
            ("example.com", "https://evil.test\\@example.com/", false),
            ("example.com", "https://example.com%2eevil.test/", false),
            ("example.com", " https://example.com", false),
            ("example.com", "https://ex\u{e4}mple.com", false),
            ("example.com", "file:///etc/passwd", false),
            ("example.com", "ftp://example.com/", false),
            ("example.com", "https:///example.com/", false),
            ("example.com", "javascript:alert(1)", false),
            ("*.example.com", "https://a.b.example.com", true),
            ("*.example.com", "https://example.com", false),
            ("*.example.com", "https://badexample.com", false),
            ("*.example.com", "https://.example.com", false),
            ("example.com:8080", "http://example.com:8080/", true),
            ("example.com:8080", "http://example.com/", false),
            ("example.com:443", "https://example.com/", true),
            ("[::1]", "http://[::1]:80/", true),
            ("127.0.0.1", "http://2130706433/", false),
        ] {
            let pattern = HostPattern::parse(pattern).unwrap();
            let found = host_of(url).is_some_and(|(host, port)| pattern.matches(&host, port));
            assert_eq!(found, allowed, "{pattern:?} {url}");
        }
        for wrong in ["", "*", "*.", "a b", "https://example.com", "user@example.com", "a*.com"] {
            assert_eq!(HostPattern::parse(wrong), None, "{wrong}");
        }
    }
}
