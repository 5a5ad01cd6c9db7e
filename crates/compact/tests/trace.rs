//! What is traced. Alone in its file: a callsite that another test reaches first, without a
//! subscriber, may stay disabled.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::time::Duration;

use steadfast_chat::{Message, Part, Role};
use steadfast_compact::CompactionLayer;
use steadfast_core::{Failure, Reason};
use steadfast_testkit::CapturedEvents;
use support::*;

/// The names of the captured events, none of which has text of a conversation.
fn names(captured: &CapturedEvents) -> Vec<String> {
    let lines = captured.take();
    for line in &lines {
        for content in ["question", "all is well", "and now", "busy"] {
            assert!(!line.contains(content), "text of the conversation is traced: {line}");
        }
    }
    lines.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_once_under_its_name() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let model = Model::fine();

    // Nothing to report.
    let layer = CompactionLayer::rules_only().with_targets(window(8_192));
    let service = stacked(&layer, &model);
    ask(&service, request(talk(3, 3), session("s"))).await.unwrap();
    assert!(names(&captured).is_empty());

    // By rule.
    ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    let events = captured.take();
    assert_eq!(events.len(), 1, "{events:?}");
    for field in [
        "steadfast::compact::compacted target=anthropic/claude-test",
        "tenant=\"acme\" session=\"s\"",
        "tier=\"fallback\" effect=\"effective\" before=",
        "after=",
        "target=",
        "kept=",
        "dropped=",
    ] {
        assert!(events[0].contains(field), "{field}: {}", events[0]);
    }

    // A warning when it begins, and not again.
    let service = stacked(
        &CompactionLayer::rules_only().with_targets(window(16_000)).with_counter(four_bytes()),
        &model,
    );
    for _ in 0..3 {
        ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    }
    assert_eq!(names(&captured), ["steadfast::compact::warned"]);

    // A summariser that fails, until its breaker opens.
    let broken = Model::at_once(|_, _| Err(Failure::new(Reason::Overloaded, "busy")));
    let layer = CompactionLayer::new(broken).with_targets(window(8_192));
    let service = stacked(&layer, &model);
    let one = |number: usize| {
        let service = service.clone();
        async move { ask(&service, request(talk(120, 20), session(&format!("s{number}")))).await }
    };
    one(0).await.unwrap();
    let events = captured.take();
    let degraded = "steadfast::compact::degraded target=anthropic/claude-test tenant=\"acme\" \
                    session=\"s0\" cause=\"failed\" reason=\"overloaded\"";
    assert_eq!(events[0], degraded);
    assert!(events[1].starts_with("steadfast::compact::compacted"));
    for number in 1..5 {
        one(number).await.unwrap();
    }
    let events = captured.take();
    assert!(
        events
            .contains(&"steadfast::compact::summariser tenant=\"acme\" state=\"open\"".to_owned()),
        "{events:?}"
    );
    one(6).await.unwrap();
    assert!(captured.take()[0].contains("cause=\"breaker_open\""));

    // A refusal.
    let tight = Model::at_once(|number, _| match number {
        0 => Err(overflow(Some(6_000), Some(9_000))),
        _ => Ok(say("ok")),
    });
    let service = stacked(&CompactionLayer::rules_only().with_targets(window(100_000)), &tight);
    ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    let events = captured.take();
    assert!(events[0].starts_with("steadfast::compact::overflow"), "{events:?}");
    assert!(events[0].ends_with("limit=6000 requested=9000 times=1"), "{events:?}");
    assert!(events[1].starts_with("steadfast::compact::compacted"));

    // A refusal that is repaired.
    let model_of_text = Model::at_once(|number, _| match number {
        0 => Err(Failure::new(Reason::Format, "Could not process image")),
        _ => Ok(say("ok")),
    });
    let service = stacked(&CompactionLayer::rules_only(), &model_of_text);
    let picture = vec![Message::new(Role::User, vec![Part::image("image/png", "AAAA")])];
    ask(&service, request(picture, session("s"))).await.unwrap();
    let events = captured.take();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].starts_with("steadfast::compact::repaired"), "{events:?}");
    assert!(events[0].ends_with("remedy=\"omit_media\" reason=\"format\""), "{events:?}");

    // What can not fit.
    let service = stacked(&CompactionLayer::rules_only().with_targets(window(8_192)), &model);
    let huge = vec![Message::user("why? ".repeat(20_000))];
    assert!(ask(&service, request(huge, session("s"))).await.is_err());
    assert_eq!(names(&captured), ["steadfast::compact::too_large"]);

    // In the background.
    let layer = CompactionLayer::rules_only()
        .with_targets(window(14_000))
        .with_counter(four_bytes())
        .with_deferred(true);
    let service = stacked(&layer, &model);
    ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = names(&captured);
    for name in ["deferred", "warned", "compacted"] {
        assert!(events.contains(&format!("steadfast::compact::{name}")), "{events:?}");
    }

    // A name that means nothing.
    let service = stacked(&CompactionLayer::rules_only().with_targets(window(8_192)), &model);
    ask(&service, request(talk(120, 20), session(" "))).await.unwrap();
    assert_eq!(names(&captured), ["steadfast::compact::compacted", "steadfast::compact::dropped"]);

    // Errors of its own.
    let layer =
        CompactionLayer::rules_only().with_targets(window(8_192)).with_pins(|_| panic!("no idea"));
    let service = stacked(&layer, &model);
    for _ in 0..4 {
        ask(&service, request(talk(120, 20), session("s"))).await.unwrap();
    }
    let threw = "steadfast::compact::threw".to_owned();
    let events = names(&captured);
    assert_eq!(events.iter().filter(|name| **name == threw).count(), 3, "{events:?}");
    assert_eq!(events.iter().filter(|name| name.ends_with("switched_off")).count(), 1);
}
