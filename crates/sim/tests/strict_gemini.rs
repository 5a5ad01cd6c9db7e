//! What Gemini refuses: each rule with a request that breaks it, the message, and a valid
//! variant that passes.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

mod common;

use common::{PNG, question, request, send};
use serde_json::{Value, json};
use steadfast_sim::{Answer, Dialect, KeyLimits, Model, SimProvider};

const G: Dialect = Dialect::Gemini;

fn with(fields: Value) -> Value {
    let mut body = question(G, "hello", false);
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn contents(contents: Value) -> Value {
    json!({ "contents": contents })
}

fn u() -> Value {
    json!({"role": "user", "parts": [{"text": "go"}]})
}

fn model_turn() -> Value {
    json!({"role": "model", "parts": [{"text": "so"}]})
}

fn calls(names: &[&str]) -> Value {
    let parts: Vec<Value> =
        names.iter().map(|name| json!({"functionCall": {"name": name, "args": {}}})).collect();
    json!({"role": "model", "parts": parts})
}

fn responses(names: &[&str]) -> Value {
    let parts: Vec<Value> = names
        .iter()
        .map(|name| json!({"functionResponse": {"name": name, "response": {"result": "ok"}}}))
        .collect();
    json!({"role": "user", "parts": parts})
}

fn image(mime: &str, data: &str) -> Value {
    json!([{"role": "user", "parts": [{"inlineData": {"mimeType": mime, "data": data}}]}])
}

fn declare(names: &[&str]) -> Value {
    let list: Vec<Value> = names
        .iter()
        .map(|name| json!({"name": name, "parameters": {"type": "OBJECT", "properties": {}}}))
        .collect();
    json!([{ "functionDeclarations": list }])
}

async fn generate(provider: &SimProvider, model: &str, body: &Value) -> common::Read {
    let path = format!("/v1beta/models/{model}:generateContent");
    send(provider, request(G, &path, body.to_string())).await.unwrap()
}

#[tokio::test]
async fn every_rule() {
    let pro = "gemini-2.5-pro";
    let count = "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.";
    let alternate = "Please ensure that multiturn requests alternate between user and model.";
    let fine = || contents(json!([u(), calls(&["a", "b"]), responses(&["a", "b"])]));
    let table: Vec<(&str, &str, Value, &str, Value)> = vec![
        (
            "no contents",
            pro,
            json!({}),
            "* GenerateContentRequest.contents: contents is not specified\n",
            contents(json!([u()])),
        ),
        (
            "empty contents",
            pro,
            contents(json!([])),
            "* GenerateContentRequest.contents: contents is not specified\n",
            contents(json!([u()])),
        ),
        (
            "contents type",
            pro,
            contents(json!("x")),
            "Invalid value at 'contents' (type.googleapis.com/google.ai.generativelanguage.v1beta.Content), \"x\"",
            contents(json!([u()])),
        ),
        (
            "S9 no parts",
            pro,
            contents(json!([{"role": "user", "parts": []}])),
            "* GenerateContentRequest.contents[0].parts: contents.parts must not be empty.\n",
            contents(json!([u()])),
        ),
        (
            "S9 parts missing",
            pro,
            contents(json!([{"role": "user"}])),
            "* GenerateContentRequest.contents[0].parts: contents.parts must not be empty.\n",
            contents(json!([u()])),
        ),
        (
            "S9 empty part",
            pro,
            contents(json!([{"role": "user", "parts": [{}]}])),
            "* GenerateContentRequest.contents[0].parts[0].data: required oneof field 'data' must have one initialized field\n",
            contents(json!([u()])),
        ),
        (
            "two in one part",
            pro,
            contents(
                json!([{"role": "user", "parts": [{"text": "x", "inlineData": {"mimeType": "image/png", "data": PNG}}]}]),
            ),
            "Invalid value at 'contents[0].parts[0]' (oneof), oneof field 'data' is already set. Cannot set 'inlineData'",
            contents(
                json!([{"role": "user", "parts": [{"text": "x"}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]}]),
            ),
        ),
        (
            "text type",
            pro,
            contents(json!([{"role": "user", "parts": [{"text": 3}]}])),
            "Invalid value at 'contents[0].parts[0].text' (TYPE_STRING), 3",
            contents(json!([u()])),
        ),
        (
            "role",
            pro,
            contents(json!([{"role": "assistant", "parts": [{"text": "x"}]}])),
            "Please use a valid role: user, model.",
            contents(json!([u()])),
        ),
        (
            "S1 first",
            pro,
            contents(json!([model_turn(), u()])),
            alternate,
            contents(json!([u(), model_turn(), u()])),
        ),
        (
            "S1 first calls",
            pro,
            contents(json!([calls(&["a"]), responses(&["a"])])),
            "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
            contents(json!([u(), calls(&["a"]), responses(&["a"])])),
        ),
        (
            "S2 a user behind a response",
            pro,
            contents(json!([u(), calls(&["a"]), responses(&["a"]), u()])),
            alternate,
            contents(json!([u(), u(), calls(&["a"]), responses(&["a"]), model_turn(), u()])),
        ),
        (
            "S2 models in a row are one turn, all of whose calls are answered",
            pro,
            contents(json!([u(), model_turn(), calls(&["a"]), calls(&["b"]), responses(&["b"])])),
            count,
            contents(json!([
                u(),
                model_turn(),
                calls(&["a"]),
                calls(&["b"]),
                responses(&["a", "b"])
            ])),
        ),
        (
            "S3 too few",
            pro,
            contents(json!([u(), calls(&["a", "b"]), responses(&["a"])])),
            count,
            fine(),
        ),
        (
            "S3 none",
            pro,
            contents(json!([u(), calls(&["a"]), u()])),
            count,
            contents(json!([u(), calls(&["a"]), responses(&["a"])])),
        ),
        (
            "S3 at the end",
            pro,
            contents(json!([u(), calls(&["a"])])),
            count,
            contents(json!([u(), calls(&["a"]), responses(&["a"])])),
        ),
        (
            "S4 orphan",
            pro,
            contents(json!([responses(&["a"])])),
            "Please ensure that function response turn comes immediately after a function call turn.",
            fine(),
        ),
        (
            "S4 behind text",
            pro,
            contents(json!([u(), model_turn(), responses(&["a"])])),
            "Please ensure that function response turn comes immediately after a function call turn.",
            fine(),
        ),
        (
            "S5 twice",
            pro,
            contents(json!([u(), calls(&["a"]), responses(&["a", "a"])])),
            count,
            contents(json!([u(), calls(&["a"]), responses(&["a"])])),
        ),
        (
            "S6 order",
            pro,
            contents(json!([u(), calls(&["a", "b"]), responses(&["b", "a"])])),
            "Please ensure that function response parts are in the order of the function call parts of the function call turn and have their names: expected \"a\", got \"b\".",
            fine(),
        ),
        (
            "S8 undeclared",
            pro,
            json!({"contents": [u(), calls(&["a"]), responses(&["a"])], "tools": declare(&["b"])}),
            "Please ensure that function call names are declared in the tools of the request: `a` is not.",
            json!({"contents": [u(), calls(&["a"]), responses(&["a"])], "tools": declare(&["a"])}),
        ),
        (
            "call without name",
            pro,
            contents(
                json!([u(), {"role": "model", "parts": [{"functionCall": {"args": {}}}]}, responses(&[""])]),
            ),
            "* GenerateContentRequest.contents[1].parts[0].function_call.name: Name cannot be empty.\n",
            fine(),
        ),
        (
            "response without name",
            pro,
            contents(json!([u(), calls(&["a"]), responses(&[""])])),
            "* GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty.\n",
            fine(),
        ),
        (
            "response type",
            pro,
            contents(
                json!([u(), calls(&["a"]), {"role": "user", "parts": [{"functionResponse": {"name": "a", "response": "ok"}}]}]),
            ),
            "Invalid value at 'contents[2].parts[0].function_response.response' (type.googleapis.com/google.protobuf.Struct), \"ok\"",
            fine(),
        ),
        (
            "args type",
            pro,
            contents(
                json!([u(), {"role": "model", "parts": [{"functionCall": {"name": "a", "args": "{}"}}]}, responses(&["a"])]),
            ),
            "Invalid value at 'contents[1].parts[0].function_call.args' (type.googleapis.com/google.protobuf.Struct), \"{}\"",
            fine(),
        ),
        (
            "S10 tail",
            pro,
            contents(json!([u(), model_turn()])),
            "Please ensure that multiturn requests end with a user role or a function response.",
            contents(json!([u(), model_turn(), u()])),
        ),
        (
            "S13 blind",
            "gemma-3-1b-it",
            contents(image("image/png", PNG)),
            "Image input modality is not enabled for models/gemma-3-1b-it",
            contents(json!([u()])),
        ),
        (
            "S13 base64",
            pro,
            contents(image("image/png", "!!")),
            "Invalid value at 'contents[0].parts[0].inline_data.data' (TYPE_BYTES), Base64 decoding failed for \"!!\"",
            contents(image("image/png", PNG)),
        ),
        (
            "S13 media type",
            pro,
            contents(image("image/bmp", PNG)),
            "Unsupported MIME type: image/bmp",
            contents(image("image/png", PNG)),
        ),
        (
            "S13 no media type",
            pro,
            contents(image("", PNG)),
            "* GenerateContentRequest.contents[0].parts[0].inline_data.mime_type: mime_type must not be empty.\n",
            contents(image("image/png", PNG)),
        ),
        (
            "S13 size",
            pro,
            contents(image("image/png", &"A".repeat(20 * 1024 * 1024 + 4))),
            "Request payload size exceeds the limit: 20971520 bytes.",
            contents(image("image/png", &"A".repeat(1024 * 1024))),
        ),
        (
            "S14 window",
            "tiny",
            contents(json!([{"role": "user", "parts": [{"text": "x".repeat(388)}]}])),
            "The input token count (101) exceeds the maximum number of tokens allowed (100).",
            contents(json!([{"role": "user", "parts": [{"text": "x".repeat(384)}]}])),
        ),
        (
            "output limit",
            pro,
            with(json!({"generationConfig": {"maxOutputTokens": 65_537}})),
            "Unable to submit request because it has a maxOutputTokens value of 65537 but the supported range is from 1 (inclusive) to 65537 (exclusive). Update the value and try again.",
            with(json!({"generationConfig": {"maxOutputTokens": 65_536}})),
        ),
        (
            "output zero",
            pro,
            with(json!({"generation_config": {"max_output_tokens": 0}})),
            "Unable to submit request because it has a maxOutputTokens value of 0 but the supported range is from 1 (inclusive) to 65537 (exclusive). Update the value and try again.",
            with(json!({"generation_config": {"max_output_tokens": 1}})),
        ),
        (
            "output type",
            pro,
            with(json!({"generationConfig": {"maxOutputTokens": "9"}})),
            "Invalid value at 'generation_config.max_output_tokens' (TYPE_INT32), \"9\"",
            with(json!({"generationConfig": {"maxOutputTokens": 9}})),
        ),
        (
            "temperature",
            pro,
            with(json!({"generationConfig": {"temperature": 2.5}})),
            "* GenerateContentRequest.generation_config.temperature: temperature must be in the range [0.0, 2.0].\n",
            with(json!({"generationConfig": {"temperature": 2}})),
        ),
        (
            "thinking",
            "gemini-1.5-pro",
            with(json!({"generationConfig": {"thinkingConfig": {"includeThoughts": true}}})),
            "Unable to submit request because thinking is not supported by this model.",
            with(json!({})),
        ),
        (
            "tool name",
            pro,
            with(json!({"tools": declare(&["1x"])})),
            "* GenerateContentRequest.tools[0].function_declarations[0].name: Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64.\n",
            with(json!({"tools": declare(&["x1.y-z"])})),
        ),
        (
            "tool names",
            pro,
            with(json!({"tools": declare(&["x", "x"])})),
            "Duplicate function declaration found: x",
            with(json!({"tools": declare(&["x", "y"])})),
        ),
        (
            "schema",
            pro,
            with(
                json!({"tools": [{"functionDeclarations": [{"name": "x", "parameters": {"type": "STRING"}}]}]}),
            ),
            "Unable to submit request because `x` functionDeclaration `parameters` schema should be of type OBJECT. Learn more: https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling",
            with(json!({"tools": [{"functionDeclarations": [{"name": "x"}]}]})),
        ),
        (
            "allowed",
            pro,
            with(
                json!({"tools": declare(&["x"]), "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["y"]}}}),
            ),
            "* GenerateContentRequest.tool_config.function_calling_config.allowed_function_names: `y` is not in the function declarations.\n",
            with(
                json!({"tools": declare(&["x"]), "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}}),
            ),
        ),
        (
            "system",
            pro,
            with(json!({"systemInstruction": {"parts": []}})),
            "* GenerateContentRequest.system_instruction.parts: contents.parts must not be empty.\n",
            with(json!({"systemInstruction": {"parts": [{"text": "x"}]}})),
        ),
    ];
    let provider = SimProvider::builder(G)
        .with_model(Model::new("tiny", 100, 50))
        .with_model(Model::new(pro, 1_048_576, 65_536))
        .build();
    for (rule, model, broken, words, repaired) in table {
        let read = generate(&provider, model, &broken).await;
        assert_eq!(read.status, 400, "{rule}: {}", read.text());
        let error = &read.json()["error"];
        assert_eq!(error["message"], words, "{rule}");
        assert_eq!((&error["status"], &error["code"]), (&json!("INVALID_ARGUMENT"), &json!(400)));
        let read = generate(&provider, model, &repaired).await;
        assert_eq!(read.status, 200, "{rule}, repaired: {}", read.text());
    }
}

#[tokio::test]
async fn s11_the_first_call_of_each_step_of_the_current_turn_is_signed() {
    let provider = SimProvider::builder(G)
        .with_script([
            Answer::tool_call("a", "{}").then_tool_call("b", "{}"),
            Answer::tool_call("a", "{}"),
        ])
        .build();
    let model = "gemini-3-flash-preview";
    let first = generate(&provider, model, &contents(json!([u()]))).await.json();
    let step = |body: &Value| body["candidates"][0]["content"].clone();
    let first = step(&first);
    let one = contents(json!([u(), first, responses(&["a", "b"])]));
    let second = step(&generate(&provider, model, &one).await.json());
    let turn = |first: &Value, second: &Value| {
        json!([u(), first, responses(&["a", "b"]), second, responses(&["a"])])
    };
    let bare = |content: &Value| {
        let mut content = content.clone();
        content["parts"][0].as_object_mut().unwrap().remove("thoughtSignature");
        content
    };
    let good = generate(&provider, model, &contents(turn(&first, &second))).await;
    assert_eq!(good.status, 200, "{}", good.text());
    for (broken, position) in [(turn(&bare(&first), &second), 2), (turn(&first, &bare(&second)), 4)]
    {
        let read = generate(&provider, model, &contents(broken.clone())).await;
        assert_eq!(
            read.error_message(),
            format!(
                "Function call is missing a thought_signature in functionCall parts. This is \
                 required for tools to work correctly, and missing thought_signature may lead to \
                 degraded model performance. Additional data, function call `default_api:a` , \
                 position {position}. Please refer to \
                 https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
            )
        );
        // A model that does not require signatures accepts it.
        let read = generate(&provider, "gemini-2.5-pro", &contents(broken.clone())).await;
        assert_eq!(read.status, 200);
        // After the user's next text, the turn is no longer the current one.
        let mut over = broken;
        over.as_array_mut().unwrap().extend([model_turn(), u()]);
        assert_eq!(generate(&provider, model, &contents(over)).await.status, 200);
    }
    // Google's own SDKs send signatures back in the other alphabet of base64, without padding.
    let mut respelt = first.clone();
    let signature = first["parts"][0]["thoughtSignature"].as_str().unwrap();
    let signature = signature.replace('+', "-").replace('/', "_");
    respelt["parts"][0]["thoughtSignature"] = json!(signature.trim_end_matches('='));
    assert_eq!(generate(&provider, model, &contents(turn(&respelt, &second))).await.status, 200);
    // A signature of another provider, and the value for calls that have none.
    for (signature, status) in [("Zm9yZWlnbg==", 400), ("skip_thought_signature_validator", 200)] {
        let mut other = first.clone();
        other["parts"][0]["thoughtSignature"] = json!(signature);
        let read = generate(&provider, model, &contents(turn(&other, &second))).await;
        assert_eq!(read.status, status);
        if status == 400 {
            assert_eq!(read.error_message(), "Corrupted thought signature.");
        }
    }
    let strict = SimProvider::builder(G).with_require_signatures(true).build();
    let unsigned = contents(json!([u(), calls(&["a"]), responses(&["a"])]));
    assert_eq!(generate(&strict, "gemini-2.5-pro", &unsigned).await.status, 400);
    assert_eq!(generate(&strict, "gemini-1.5-pro", &unsigned).await.status, 200);
}

#[tokio::test]
async fn keys_json_models_and_paths() {
    let provider = SimProvider::builder(G).keys([common::KEY]).build();
    let body = question(G, "x", false);
    assert_eq!(generate(&provider, "gemini-2.5-pro", &body).await.status, 200);
    let path = "/v1beta/models/gemini-2.5-pro:generateContent";
    let mut none = request(G, path, body.to_string());
    none.headers_mut().remove("x-goog-api-key");
    let read = send(&provider, none).await.unwrap();
    assert_eq!((read.status, &read.json()["error"]["status"]), (403, &json!("PERMISSION_DENIED")));
    assert!(read.error_message().starts_with("Method doesn't allow unregistered callers"));
    let mut wrong = request(G, path, body.to_string());
    wrong.headers_mut().insert("x-goog-api-key", "wrong".parse().unwrap());
    let read = send(&provider, wrong).await.unwrap();
    assert_eq!(
        (read.status, read.error_message().as_str()),
        (400, "API key not valid. Please pass a valid API key.")
    );
    assert_eq!(read.json()["error"]["details"][0]["reason"], "API_KEY_INVALID");
    let mut query = request(G, &format!("{path}?key={}", common::KEY), body.to_string());
    query.headers_mut().remove("x-goog-api-key");
    assert_eq!(send(&provider, query).await.unwrap().status, 200);
    assert!(!provider.journal().last().unwrap().query.contains(common::KEY));

    let read = generate(&provider, "gemini-9", &body).await;
    assert_eq!((read.status, &read.json()["error"]["status"]), (404, &json!("NOT_FOUND")));
    assert!(
        read.error_message().starts_with("models/gemini-9 is not found for API version v1beta")
    );
    let read = send(&provider, request(G, path, "{\"contents\" 3")).await.unwrap();
    assert_eq!(read.status, 400);
    assert_eq!(
        read.error_message(),
        "Invalid JSON payload received. Unexpected token.\n{\"contents\" 3\n^"
    );
    let read = send(&provider, request(G, "/v1beta/nothing", "{}")).await.unwrap();
    assert_eq!(read.status, 404);

    let unknown = with(json!({"frobnicate": 1}));
    assert_eq!(generate(&provider, "gemini-2.5-pro", &unknown).await.status, 200);
    let strict = SimProvider::builder(G).with_refuse_unknown(true).build();
    let read = generate(&strict, "gemini-2.5-pro", &unknown).await;
    assert_eq!(
        read.error_message(),
        "Invalid JSON payload received. Unknown name \"frobnicate\": Cannot find field."
    );
    let nested = with(json!({"generation_config": {"max_output_tokens": 3, "nope": 1}}));
    let read = generate(&strict, "gemini-2.5-pro", &nested).await;
    assert_eq!(
        read.error_message(),
        "Invalid JSON payload received. Unknown name \"nope\" at 'generation_config': Cannot find field."
    );
}

#[tokio::test(start_paused = true)]
async fn limits_have_the_retry_delay_in_the_body() {
    let provider =
        SimProvider::builder(G).with_limits(KeyLimits { requests: Some(1), tokens: None }).build();
    let body = question(G, "x", false);
    assert_eq!(generate(&provider, "gemini-2.5-pro", &body).await.status, 200);
    tokio::time::advance(std::time::Duration::from_millis(25_500)).await;
    let read = generate(&provider, "gemini-2.5-pro", &body).await;
    assert_eq!((read.status, read.header("retry-after")), (429, None));
    assert!(
        read.error_message().ends_with("limit: 1\nPlease retry in 34.5s."),
        "{}",
        read.error_message()
    );
    let details = read.json()["error"]["details"].clone();
    assert_eq!(details[0]["violations"][0]["quotaValue"], "1");
    assert_eq!(details[2]["retryDelay"], "34.5s");
}
