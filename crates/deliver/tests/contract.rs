//! The contract of every layer, for those whose requests are the same inside and outside.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::future::{Pending, pending};

use common::ledger;
use steadfast_core::{Failure, Reason};
use steadfast_deliver::{
    Announcement, DeadLetterLayer, DeadLetters, DeliveryReceipt, DeliveryRetryLayer, DeliveryRoute,
    LetterQueuePolicy, RouteFallbackLayer, DeliveryRetryPolicy,
};
use steadfast_testkit::{
    Action, Aspect, Contract, Exchange, NoPieces, Pieces, Plain, Read, SECRET, contract,
};
use tower::{Layer, ServiceExt, service_fn, util::{MapResponse, ServiceFn}};

/// Announcements, answered by receipts.
#[derive(Clone, Copy, Debug)]
struct Delivery;

/// A receipt, as the kit reads it.
#[derive(Debug)]
struct Reply(Option<Pieces>);

impl Exchange for Delivery {
    type Request = Announcement;
    type Reply = Reply;

    fn request(&self) -> Announcement {
        Announcement::new("key", "channel", SECRET).with_session("session")
    }

    fn same(&self, sent: &Announcement, received: &Announcement) -> bool {
        sent.key == received.key
            && sent.text == received.text
            && sent.session == received.session
            && sent.destination == received.destination
            && sent.kind == received.kind
    }

    fn reply(&self, pieces: Pieces) -> Reply {
        Reply(Some(pieces))
    }
}

impl Read for Reply {
    type Head = &'static str;
    type Piece = std::convert::Infallible;
    type Pieces = NoPieces;

    fn read(self) -> (&'static str, NoPieces) {
        // Those of the kit's own values.
        let (_, pieces) = Plain.reply(self.0.expect("a whole reply")).read();
        ("answered", pieces)
    }
}

fn main() {}
