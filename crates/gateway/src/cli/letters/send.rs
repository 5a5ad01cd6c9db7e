//! Letters that are sent to an address: the command is, until all of them were tried, the service that delivers from the folder.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use serde_json::{Value, json};
use steadfast::{
    classify::{ClassifyLayer, Evidence},
    client::{ClientBody, transport::Transport},
};
use steadfast_core::{Failure, Reason, time::wall};
use steadfast_deliver::{
    Announcement, DeadLetters, DeliverError, DeliveryFolder, DeliveryLedger, LedgerPolicy,
    LetterQueuePolicy,
};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use super::Exit;
use crate::{cli::stop_signal, escape, stack::is_address};

/// The header with a letter's key.
const KEY: &str = "idempotency-key";

/// How often it is seen whether all letters were tried: 20 ms.
const PERIOD: Duration = Duration::from_millis(20);

/// The address to send to.
pub(super) fn address(text: &str) -> Result<Uri, Exit> {
    let uri = text.parse().ok().filter(|_| is_address(text));
    // What may be a secret is not repeated.
    uri.ok_or_else(|| Exit::usage("--url is no address such as https://HOST/PATH, without a user"))
}

/// Sends the letters that are due in this folder, and returns when each was tried or waits for its destination. False: not all of
/// that is on the disk.
pub(super) async fn all(dir: &Path, address: Uri) -> Result<bool, DeliverError> {
    let folder = DeliveryFolder::open(dir).await?;
    let ledger = DeliveryLedger::open(&folder, LedgerPolicy::default()).await?;
    let transport = ClassifyLayer::http()
        .with_override(|evidence: &Evidence<'_>| {
            // Of an address that is wrong, or not there: it says nothing of the letter.
            let status = evidence.status.filter(StatusCode::is_client_error);
            let of_letter = [400, 401, 402, 403, 408, 409, 413, 422, 425, 429];
            let of_address = status.is_some_and(|status| !of_letter.contains(&status.as_u16()));
            of_address.then_some(Reason::Unknown)
        })
        .layer(Transport::new());
    let channel = service_fn(move |letter: Announcement| {
        let (request, transport) = (request(&letter, &address), transport.clone());
        async move {
            let status =
                transport.oneshot(request).await.map(|answer: Response<_>| answer.status())?;
            match status.is_success() {
                true => Ok(()),
                false => {
                    Err(Failure::new(Reason::Unknown, format!("the address answers {status}"))
                        .with_status(status))
                }
            }
        }
    });
    // Of a queue with another policy, none is given up here; and none is forgotten before it is reported, however many end.
    let policy = LetterQueuePolicy {
        letters: usize::MAX,
        bytes: usize::MAX,
        ended: usize::MAX,
        ..LetterQueuePolicy::default()
    };
    let letters = DeadLetters::open(&folder, policy, ledger.clone(), channel).await?;
    tokio::select! {
        () = tried(&letters) => {}
        () = stop_signal() => {}
    }
    // Ends what is being sent, and writes everything.
    let (letters, ledger) = (letters.close().await, ledger.close().await);
    Ok(letters && ledger)
}

/// Waits until nothing is being sent, and nothing is due.
async fn tried(letters: &DeadLetters) {
    let is_due = || {
        let now = wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis();
        letters.list().waiting.iter().any(|letter| u128::from(letter.next_ms) <= now)
    };
    while letters.snapshot().sending > 0 || is_due() {
        sleep(PERIOD).await;
    }
}

fn request(letter: &Announcement, address: &Uri) -> Request<ClientBody> {
    let body = Bytes::from(body(letter).to_string());
    let mut request = Request::new(ClientBody::new(body));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = address.clone();
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(key) = HeaderValue::from_str(&escape::ascii(&letter.key)) {
        headers.insert(KEY, key);
    }
    request
}

fn body(letter: &Announcement) -> Value {
    let created = letter.created.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    json!({
        "key": &*letter.key,
        "session": &*letter.session,
        "destination": &*letter.destination,
        "kind": letter.kind.as_str(),
        "tenant": letter.context.tenant(),
        "text": &*letter.text,
        "created_ms": u64::try_from(created.as_millis()).unwrap_or(u64::MAX),
    })
}
