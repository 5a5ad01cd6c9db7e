//! A crate that brings its own allocator does without the feature `allocations`.
#![cfg(not(feature = "allocations"))]

use std::alloc::System;

use steadfast_testkit::{Aspect, Contract, Http, run, verify};
use tower::layer::util::Identity;

#[global_allocator]
static OWN: System = System;

#[test]
fn the_contract_works_beside_it() {
    let contract = Contract::new(Http, Identity::new)
        .none(Aspect::Refusal, "every call is sent")
        .none(Aspect::State, "it does nothing")
        .none(Aspect::Held, "it does nothing");
    run(async { verify(&contract).await });
}
