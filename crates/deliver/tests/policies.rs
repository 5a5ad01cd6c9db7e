//! Policies, as a configuration spells them.

#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use steadfast_deliver::{
    BatchPolicy, DeadLetterPolicy, DeliveryRetryPolicy, LedgerPolicy, LetterQueuePolicy,
    RoutePolicy,
};

fn is_written_and_read<P: Serialize + DeserializeOwned + Default + PartialEq + std::fmt::Debug>() {
    let text = serde_json::to_string(&P::default()).unwrap();
    assert_eq!(serde_json::from_str::<P>(&text).unwrap(), P::default(), "{text}");
    assert_eq!(serde_json::from_str::<P>("{}").unwrap(), P::default());
    assert!(serde_json::from_str::<P>(r#"{"a_typo":1}"#).is_err());
}

#[test]
fn each_policy_is_read_as_it_is_written() {
    is_written_and_read::<BatchPolicy>();
    is_written_and_read::<DeadLetterPolicy>();
    is_written_and_read::<DeliveryRetryPolicy>();
    is_written_and_read::<LedgerPolicy>();
    is_written_and_read::<LetterQueuePolicy>();
    is_written_and_read::<RoutePolicy>();
}

#[test]
fn one_key_changes_one_thing() {
    let text = r#"{"retries":7,"max_age_s":7200,"base_ms":60000}"#;
    let policy: LetterQueuePolicy = serde_json::from_str(text).unwrap();
    let expected = LetterQueuePolicy {
        retries: 7,
        max_age: Duration::from_secs(7_200),
        base: Duration::from_secs(60),
        ..LetterQueuePolicy::default()
    };
    assert_eq!(policy, expected);
}
