//! An agent on simulated providers, the first of which fails, as one trace:
//!
//! ```sh
//! OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 cargo run -p steadfast-otel --example agent
//! ```

use std::{error::Error, time::Duration};

use steadfast::{
    ChatRequest, ChatResponse, ChatService, Failure, Stack, ToolCall, ToolRequest, ToolResult,
    sim::{Answer, ErrorKind, Fault, FaultPlan, How},
};
use steadfast_otel::{OtelLayer, Telemetry, TelemetrySettings};
use steadfast_supervise::{AgentRun, WatchdogLayer};
use steadfast_tests::harness;
use steadfast_tool::ToolSpanLayer;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(settings) = TelemetrySettings::from_env()? else {
        return Err("set OTEL_EXPORTER_OTLP_ENDPOINT to the address of a collector".into());
    };
    let telemetry = Telemetry::start(&settings)?;
    // What tools and runs open, and what the application opens itself.
    tracing_subscriber::registry().with(telemetry.tracing_layer()).init();

    let sims =
        harness::trio(|_, sim| sim.respond(|_| Some(Answer::text("It was the cache. ".repeat(8)))));
    // Overloaded at first; then its streams break.
    sims[0].set_faults(FaultPlan::first(2, Fault::Error(ErrorKind::Overloaded)));
    let client = harness::client(&sims);
    telemetry.set_servers(client.providers().servers());
    let stack = Stack::new(harness::chain(&sims)).boxed(client);
    let service = ServiceBuilder::new()
        .map_response(ChatResponse::boxed)
        .layer(OtelLayer::new(telemetry.clone()))
        .service(stack);
    let llm = ChatService::new(service);

    let asked = llm.clone();
    let tool = ToolSpanLayer::new().layer(service_fn(move |request: ToolRequest| {
        let llm = asked.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(120)).await;
            ask(&llm, "Summarise the log.").await?;
            Ok::<_, Failure>(ToolResult::of(&request.call, "done"))
        }
    }));
    let agent = WatchdogLayer::default().layer(service_fn(move |run: AgentRun<ChatService>| {
        let tool = tool.clone();
        async move {
            ask(&run.input, "What is wrong?").await?;
            let call =
                ToolCall { id: "call_1".into(), name: "read_log".into(), ..ToolCall::default() };
            tool.oneshot(ToolRequest::new(run.context.clone(), call)).await?;
            ask(&run.input, "Then repair it.").await
        }
    }));

    let breaks = Fault::break_after(8, How::Close);
    tokio::spawn({
        let first = sims[0].clone();
        async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            first.set_faults(FaultPlan::always(breaks));
        }
    });
    let mut run = AgentRun::new(llm);
    run.context =
        run.context.with_agent("bug-finder").with_session("session-7").with_tenant("acme");
    agent.oneshot(run).await?;
    telemetry.shutdown(Duration::from_secs(5)).await;
    let counts = telemetry.snapshot();
    println!("{} spans sent, {} dropped", counts.sent, counts.dropped);
    Ok(())
}

/// Asks, and reads the answer to its end.
async fn ask(llm: &ChatService, text: &str) -> Result<(), Failure> {
    let mut request = ChatRequest::user(text).with_model("gpt-4o");
    request.stream = true;
    llm.clone().oneshot(request).await?.collect().await?;
    Ok(())
}
