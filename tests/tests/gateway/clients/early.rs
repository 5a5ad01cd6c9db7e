//! A caller who streams hears something while its provider is silent.

use std::time::Duration;

use steadfast::sim::{Dialect, ErrorKind, Fault, FaultPlan, PlanRule};
use steadfast_tests::gateway::{
    DIALECTS, Rig, RigBuilder, ask,
    http::within,
    model, pairs, path, provider, rich_answer,
    wire_answer::{WireAnswer, error_message},
};

/// After a fifth of a second of silence; a stall is over after one second.
const SOON: &str = "auth = \"none\"\nearly_keepalive_s = 0.2\nkeepalive_s = 0.2";
const STALLS: &str = "[timeout]\nstall_ms = 1_000\nattempt_ms = 1_000\n[retry]\nretries = 0\n";

fn soon() -> RigBuilder {
    Rig::builder().server(SOON).config(STALLS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_is_sent_before_there_is_an_answer_and_failover_goes_on_behind_it() {
    for (caller, speaks) in pairs() {
        let hangs = provider(speaks).with_name("hangs").with_faults(FaultPlan::always(Fault::Hang));
        let well = provider(speaks).with_name("well").respond(|_| Some(rich_answer()));
        let rig = soon().provider(hangs.build()).provider(well.build()).start().await;
        let began = tokio::time::Instant::now();
        let open = ask(caller, model(speaks), true).open(rig.addr).await;
        let case = format!("{caller} <- {speaks}");
        assert_eq!(open.status, 200, "{case}");
        assert!(began.elapsed() < Duration::from_millis(900), "{case}: before the stall is over");
        let reply = within(open.rest()).await;
        assert!(reply.clean, "{case}");
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        let sign = match caller {
            Dialect::OpenAi | Dialect::Responses => ":",
            Dialect::Anthropic => "event: ping",
            // The one that Google's SDKs can bear.
            Dialect::Gemini => "\n",
        };
        assert!(body.starts_with(sign), "{case}: {body}");
        let answer = WireAnswer::stream(caller, &reply.body);
        assert!(answer.errors.is_empty() && !answer.ends.is_empty(), "{case}: {answer:?}");
        answer.assert_prefix_of(
            &rig.sims[1].provider().journal().last().unwrap().sent.unwrap(),
            &case,
        );
        rig.assert_all_attempts(&case).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_then_on_a_failure_is_an_event() {
    for dialect in DIALECTS {
        let rig = soon()
            .provider(provider(dialect).with_faults(FaultPlan::always(Fault::Hang)).build())
            .start()
            .await;
        let reply = ask(dialect, model(dialect), true).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{dialect}");
        assert_eq!(reply.clean, dialect != Dialect::Gemini, "{dialect}: its SDK has to see it");
        let answer = WireAnswer::stream(dialect, &reply.body);
        let message = error_message(dialect, &answer.errors[0]);
        assert!(message.contains("timeout: "), "{dialect}: {message}");
        let failed =
            "steadfast_requests_total{dialect=\"DIALECT\",stream=\"true\",outcome=\"failed\"} 1";
        let failed = failed.replace("DIALECT", dialect.as_str());
        let metrics = steadfast_tests::gateway::http::HttpRequest::get("/metrics");
        let metrics = metrics.send(rig.addr).await;
        assert!(metrics.text().contains(&failed), "{dialect}: {}", metrics.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hears_something_in_time_or_does_not_stream_has_a_status() {
    for dialect in DIALECTS {
        let refuses = FaultPlan::none().rule(PlanRule::new(Fault::Error(ErrorKind::Format)));
        let rig = soon().provider(provider(dialect).with_faults(refuses).build()).start().await;
        assert_eq!(
            ask(dialect, model(dialect), true).send(rig.addr).await.status,
            400,
            "{dialect}"
        );
        let hangs = provider(dialect).with_faults(FaultPlan::always(Fault::Hang));
        let rig = soon().provider(hangs.build()).start().await;
        assert_eq!(
            ask(dialect, model(dialect), false).send(rig.addr).await.status,
            504,
            "{dialect}"
        );
        if dialect == Dialect::Gemini {
            let array = path(dialect, model(dialect), true).replace("?alt=sse", "");
            let reply = ask(dialect, model(dialect), true).at(array).send(rig.addr).await;
            assert_eq!(reply.status, 504, "an array has no sign of life");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_away_before_the_answer_ends_the_call() {
    let hangs = provider(Dialect::OpenAi).with_faults(FaultPlan::always(Fault::Hang));
    let rig = Rig::builder().server(SOON).provider(hangs.build()).start().await;
    let open = ask(Dialect::OpenAi, "gpt-4o", true).open(rig.addr).await;
    assert_eq!(open.status, 200);
    drop(open);
    rig.assert_all_attempts("it is over").await;
}
