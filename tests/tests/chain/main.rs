//! The chain `anthropic, openai, google` with each provider and each pair of them down, in twelve
//! ways, streaming and not, called in each dialect, with tools, a follow-up with their results, and
//! a picture: every call is answered by the first healthy provider, and the caller reads exactly
//! what that provider sent. Only a provider that says nothing at all is not left when the answer comes
//! whole: that is silent by nature, and has all the time of the call.

#![allow(clippy::unwrap_used)]

mod callers;
mod retry_outside;

use steadfast::{
    Completion, Dialect, RecoveryLog, Stack, StopReason,
    sim::{
        Answer, End, Entry, ErrorKind, Fault, FaultPlan, How, RateLimit, Sent, SimProvider, Usage,
    },
};
use steadfast_tests::harness::{self, TRIO};

use self::callers::{Conversation, PICTURE};

/// How a provider can be down.
fn faults() -> [(&'static str, Fault); 12] {
    use ErrorKind::{
        Auth, BadGatewayHtml, InsufficientQuota, ModelNotFound, Overloaded, ServerError,
    };
    [
        ("500", Fault::Error(ServerError)),
        ("529 or 503", Fault::Error(Overloaded)),
        ("hang", Fault::Hang),
        ("reset before headers", Fault::Reset),
        ("refused", Fault::Refused),
        ("bad key", Fault::Error(Auth)),
        ("missing model", Fault::Error(ModelNotFound)),
        ("502 with HTML", Fault::Error(BadGatewayHtml)),
        ("200 with an error", Fault::ErrorInOk(ServerError)),
        ("error event first", Fault::break_after(0, How::ErrorEvent(Overloaded))),
        ("429 with a long hint", Fault::rate_limit(RateLimit::after("3600"))),
        ("insufficient_quota", Fault::Error(InsufficientQuota)),
    ]
}

/// Which providers are down, by position in the chain.
const DOWN: [&[usize]; 6] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2]];

/// The providers, those of `down` with `fault`. Each has its own answers: first two calls, after
/// their results a text.
fn providers(down: &[usize], fault: &Fault) -> Vec<SimProvider> {
    harness::trio(|dialect, provider| {
        let position = TRIO.iter().position(|(_, other)| *other == dialect).unwrap();
        let tokens = move |n: u64| n + 1_000 * position as u64;
        let name = TRIO[position].0;
        let plan = match down.contains(&position) {
            true => FaultPlan::always(fault.clone()),
            false => FaultPlan::none(),
        };
        provider.with_faults(plan).respond(move |asked| {
            let answer = if asked.after_tool_results {
                Answer::text(format!(
                    "{name} has read it all: \u{65e5}\u{672c} \u{1f980}, na\u{ef}ve."
                ))
            } else {
                Answer::text(format!("{name} will look \u{2026}"))
                    .then_tool_call("read", format!(r#"{{"path": "{name}/\u00e9.txt"}}"#))
                    .then_tool_call("list", r#"{ "path":"/", "depth":2.50 }"#)
            };
            let usage = Usage {
                input: tokens(120),
                output: tokens(45),
                cache_read: tokens(30),
                ..Usage::default()
            };
            Some(answer.usage(usage))
        })
    })
}

/// The provider that has to answer, and the last answer in its journal.
fn answering<'a>(
    sims: &'a [SimProvider],
    down: &[usize],
) -> Result<(&'a str, Entry, Sent), String> {
    let first = (0..sims.len()).find(|position| !down.contains(position)).unwrap();
    for (position, provider) in sims.iter().enumerate() {
        let asked = provider.journal().len();
        if (position < first && asked == 0) || (position > first && asked > 0) {
            return Err(format!("{} was asked {asked} times", provider.name()));
        }
        if provider.journal().entries().iter().any(|entry| entry.end == End::Open) {
            return Err(format!("{} has a request open", provider.name()));
        }
    }
    let entry = sims[first].journal().last().ok_or("the first that is well was not asked")?;
    let sent = entry.sent.clone().ok_or_else(|| format!("it refused: {:?}", entry.refused))?;
    Ok((sims[first].name(), entry, sent))
}

/// What differs between what a caller read and what was sent.
fn compare(read: &Completion, sent: &Sent, after_results: bool) -> Result<(), String> {
    #[allow(clippy::needless_pass_by_value)] // Most are made to be compared.
    fn same<T: PartialEq + std::fmt::Debug>(what: &str, read: T, sent: T) -> Result<(), String> {
        if read == sent { Ok(()) } else { Err(format!("{what}: {read:?} instead of {sent:?}")) }
    }
    same("text", read.text(), sent.text.clone())?;
    let calls: Vec<_> = read.tool_calls().collect();
    same("number of calls", calls.len(), sent.tool_calls.len())?;
    same("number of calls", calls.len(), if after_results { 0 } else { 2 })?;
    for (call, sent) in calls.iter().zip(&sent.tool_calls) {
        same("tool", &call.name, &sent.name)?;
        same("arguments", &call.arguments, &sent.arguments)?;
        // If the provider sends no id, the client generates one.
        match sent.id.as_str() {
            "" => same("an empty id", call.id.is_empty(), false)?,
            id => same("id", call.id.as_str(), id)?,
        }
    }
    if let [one, other] = calls[..] {
        same("ids are one", one.id == other.id, false)?;
    }
    let used = sent.usage;
    same("input", read.usage.input, Some(used.input + used.cache_read + used.cache_write))?;
    same("output", read.usage.output, Some(used.output))?;
    same("cache", read.usage.cache_read, Some(used.cache_read))?;
    let stop = if after_results { StopReason::EndTurn } else { StopReason::ToolUse };
    same("stop", read.stop.as_ref().map(|stop| stop.reason), Some(stop))
}

/// One call of `conversation` with some providers down, compared with what was sent.
async fn call(
    conversation: &Conversation,
    down: &[usize],
    fault: &Fault,
    after_results: bool,
) -> Result<Completion, String> {
    let sims = providers(down, fault);
    let service = Stack::new(harness::chain(&sims)).boxed(harness::client(&sims));
    let log = RecoveryLog::enabled();
    let read = conversation.ask(&service, &log).await?;
    let asked: usize = sims.iter().map(|sim| sim.journal().len()).sum();
    if log.attempts() as usize != asked {
        return Err(format!("{} attempts in the log, asked {asked} times", log.attempts()));
    }
    let (name, entry, sent) = answering(&sims, down)?;
    compare(&read, &sent, after_results).map_err(|why| format!("{name} answered, {why}"))?;
    let body = String::from_utf8_lossy(&entry.body);
    if !body.contains(PICTURE) {
        return Err(format!("{name} did not get the picture"));
    }
    for result in ["read", "list"].map(result) {
        if after_results != body.contains(&result) {
            return Err(format!("{name} did not get {result:?}"));
        }
    }
    Ok(read)
}

fn result(tool: &str) -> String {
    format!("the result of {tool} is 42")
}

/// All cases of a caller of `dialect`.
async fn calls_of(dialect: Dialect) {
    let (mut calls, mut wrong) = (0, Vec::new());
    for stream in [false, true] {
        let begin = Conversation::new(dialect, stream);
        // A history that the first provider has written while it was healthy.
        let first = call(&begin, &[], &Fault::Hang, false).await.unwrap();
        let healthy = begin.followed_by(&first, result);
        for (name, fault) in faults().into_iter().filter(|(name, _)| stream || *name != "hang") {
            for down in DOWN {
                let mut note = |turn: &str, outcome: Result<Completion, String>| {
                    calls += 1;
                    match outcome {
                        Ok(answer) => Some(answer),
                        Err(why) => {
                            let who: Vec<_> =
                                down.iter().map(|position| TRIO[*position].0).collect();
                            wrong.push(format!("{turn}, {name} at {who:?}, {stream}: {why}"));
                            None
                        }
                    }
                };
                if let Some(answer) = note("first", call(&begin, down, &fault, false).await) {
                    // The history is that of the provider that answered.
                    let next = begin.followed_by(&answer, result);
                    note("follow-up", call(&next, down, &fault, true).await);
                }
                note("failure in between", call(&healthy, down, &fault, true).await);
            }
        }
    }
    assert_eq!(calls, (12 + 11) * 6 * 3, "{wrong:#?}");
    assert!(wrong.is_empty(), "{} of {calls} went wrong: {wrong:#?}", wrong.len());
}

#[tokio::test(start_paused = true)]
async fn every_call_of_an_anthropic_caller_is_answered() {
    calls_of(Dialect::Anthropic).await;
}

#[tokio::test(start_paused = true)]
async fn every_call_of_an_openai_caller_is_answered() {
    calls_of(Dialect::OpenAi).await;
}

#[tokio::test(start_paused = true)]
async fn every_call_of_a_gemini_caller_is_answered() {
    calls_of(Dialect::Gemini).await;
}
