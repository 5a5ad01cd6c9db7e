//! A task that the model does with the client's tools, in all dialects.

#![allow(clippy::unwrap_used)]

mod common;

use common::conversation::{ReceivedAnswer, answer_to, chat, send_body};
use serde_json::{Value, json};
use steadfast_sim::{
    Dialect, ErrorKind, Fault, FaultPlan, PlanRule, SimCompaction, SimProvider, Task,
};

const TASK: &str = r#"
root = "/w"
contains = "Bring the log up to date"

[[steps]]
text = "First, what is there."
call = { read = { path = "log.txt" } }

[[steps]]
call = { write = { path = "log.txt", content = "night 2" } }

[[steps]]
text = "It is up to date."
"#;

fn provider(dialect: Dialect) -> SimProvider {
    SimProvider::builder(dialect).with_task(Task::from_toml(TASK).unwrap()).build()
}

/// The task with tools, after so many of its calls were answered.
fn turn(dialect: Dialect, results: usize, stream: bool) -> Value {
    let mut body = chat(dialect, &[("user", "Bring the log up to date.")], None, stream);
    let schema = |properties: &[&str]| {
        let fields = properties.iter().map(|name| ((*name).to_owned(), json!({"type": "string"})));
        json!({
            "type": "object", "required": properties,
            "properties": fields.collect::<serde_json::Map<_, _>>(),
        })
    };
    let tools =
        [("Read", schema(&["file_path"])), ("write_file", schema(&["path", "content", "why"]))];
    body["tools"] = match dialect {
        Dialect::OpenAi => tools
            .iter()
            .map(|(name, schema)| {
                json!({"type": "function", "function": {"name": name, "parameters": schema}})
            })
            .collect(),
        Dialect::Responses => tools
            .iter()
            .map(|(name, schema)| {
                json!({"type": "function", "name": name, "parameters": schema, "strict": false})
            })
            .collect(),
        Dialect::Anthropic => tools
            .iter()
            .map(|(name, schema)| json!({"name": name, "input_schema": schema}))
            .collect(),
        Dialect::Gemini => {
            let declarations: Vec<Value> = tools
                .iter()
                .map(|(name, schema)| json!({"name": name, "parametersJsonSchema": schema}))
                .collect();
            json!([{"functionDeclarations": declarations}])
        }
    };
    let key = match dialect {
        Dialect::Gemini => "contents",
        Dialect::Responses => "input",
        _ => "messages",
    };
    let turns = body[key].as_array_mut().unwrap();
    for n in 0..results {
        let id = format!("call_{n}");
        turns.extend(match dialect {
            Dialect::OpenAi => [
                json!({"role": "assistant", "tool_calls": [{
                    "id": id, "type": "function", "function": {"name": "Read", "arguments": "{}"},
                }]}),
                json!({"role": "tool", "tool_call_id": id, "content": "night 1"}),
            ],
            Dialect::Responses => [
                json!({"type": "function_call", "call_id": id, "name": "Read", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": id, "output": "night 1"}),
            ],
            Dialect::Anthropic => [
                json!({"role": "assistant", "content": [
                    {"type": "tool_use", "id": id, "name": "Read", "input": {}},
                ]}),
                json!({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": "night 1"},
                ]}),
            ],
            Dialect::Gemini => [
                json!({"role": "model", "parts": [{"functionCall": {"name": "Read", "args": {}}}]}),
                json!({"role": "user", "parts": [
                    {"functionResponse": {"name": "Read", "response": {"output": "night 1"}}},
                ]}),
            ],
        });
    }
    body
}

async fn step(provider: &SimProvider, results: usize, stream: bool) -> ReceivedAnswer {
    answer_to(provider, &turn(provider.dialect(), results, stream), stream).await
}

/// However often a step is asked for, in whichever form: the conversation alone decides.
#[tokio::test]
async fn each_result_of_a_tool_is_a_step_with_the_clients_own_tool() {
    for dialect in Dialect::ALL {
        let provider = provider(dialect);
        for stream in [false, true, true] {
            let first = step(&provider, 0, stream).await;
            assert_eq!(first.text, "First, what is there.", "{dialect}");
            assert_eq!(first.arguments, [r#"{"file_path":"/w/log.txt"}"#]);
            let second = step(&provider, 1, stream).await;
            assert_eq!(second.text, "");
            let arguments: Value = serde_json::from_str(&second.arguments[0]).unwrap();
            assert_eq!(arguments["path"], "/w/log.txt");
            assert_eq!(arguments["content"], "night 2");
            assert!(arguments["why"].is_string(), "what a schema requires is there: {arguments}");
            for results in [2, 3] {
                let last = step(&provider, results, stream).await;
                assert_eq!((&*last.text, last.arguments.len()), ("It is up to date.", 0));
            }
        }
    }
}

#[tokio::test]
async fn what_is_asked_beside_the_task_is_answered_by_itself() {
    for dialect in Dialect::ALL {
        let provider = provider(dialect);
        let aside =
            chat(dialect, &[("user", "A title for: Bring the log up to date")], None, false);
        let title = answer_to(&provider, &aside, false).await.text;
        assert!(!title.is_empty() && !title.contains("First"), "{title}");

        let schema = json!({
            "type": "object", "required": ["score", "done"],
            "properties": {
                "score": {"type": "integer", "minimum": 1}, "done": {"type": "boolean"},
                "more": {"type": "string"},
            },
        });
        let mut shaped = aside.clone();
        match dialect {
            Dialect::OpenAi => {
                let named = json!({"name": "x", "schema": schema});
                shaped["response_format"] = json!({"type": "json_schema", "json_schema": named});
            }
            Dialect::Responses => {
                let format =
                    json!({"type": "json_schema", "name": "x", "schema": schema, "strict": false});
                shaped["text"] = json!({"format": format});
            }
            Dialect::Anthropic => {
                shaped["output_config"] =
                    json!({"format": {"type": "json_schema", "schema": schema}});
            }
            Dialect::Gemini => {
                shaped["generationConfig"] = json!({
                    "responseMimeType": "application/json", "responseJsonSchema": schema,
                });
            }
        }
        let text = answer_to(&provider, &shaped, false).await.text;
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({"score": 1, "done": false}),
            "{dialect}"
        );

        let words =
            format!("Answer with JSON. It has to follow this JSON schema:\n{schema}\nBe brief.");
        let mut instructed = aside.clone();
        match dialect {
            Dialect::OpenAi => {
                let system = json!({"role": "system", "content": words});
                instructed["messages"].as_array_mut().unwrap().insert(0, system);
            }
            Dialect::Responses => instructed["instructions"] = json!(words),
            Dialect::Anthropic => instructed["system"] = json!([{"type": "text", "text": words}]),
            Dialect::Gemini => {
                instructed["systemInstruction"] = json!({"parts": [{"text": words}]});
            }
        }
        assert_eq!(answer_to(&provider, &instructed, false).await.text, text, "{dialect}");
    }
}

#[tokio::test]
async fn an_agent_without_tools_gets_all_edits_as_blocks() {
    let ask = "Use SEARCH/REPLACE blocks. Bring the log up to date.";
    let text = answer_to(
        &provider(Dialect::OpenAi),
        &chat(Dialect::OpenAi, &[("user", ask)], None, true),
        true,
    )
    .await
    .text;
    assert_eq!(
        text,
        "First, what is there.\n\n\
         log.txt\n```\n<<<<<<< SEARCH\n=======\nnight 2\n>>>>>>> REPLACE\n```\n\n\
         It is up to date."
    );
}

#[tokio::test]
async fn a_fault_can_be_of_a_certain_step_and_pass() {
    for dialect in Dialect::ALL {
        let provider = provider(dialect);
        let overloaded = PlanRule::new(Fault::Error(ErrorKind::Overloaded));
        provider.set_faults(FaultPlan::none().rule(overloaded.tool_results(1).times(2)));
        let mut seen = Vec::new();
        for results in [0, 1, 1, 0, 1, 2] {
            seen.push(
                send_body(&provider, &turn(dialect, results, true), true).await.status == 200,
            );
        }
        assert_eq!(seen, [true, false, false, true, true, true], "{dialect}");
    }
}

#[test]
fn what_can_not_be_read_is_refused_with_the_reason() {
    let error = Task::from_toml(&TASK.replace("read =", "open =")).unwrap_err().to_string();
    assert!(error.contains("unknown variant `open`") && error.contains("line 7"), "{error}");
    let error = Task::from_json(r#"{"root": "/", "contains": "x", "steps": []}"#).unwrap_err();
    assert_eq!(error.to_string(), "task: there are no steps; give at least one with a text");
}

/// `body`, which ends with a turn of the user, with one more text in it.
fn and_then(dialect: Dialect, mut body: Value, text: &str) -> Value {
    if dialect == Dialect::Gemini {
        let turn = body["contents"].as_array_mut().unwrap().last_mut().unwrap();
        turn["parts"].as_array_mut().unwrap().push(json!({"text": text}));
        return body;
    }
    let key = if dialect == Dialect::Responses { "input" } else { "messages" };
    body[key].as_array_mut().unwrap().push(json!({"role": "user", "content": text}));
    body
}

#[tokio::test]
async fn a_summary_stands_for_the_results_before_it() {
    let text = TASK.replacen("[[steps]]", "summarised_by = [\"Sum it up\"]\n\n[[steps]]", 1);
    for dialect in Dialect::ALL {
        let task = Task::from_toml(&text).unwrap();
        let provider = SimProvider::builder(dialect).with_task(task).build();
        // Results may count for less than what a summary says, and once more behind it.
        step(&provider, 0, false).await;
        let asked = and_then(dialect, turn(dialect, 1, false), "Sum it up.");
        let summary = answer_to(&provider, &asked, false).await.text;
        assert!(summary.starts_with("Steps done: 1."), "{dialect}: {summary}");
        let goes_on = and_then(dialect, turn(dialect, 0, false), &summary);
        let next = answer_to(&provider, &goes_on, false).await;
        assert_eq!((&*next.text, next.arguments.len()), ("", 1), "{dialect}");
        let next =
            answer_to(&provider, &and_then(dialect, turn(dialect, 1, false), &summary), false)
                .await;
        assert_eq!(next.text, "It is up to date.", "{dialect}");
        // As a text, without tools: a client that has it summarised apart.
        let shown = format!("Bring the log up to date. Sum it up: First, what is there. {summary}");
        let apart =
            answer_to(&provider, &chat(dialect, &[("user", &shown)], None, false), false).await;
        assert!(apart.text.starts_with("Steps done: 1."), "{dialect}: {}", apart.text);
    }
}

#[tokio::test]
async fn a_compaction_is_one_item_that_its_provider_alone_opens() {
    let provider = provider(Dialect::Responses);
    let other = SimProvider::builder(Dialect::Responses).with_name("other").build();
    for stream in [false, true] {
        let mut asked = turn(Dialect::Responses, 1, stream);
        asked["input"].as_array_mut().unwrap().push(json!({"type": "compaction_trigger"}));
        let read = send_body(&provider, &asked, stream).await;
        let text = read.text();
        let whole = if stream { text.rsplit_once("data: ").unwrap().1 } else { &text };
        let mut whole: Value = serde_json::from_str(whole.trim()).unwrap();
        if stream {
            whole = whole["response"].take();
        }
        let [item] = &whole["output"].as_array().unwrap()[..] else { panic!("{whole}") };
        assert_eq!(item["type"], "compaction");
        let mut next = turn(Dialect::Responses, 0, false);
        next["input"].as_array_mut().unwrap().push(item.clone());
        assert_eq!(answer_to(&provider, &next, false).await.arguments.len(), 1, "the second step");
        let refused = send_body(&other, &next, false).await.text();
        assert!(refused.contains("invalid_encrypted_content"), "{refused}");
        // Anywhere else it is none.
        asked["input"].as_array_mut().unwrap().push(json!({"role": "user", "content": "hi"}));
        let refused = send_body(&provider, &asked, false).await.text();
        assert!(refused.contains("must be the last"), "{refused}");
    }
    for (compacts, says) in
        [(SimCompaction::Refused, "invalid_value"), (SimCompaction::Ignored, "output_text")]
    {
        let provider = SimProvider::builder(Dialect::Responses).with_compaction(compacts).build();
        let asked = json!({"model": "gpt-4o", "input": [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]});
        let answer = send_body(&provider, &asked, false).await.text();
        assert!(answer.contains(says), "{compacts:?}: {answer}");
    }
}
