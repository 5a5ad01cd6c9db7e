//! Signatures that AWS publishes, and what is no signature.

use http::{HeaderName, HeaderValue};

use super::*;

const DATE: &str = "20150830T123600Z";
const TOKEN: &str = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";

/// Method, address, more headers, the names of what is signed, and the signature.
type Row = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static str,
);

fn signer() -> AwsSigner {
    AwsSigner::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
}

fn headers(extra: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let own = [("host", "example.amazonaws.com"), ("x-amz-date", DATE)];
    for (name, value) in own.iter().chain(extra) {
        headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn authorization(names: &str, signature: &str) -> String {
    format!(
        "{ALGORITHM} Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
         SignedHeaders={names}, Signature={signature}"
    )
}

/// Requests and signatures of the test suite that AWS publishes.
#[test]
fn the_published_signatures_are_right() {
    let plain = "host;x-amz-date";
    let rows: &[Row] = &[
        (
            "GET",
            "/",
            &[],
            plain,
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "POST",
            "/",
            &[],
            plain,
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            &[],
            plain,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "GET",
            "/?Param1=value1",
            &[],
            plain,
            "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        ),
        (
            "GET",
            "/?ሴ=bar",
            &[],
            plain,
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        ),
        (
            "GET",
            "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
            &[],
            plain,
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        (
            "GET",
            "/ሴ",
            &[],
            plain,
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        ),
        (
            "GET",
            "/./",
            &[],
            plain,
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "GET",
            "/example1/example2/../..",
            &[],
            plain,
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "GET",
            "//example//",
            &[],
            plain,
            "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
        ),
        (
            "GET",
            "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            &[],
            plain,
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        (
            "GET",
            "/",
            &[("my-header1", "value2"), ("my-header1", "value2"), ("my-header1", "value1")],
            "host;my-header1;x-amz-date",
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        (
            "GET",
            "/",
            &[("my-header1", " value1"), ("my-header2", " \"a   b   c\"")],
            "host;my-header1;my-header2;x-amz-date",
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        (
            "POST",
            "/",
            &[("my-header1", "VALUE1")],
            "host;my-header1;x-amz-date",
            "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d",
        ),
        (
            "GET",
            "/",
            &[("x-amz-security-token", TOKEN)],
            "host;x-amz-date;x-amz-security-token",
            "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
        ),
    ];
    for (method, address, extra, names, signature) in rows {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let headers = headers(extra);
        let signed = Signed { method, path, query, headers: &headers, authority: None, body: b"" };
        let header = authorization(names, signature);
        let read = Authorization::read(&header).unwrap().unwrap();
        assert_eq!(read.verify(&signed, &signer()), Ok(()), "{method} {address} {names}");
        let other = AwsSigner::new("AKIDEXAMPLE", "another");
        assert!(read.verify(&signed, &other).is_err());
        let longer = Signed { body: b"x", ..signed };
        assert!(read.verify(&longer, &signer()).is_err(), "of another body");
    }
}

/// And one with a body.
#[test]
fn a_body_is_signed() {
    let digest = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";
    let headers = headers(&[
        ("content-length", "13"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("x-amz-content-sha256", digest),
    ]);
    let signed = Signed {
        method: "POST",
        path: "/",
        query: "",
        headers: &headers,
        authority: None,
        body: b"Param1=value1",
    };
    let header = authorization(
        "content-length;content-type;host;x-amz-content-sha256;x-amz-date",
        "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
    );
    let read = Authorization::read(&header).unwrap().unwrap();
    assert_eq!(read.verify(&signed, &signer()), Ok(()));
    assert!(read.verify(&Signed { body: b"Param1=value2", ..signed }, &signer()).is_err());
}

#[test]
fn a_path_is_escaped_once_more_than_it_was_sent() {
    for (sent, canonical) in [
        ("", "/"),
        ("/model/a.b-v1:0/invoke", "/model/a.b-v1%3A0/invoke"),
        ("/model/a.b-v1%3A0/invoke", "/model/a.b-v1%253A0/invoke"),
        ("/test/@connections/JBDvjfGEIAMCERw%3D", "/test/%40connections/JBDvjfGEIAMCERw%253D"),
        ("/a/../..", "/"),
        ("/a/./b//c/", "/a/b/c/"),
    ] {
        assert_eq!(canonical_path(sent), canonical);
    }
}

#[test]
fn scope_time_and_token_are_checked() {
    let scope = Scope { region: "us-east-1", service: "service" };
    let now = time(DATE).unwrap();
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let check = |header: &str, scope, now, extra: &[(&'static str, &str)]| {
        let headers = headers(extra);
        let signed = Signed {
            method: "GET",
            path: "/",
            query: "",
            headers: &headers,
            authority: None,
            body: b"",
        };
        Authorization::read(header).unwrap()?.check(&signed, scope, &signer(), now)
    };
    let right = authorization("host;x-amz-date", "00");
    assert_eq!(check(&right, scope, now, &[]), Ok(()));
    assert_eq!(check(&right, scope, now + minutes(5), &[]), Ok(()));
    assert_eq!(check(&right, scope, now - minutes(5), &[]), Ok(()));

    let refused = [
        (
            check(&right, scope, now + minutes(6), &[]),
            "Signature expired: 20150830T123600Z is now earlier than 20150830T123700Z",
        ),
        (check(&right, scope, now - minutes(6), &[]), "Signature not yet current"),
        (check(&right, Scope { region: "eu-west-1", ..scope }, now, &[]), "valid region"),
        (
            check(&right, Scope { service: "bedrock", ..scope }, now, &[]),
            "correct service: 'bedrock'",
        ),
        (check(&right.replace("aws4_request", "aws5"), scope, now, &[]), "valid terminator"),
        (check(&right.replace("0830", "0831"), scope, now, &[]), "does not match YYYYMMDD"),
        (check(&right.replace("host;", ""), scope, now, &[]), "'Host' or ':authority'"),
        (
            check(&right, scope, now, &[("x-amz-target", "y")]),
            "'x-amz-target' must be a 'SignedHeader'",
        ),
    ];
    for (result, words) in refused {
        match result {
            Err(SignatureError::Invalid(message)) => {
                assert!(message.contains(words), "{message}");
            }
            other => panic!("{words}: {other:?}"),
        }
    }
    let token = [("x-amz-security-token", TOKEN)];
    assert_eq!(check(&right, scope, now, &token), Err(SignatureError::UnknownSigner));
    for broken in ["Credential=", "SignedHeaders=", "Signature=", "/20150830"] {
        let header = right.replace(broken, "");
        assert!(matches!(check(&header, scope, now, &[]), Err(SignatureError::Incomplete(_))));
    }
    assert!(Authorization::read("Bearer x").is_none());
}

#[test]
fn what_is_no_date_is_none() {
    for text in ["", "20150830T123600", "20150830 123600Z", "2015083éT12360Z", "20159930T123600Z"]
    {
        assert_eq!(time(text), None, "{text}");
    }
    assert_eq!(basic(time(DATE).unwrap()), DATE);
}
