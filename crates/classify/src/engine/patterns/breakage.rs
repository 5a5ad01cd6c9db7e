//! The network, servers that break, and answers that can not be read.

use super::{Pattern, exact, loose};
use crate::engine::codes::Twist;
use steadfast_core::{Reason, Retry};

/// Statuses that say more than the words of a broken connection.
const STATED: &[u16] =
    &[400, 401, 402, 403, 404, 408, 413, 422, 429, 502, 503, 504, 520, 521, 522, 523, 524, 529];

pub(super) const PATTERNS: &[Pattern] = &[
    // The network; a certificate does not mend itself.
    exact(
        Reason::Network,
        &[&[
            "certificate verify failed",
            "certificate_verify_failed",
            "certificate has expired",
            "self signed certificate",
            "self-signed certificate",
            "unable to verify the first certificate",
            "unable to get local issuer certificate",
            "unable_to_verify_leaf_signature",
            "invalid peer certificate",
            "hostname mismatch",
            "err_tls_cert_altname_invalid",
        ]],
    )
    .retry(Retry::No),
    loose(
        Reason::Network,
        &[&[
            "econnreset",
            "econnrefused",
            "econnaborted",
            "enotfound",
            "eai_again",
            "epipe",
            "ehostunreach",
            "enetunreach",
            "und_err_socket",
            "socket hang up",
            "socket connection was closed",
            "fetch failed",
            "failed to fetch",
            "connection error",
            "connection reset",
            "connection refused",
            "connection closed",
            "connection was closed",
            "connection aborted",
            "cannot connect to host",
            "could not connect",
            "unable to connect",
            "failed to connect",
            "getaddrinfo",
            "name or service not known",
            "temporary failure in name resolution",
            "no such host",
            "dns error",
            "could not resolve",
            "connection terminated",
            "connection lost",
            "connection failed",
            "is unreachable",
            "broken pipe",
            "network error",
            "network is unreachable",
            "peer closed connection",
            "server disconnected",
            "remote end closed connection",
            "remoteprotocolerror",
            "incomplete chunked read",
            "response ended prematurely",
            "typeerror: terminated",
            "premature close",
            "stream closed",
            "err_stream_premature_close",
            "sslv3 alert",
            "ssl handshake",
            "tls handshake",
            "goaway",
            "net::err_",
            "max retries exceeded with url",
            "incompleteread",
            "failed host lookup",
            "hostname could not be found",
            "appears to be offline",
            "no such host is known",
            "网络错误",
            "网络异常",
            "连接失败",
            "连接超时",
            "\": eof",
            "http2_stream",
            "disconnected unexpectedly",
        ]],
    )
    .not(STATED)
    .veto(&["provider disconnected unexpectedly", "network_error"]),
    // A body that broke off, in the words of HTTP clients.
    exact(
        Reason::Network,
        &[&[
            "payload is not completed",
            "transferencodingerror",
            "clientpayloaderror",
            "error decoding response body",
            "error reading a body from connection",
            "request or response body error",
            "error sending request for url",
            "connection closed before message",
            "cannot decrypt peer",
            "closed mid-response",
            "unexpected eof",
            "eof occurred in violation",
            "unexpected end of file",
            "content-length mismatch",
        ]],
    )
    .not(STATED)
    .veto(&["running the model", "timed out"]),
    // Anything that connects with any way of not being there.
    loose(
        Reason::Network,
        &[
            &["connection", "connect", "socket", "tunnel", "proxy", "host", "dns ", "tls ", "ssl "],
            &[
                "closed",
                "reset",
                "refused",
                "lost",
                "aborted",
                "dropped",
                "broken",
                "terminated",
                "interrupted",
                "disconnected",
                "failed",
                "failure",
                "unreachable",
                "not reachable",
                "not resolve",
                "error",
            ],
        ],
    )
    .in_order(24)
    .not(STATED)
    .veto(&["connection error: 4", "too many", "rate limit", "api key", "not authorized"]),
    // Breakage that stays.
    exact(
        Reason::ServerError,
        &[&[
            "requires more system memory",
            "out of memory",
            "insufficient memory",
            "enough available memory",
            "enough memory",
            "non-retryable",
        ]],
    )
    .retry(Retry::No)
    .veto(&["rate limit"]),
    loose(
        Reason::ServerError,
        &[&[
            "runner process has terminated",
            "runner has unexpectedly stopped",
            "error was encountered while running the model",
            "runner process no longer running",
            "the server had an error",
            "server experienced an error",
            "an internal error has occurred",
            "internal error encountered",
            "internal server error",
            "internal_server_error",
            "internalservererror",
            "unhandled stop reason: network_error",
            "unhandled stop reason: error",
            "finish_reason: error",
            "upstream connect error or disconnect/reset before headers",
            "bad gateway",
            "web server is down",
            "web server is returning an unknown error",
            "origin is unreachable",
            "provider disconnected unexpectedly",
            "model produced invalid content",
            "empty response",
            "empty answer",
            "no response from",
            "returned no content",
            "incomplete response",
            "did not provide any",
            "did not return any",
            "did not return a",
            "didn't return",
            "returned no",
            "returned an empty",
            "returned empty",
            "produced no",
            "no output",
            "no response",
            "no messages",
            "ssl handshake failed",
        ]],
    )
    .not(&[400, 401, 402, 403, 404, 413, 422, 429, 503, 504, 524, 529]),
    // An answer that stopped before its end.
    loose(
        Reason::ServerError,
        &[
            &["stream", "response", "answer", "output", "completion", "generation"],
            &[
                "ended without",
                "ended unexpectedly",
                "ended prematurely",
                "ended early",
                "ended before",
                "stopped unexpectedly",
                "terminated unexpectedly",
                "was interrupted",
                "interrupted before",
                "no finish_reason",
                "no finish reason",
                "without a finish",
                "without finish",
                "without completion",
                "before completing",
                "before returning",
                "no content",
                "was empty",
                "is empty",
            ],
        ],
    )
    .not(&[400, 401, 402, 403, 404, 413, 422, 429, 503, 504, 529])
    .veto(&["messages", "input is empty", "prompt is empty"]),
    loose(
        Reason::ServerError,
        &[&["model unloaded", "model is unloaded", "model has crashed", "model crashed"]],
    ),
    loose(
        Reason::ServerError,
        &[&[
            "unexpected error",
            "something went wrong",
            "unknown error",
            "upstream error",
            "an error occurred",
            "internal error",
            "system error",
            "try again later",
            "please try again",
            "please retry",
            "failed to generate",
            "服务异常",
            "系统错误",
            "系统异常",
            "稍后再试",
            "稍后重试",
            "服务器内部错误",
            "内部错误",
        ]],
    )
    .only(&[500, 502, 520])
    // Whoever names a time has a limit.
    // What botocore puts before the name of an error says nothing itself.
    .veto(&["try again in ", "retry in ", "retry after ", "an error occurred ("])
    .twist(Twist::Plain),
    loose(
        Reason::Overloaded,
        &[&[
            "service unavailable",
            "temporarily unavailable",
            "currently unavailable",
            "service_unavailable",
        ]],
    )
    .only(&[429, 500, 502, 503]),
];

/// What a client says around the provider's words: asked when those have said nothing.
pub(super) const WRAPPERS: &[Pattern] = &[
    // A client that was not told where to ask.
    loose(
        Reason::Format,
        &[
            &["instance name", "deployment name", "api version", "base url", "base_url"],
            &["not found", "missing", "not set", "required", "not configured", "not defined"],
        ],
    )
    .in_order(16)
    .not(STATED),
    loose(
        Reason::Network,
        &[&["stream disconnected", "stream error", "stream ended", "stream failed"]],
    )
    .not(STATED),
    // It could not be read, or nobody says why it was not answered.
    loose(
        Reason::ServerError,
        &[
            &["deserializ", "decoding", "parsing", "reading", "ended the", "cut off", "incomplete"],
            &["response", "answer", "completion"],
        ],
    )
    .in_order(24)
    .not(STATED)
    .veto(&["valid"]),
    loose(
        Reason::ServerError,
        &[
            &["unable to", "could not", "couldn't", "can not", "cannot", "failed to"],
            &[
                "process your request",
                "process the request",
                "process this request",
                "complete your request",
                "complete the request",
                "handle your request",
                "fulfill your request",
                "serve your request",
                "serve the request",
                "generate a response",
                "get a response",
                "produce a response",
            ],
        ],
    )
    .in_order(24)
    .not(STATED)
    .veto(&["invalid", "not supported", "too large", "too long"]),
];
