//! Responses that a request goes on from by their ids: at their provider as long as it answers, and elsewhere with
//! all of the conversation.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use steadfast::sim::{
    Answer, Dialect, ErrorKind, Fault, FaultPlan, RawResponse, SimCompaction, SimProviderBuilder,
};
use steadfast_tests::gateway::{
    DIALECTS, Rig,
    http::{HttpRequest, Reply},
    model, provider,
    wire_answer::refusal,
};

const MODEL: &str = "gpt-4o";

/// A provider that says how many questions it has been asked in the conversation.
fn counting(dialect: Dialect, name: &str) -> SimProviderBuilder {
    provider(dialect).with_name(name).respond(|request| {
        let questions = request.body.to_string().matches("question ").count();
        Some(Answer::text(format!("answer {questions}")))
    })
}

/// The lines of a provider that answers for every model.
fn any(dialect: Dialect) -> String {
    format!("models = {{ \"*\" = \"{}\" }}", model(dialect))
}

fn down() -> FaultPlan {
    FaultPlan::always(Fault::Error(ErrorKind::ServerError))
}

/// Asks a question that goes on from `previous`; the response.
async fn ask(rig: &Rig, n: usize, previous: Option<&str>, stream: bool) -> Value {
    let reply = send(rig, &question(n, previous, stream)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    response(&reply, stream)
}

fn question(n: usize, previous: Option<&str>, stream: bool) -> Value {
    let mut body = json!({"model": MODEL, "input": format!("question {n}"), "stream": stream});
    if let Some(previous) = previous {
        body["previous_response_id"] = json!(previous);
    }
    body
}

async fn send(rig: &Rig, body: &Value) -> Reply {
    HttpRequest::post("/v1/responses", body.to_string()).send(rig.addr).await
}

fn response(reply: &Reply, stream: bool) -> Value {
    if !stream {
        return reply.json();
    }
    let text = reply.text();
    let (_, data) =
        text.rsplit_once("event: response.completed\ndata: ").expect("a terminal event");
    serde_json::from_str::<Value>(data.trim_end()).unwrap()["response"].take()
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

fn id(response: &Value) -> &str {
    response["id"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_goes_on_elsewhere_with_all_it_knew_when_its_provider_dies() {
    for (dialect, stream) in DIALECTS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let rig = Rig::builder()
            .provider(counting(Dialect::Responses, "home").build())
            .provider_with(counting(dialect, "spare").build(), &any(dialect))
            .config("[retry]\nretries = 0\n")
            .start()
            .await;
        let mut last = ask(&rig, 1, None, stream).await;
        for n in 2..=5 {
            let body = question(n, Some(id(&last)), stream);
            last = response(&send(&rig, &body).await, stream);
            assert_eq!(text(&last), format!("answer {n}"), "its provider keeps it");
            let sent = rig.sims[0].provider().journal().last().unwrap();
            assert_eq!(sent.body, body.to_string(), "as it was sent");
        }
        assert_eq!(rig.sims[1].provider().journal().len(), 0);
        rig.sims[0].provider().set_faults(down());
        for n in 6..=8 {
            let before = last;
            last = ask(&rig, n, Some(id(&before)), stream).await;
            assert_eq!(text(&last), format!("answer {n}"), "{dialect} {stream}: all it knew");
            let sent = rig.sims[1].provider().journal().last().unwrap();
            let sent = String::from_utf8(sent.body.to_vec()).unwrap();
            if n > 6 && dialect == Dialect::Responses {
                assert!(sent.contains(id(&before)), "it keeps the last turn itself: {sent}");
                continue;
            }
            let at = |text: &str| sent.find(text).unwrap_or_else(|| panic!("no {text} in {sent}"));
            let turns = (1..n).flat_map(|n| [format!("question {n}"), format!("answer {n}")]);
            let positions: Vec<_> = turns.map(|text| at(&text)).collect();
            assert!(positions.is_sorted(), "{sent}");
            assert!(!sent.contains("previous_response_id") && !sent.contains("msg_"), "{sent}");
        }
        // What was answered elsewhere is not at home, so that it is sent whole there, too.
        rig.sims[0].provider().set_faults(FaultPlan::none());
        rig.sims[1].provider().set_faults(down());
        last = ask(&rig, 9, Some(id(&last)), stream).await;
        assert_eq!(text(&last), "answer 9", "{dialect} {stream}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_keeps_nothing_is_asked_with_the_whole_conversation() {
    for dialect in DIALECTS.into_iter().filter(|dialect| *dialect != Dialect::Responses) {
        let rig = Rig::builder()
            .provider_with(counting(dialect, "only").build(), &any(dialect))
            .start()
            .await;
        let first = ask(&rig, 1, None, false).await;
        let second = ask(&rig, 2, Some(id(&first)), true).await;
        assert_eq!(text(&second), "answer 2", "{dialect}");
        let again = ask(&rig, 2, Some(id(&first)), false).await;
        assert_eq!(text(&again), "answer 2", "{dialect}: the first one once more");
        assert_eq!(text(&ask(&rig, 3, Some(id(&second)), false).await), "answer 3");

        let mut unstored = question(1, None, false);
        unstored["store"] = json!(false);
        let unstored = response(&send(&rig, &unstored).await, false);
        let reply = send(&rig, &question(2, Some(id(&unstored)), false)).await;
        assert_eq!(reply.status, 400, "{dialect}: it was not to be kept: {}", reply.text());
        assert_eq!(reply.json()["error"]["code"], "previous_response_not_found", "{dialect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_that_are_named_by_their_ids_are_what_they_stand_for() {
    for dialect in DIALECTS {
        let rig = Rig::builder()
            .provider_with(counting(dialect, "only").build(), &any(dialect))
            .start()
            .await;
        let first = ask(&rig, 1, None, false).await;
        let mut body = question(2, None, false);
        body["input"] = json!([
            {"role": "user", "content": "question 1"},
            {"type": "item_reference", "id": first["output"][0]["id"]},
            {"role": "user", "content": "question 2"},
        ]);
        let reply = send(&rig, &body).await;
        assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
        assert_eq!(text(&reply.json()), "answer 2");
        let sent = rig.last();
        if dialect == Dialect::Responses {
            assert_eq!(sent.body, body.to_string());
        } else {
            assert!(String::from_utf8_lossy(&sent.body).contains("answer 1"), "{dialect}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tenant_can_name_what_another_has_been_answered() {
    for dialect in DIALECTS {
        let builder = Rig::builder();
        let keys = ["gw-acme-secret-0417", "gw-other-secret-0418"];
        let tenants: String = ["acme", "other"]
            .iter()
            .zip(keys)
            .map(|(name, key)| {
                let key = builder.secret(name, key);
                format!("[[tenants]]\nname = \"{name}\"\nkeys = [\"{key}\"]\n")
            })
            .collect();
        let rig = builder
            .server("")
            .config(&tenants)
            .provider_with(counting(dialect, "only").build(), &any(dialect))
            .start()
            .await;
        let send = async |key: &str, body: Value| {
            let ask = HttpRequest::post("/v1/responses", body.to_string());
            ask.header("authorization", &format!("Bearer {key}")).send(rig.addr).await
        };
        let first = send(keys[0], question(1, None, false)).await.json();
        let previous = question(2, Some(id(&first)), false);
        let mut item = question(2, None, false);
        item["input"] = json!([{"type": "item_reference", "id": first["output"][0]["id"]}]);
        let invented = question(2, Some("resp_made_up"), false);
        let asked = rig.asked();
        for (body, status) in [(&previous, 400), (&item, 404), (&invented, 400)] {
            let reply = send(keys[1], body.clone()).await;
            let message = refusal(Dialect::Responses, status, &reply);
            assert!(message.contains("not found"), "{dialect}: {message}");
            assert!(!reply.text().contains("answer 1"));
        }
        let reply = send(keys[1], previous.clone()).await;
        assert_eq!(reply.json()["error"]["code"], "previous_response_not_found");
        assert_eq!(reply.json()["error"]["param"], "previous_response_id");
        assert_eq!(rig.asked(), asked, "{dialect}: nobody was asked");
        for body in [previous, item] {
            let reply = send(keys[0], body).await;
            assert_eq!(reply.status, 200, "{dialect}: its own: {}", reply.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_remembered_stays_with_its_provider_and_a_failure_says_so() {
    let rig = Rig::builder()
        .provider(counting(Dialect::Responses, "home").build())
        .provider_with(counting(Dialect::Anthropic, "spare").build(), &any(Dialect::Anthropic))
        .config("[responses]\nmemory_mib = 0\n[retry]\nretries = 0\n")
        .start()
        .await;
    let first = ask(&rig, 1, None, false).await;
    let second = ask(&rig, 2, Some(id(&first)), false).await;
    assert_eq!(text(&second), "answer 2");
    rig.sims[0].provider().set_faults(down());
    let body = question(3, Some(id(&second)), false).to_string();
    let once = HttpRequest::post("/v1/responses", body).header("x-steadfast-max-attempts", "1");
    let reply = once.send(rig.addr).await;
    let message = refusal(Dialect::Responses, 502, &reply);
    assert!(message.contains("kept by home alone"), "{message}");
    assert_eq!(rig.sims[1].provider().journal().len(), 0);
    // Whoever says it all is answered.
    assert_eq!(text(&ask(&rig, 1, None, false).await), "answer 1");
    assert_eq!(rig.sims[1].provider().journal().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_nobody_has_made_here_is_asked_for_where_it_may_be() {
    let rig = Rig::of(counting(Dialect::Responses, "home").build()).await;
    let reply = send(&rig, &question(1, Some("resp_of_before"), false)).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["code"], "previous_response_not_found", "its own words");
    assert_eq!(rig.asked(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_can_be_asked_for_and_deleted_by_its_tenant() {
    for dialect in DIALECTS {
        let rig = Rig::builder()
            .provider_with(counting(dialect, "only").build(), &any(dialect))
            .start()
            .await;
        let first = ask(&rig, 1, None, true).await;
        let path = format!("/v1/responses/{}", id(&first));
        let get = HttpRequest::get(path.clone());
        let reply = get.send(rig.addr).await;
        assert_eq!((reply.status, reply.json()), (200, first.clone()), "{dialect}");
        for (more, status) in [("/cancel", 405), ("/input_items", 400)] {
            if dialect != Dialect::Responses {
                let reply = HttpRequest::get(format!("{path}{more}")).send(rig.addr).await;
                assert_eq!(reply.status, status, "{dialect}: {}", reply.text());
            }
        }
        if dialect != Dialect::Responses {
            let reply = HttpRequest::post(format!("{path}/cancel"), "").send(rig.addr).await;
            let message = refusal(Dialect::Responses, 400, &reply);
            assert!(message.contains("background"), "{message}");
        }
        let reply = get.clone().method("DELETE").send(rig.addr).await;
        assert_eq!((reply.status, &reply.json()["deleted"]), (200, &json!(true)), "{dialect}");
        for gone in [get.clone(), get.clone().method("DELETE")] {
            let reply = gone.send(rig.addr).await;
            assert_eq!(reply.status, 404, "{dialect}: {}", reply.text());
            let message = reply.json()["error"]["message"].take();
            assert_eq!(message, format!("Response with id '{}' not found.", id(&first)));
        }
        let odd = HttpRequest::get("/v1/responses/..%2F..%2Fmodels").send(rig.addr).await;
        assert_eq!(odd.status, 404, "{}", odd.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_counted_with_what_a_request_goes_on_from() {
    for dialect in DIALECTS {
        let rig = Rig::builder()
            .provider_with(counting(dialect, "only").build(), &any(dialect))
            .start()
            .await;
        let first = ask(&rig, 1, None, false).await;
        let count = async |previous: Option<&str>| {
            let mut body = question(2, previous, false);
            body.as_object_mut().unwrap().remove("stream");
            let counted = HttpRequest::post("/v1/responses/input_tokens", body.to_string());
            let reply = counted.send(rig.addr).await;
            assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
            assert_eq!(reply.json()["object"], "response.input_tokens");
            let by = if dialect == Dialect::OpenAi { "gateway" } else { "provider" };
            assert_eq!(reply.header("x-steadfast-counted"), Some(by), "{dialect}");
            reply.json()["input_tokens"].as_u64().unwrap()
        };
        let (alone, whole) = (count(None).await, count(Some(id(&first))).await);
        assert!(whole > alone && alone > 0, "{dialect}: {whole} of more than {alone}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_made_in_the_background_is_asked_of_who_makes_it() {
    let queued = json!({
        "id": "resp_b", "object": "response", "created_at": 1, "status": "queued", "background": true,
        "error": null, "output": [], "model": MODEL,
    });
    let plan = FaultPlan::always(Fault::Status(RawResponse {
        status: 200,
        headers: BTreeMap::default(),
        body: queued.to_string(),
    }));
    let home = provider(Dialect::Responses).with_name("home").with_faults(plan).build();
    let rig = Rig::of(home).await;
    let mut body = question(1, None, false);
    body["background"] = json!(true);
    let reply = send(&rig, &body).await;
    assert_eq!((reply.status, reply.json()), (200, queued.clone()), "as it came");
    assert_eq!(rig.asked(), 1, "it is no empty answer that is asked for again");

    let rig = Rig::builder()
        .provider_with(counting(Dialect::Anthropic, "only").build(), &any(Dialect::Anthropic))
        .start()
        .await;
    let message = refusal(Dialect::Responses, 400, &send(&rig, &body).await);
    assert!(message.contains("background"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_custom_tool_is_called_with_its_text_whatever_the_provider_is() {
    for (dialect, stream) in DIALECTS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let sim = provider(dialect)
            .with_name("only")
            .respond(|_| Some(Answer::tool_call("run", r#"{"input":"ls -l | wc"}"#)));
        let rig = Rig::builder().provider_with(sim.build(), &any(dialect)).start().await;
        let mut body = question(1, None, stream);
        body["tools"] =
            json!([{"type": "custom", "name": "run", "description": "Runs a command."}]);
        let reply = send(&rig, &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let call = response(&reply, stream)["output"][0].take();
        assert_eq!(call["type"], "custom_tool_call", "{dialect} {stream}: {call}");
        assert_eq!((&call["name"], &call["input"]), (&json!("run"), &json!("ls -l | wc")));
        let deltas = reply.text().matches("event: response.custom_tool_call_input.delta").count();
        assert_eq!(deltas > 0, stream, "{dialect} {stream}");
    }
}

/// A provider that writes a record of a conversation, and otherwise repeats what it was sent.
fn recording(dialect: Dialect) -> SimProviderBuilder {
    provider(dialect).with_name("only").respond(|request| {
        let sent = request.body.to_string();
        let is_record = sent.contains("New messages:");
        let knows = ["question 1", "answer 1", "the record of all"].map(|text| sent.contains(text));
        Some(Answer::text(if is_record {
            "This is the record of all.".into()
        } else {
            format!("{knows:?}")
        }))
    })
}

fn turns() -> Value {
    json!([
        {"role": "user", "content": "question 1"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": [{"type": "input_text", "text": "question 2"}]},
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_is_compacted_into_an_item_that_every_provider_can_read() {
    for dialect in DIALECTS {
        let rig =
            Rig::builder().provider_with(recording(dialect).build(), &any(dialect)).start().await;
        let body = json!({"model": MODEL, "input": turns(), "instructions": "Be brief."});
        let reply =
            HttpRequest::post("/v1/responses/compact", body.to_string()).send(rig.addr).await;
        assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
        let compacted = reply.json();
        assert_eq!(compacted["object"], "response.compaction");
        assert!(compacted["usage"]["output_tokens"].as_u64().unwrap() > 0);
        let output = compacted["output"].as_array().unwrap();
        let kinds: Vec<_> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["message", "message", "compaction"], "{dialect}");
        assert!(!reply.text().contains("record of all"), "it is sealed");

        // What the caller keeps of it, in its next requests.
        let mut input = vec![output[2].clone(), json!({"role": "user", "content": "go on"})];
        for stream in [false, true] {
            let body = json!({"model": MODEL, "input": input, "stream": stream, "store": false});
            let next = response(&send(&rig, &body).await, stream);
            assert_eq!(text(&next), "[false, false, true]", "{dialect} {stream}");
        }
        // Once more: it has the old one in it, and nothing of that is repeated beside it.
        input.push(json!({"role": "assistant", "content": "answer 3"}));
        let body = json!({"model": MODEL, "input": input});
        let reply =
            HttpRequest::post("/v1/responses/compact", body.to_string()).send(rig.addr).await;
        let again = reply.json();
        let kinds: Vec<_> =
            again["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
        assert_eq!(kinds, ["message", "compaction"], "{dialect}: {again}");
        assert!(String::from_utf8_lossy(&rig.last().body).contains("the record of all"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_that_is_asked_for_in_a_request_is_its_only_item() {
    use SimCompaction::{Ignored, Made, Refused};
    let servers = [(Dialect::Responses, Refused, 2), (Dialect::Responses, Ignored, 2)];
    let others = DIALECTS.map(|dialect| (dialect, Made, 1));
    let all = others.into_iter().chain(servers).flat_map(|it| [(it, false), (it, true)]);
    for ((dialect, compacts, calls), stream) in all {
        let only = recording(dialect).with_compaction(compacts).build();
        let rig = Rig::builder().provider_with(only, &any(dialect)).start().await;
        let by_provider = dialect == Dialect::Responses && compacts == Made;
        let mut input = turns();
        input.as_array_mut().unwrap().push(json!({"type": "compaction_trigger"}));
        let reply = send(&rig, &json!({"model": MODEL, "input": input, "stream": stream})).await;
        assert_eq!(reply.status, 200, "{dialect}: {}", reply.text());
        let made = response(&reply, stream);
        let output = made["output"].as_array().unwrap();
        assert_eq!((output.len(), &output[0]["type"]), (1, &json!("compaction")), "{made}");
        assert_eq!(rig.asked(), calls, "{dialect} {compacts:?}");
        let body =
            json!({"model": MODEL, "input": [output[0], {"role": "user", "content": "go on"}]});
        let reply = send(&rig, &body).await;
        // What the provider has made goes up as it came, and is open there alone.
        let sent: Value = serde_json::from_slice(&rig.last().body).unwrap();
        assert_eq!(sent["input"][0] == output[0], by_provider, "{dialect} {compacts:?}: {sent}");
        let next = response(&reply, false);
        let knows = if by_provider { "[false, false, false]" } else { "[false, false, true]" };
        assert_eq!(text(&next), knows, "{dialect} {stream}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_compacted_is_refused_and_a_failure_is_one() {
    let rig = Rig::of(provider(Dialect::Anthropic).with_faults(down()).build()).await;
    let compact = async |body: Value| {
        let ask = HttpRequest::post("/v1/responses/compact", body.to_string());
        ask.header("x-steadfast-max-attempts", "1").send(rig.addr).await
    };
    let reply = compact(json!({"model": MODEL, "input": []})).await;
    assert!(refusal(Dialect::Responses, 400, &reply).contains("input"));
    let unknown = json!({"model": MODEL, "input": "hi", "previous_response_id": "resp_none"});
    let reply = compact(unknown.clone()).await;
    assert_eq!(reply.json()["error"]["code"], "previous_response_not_found");
    let home = Rig::of(recording(Dialect::Responses).build()).await;
    let ask = HttpRequest::post("/v1/responses/compact", unknown.to_string());
    let reply = ask.send(home.addr).await;
    assert_eq!(reply.status, 400, "a record of a part would lose the rest: {}", reply.text());
    assert_eq!(home.asked(), 0);
    let reply = compact(json!({"model": model(Dialect::Anthropic), "input": "hi"})).await;
    refusal(Dialect::Responses, 502, &reply);
}
