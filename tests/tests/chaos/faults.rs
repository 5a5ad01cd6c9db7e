//! Random faults of one provider.

use std::collections::BTreeMap;

use fastrand::Rng;
use steadfast::sim::{
    Break, Coalesce, Drip, ErrorKind, Fault, FaultPlan, FirstToken, How, PlanRule, RateLimit,
    RawResponse,
};
use steadfast_tests::seeds::{chance, maybe};

/// A plan of up to four rules, and often slowness wherever none of them matches. With `dates`,
/// hints may be dates.
pub(crate) fn plan(rng: &mut Rng, dates: bool) -> FaultPlan {
    let rules = rng.usize(0..=4);
    let plan = FaultPlan::none().seed(rng.u64(..));
    let plan = (0..rules).fold(plan, |plan, _| plan.rule(rule(rng, dates)));
    if chance(rng, 0.6) {
        let first = FirstToken { after_ms: rng.u64(0..4_000), ping_every_ms: None };
        let drip = Drip { bytes: rng.usize(30..400), every_ms: rng.u64(0..400) };
        return plan
            .rule(PlanRule::new(Fault::Many(vec![Fault::FirstToken(first), Fault::Drip(drip)])));
    }
    plan
}

fn rule(rng: &mut Rng, dates: bool) -> PlanRule {
    let mut rule = PlanRule::new(fault(rng, dates));
    match rng.u8(0..6) {
        // A burst, by number or by time.
        0 => {
            let from = rng.u64(1..8);
            rule = rule.from(from).to(from + rng.u64(0..12));
        }
        1 => {
            let since = rng.u64(0..60_000);
            rule = rule.since_ms(since).until_ms(since + rng.u64(1..90_000));
        }
        2 => rule = rule.every(rng.u64(1..5)),
        3 => rule = rule.nth(rng.u64(1..10)),
        // Always, or with the probability below.
        _ => {}
    }
    if chance(rng, 0.7) {
        rule = rule.probability(rng.f64());
    }
    if chance(rng, 0.2) {
        rule = rule.stream(rng.bool());
    }
    rule
}

fn fault(rng: &mut Rng, dates: bool) -> Fault {
    match rng.u8(0..18) {
        0 => Fault::Status(raw(rng)),
        1..=4 => Fault::Error(error(rng, dates)),
        5 => Fault::ErrorInOk(error(rng, dates)),
        6 => Fault::Empty,
        7 => Fault::Hang,
        8 => Fault::Refused,
        9 => Fault::Reset,
        10 => Fault::Close,
        11 => Fault::HalfHeaders,
        12..=14 => body(rng, dates),
        // Only faults of a body can be combined.
        _ => Fault::Many((0..rng.usize(2..5)).map(|_| body(rng, dates)).collect()),
    }
}

/// A fault of an answer that has started.
fn body(rng: &mut Rng, dates: bool) -> Fault {
    match rng.u8(0..9) {
        0..=3 => {
            let after_bytes = maybe(rng, |rng| rng.usize(0..4_000));
            let how = how(rng, dates);
            Fault::Break(Break { after_events: None, after_bytes, how })
        }
        4 => Fault::break_after(rng.usize(0..60), how(rng, dates)),
        5 => Fault::FirstToken(FirstToken {
            after_ms: rng.u64(0..30_000),
            ping_every_ms: maybe(rng, |rng| rng.u64(100..5_000)),
        }),
        6 => match rng.u8(0..4) {
            // Inside of characters and of frames.
            0 => Fault::Drip(Drip { bytes: rng.usize(1..8), every_ms: 0 }),
            _ => Fault::Drip(Drip { bytes: rng.usize(16..300), every_ms: rng.u64(0..1_000) }),
        },
        7 => match rng.bool() {
            true => Fault::Coalesce(Coalesce { frames: rng.usize(0..9) }),
            false => Fault::OutputLimit(rng.u64(0..40)),
        },
        _ => {
            let kinds = ["text/html", "text/plain", "application/json", "text/event-stream", ""];
            Fault::ContentType(kinds[rng.usize(..kinds.len())].to_owned())
        }
    }
}

fn how(rng: &mut Rng, dates: bool) -> How {
    match rng.u8(0..8) {
        0 => How::Reset,
        1 => How::Close,
        2 => How::End,
        3 => How::Stall,
        4 => How::ErrorEvent(error(rng, dates)),
        5 => How::MalformedJson,
        6 => How::TruncatedJson,
        _ => How::Garbage,
    }
}

fn error(rng: &mut Rng, dates: bool) -> ErrorKind {
    match rng.u8(0..16) {
        0..=2 => ErrorKind::RateLimit(rate_limit(rng, dates)),
        3 => ErrorKind::InsufficientQuota,
        4 => ErrorKind::Overloaded,
        5 | 6 => ErrorKind::ServerError,
        7 => ErrorKind::GatewayTimeout,
        8 => ErrorKind::Auth,
        9 => ErrorKind::Permission,
        10 => ErrorKind::ModelNotFound,
        11 => ErrorKind::ContextOverflow,
        12 => ErrorKind::Format,
        13 => ErrorKind::ContentFilter,
        14 => ErrorKind::PayloadTooLarge,
        _ => ErrorKind::BadGatewayHtml,
    }
}

/// Hints from none to absurd.
fn rate_limit(rng: &mut Rng, dates: bool) -> RateLimit {
    let texts = ["0", "1", "1.5", "7", "45", "300", "86400", "999999999", "-3", "soon", ""];
    let spans = ["0s", "1.5s", "6m0s", "34.4s", "40h", "s"];
    let text = |rng: &mut Rng, from: &[&str]| from[rng.usize(..from.len())].to_owned();
    let mut hints = RateLimit::default();
    for _ in 0..rng.u8(0..3) {
        match rng.u8(0..8) {
            0 => hints.retry_after = Some(text(rng, &texts)),
            1 if dates => hints.retry_after_date_s = Some(rng.u64(0..200)),
            2 => hints.retry_after_ms = Some(rng.u64(0..40_000)),
            3 => hints.reset = Some(text(rng, &spans)),
            4 if dates => hints.anthropic_reset_s = Some(rng.u64(0..200)),
            5 => hints.retry_info = Some(text(rng, &spans)),
            6 => hints.in_message = Some(text(rng, &spans)),
            _ => hints.should_retry = Some(rng.bool()),
        }
    }
    hints
}

/// A response that is no answer.
fn raw(rng: &mut Rng) -> RawResponse {
    let statuses =
        [200, 204, 206, 302, 304, 400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 425, 429, 451]
            .into_iter()
            .chain([500, 501, 502, 503, 504, 508, 520, 522, 524, 529, 599]);
    let statuses: Vec<u16> = statuses.collect();
    let bodies = ["", "{}", "null", "[]", "<html><h1>Sorry</h1></html>", "ok", "{\"error\":", "\0"];
    let headers = maybe(rng, |rng| {
        let types = ["text/html", "application/json", "text/event-stream"];
        ("content-type".to_owned(), types[rng.usize(..types.len())].to_owned())
    });
    RawResponse {
        status: statuses[rng.usize(..statuses.len())],
        headers: headers.into_iter().collect::<BTreeMap<_, _>>(),
        body: bodies[rng.usize(..bodies.len())].to_owned(),
    }
}
