//! Policies as a configuration spells them.
#![cfg(all(feature = "serde", unix))]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use steadfast_tool::{AccessPolicy, CommandPolicy, ToolBreakerPolicy, ToolTimeoutPolicy};

#[test]
fn what_is_left_out_is_the_default_and_what_is_unknown_an_error() {
    let timeout: ToolTimeoutPolicy = serde_json::from_str(r#"{"timeout_ms":5000}"#).unwrap();
    assert_eq!(timeout.timeout, Duration::from_secs(5));
    let breaker: ToolBreakerPolicy =
        serde_json::from_str(r#"{"same_call":0,"rest_ms":1000,"sessions":7}"#).unwrap();
    let default = ToolBreakerPolicy::default();
    assert_eq!((breaker.same_call, breaker.tool), (None, Some(5)));
    assert_eq!((breaker.rest, breaker.sessions.capacity), (Duration::from_secs(1), 7));
    assert_eq!(breaker.same_tag, default.same_tag);
    let command: CommandPolicy =
        serde_json::from_str(r#"{"grace_ms":0,"keep_background":true,"env":{"CI":"1"}}"#).unwrap();
    assert_eq!((command.grace, command.keep_background), (Duration::ZERO, true));
    assert_eq!(command.inherit, CommandPolicy::default().inherit);
    let access: AccessPolicy = serde_json::from_str(
        r#"{"profiles":{"default":{"roots":["/srv"],"hosts":[]}},"arguments":{"*":{"paths":["p"]}}}"#,
    )
    .unwrap();
    access.validate().unwrap();
    let profile = &access.profiles["default"];
    assert_eq!((profile.hosts.as_deref(), profile.max_file_bytes), (Some(&[] as &[String]), None));
    for wrong in [r#"{"timeout":1}"#, r#"{"timeout_ms":-1}"#] {
        assert!(serde_json::from_str::<ToolTimeoutPolicy>(wrong).is_err(), "{wrong}");
    }
    for text in [
        serde_json::to_string(&CommandPolicy::default()).unwrap(),
        serde_json::to_string(&command).unwrap(),
    ] {
        let again: CommandPolicy = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }
}
