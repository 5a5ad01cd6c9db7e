//! The name that a request is sent to, and whether it is this machine's.

use std::net::IpAddr;

use http::{HeaderMap, Method, Uri, header, request::Parts, uri::Authority};

/// Why a request names nobody that could be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misaddressed {
    /// `Host` is repeated.
    SeveralHosts,
    /// The target and `Host` differ.
    TwoNames,
    /// It has a user in it.
    User,
    /// `Host` is not text.
    NotText,
}

impl Misaddressed {
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::SeveralHosts => "the request has more than one `host` header; send one",
            Self::TwoNames => {
                "the request's target and its `host` header name different hosts; send one name"
            }
            Self::User => {
                "the host that the request names has a user in it (`user@host`); send the host alone"
            }
            Self::NotText => "the request's `host` header is not text",
        }
    }
}

/// The one name that a request is sent to: that of its target, as HTTP/2 has it (`:authority`) and
/// HTTP/1 in absolute form, else that of `Host`; `None` when it names none.
///
/// # Errors
///
/// When there are several, or one has a user in it: two readers would believe two names.
pub(crate) fn of<'a>(
    headers: &'a HeaderMap,
    uri: &'a Uri,
) -> Result<Option<&'a str>, Misaddressed> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().map(|host| host.to_str()).transpose();
    let host = host.map_err(|_| Misaddressed::NotText)?;
    if hosts.next().is_some() {
        return Err(Misaddressed::SeveralHosts);
    }
    let target = uri.authority().map(Authority::as_str);
    if let (Some(target), Some(host)) = (target, host)
        && !target.eq_ignore_ascii_case(host)
    {
        return Err(Misaddressed::TwoNames);
    }
    let name = target.or(host);
    match name {
        Some(name) if name.contains('@') => Err(Misaddressed::User),
        name => Ok(name),
    }
}

/// Whether a request without a key is from a program of this machine, as far as it says: it is
/// addressed to a loopback name, and comes from no page of another one, unless somebody opens it in a
/// browser. A browser says so of every page, so that none of them can spend the operator's money or, by a
/// name of its own that leads to a loopback address, read the answers.
pub(crate) fn is_local(request: &Parts) -> bool {
    let Parts { method, uri, headers, .. } = request;
    let Ok(name) = of(headers, uri) else { return false };
    name.is_none_or(is_loopback_name)
        && has_local_origin(headers)
        && (!is_from_other_site(headers) || is_navigation(method, headers))
}

/// Whether a page that was loaded from here made the request, as far as a browser says; which it does of each request
/// that changes anything.
pub(crate) fn is_same_origin(request: &Parts) -> bool {
    let Parts { uri, headers, .. } = request;
    let mut sites = headers.get_all("sec-fetch-site").iter();
    // A person's address line has none, and no page has made what a person has written there.
    if !sites.all(|site| site == "same-origin" || site == "none") {
        return false;
    }
    let Ok(Some(name)) = of(headers, uri) else { return false };
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return request.method == Method::GET };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    origins.next().is_none() && authority.is_some_and(|(_, own)| own.eq_ignore_ascii_case(name))
}

/// Whether no page made the request, or one of this machine's. A browser names one origin: of several
/// nobody knows which one is true.
fn has_local_origin(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return true };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    origins.next().is_none() && authority.is_some_and(|(_, name)| is_loopback_name(name))
}

/// Whether a page of another site, or of another port or name of this machine's, made the request.
fn is_from_other_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.any(|site| site == "cross-site" || site == "same-site")
}

/// Whether somebody follows a link to here: the page it is on does not see the answer.
fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|given| given == value);
    method == Method::GET && is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

/// Whether `authority`, a host and perhaps a port, is this machine by its loopback address.
fn is_loopback_name(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
        let request = Request::builder().method(method).uri(target);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    fn name(target: &str, hosts: &[&str]) -> Result<Option<String>, Misaddressed> {
        let hosts: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
        let parts = parts("GET", target, &hosts);
        of(&parts.headers, &parts.uri).map(|name| name.map(str::to_owned))
    }

    #[test]
    fn the_name_that_is_checked_is_the_one_that_is_used() {
        let some = |name: &str| Ok(Some(name.to_owned()));
        for (target, hosts, expected) in [
            ("/", &["localhost:1"][..], some("localhost:1")),
            ("/", &[], Ok(None)),
            ("/", &[""], some("")),
            ("http://localhost/", &[], some("localhost")),
            ("http://localhost:1/", &["LOCALHOST:1"], some("localhost:1")),
            ("http://evil.example/", &[], some("evil.example")),
            ("/", &["localhost", "localhost"], Err(Misaddressed::SeveralHosts)),
            ("/", &["localhost", "evil.example"], Err(Misaddressed::SeveralHosts)),
            ("http://evil.example/", &["localhost"], Err(Misaddressed::TwoNames)),
            ("http://localhost/", &["evil.example"], Err(Misaddressed::TwoNames)),
            ("http://localhost:1/", &["localhost:2"], Err(Misaddressed::TwoNames)),
            ("/", &["evil@127.0.0.1"], Err(Misaddressed::User)),
            ("http://evil@127.0.0.1/", &[], Err(Misaddressed::User)),
            ("http://evil@127.0.0.1/", &["127.0.0.1"], Err(Misaddressed::TwoNames)),
        ] {
            assert_eq!(name(target, hosts), expected, "{target} {hosts:?}");
        }
    }

    #[test]
    fn the_page_of_a_gateway_is_from_its_own_origin() {
        const OWN: (&str, &str) = ("host", "gw.example:8080");
        let site = |site: &'static str| ("sec-fetch-site", site);
        let origin = |origin: &'static str| ("origin", origin);
        for (method, headers, expected) in [
            ("POST", &[OWN, origin("http://gw.example:8080")][..], true),
            ("POST", &[OWN, origin("https://GW.example:8080"), site("same-origin")], true),
            ("GET", &[OWN], true),
            ("GET", &[OWN, site("none")], true),
            ("GET", &[OWN, site("same-origin")], true),
            ("GET", &[OWN, site("cross-site")], false),
            ("GET", &[OWN, origin("http://evil.example")], false),
            ("POST", &[OWN], false),
            ("POST", &[OWN, origin("null")], false),
            ("POST", &[OWN, origin("http://gw.example")], false),
            ("POST", &[OWN, origin("http://evil.example:8080")], false),
            ("POST", &[OWN, origin("http://gw.example:8080"), site("same-site")], false),
            ("POST", &[OWN, origin("http://gw.example:8080"), origin("http://x")], false),
            ("POST", &[origin("http://gw.example:8080")], false),
        ] {
            let parts = parts(method, "/", headers);
            assert_eq!(is_same_origin(&parts), expected, "{method} {headers:?}");
        }
    }

    #[test]
    fn only_programs_of_this_machine_are_local() {
        let page = |site: &'static str| [("host", "localhost"), ("sec-fetch-site", site)];
        let navigation = |dest: &'static str| {
            [
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", dest),
            ]
        };
        for (method, target, headers, expected) in [
            ("POST", "/", &[("host", "localhost:8080")][..], true),
            ("POST", "/", &[("host", "127.0.0.7")], true),
            ("POST", "/", &[("host", "LOCALHOST")], true),
            ("POST", "/", &[("host", "[::1]:80")], true),
            // Programs may name nobody; browsers always do.
            ("POST", "/", &[], true),
            ("POST", "http://localhost:1/", &[], true),
            ("POST", "http://evil.example/", &[], false),
            ("POST", "http://evil.example/", &[("host", "localhost")], false),
            ("POST", "/", &[("host", "evil.example")], false),
            ("POST", "/", &[("host", "localhost"), ("host", "localhost")], false),
            ("POST", "/", &[("host", "evil@127.0.0.1")], false),
            ("POST", "/", &[("host", "localhost.evil.example")], false),
            ("POST", "/", &[("host", "10.0.0.1")], false),
            ("POST", "/", &[("host", "")], false),
            ("POST", "/", &[("host", "localhost"), ("origin", "http://localhost:3000")], true),
            ("POST", "/", &[("host", "localhost"), ("origin", "https://evil.example")], false),
            ("POST", "/", &[("host", "localhost"), ("origin", "null")], false),
            (
                "POST",
                "/",
                &[("origin", "http://localhost"), ("origin", "http://evil.example")],
                false,
            ),
            (
                "POST",
                "/",
                &[("origin", "http://evil.example"), ("origin", "http://localhost")],
                false,
            ),
            ("POST", "/", &[("origin", "http://localhost"), ("origin", "http://localhost")], false),
            ("POST", "/", &page("same-origin"), true),
            ("POST", "/", &page("none"), true),
            ("POST", "/", &page("same-site"), false),
            ("POST", "/", &page("cross-site"), false),
            ("GET", "/", &page("cross-site"), false),
            // Somebody follows a link; a frame or an image shows it to a page.
            ("GET", "/", &navigation("document"), true),
            ("GET", "/", &navigation("iframe"), false),
            ("POST", "/", &navigation("document"), false),
        ] {
            let parts = parts(method, target, headers);
            assert_eq!(is_local(&parts), expected, "{method} {target} {headers:?}");
        }
    }
}
