//! The layers that understand the conversation, in every pair of dialects, over real sockets: a
//! stream that breaks is resumed, an answer that is cut off is continued, an agent in a loop is
//! stopped, a conversation that is too long is compacted. Answers are read by hand-written parsers.

use serde_json::{Value, json};
use steadfast::sim::{
    Answer, ContinuationMode, Dialect, Fault, FaultPlan, How, Model, PlanRule, SimProviderBuilder,
};
use steadfast_tests::gateway::{
    DIALECTS, Rig, ask,
    http::HttpRequest,
    model, pairs, provider, question, turns_key,
    wire_answer::{WireAnswer, error_message, refusal},
};
use tokio::task::JoinSet;

/// Without cooldowns, so that the same provider can be called again.
const NO_REST: &str = "[cooldown]\nnetwork = 0\ntimeout = 0\nserver_error = 0\noverloaded = 0\n\
                       [retry]\nbase_ms = 1\ncap_ms = 2\n";

/// A text of so many sentences, no half of which is like another.
fn tale(sentences: u32) -> String {
    let words =
        ["amber", "brine", "cedar", "dusk", "ember", "fjord", "gale", "harbour", "na\u{ef}ve"];
    let word = |n: u32| words[(n as usize * 7 + 3) % words.len()];
    let sentence = |n: u32| {
        format!(
            "On night {n} the keeper saw {} of {} and {} {}. ",
            n * n + 1,
            word(n),
            n * 13,
            word(n / 3)
        )
    };
    (1..=sentences).map(sentence).collect::<String>().trim_end().to_owned()
}

/// The ends that a whole answer has.
fn ends(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::OpenAi => &["stop", "[DONE]"],
        Dialect::Anthropic => &["end_turn", "message_stop"],
        Dialect::Gemini => &["STOP"],
        Dialect::Responses => &["completed", "response.completed"],
    }
}

/// The body of a request for at most `tokens`, without tools.
fn plain(dialect: Dialect, stream: bool, tokens: u64) -> HttpRequest {
    let mut body = question(dialect, model(dialect), stream);
    body.as_object_mut().unwrap().remove("tools");
    match dialect {
        Dialect::Gemini => body["generationConfig"]["maxOutputTokens"] = json!(tokens),
        Dialect::Responses => body["max_output_tokens"] = json!(tokens),
        _ => body["max_tokens"] = json!(tokens),
    }
    ask(dialect, model(dialect), stream).body(body.to_string())
}

/// A gateway with a provider for each dialect, `speaks` first.
async fn rig(
    speaks: Dialect,
    config: &str,
    make: impl Fn(SimProviderBuilder) -> SimProviderBuilder,
) -> Rig {
    let mut rig = Rig::builder().config(config);
    let mut order = vec![speaks];
    order.extend(DIALECTS.into_iter().filter(|dialect| *dialect != speaks));
    for (n, dialect) in order.into_iter().enumerate() {
        let made = make(provider(dialect).with_name(format!("p{n}"))).build();
        let models = format!("models = {{ \"*\" = \"{}\" }}", model(dialect));
        rig = rig.provider_with(made, &models);
    }
    rig.start().await
}

/// Every pair of dialects, a stream that breaks in three ways at three positions: the caller's text
/// is the whole text, once, with one proper end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_is_resumed_in_every_pair() {
    let mut cases = JoinSet::new();
    for (caller, speaks) in pairs() {
        for how in [How::Reset, How::End, How::TruncatedJson] {
            cases.spawn(async move {
                for after in [2, 9, 30] {
                    resumes(caller, speaks, after, how.clone()).await;
                }
            });
        }
    }
    let mut done = 0;
    while let Some(case) = cases.join_next().await {
        case.unwrap();
        done += 1;
    }
    assert_eq!(done, 3 * pairs().count());
}

async fn resumes(caller: Dialect, speaks: Dialect, after: usize, how: How) {
    let case = format!("{caller} <- {speaks}, {how:?} after {after}");
    let whole = tale(12);
    let scripted =
        Answer::text(whole.as_str()).continuation(ContinuationMode::Faithful).in_chunks_of(9);
    let plan =
        FaultPlan::none().rule(PlanRule::new(Fault::break_after(after, how)).provider("p0").nth(1));
    let rig =
        rig(speaks, NO_REST, |sim| sim.with_script([scripted.clone()]).with_faults(plan.clone()))
            .await;
    let reply = plain(caller, true, 4_000).send(rig.addr).await;
    assert_eq!(reply.status, 200, "{case}: {}", reply.text());
    assert!(reply.clean, "{case}");
    let answer = WireAnswer::stream(caller, &reply.body);
    assert_eq!(answer.errors, Vec::<Value>::new(), "{case}");
    assert_eq!(answer.text, whole, "{case}");
    assert_eq!(answer.ends, ends(caller), "{case}");
    assert!(answer.output > Some(100), "{case}: usage is reported: {answer:?}");
    let resume = rig.app.gateway().handles().resume.snapshot();
    assert_eq!((resume.broken, resume.resumed, resume.declined), (1, 1, 0), "{case}");
    assert_eq!(rig.app.metrics().count("recover", "resumed"), 1, "{case}");
    rig.assert_all_attempts(&case).await;
}

/// A provider that goes down in the middle of an answer: the next one of the chain, of another
/// dialect, continues the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_provider_resumes_the_answer() {
    for (caller, speaks) in pairs() {
        let case = format!("{caller} <- {speaks}");
        let whole = tale(12);
        let scripted =
            Answer::text(whole.as_str()).continuation(ContinuationMode::Faithful).in_chunks_of(9);
        let plan = FaultPlan::none()
            .rule(PlanRule::new(Fault::break_after(20, How::Reset)).provider("p0").nth(1))
            .rule(PlanRule::new(Fault::Reset).provider("p0").from(2));
        let config = "[retry]\nretries = 1\nbase_ms = 1\ncap_ms = 2\n";
        let rig = rig(speaks, config, |sim| {
            sim.with_script([scripted.clone()]).with_faults(plan.clone())
        })
        .await;
        let reply = plain(caller, true, 4_000).send(rig.addr).await;
        let answer = WireAnswer::stream(caller, &reply.body);
        assert_eq!(answer.errors, Vec::<Value>::new(), "{case}");
        assert_eq!(answer.text, whole, "{case}");
        assert_eq!(answer.ends, ends(caller), "{case}");
        assert!(
            !rig.sims[1].provider().journal().entries().is_empty(),
            "{case}: the next was called"
        );
        rig.assert_all_attempts(&case).await;
    }
}

/// A model that does not continue at the break: the caller gets what had arrived, one error, and no
/// end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_overlap_there_is_one_error_and_nothing_twice() {
    for (caller, speaks) in pairs() {
        for how in [
            ContinuationMode::IgnoresAnchor,
            ContinuationMode::Paraphrase,
            ContinuationMode::Skips(9),
        ] {
            let case = format!("{caller} <- {speaks}, {how:?}");
            let whole = tale(12);
            let scripted = Answer::text(whole.as_str()).continuation(how).in_chunks_of(9);
            let plan =
                FaultPlan::none().rule(PlanRule::new(Fault::break_after(20, How::Reset)).nth(1));
            let rig = rig(speaks, NO_REST, |sim| {
                sim.with_script([scripted.clone()]).with_faults(plan.clone())
            })
            .await;
            let reply = plain(caller, true, 4_000).send(rig.addr).await;
            let answer = WireAnswer::stream(caller, &reply.body);
            assert_eq!(answer.errors.len(), 1, "{case}: {answer:?}");
            error_message(caller, &answer.errors[0]);
            assert!(
                whole.starts_with(&answer.text) && !answer.text.is_empty(),
                "{case}: {answer:?}"
            );
            assert_eq!(answer.ends, Vec::<String>::new(), "{case}");
            rig.assert_all_attempts(&case).await;
        }
    }
}

/// An answer three times as long as the output limit, which the caller set, and asks to go beyond; streamed
/// and whole: it arrives whole, once, and its usage is that of all pieces. The header and the log have every
/// attempt, as far as each knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_answer_arrives_whole() {
    for (caller, speaks) in pairs() {
        for stream in [true, false] {
            let case = format!("{caller} <- {speaks}, streamed {stream}");
            let whole = tale(120);
            let scripted = Answer::text(whole.as_str()).continuation(ContinuationMode::Faithful);
            let tokens = scripted.output_tokens();
            let rig = rig(speaks, "", |sim| sim.with_script([scripted.clone()])).await;
            let request = plain(caller, stream, tokens / 3 + 1);
            let reply = request.header("x-steadfast-continue", "1").send(rig.addr).await;
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            let answer = if stream {
                WireAnswer::stream(caller, &reply.body)
            } else {
                WireAnswer::whole(caller, &reply.body)
            };
            assert_eq!(answer.errors, Vec::<Value>::new(), "{case}");
            assert_eq!(answer.text, whole, "{case}");
            assert_eq!(answer.stop.as_deref(), Some(ends(caller)[0]), "{case}");
            assert!(answer.output >= Some(tokens), "{case}: {answer:?}");
            let cut = rig.app.gateway().handles().continuation.snapshot();
            // Before the caller has received content the limit is raised; a stream is continued.
            let expected = if stream { (0, 2) } else { (1, 0) };
            assert_eq!((cut.escalated, cut.continued), expected, "{case}: {cut:?}");
            match stream {
                // The head of a stream can not know.
                true => assert_eq!(reply.header("x-steadfast-attempts"), Some("1"), "{case}"),
                false => rig.assert_attempts(&reply, 0, &case),
            }
            rig.assert_all_attempts(&case).await;
        }
    }
}

/// A limit that the caller set is the caller's: one attempt, which ends with `length`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callers_limit_ends_the_answer() {
    for (caller, speaks) in pairs() {
        for stream in [true, false] {
            let case = format!("{caller} <- {speaks}, streamed {stream}");
            let whole = tale(120);
            let scripted = Answer::text(whole.as_str()).continuation(ContinuationMode::Faithful);
            let rig = rig(speaks, "", |sim| sim.with_script([scripted.clone()])).await;
            let reply = plain(caller, stream, 400).send(rig.addr).await;
            let answer = match stream {
                true => WireAnswer::stream(caller, &reply.body),
                false => WireAnswer::whole(caller, &reply.body),
            };
            assert!(
                matches!(
                    answer.stop.as_deref(),
                    Some("length" | "max_tokens" | "MAX_TOKENS" | "max_output_tokens")
                ),
                "{case}: {answer:?}"
            );
            assert!(whole.starts_with(&answer.text) && answer.text.len() < whole.len(), "{case}");
            assert_eq!(rig.seen().len(), 1, "{case}");
            rig.assert_attempts(&reply, 0, &case);
        }
    }
}

/// A model that never stops ends after its continuations, marked as cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_answer_ends() {
    for caller in DIALECTS {
        let rig = rig(caller, "", |sim| {
            sim.respond(|_| Some(Answer::endless().continuation(ContinuationMode::Faithful)))
        })
        .await;
        let request = plain(caller, true, 1_000).header("x-steadfast-continue", "1");
        let reply = request.send(rig.addr).await;
        let answer = WireAnswer::stream(caller, &reply.body);
        assert_eq!(answer.errors, Vec::<Value>::new(), "{caller}");
        let word = answer.stop.unwrap().to_lowercase();
        assert!(
            matches!(&*word, "length" | "max_tokens" | "max_output_tokens"),
            "{caller}: {word}"
        );
        assert_eq!(rig.seen().len(), 4, "{caller}: once, and three continuations");
        rig.assert_all_attempts(caller.as_str()).await;
    }
}

/// A request of an agent that has made the same call `times` times, with the same result.
fn looping(dialect: Dialect, times: usize, stream: bool) -> HttpRequest {
    let mut body = question(dialect, model(dialect), stream);
    let key = turns_key(dialect);
    let messages = body[key].as_array_mut().unwrap();
    for n in 0..times {
        let id = format!("call_{n}");
        match dialect {
            Dialect::OpenAi => {
                messages.push(json!({"role": "assistant", "content": null, "tool_calls": [{
                    "id": id, "type": "function",
                    "function": {"name": "look_up", "arguments": "{\"q\": \"x\"}"},
                }]}));
                messages.push(
                    json!({"role": "tool", "tool_call_id": id, "content": "nothing of the kind"}),
                );
            }
            Dialect::Responses => {
                messages.push(json!({"type": "function_call", "call_id": id, "name": "look_up",
                    "arguments": "{\"q\": \"x\"}"}));
                messages.push(json!({"type": "function_call_output", "call_id": id,
                    "output": "nothing of the kind"}));
            }
            Dialect::Anthropic => {
                messages.push(json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": id, "name": "look_up", "input": {"q": "x"}},
                ]}));
                messages.push(json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": "nothing of the kind"},
                ]}));
            }
            Dialect::Gemini => {
                messages.push(json!({"role": "model", "parts": [
                    {"functionCall": {"name": "look_up", "args": {"q": "x"}}},
                ]}));
                messages.push(json!({"role": "user", "parts": [
                    {"functionResponse": {"name": "look_up", "response": {"result": "nothing of the kind"}}},
                ]}));
            }
        }
    }
    ask(dialect, model(dialect), stream).body(body.to_string())
}

/// An agent in a loop, detected from its history alone: advised, then stopped without a call of a
/// provider.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_in_a_loop_is_advised_and_then_stopped() {
    for caller in DIALECTS {
        let rig = rig(caller, "", |sim| sim).await;
        for (times, advised) in [(2, 0), (3, 1), (4, 2)] {
            let reply = looping(caller, times, true).send(rig.addr).await;
            assert_eq!(reply.status, 200, "{caller} {times}: {}", reply.text());
            assert_eq!(rig.app.metrics().count("guard", "advised"), advised, "{caller}");
            let seen = String::from_utf8_lossy(&rig.last().body).into_owned();
            assert_eq!(seen.contains("[safety guard]"), advised > 0, "{caller} {times}: {seen}");
        }
        let asked = rig.seen().len();
        let reply = looping(caller, 5, true).send(rig.addr).await;
        let message = refusal(caller, 400, &reply);
        assert!(
            message.starts_with("Safety limit reached: the agent goes in circles"),
            "{message}"
        );
        assert!(
            message.contains("Events processed: 15 | Tool calls: 5 Please review"),
            "{message}"
        );
        assert!(!message.contains("Elapsed"), "{message}");
        assert!(message.contains("`guard.loops.same_result`"), "{message}");
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        assert_eq!(reply.header("x-steadfast-reason"), Some("safety"));
        assert_eq!(rig.seen().len(), asked, "{caller}: a stop does not fail over");
        for sim in &rig.sims[1..] {
            assert_eq!(sim.provider().journal().entries().len(), 0, "{caller}");
        }
        rig.assert_all_attempts(caller.as_str()).await;
    }
}

/// The stop as the last message of the model, with a proper end, streamed and whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_can_be_an_answer() {
    for caller in DIALECTS {
        let rig = rig(caller, "[guard]\nstop_as = \"answer\"\n", |sim| sim).await;
        for stream in [true, false] {
            let reply = looping(caller, 5, stream).send(rig.addr).await;
            assert_eq!(reply.status, 200, "{caller}: {}", reply.text());
            let answer = if stream {
                WireAnswer::stream(caller, &reply.body)
            } else {
                WireAnswer::whole(caller, &reply.body)
            };
            assert!(answer.text.contains("Safety limit reached"), "{caller}: {answer:?}");
            assert_eq!(answer.stop.as_deref(), Some(ends(caller)[0]), "{caller}");
            if stream {
                assert_eq!(answer.ends, ends(caller), "{caller}");
            }
        }
        assert_eq!(rig.seen().len(), 0, "{caller}");
    }
}

/// A limit that is reached inside an answer: the calls up to it are forwarded, the next one is
/// replaced by a text, and the answer ends properly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_inside_a_stream_ends_it_properly() {
    let calls = |n: usize| {
        (0..n).fold(Answer::text("Looking. "), |answer, n| {
            answer.then_tool_call("look_up", format!(r#"{{"q":"number {n}"}}"#))
        })
    };
    for (caller, speaks) in pairs() {
        let case = format!("{caller} <- {speaks}");
        let rig = rig(speaks, "[guard]\nper_tool = 2\n", |sim| sim.with_script([calls(4)])).await;
        let reply = ask(caller, model(caller), true).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{case}: {}", reply.text());
        let answer = WireAnswer::stream(caller, &reply.body);
        assert_eq!(answer.errors, Vec::<Value>::new(), "{case}");
        assert_eq!(answer.calls.len(), 2, "{case}: a limit of n forwards n: {answer:?}");
        assert!(!answer.ends.is_empty(), "{case}: {answer:?}");
        rig.assert_all_attempts(&case).await;
    }
}

/// An operator can extend a task; a caller can not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_operator_extends_a_task() {
    let rig = rig(Dialect::OpenAi, "[guard]\ncalls = 3\n", |sim| sim).await;
    let task = |times| looping(Dialect::OpenAi, times, false).header("x-steadfast-task", "t1");
    assert_eq!(task(3).send(rig.addr).await.status, 200);
    assert_eq!(task(4).send(rig.addr).await.status, 400);
    let extend = |query: &str| HttpRequest::post("/admin/guard/extend", "").query(query);
    assert_eq!(extend("task=t2").send(rig.addr).await.status, 404);
    assert_eq!(extend("").send(rig.addr).await.status, 400);
    let status = HttpRequest::get("/admin/status").send(rig.addr).await.json();
    assert_eq!(status["guard"]["tasks"][0]["task"], "t1");
    assert!(status["guard"]["tasks"][0]["stopped"].is_string(), "{status}");
    assert_eq!(extend("task=t1").send(rig.addr).await.status, 200);
    assert_eq!(task(4).send(rig.addr).await.status, 200, "earlier calls are not counted");
}

/// A caller's key gives no operator's rights, and tasks of the same name of two tenants are
/// separate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_neither_lift_limits_nor_share_tasks() {
    let builder = Rig::builder();
    let key = |name: &str| builder.secret(name, &format!("gw-{name}-secret-2291"));
    let (acme, other, admin) = (key("acme"), key("other"), key("admin"));
    let config = format!(
        "[guard]\ncalls = 3\n[[tenants]]\nname = \"acme\"\nkeys = [\"{acme}\"]\n\
         [[tenants]]\nname = \"other\"\nkeys = [\"{other}\"]\n"
    );
    let rig = builder
        .server(&format!("admin_key = \"{admin}\""))
        .config(&config)
        .provider(provider(Dialect::OpenAi).build())
        .start()
        .await;
    let as_of =
        |ask: HttpRequest, name: &str| ask.header("x-api-key", &format!("gw-{name}-secret-2291"));
    let task = |name: &str, times| {
        let ask = looping(Dialect::OpenAi, times, false).header("x-steadfast-task", "t");
        as_of(ask, name)
    };
    let extend = |tenant: &str| {
        HttpRequest::post("/admin/guard/extend", "").query(&format!("task=t&tenant={tenant}"))
    };
    assert_eq!(task("acme", 4).send(rig.addr).await.status, 400);
    assert_eq!(task("other", 1).send(rig.addr).await.status, 200, "another's task");
    for shut in [extend("acme"), as_of(extend("acme"), "acme"), as_of(extend("acme"), "other")] {
        assert_eq!(shut.send(rig.addr).await.status, 401);
    }
    assert_eq!(as_of(extend("other"), "admin").send(rig.addr).await.status, 200);
    assert_eq!(
        task("acme", 4).send(rig.addr).await.status,
        400,
        "that extended the other tenant's"
    );
    assert_eq!(as_of(extend("nobody"), "admin").send(rig.addr).await.status, 404);
    assert_eq!(as_of(extend("acme"), "admin").send(rig.addr).await.status, 200);
    assert_eq!(task("acme", 4).send(rig.addr).await.status, 200);
}

/// Switched off: the break is reported, the cut is reported, loops are not stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_can_be_switched_off() {
    let off =
        "[guard]\nenabled = false\n[continuation]\nenabled = false\n[resume]\nenabled = false\n";
    for caller in DIALECTS {
        let whole = tale(40);
        let scripted = Answer::text(whole.as_str()).continuation(ContinuationMode::Faithful);
        let plan = FaultPlan::none().rule(PlanRule::new(Fault::break_after(9, How::Reset)).nth(1));
        let config = format!("{NO_REST}{off}");
        let rig = rig(caller, &config, |sim| {
            sim.with_script([scripted.clone(), scripted.clone()]).with_faults(plan.clone())
        })
        .await;
        let broken =
            WireAnswer::stream(caller, &plain(caller, true, 9_000).send(rig.addr).await.body);
        assert_eq!((broken.errors.len(), broken.ends.len()), (1, 0), "{caller}: {broken:?}");
        let cut = WireAnswer::stream(caller, &plain(caller, true, 300).send(rig.addr).await.body);
        assert!(
            matches!(
                cut.stop.as_deref(),
                Some("length" | "max_tokens" | "MAX_TOKENS" | "max_output_tokens")
            ),
            "{cut:?}"
        );
        assert_eq!(looping(caller, 30, true).send(rig.addr).await.status, 200);
    }
}

/// A long conversation with calls and results in it, which ends with a question.
fn long(dialect: Dialect, turns: usize) -> HttpRequest {
    let mut body: Value = serde_json::from_slice(looping(dialect, 0, false).sent()).unwrap();
    let key = turns_key(dialect);
    let messages = body[key].as_array_mut().unwrap();
    let user = |text: String| match dialect {
        Dialect::Gemini => json!({"role": "user", "parts": [{"text": text}]}),
        _ => json!({"role": "user", "content": text}),
    };
    let model = |text: String| match dialect {
        Dialect::Gemini => json!({"role": "model", "parts": [{"text": text}]}),
        _ => json!({"role": "assistant", "content": text}),
    };
    for n in 0..turns {
        messages.push(model(format!("Answer {n}. {}", tale(4))));
        let rule = match n % 10 {
            1 => format!(" Never touch /etc/rule_{n}.conf."),
            _ => String::new(),
        };
        messages.push(user(format!("Read part {n} too.{rule}")));
        let (id, words) = (format!("call_{n}"), format!("part {n}: {}", tale(12)));
        let q = json!({"q": format!("part {n}")});
        match dialect {
            Dialect::OpenAi => {
                messages.push(json!({"role": "assistant", "content": null, "tool_calls": [{
                    "id": id, "type": "function",
                    "function": {"name": "look_up", "arguments": q.to_string()},
                }]}));
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": words}));
            }
            Dialect::Responses => {
                messages.push(json!({"type": "function_call", "call_id": id, "name": "look_up",
                    "arguments": q.to_string()}));
                messages
                    .push(json!({"type": "function_call_output", "call_id": id, "output": words}));
            }
            Dialect::Anthropic => {
                messages.push(json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": id, "name": "look_up", "input": q},
                ]}));
                messages.push(json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": words},
                ]}));
            }
            Dialect::Gemini => {
                messages.push(json!({"role": "model", "parts": [
                    {"functionCall": {"name": "look_up", "args": q}},
                ]}));
                messages.push(json!({"role": "user", "parts": [
                    {"functionResponse": {"name": "look_up", "response": {"result": words}}},
                ]}));
            }
        }
    }
    messages.push(model("That was all of it.".into()));
    messages.push(user("So what is it?".into()));
    match dialect {
        Dialect::Gemini => body["generationConfig"]["maxOutputTokens"] = json!(1_000),
        Dialect::Responses => body["max_output_tokens"] = json!(1_000),
        _ => body["max_tokens"] = json!(1_000),
    }
    ask(dialect, steadfast_tests::gateway::model(dialect), false).body(body.to_string())
}

/// A conversation of several windows, in every pair: compacted before it is sent where the window
/// is known, else after the provider has refused it. The strict simulator accepts the result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_is_too_long_is_made_to_fit() {
    let small = |dialect| Model::new(model(dialect), 8_000, 2_000).without_thinking();
    for (caller, speaks) in pairs() {
        for known in [true, false] {
            if !known && speaks == Dialect::Responses {
                continue; // Its refusals have no number to go by.
            }
            let case = format!("{caller} <- {speaks}, window known {known}");
            let sim = provider(speaks).with_models([small(speaks)]).build();
            let models = format!("models = {{ \"*\" = \"{}\" }}", model(speaks));
            let window = if known { "\nwindow = 8000" } else { "" };
            let lines = format!("{models}{window}");
            let config = "[guard]\nenabled = false\n";
            let rig = Rig::builder().config(config).provider_with(sim, &lines).start().await;
            let reply = long(caller, 60).header("x-steadfast-session", "s").send(rig.addr).await;
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            rig.assert_attempts(&reply, 0, &case);
            let refused = rig.seen().iter().filter(|entry| entry.refused.is_some()).count();
            assert_eq!(refused, usize::from(!known), "{case}");
            let done = rig.app.gateway().handles().compaction.snapshot();
            assert_eq!(
                (done.counts.compacted, done.counts.overflows),
                (1, u64::from(!known)),
                "{case}: {done:?}"
            );
            let sent = String::from_utf8_lossy(&rig.last().body).into_owned();
            assert!(sent.contains("So what is it?"), "{case}: the current request is whole");
            for rule in [1, 11, 31, 51] {
                let rule = format!("/etc/rule_{rule}.conf");
                assert!(sent.contains(&rule), "{case}: what is forbidden is kept: {rule}");
            }
            // The next turn has the same history and more, and is compacted in the same way.
            let before = rig.asked();
            let reply = long(caller, 60).header("x-steadfast-session", "s").send(rig.addr).await;
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            rig.assert_attempts(&reply, before, &case);
            let again = String::from_utf8_lossy(&rig.last().body).into_owned();
            assert_eq!(sent, again, "{case}: prompt caches hold");
            rig.assert_all_attempts(&case).await;
        }
    }
}

/// What can not be made to fit is refused before a provider is called, with the numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_fit_is_refused_before_a_provider_is_called() {
    for caller in DIALECTS {
        let sim = provider(caller).build();
        let rig = Rig::builder().provider_with(sim, "window = 2000").start().await;
        let text = tale(400);
        let mut body: Value = serde_json::from_slice(plain(caller, false, 300).sent()).unwrap();
        match caller {
            Dialect::Gemini => body["contents"][0]["parts"][0]["text"] = json!(text),
            _ => body[turns_key(caller)][0]["content"] = json!(text),
        }
        let reply = ask(caller, model(caller), false).body(body.to_string()).send(rig.addr).await;
        let message = refusal(caller, 400, &reply);
        assert!(message.contains("can not be made to fit"), "{caller}: {message}");
        // By these words agents know that they have to compact.
        let words = match caller {
            Dialect::Anthropic => "prompt is too long: ",
            Dialect::OpenAi | Dialect::Responses => {
                "This model's maximum context length is 2000 tokens"
            }
            Dialect::Gemini => "The input token count (",
        };
        assert!(message.starts_with(words), "{caller}: {message}");
        assert_eq!(reply.header("x-steadfast-reason"), Some("context_overflow"));
        assert_eq!(rig.seen().len(), 0, "{caller}: no provider was called");
    }
}

/// What a provider has stated of a model's window holds until an operator has it forgotten: then the provider
/// is asked with the whole conversation again, as one that has raised its limit would have to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learned_window_is_forgotten_for_an_operator() {
    // A refusal of the fourth has no number to learn.
    for dialect in DIALECTS.into_iter().filter(|dialect| *dialect != Dialect::Responses) {
        let small = Model::new(model(dialect), 8_000, 2_000).without_thinking();
        let builder = Rig::builder();
        let (caller, admin) =
            (builder.secret("caller", "gw-caller"), builder.secret("admin", "gw-admin"));
        let rig = builder
            .server(&format!("admin_key = \"{admin}\""))
            .config(&format!("[[tenants]]\nname = \"acme\"\nkeys = [\"{caller}\"]\n"))
            .provider(provider(dialect).with_models([small]).build())
            .start()
            .await;
        let as_ = |request: HttpRequest, key: &str| request.header("x-api-key", key);
        // How often the provider is asked for a conversation that it has not seen.
        let conversation = async |session: &str| {
            let request = long(dialect, 60).header("x-steadfast-session", session);
            let before = rig.asked();
            let reply = as_(request, "gw-caller").send(rig.addr).await;
            assert_eq!(reply.status, 200, "{dialect}, {session}: {}", reply.text());
            rig.assert_attempts(&reply, before, session);
            rig.asked() - before
        };
        let learned = async || {
            let status = as_(HttpRequest::get("/admin/status"), "gw-admin").send(rig.addr).await;
            status.json()["compaction"]["learned"].clone()
        };
        let window = json!([{"model": model(dialect), "window": 8_000}]);
        assert_eq!(learned().await, json!([]), "{dialect}");
        assert_eq!(conversation("one").await, 2, "{dialect}: refused, and repaired");
        assert_eq!(learned().await, window, "{dialect}");
        assert_eq!(conversation("two").await, 1, "{dialect}: made to fit before");

        let forget = |model: &str| {
            HttpRequest::post("/admin/compaction/forget", "").query(&format!("model={model}"))
        };
        let own = || forget(model(dialect));
        for shut in [own(), as_(own(), "gw-caller"), as_(own(), "gw-nobody")] {
            assert_eq!(shut.send(rig.addr).await.status, 401, "{dialect}");
        }
        for (request, status) in [(forget("another"), 404), (forget(""), 400)] {
            assert_eq!(as_(request, "gw-admin").send(rig.addr).await.status, status, "{dialect}");
        }
        assert_eq!(learned().await, window, "{dialect}: nothing else has it forgotten");
        let reply = as_(own(), "gw-admin").send(rig.addr).await;
        assert_eq!((reply.status, reply.text()), (200, "forgotten\n"), "{dialect}");
        assert_eq!(learned().await, json!([]), "{dialect}");
        assert_eq!(as_(own(), "gw-admin").send(rig.addr).await.status, 404, "{dialect}: once");
        assert_eq!(conversation("three").await, 2, "{dialect}: the provider says it again");
        assert_eq!(learned().await, window, "{dialect}");
    }
}
