//! Responses that are kept, for requests that name them.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::read::kind;
use crate::dialect::{Refusal, items};

/// How many responses are kept.
const KEPT: usize = 4_096;

/// The responses that this provider has sent, the newest.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    responses: HashMap<String, Stored>,
    order: VecDeque<String>,
}

#[derive(Debug)]
struct Stored {
    /// The input that it answers, and those before.
    input: Vec<Value>,
    response: Value,
}

impl Kept {
    /// `body` with all that it names in its place. What is not kept here it names still, which is refused.
    pub(crate) fn expand(&self, mut body: Value) -> Value {
        let kept = self.0.lock();
        let before = match body["previous_response_id"].as_str() {
            None => Vec::new(),
            Some(id) => match kept.responses.get(id) {
                None => return body,
                Some(stored) => [&stored.input[..], items(&stored.response["output"])].concat(),
            },
        };
        let refers = items(&body["input"]).iter().any(|item| kind(item) == "item_reference");
        if before.is_empty() && !refers {
            return body;
        }
        let new = match body["input"].take() {
            Value::String(text) => {
                vec![json!({"type": "message", "role": "user", "content": text})]
            }
            Value::Array(list) => list,
            _ => Vec::new(),
        };
        let find = |id: &Value| {
            let mut all =
                kept.responses.values().flat_map(|stored| items(&stored.response["output"]));
            all.find(|item| item["id"] == *id)
        };
        let new = new.into_iter().map(|item| match kind(&item) {
            "item_reference" => find(&item["id"]).cloned().unwrap_or(item),
            _ => item,
        });
        // Thoughts that are kept here are known by their id alone.
        let is_sent =
            |item: &Value| kind(item) != "reasoning" || !item["encrypted_content"].is_null();
        body["input"] = before.into_iter().chain(new).filter(is_sent).collect();
        if let Some(fields) = body.as_object_mut() {
            fields.remove("previous_response_id");
        }
        body
    }

    /// The response `id`, or what the vendor says that it is not there.
    pub(crate) fn get(&self, id: &str) -> Result<Value, Refusal> {
        let kept = self.0.lock();
        kept.responses.get(id).map(|stored| stored.response.clone()).ok_or_else(|| missing(id))
    }

    /// Forgets the response `id`; what is answered.
    pub(crate) fn delete(&self, id: &str) -> Result<Value, Refusal> {
        match self.0.lock().responses.remove(id) {
            Some(_) => Ok(json!({"id": id, "object": "response", "deleted": true})),
            None => Err(missing(id)),
        }
    }

    /// Keeps the response in the last `frame` of a stream, which answers the expanded `body`.
    pub(crate) fn keep_end(&self, body: &Value, frame: &[u8]) {
        let text = String::from_utf8_lossy(frame);
        let data = text.split_once("data: ").map_or("", |(_, data)| data);
        let mut event: Value = serde_json::from_str(data).unwrap_or_default();
        self.keep(body, event["response"].take());
    }

    /// Keeps `response`, which answers the expanded `body`.
    pub(crate) fn keep(&self, body: &Value, response: Value) {
        let Some(id) = response["id"].as_str().map(str::to_owned) else { return };
        let input = match &body["input"] {
            Value::String(text) => {
                vec![json!({"type": "message", "role": "user", "content": text})]
            }
            other => items(other).to_vec(),
        };
        let mut kept = self.0.lock();
        kept.responses.insert(id.clone(), Stored { input, response });
        kept.order.push_back(id);
        while kept.order.len() > KEPT {
            if let Some(oldest) = kept.order.pop_front() {
                kept.responses.remove(&oldest);
            }
        }
    }
}

fn missing(id: &str) -> Refusal {
    Refusal::new(404, "invalid_request_error", format!("Response with id '{id}' not found."))
}
