//! A response as its next request refers to it.

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};
use steadfast_chat::{ChatRequest, Message};

use super::{DIALECT, request_decode};
use crate::json::{Array, Fields, Object, Raw, RequestError, items, string, text_of};

/// A response of OpenAI's Responses API, as its caller was given it: what a next request means that names it, or one
/// of its items.
///
/// ```
/// use steadfast_client::dialect::StoredResponse;
///
/// let body = r#"{"id":"resp_1","status":"completed","output":[
///     {"type":"message","id":"msg_1","status":"completed","role":"assistant",
///      "content":[{"type":"output_text","text":"Four.","annotations":[]}]}]}"#;
/// let stored = StoredResponse::of_body(&body.into()).unwrap();
/// assert_eq!((stored.id(), stored.is_over()), ("resp_1", true));
/// assert_eq!(stored.messages()[0].text(), "Four.");
/// assert_eq!(stored.item_ids().collect::<Vec<_>>(), ["msg_1"]);
/// ```
///
/// With serde it is written as it is, in a form of its own that is no provider's: for another process to go on with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct StoredResponse {
    id: Box<str>,
    is_over: bool,
    #[serde(with = "text", default, skip_serializing_if = "Bytes::is_empty")]
    json: Bytes,
    items: Vec<Item>,
}

/// An item of its output.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Item {
    #[serde(default)]
    id: Option<Box<str>>,
    /// As a next request writes it: without its id, which is its provider's alone. `None` for what nobody else can
    /// read.
    #[serde(default)]
    json: Option<Box<str>>,
}

/// JSON text, as text.
mod text {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, ser::Error};

    pub(super) fn serialize<S: Serializer>(json: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(std::str::from_utf8(json).map_err(S::Error::custom)?)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        String::deserialize(from).map(Bytes::from)
    }
}

impl StoredResponse {
    /// The response that is the body of a whole answer; `None` where it is none.
    pub fn of_body(body: &Bytes) -> Option<Self> {
        Self::read(std::str::from_utf8(body).ok()?, body)
    }

    /// The response in the last frame of a stream; `None` where that is no terminal event of one that ended well.
    pub fn of_frames(frames: &[u8]) -> Option<Self> {
        let from = ["event: response.completed\n", "event: response.incomplete\n"]
            .into_iter()
            .filter_map(|name| memmem::rfind(frames, name.as_bytes()).map(|at| at + name.len()))
            .max()?;
        let data = std::str::from_utf8(&frames[from..]).ok()?.strip_prefix("data: ")?;
        let mut event = Fields::of_body(data.trim_end().as_bytes()).ok()?;
        let response = event.take("response")?.get();
        Self::read(response, &Bytes::copy_from_slice(response.as_bytes()))
    }

    fn read(text: &str, json: &Bytes) -> Option<Self> {
        let mut fields = Fields::of_body(text.as_bytes()).ok()?;
        let id = fields.need("id", string).ok()?;
        let status = fields.get("status", string).ok()?;
        let output = fields.take("output")?;
        let items =
            items(output).ok()?.into_iter().map(Item::read).collect::<Result<_, _>>().ok()?;
        let is_over = matches!(status.as_deref(), Some("completed" | "incomplete"));
        Some(Self { id: id.into(), is_over, json: json.clone(), items })
    }

    /// Without [all of it](Self::json), of which most may be what its request had: instructions and tools.
    #[must_use]
    pub fn without_json(mut self) -> Self {
        self.json = Bytes::new();
        self
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether nothing more comes of it: one that is made in the background is not over when it is first sent.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// All of it.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// The ids of its items.
    pub fn item_ids(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter_map(|item| item.id.as_deref())
    }

    /// About how much memory it holds, in bytes.
    pub fn size(&self) -> usize {
        let item =
            |item: &Item| size_of::<Item>() + item.json.as_ref().map_or(0, |json| json.len());
        self.json.len() + self.items.iter().map(item).sum::<usize>()
    }

    /// What it is in the conversation of a next request.
    pub fn messages(&self) -> Vec<Message> {
        let list = list(self.items.iter().filter_map(|item| item.json.as_deref()));
        // What a response's items are, input may have: else they were not read as such.
        request_decode::items(&list).unwrap_or_default()
    }

    /// What a reference to the item `id` stands for.
    pub fn item(&self, id: &str) -> StandsFor {
        match self.items.iter().find(|item| item.id.as_deref() == Some(id)) {
            Some(item) => StandsFor::Item(item.json.as_deref().map(str::to_owned)),
            None => StandsFor::Unknown,
        }
    }
}

impl Item {
    fn read(raw: Raw<'_>) -> Result<Self, RequestError> {
        let mut fields = Fields::read(raw)?;
        let id = fields.get("id", string)?.map(Into::into);
        let kind = fields.get("type", string)?;
        let is_sealed = fields.take("encrypted_content").is_some();
        // Thoughts that are not sealed stand for what their provider keeps.
        let is_readable = kind.as_deref() != Some("reasoning") || is_sealed;
        let json = is_readable.then(|| without_id(raw)).transpose()?;
        Ok(Self { id, json: json.map(Into::into) })
    }
}

fn without_id(raw: Raw<'_>) -> Result<String, RequestError> {
    let fields = Fields::read(raw)?;
    Ok(Object::text(|object| {
        for (name, value) in fields.iter().filter(|(name, _)| !matches!(*name, "id" | "status")) {
            object.raw(name, value.get());
        }
    }))
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> Bytes {
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        items.for_each(|item| list.raw(item));
    }
    text_of(out).into()
}

/// An item of a request's input that stands for something which is not in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StandIn<'a> {
    /// An `item_reference`, with the id.
    Reference(&'a str),
    /// A `compaction`, with what is sealed in it.
    Compaction(&'a str),
}

/// What an item stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StandsFor {
    /// Itself.
    Itself,
    /// This item, or nothing.
    Item(Option<String>),
    /// Nobody knows.
    Unknown,
}

/// The messages of `request` with what some items of it stand for, which `find` says.
///
/// # Errors
///
/// The id that is not known, or nothing where the request has no items.
pub fn with_items(
    request: &ChatRequest,
    mut find: impl FnMut(StandIn<'_>) -> StandsFor,
) -> Result<Vec<Message>, Option<String>> {
    let body = &request.origin(DIALECT).ok_or(None)?.body;
    let mut fields = Fields::of_body(body).map_err(|_| None)?;
    let raws = fields.take("input").and_then(|input| items(input).ok()).ok_or(None)?;
    let mut written = Vec::with_capacity(raws.len());
    for raw in raws {
        let mut item = Fields::read(raw).map_err(|_| None)?;
        let kind = item.get("type", string).ok().flatten();
        let field = match kind.as_deref() {
            Some("item_reference") => "id",
            Some("compaction") => "encrypted_content",
            _ => "",
        };
        let named = item.get(field, string).ok().flatten();
        let stands_for = match (&named, field) {
            (Some(id), "id") => find(StandIn::Reference(id)),
            (Some(sealed), _) => find(StandIn::Compaction(sealed)),
            (None, _) => StandsFor::Itself,
        };
        match stands_for {
            StandsFor::Itself => written.push(raw.get().to_owned()),
            StandsFor::Item(item) => written.extend(item),
            StandsFor::Unknown => return Err(named),
        }
    }
    let read = request_decode::items(&list(written.iter().map(String::as_str)));
    let has_instructions = request.state.as_ref().is_some_and(|state| state.has_instructions);
    let first = request.messages.first().filter(|_| has_instructions).cloned();
    Ok(first.into_iter().chain(read.map_err(|_| None)?).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{Route, Wire, codec};
    use serde_json::{Value, json};
    use steadfast_core::Target;

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let stored = StoredResponse::of_body(&response().to_string().into()).unwrap();
        for stored in [stored.clone(), stored.without_json()] {
            let written = serde_json::to_vec(&stored).unwrap();
            assert_eq!(serde_json::from_slice::<StoredResponse>(&written).unwrap(), stored);
        }
    }

    fn response() -> Value {
        json!({
            "id": "resp_1", "object": "response", "status": "completed", "output": [
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "sealed"},
                {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                 "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
                {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "call_1",
                 "name": "ls", "arguments": "{}"},
            ],
        })
    }

    fn stored() -> StoredResponse {
        StoredResponse::of_body(&response().to_string().into()).unwrap()
    }

    fn request(body: &Value) -> ChatRequest {
        codec(DIALECT).decode_request(&body.to_string().into(), Route::default()).unwrap()
    }

    fn sent(request: &ChatRequest) -> Value {
        let body = codec(DIALECT).encode_request(request, &Wire::default()).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_stream_and_a_body_are_the_same_response() {
        let event =
            json!({"type": "response.completed", "response": response(), "sequence_number": 9});
        let frames = format!(
            "event: response.output_item.done\ndata: {{}}\n\nevent: response.completed\ndata: {event}\n\n"
        );
        let of_frames = StoredResponse::of_frames(frames.as_bytes()).unwrap();
        let of_body = stored();
        assert_eq!(of_frames.json(), of_body.json());
        assert_eq!(of_frames.messages(), of_body.messages());
        let short = of_body.clone().without_json();
        assert_eq!(short.messages(), of_body.messages());
        assert!(short.size() + of_body.json().len() == of_body.size() && short.json().is_empty());
        for failed in [
            "event: response.failed\ndata: {\"response\":{}}\n\n",
            "",
            "event: response.completed\n",
        ] {
            assert!(StoredResponse::of_frames(failed.as_bytes()).is_none(), "{failed}");
        }
    }

    #[test]
    fn what_is_not_over_is_known_as_such() {
        let queued = json!({"id": "resp_2", "status": "queued", "output": []}).to_string();
        assert!(!StoredResponse::of_body(&queued.into()).unwrap().is_over());
        for none in ["{}", "[]", "", r#"{"id":7}"#] {
            assert!(StoredResponse::of_body(&none.into()).is_none(), "{none}");
        }
    }

    #[test]
    fn a_continued_request_is_left_as_it_was_where_the_response_is_kept_and_is_whole_elsewhere() {
        let body = json!({
            "model": "m", "instructions": "be brief", "previous_response_id": "resp_1", "x_more": 1,
            "input": [{"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}],
        });
        let mut request = request(&body);
        assert_eq!(request.state.as_ref().unwrap().previous.as_deref(), Some("resp_1"));
        let mut messages = vec![request.messages[0].clone(), Message::user("what is here?")];
        messages.extend(stored().messages());
        messages.extend_from_slice(&request.messages[1..]);
        let home = Target::new("openai").with_credential("one");
        request.replay(Some(home.clone()), messages);

        let mut at_home = request.clone();
        at_home.leave_kept(&home.with_model("other"));
        assert_eq!(sent(&at_home), body);
        for elsewhere in [Target::new("azure"), home.with_credential("two")] {
            let mut whole = request.clone();
            whole.leave_kept(&elsewhere);
            assert_eq!(
                sent(&whole),
                json!({
                    "model": "m", "instructions": "be brief", "x_more": 1, "input": [
                        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "what is here?"}]},
                        {"type": "reasoning", "summary": [], "encrypted_content": "sealed"},
                        {"type": "message", "role": "assistant",
                         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
                        {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": "{}"},
                        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
                    ],
                })
            );
        }
        let mut edited = request.clone();
        edited.messages.make_mut().push(Message::user("hurry"));
        edited.leave_kept(&home);
        assert_eq!(sent(&edited)["input"].as_array().unwrap().len(), 6, "whole, as it was edited");
    }

    #[test]
    fn references_are_what_they_stand_for() {
        let body = json!({
            "model": "m", "instructions": "be brief", "input": [
                {"role": "user", "content": "what is here?"},
                {"type": "item_reference", "id": "rs_1"},
                {"type": "item_reference", "id": "msg_1"},
                {"type": "item_reference", "id": "fc_1"},
                {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
            ],
        });
        let request = request(&body);
        assert!(request.state.as_ref().unwrap().has_references);
        let find = |item: StandIn<'_>| match item {
            StandIn::Reference(id) => stored().item(id),
            StandIn::Compaction(_) => StandsFor::Itself,
        };
        let messages = with_items(&request, find).unwrap();
        let turns: Vec<_> = messages
            .iter()
            .map(|message| (message.role().as_str(), message.parts().len()))
            .collect();
        assert_eq!(turns, [("system", 1), ("user", 1), ("assistant", 2), ("tool", 1)]);
        assert_eq!(with_items(&request, |_| StandsFor::Unknown), Err(Some("rs_1".to_owned())));
    }
}
