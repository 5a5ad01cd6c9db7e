//! What the layers report: one `tracing` event for an action, and one step where it is in the path of a message.

use std::time::Duration;

use steadfast_core::{CallContext, Failure, Step, time::millis};
use tracing::{Level, event};

use crate::{Announcement, DeadLetter, DeliveryRoute, LetterEnd};

const LAYER: &str = "deliver";

/// A failed attempt will be retried after `wait`.
pub(crate) fn retried(context: &CallContext, failure: &Failure, retry: u32, wait: Duration) {
    event!(
        name: "steadfast::deliver::retried",
        target: "steadfast::deliver",
        Level::INFO,
        reason = failure.reason().as_str(),
        retry,
        wait_ms = millis(wait),
        hint_ms = failure.retry_after().map(millis),
        "sending again after {wait:?}: {failure}",
    );
    context
        .log
        .record(|| Step::new(LAYER, "retried").with_reason(failure.reason()).with_wait(wait));
}

/// A message is given up by the layer that retries.
pub(crate) fn gave_up(context: &CallContext, failure: &Failure, retries: u32, why: &'static str) {
    event!(
        name: "steadfast::deliver::gave_up",
        target: "steadfast::deliver",
        Level::WARN,
        reason = failure.reason().as_str(),
        why,
        retries,
        hint_ms = failure.retry_after().map(millis),
        "gave up after {retries} retries ({why}): {failure}",
    );
    context
        .log
        .record(|| Step::new(LAYER, "gave_up").with_reason(failure.reason()).with_detail(why));
}

/// A message has gone by this route.
pub(crate) fn routed(message: &Announcement, route: DeliveryRoute, why: &'static str) {
    event!(
        name: "steadfast::deliver::routed",
        target: "steadfast::deliver",
        Level::INFO,
        route = route.as_str(),
        why,
        key = &*message.key,
        kind = message.kind.as_str(),
        session = &*message.session,
        destination = &*message.destination,
        "a message went by the route `{route}`",
    );
    message.context.log.record(|| Step::new(LAYER, "routed").with_detail(route.as_str()));
}

/// The parent did not announce a message, which goes to the channel now.
pub(crate) fn parent_failed(message: &Announcement, failure: &Failure) {
    event!(
        name: "steadfast::deliver::parent_failed",
        target: "steadfast::deliver",
        Level::WARN,
        reason = failure.reason().as_str(),
        key = &*message.key,
        session = &*message.session,
        "the parent did not announce a message, which goes to the channel itself: {failure}",
    );
    message.context.log.record(|| Step::new(LAYER, "parent_failed").with_reason(failure.reason()));
}

/// A turn of the parent with these announcements has ended.
pub(crate) fn turn(session: &str, announcements: usize, outcome: &'static str) {
    event!(
        name: "steadfast::deliver::turn",
        target: "steadfast::deliver",
        Level::INFO,
        session,
        announcements,
        outcome,
        "a turn of the parent for {announcements} announcements: {outcome}",
    );
}

/// A message that was delivered under this key is not sent again.
pub(crate) fn repeated(message: &Announcement, why: &'static str) {
    event!(
        name: "steadfast::deliver::repeated",
        target: "steadfast::deliver",
        Level::INFO,
        why,
        key = &*message.key,
        destination = &*message.destination,
        "a message is not sent a second time: {why}",
    );
    message.context.log.record(|| Step::new(LAYER, "repeated").with_detail(why));
}

/// A message that could not be delivered is not kept.
pub(crate) fn dropped(message: &Announcement, failure: &Failure, why: &'static str) {
    event!(
        name: "steadfast::deliver::dropped",
        target: "steadfast::deliver",
        Level::ERROR,
        reason = failure.reason().as_str(),
        why,
        key = &*message.key,
        kind = message.kind.as_str(),
        session = &*message.session,
        destination = &*message.destination,
        "a message was not delivered and is not kept ({why}): {failure}",
    );
    message
        .context
        .log
        .record(|| Step::new(LAYER, "dropped").with_reason(failure.reason()).with_detail(why));
}

/// A message is a dead letter from now on. The step is the message's.
pub(crate) fn kept(message: &Announcement, failure: &Failure) {
    message.context.log.record(|| Step::new(LAYER, "dead_lettered").with_reason(failure.reason()));
}

/// A letter has come into the queue, an attempt has `failed`, or it has ended.
pub(crate) fn letter(letter: &DeadLetter, failed: bool) {
    let DeadLetter { key, session, destination, kind, attempts, error, .. } = letter;
    let (key, session, destination, kind) = (&**key, &**session, &**destination, kind.as_str());
    match letter.end {
        None if !failed => event!(
            name: "steadfast::deliver::dead_lettered",
            target: "steadfast::deliver",
            Level::WARN,
            key, kind, session, destination,
            "a message could not be delivered and is a dead letter: {error}",
        ),
        None => event!(
            name: "steadfast::deliver::dead_letter_failed",
            target: "steadfast::deliver",
            Level::INFO,
            key, kind, session, destination, attempts,
            "a dead letter was not delivered: {error}",
        ),
        Some(LetterEnd::Delivered) => event!(
            name: "steadfast::deliver::dead_letter_delivered",
            target: "steadfast::deliver",
            Level::INFO,
            key, kind, session, destination, attempts,
            "a dead letter was delivered",
        ),
        Some(end) => event!(
            name: "steadfast::deliver::dead_letter_expired",
            target: "steadfast::deliver",
            Level::ERROR,
            key, kind, session, destination, attempts,
            why = end.as_str(),
            "a dead letter will not be delivered ({}): {error}", end.as_str(),
        ),
    }
}

/// Letters are due now, whatever their backoff.
pub(crate) fn draining(letters: usize, why: &'static str) {
    event!(
        name: "steadfast::deliver::draining",
        target: "steadfast::deliver",
        Level::INFO,
        letters,
        why,
        "{letters} dead letters are tried now: {why}",
    );
}

/// A file was opened that had something to repair, or letters in it.
pub(crate) fn opened(file: &'static str, records: u64, bad_lines: u64, torn_bytes: u64) {
    if bad_lines > 0 || torn_bytes > 0 {
        event!(
            name: "steadfast::deliver::file_repaired",
            target: "steadfast::deliver",
            Level::WARN,
            file,
            records,
            bad_lines,
            torn_bytes,
            "{file} had {bad_lines} lines that can not be read, which are set aside, and {torn_bytes} bytes of an \
             interrupted write",
        );
    }
}

/// What is to be kept can not be written, and is in memory alone.
pub(crate) fn not_written(file: &'static str, error: &steadfast_store::StoreError) {
    event!(
        name: "steadfast::deliver::not_written",
        target: "steadfast::deliver",
        Level::WARN,
        file,
        full = error.is_full(),
        error = %error_chain(error),
        "{file} can not be written: its records are in memory alone until it can",
    );
}

/// The disk has not answered for so long that a letter is kept in memory until it does.
pub(crate) fn slow_disk(file: &'static str, limit: Duration) {
    event!(
        name: "steadfast::deliver::not_written",
        target: "steadfast::deliver",
        Level::WARN,
        file,
        full = false,
        error = %format_args!("the disk has not answered within {limit:?}"),
        "{file} is not written within {limit:?}: the record is in memory alone until it is",
    );
}

/// What was in memory alone is on the disk.
pub(crate) fn written_again(file: &'static str, records: usize) {
    event!(
        name: "steadfast::deliver::written_again",
        target: "steadfast::deliver",
        Level::INFO,
        file,
        records,
        "{file} can be written again, with the {records} records that were in memory alone",
    );
}

fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
