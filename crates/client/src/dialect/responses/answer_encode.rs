//! A whole answer for a caller, written, and the items that an answer is made of.

use bytes::Bytes;
use steadfast_chat::{Citation, Completion, MediaSource, Opaque, Part, Stop, TokenLogprob};
use steadfast_core::Usage;

use super::{DIALECT, custom, namespace, stop};
use crate::{
    dialect::{
        Caller,
        media::{IMAGE_CALL, image_of},
        openai::put_tokens,
    },
    json::{Array, Object},
};

/// An item of an answer's output.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: Kind,
}

/// What an item is.
#[derive(Debug)]
pub(super) enum Kind {
    Text {
        text: String,
        citations: Vec<Citation>,
        logprobs: Vec<TokenLogprob>,
    },
    Thinking {
        text: String,
        signature: Option<String>,
    },
    Call {
        id: String,
        name: String,
        arguments: String,
        custom: bool,
        /// In which the name is.
        namespace: Option<Box<str>>,
    },
    /// The data of an image that the model made.
    Image(String),
    /// An item of this dialect's own, as it was read.
    Raw(String),
}

/// How an item is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
        }
    }
}

impl Kind {
    /// A call of the tool that `caller` knows as `name` in memory, without arguments.
    pub(super) fn call(id: &str, name: &str, caller: &Caller) -> Self {
        let custom = caller.is_custom(name);
        let namespaces = caller.namespaces.iter();
        let found = namespaces
            .filter_map(|namespace| Some((namespace, namespace::within(name, namespace)?)))
            .next();
        let (namespace, name) = match found {
            Some((namespace, own)) => (Some(namespace.clone()), own),
            None => (None, name),
        };
        let (id, name) = (id.to_owned(), name.to_owned());
        Kind::Call { id, name, arguments: String::new(), custom, namespace }
    }

    /// What ids of its kind begin with.
    pub(super) const fn prefix(&self) -> &'static str {
        match self {
            Kind::Text { .. } | Kind::Raw(_) => "msg",
            Kind::Thinking { .. } => "rs",
            Kind::Image(_) => "ig",
            Kind::Call { custom: false, .. } => "fc",
            Kind::Call { custom: true, .. } => "ctc",
        }
    }
}

/// The id of the `n`th item of the answer `answer`, which its provider gave none.
pub(super) fn item_id(kind: &Kind, answer: &str, n: usize) -> String {
    format!("{}_{answer}_{n}", kind.prefix())
}

/// A part of a message that is text.
pub(super) fn put_part(
    part: &mut Object<'_>,
    text: &str,
    citations: &[Citation],
    logprobs: &[TokenLogprob],
) {
    part.put("type", "output_text").put("text", text);
    {
        let chars = text.chars().count() as u64;
        let mut list = part.array("annotations");
        citations.iter().for_each(|citation| put_citation(&mut list.object(), citation, chars));
    }
    put_tokens(&mut part.array("logprobs"), logprobs);
}

/// A source of a text that has so many characters.
pub(super) fn put_citation(object: &mut Object<'_>, citation: &Citation, chars: u64) {
    // One that names no piece of the text is one of all of it.
    let (start, end) = citation.range.unwrap_or((0, chars));
    object
        .put("type", "url_citation")
        .put("url", &citation.url)
        .put("title", citation.title.as_deref().unwrap_or_default())
        .put("start_index", &start)
        .put("end_index", &end);
}

impl Item {
    /// Writes it into `list`.
    pub(super) fn put(&self, list: &mut Array<'_>, status: Status) {
        match &self.kind {
            Kind::Raw(json) => list.raw(json),
            _ => self.fill(&mut list.object(), status),
        }
    }

    /// Writes it as the field `item` of an event.
    pub(super) fn put_as(&self, event: &mut Object<'_>, status: Status) {
        match &self.kind {
            Kind::Raw(json) => drop(event.raw("item", json)),
            _ => self.fill(&mut event.object("item"), status),
        }
    }

    /// Writes it into `object`, with what there is of it.
    fn fill(&self, object: &mut Object<'_>, status: Status) {
        let started = status == Status::InProgress;
        match &self.kind {
            Kind::Text { text, citations, logprobs } => {
                object.put("id", &self.id).put("type", "message").put("status", status.as_str());
                object.put("role", "assistant");
                let mut content = object.array("content");
                if !started {
                    put_part(&mut content.object(), text, citations, logprobs);
                }
            }
            Kind::Thinking { text, signature } => {
                object.put("id", &self.id).put("type", "reasoning");
                {
                    let mut summary = object.array("summary");
                    if !started && !text.is_empty() {
                        summary.object().put("type", "summary_text").put("text", text);
                    }
                }
                object.put_some("encrypted_content", signature.as_ref().filter(|_| !started));
            }
            Kind::Call { id, name, arguments, custom, namespace } => {
                let (kind, field) = match custom {
                    true => ("custom_tool_call", "input"),
                    false => ("function_call", "arguments"),
                };
                let arguments = if started { "" } else { arguments };
                object.put("id", &self.id).put("type", kind).put("status", status.as_str());
                object.put("call_id", id).put("name", name).put(field, arguments);
                object.put_some(namespace::FIELD, namespace.as_deref());
            }
            Kind::Image(data) => {
                object.put("id", &self.id).put("type", IMAGE_CALL);
                object.put("status", status.as_str());
                match started {
                    true => object.put("result", &None::<u8>),
                    false => object.put("result", data),
                };
            }
            Kind::Raw(_) => {}
        }
    }
}

/// The item that an opaque block is here: one of this dialect's own, or an image.
pub(super) fn of_opaque(opaque: &Opaque) -> Option<Kind> {
    if opaque.dialect == DIALECT {
        return Some(Kind::Raw(opaque.json.get().to_owned()));
    }
    match image_of(opaque)? {
        MediaSource::Base64 { data, .. } => Some(Kind::Image(data.to_string())),
        // There is no item for an address.
        MediaSource::Url { url, .. } if url.starts_with("http") => Some(Kind::Text {
            text: format!("![]({url})"),
            citations: Vec::new(),
            logprobs: Vec::new(),
        }),
        _ => None,
    }
}

/// How an answer ends.
pub(super) struct Ending<'a> {
    pub(super) stop: Option<&'a Stop>,
    /// The answer is of this dialect's own.
    pub(super) own: bool,
    pub(super) usage: &'a Usage,
    /// It has failed: the code and the message.
    pub(super) error: Option<(&'a str, &'a str)>,
}

/// The answer as an object: without an ending it is in progress.
pub(super) fn put_response(
    object: &mut Object<'_>,
    (id, model): (&str, &str),
    caller: &Caller,
    items: &[Item],
    ending: Option<&Ending<'_>>,
) {
    let error = ending.and_then(|ending| ending.error);
    let ended = ending.filter(|_| error.is_none());
    let incomplete = ended.and_then(|ending| stop::incomplete(ending.stop, ending.own));
    let status = match (ended, incomplete) {
        (None, _) => Status::InProgress,
        (Some(_), None) => Status::Completed,
        (Some(_), Some(_)) => Status::Incomplete,
    };
    object
        .put("id", id)
        .put("object", "response")
        .put("created_at", &caller.created)
        .put("status", if error.is_some() { "failed" } else { status.as_str() });
    match error {
        Some((code, message)) => {
            object.object("error").put("code", code).put("message", message);
        }
        None => drop(object.put("error", &None::<u8>)),
    }
    match incomplete {
        Some(reason) => {
            object.object("incomplete_details").put("reason", reason);
        }
        None => drop(object.put("incomplete_details", &None::<u8>)),
    }
    object.put("model", model);
    {
        let mut output = object.array("output");
        let last = items.len().saturating_sub(1);
        for (n, item) in items.iter().enumerate().filter(|_| ended.is_some()) {
            let is_cut = status == Status::Incomplete && n == last;
            item.put(&mut output, if is_cut { status } else { Status::Completed });
        }
    }
    // What its clients read in any case.
    object.put("parallel_tool_calls", &true).put("tool_choice", "auto");
    object.array("tools");
    match ending {
        Some(ending) => stop::put_usage(object, ending.usage),
        None => drop(object.put("usage", &None::<u8>)),
    }
}

/// The id of an answer: of this dialect, whoever gave it.
pub(super) fn response_id(id: Option<&str>, caller: &Caller) -> String {
    match id {
        Some(id) if id.starts_with("resp") => id.to_owned(),
        Some(id) => format!("resp_{id}"),
        None => format!("resp_{}", caller.id),
    }
}

/// Writes a whole answer.
pub(super) fn whole(answer: &Completion, caller: &Caller) -> Bytes {
    let own = answer.head.dialect == DIALECT;
    let id = response_id(answer.id.as_deref(), caller);
    let mut items: Vec<Item> = Vec::new();
    let mut logprobs = answer.logprobs.clone();
    for part in &answer.parts {
        let kind = match part {
            Part::Text(text) => Kind::Text {
                text: text.text.clone(),
                citations: Vec::new(),
                // They are of all of the text, and nothing says which are of which piece.
                logprobs: std::mem::take(&mut logprobs),
            },
            Part::Thinking(thinking) => Kind::Thinking {
                text: thinking.text.clone(),
                signature: thinking.signature.clone().filter(|_| own),
            },
            Part::Redacted { data } if own => {
                Kind::Thinking { text: String::new(), signature: Some(data.clone()) }
            }
            Part::ToolCall(call) => {
                let mut kind = Kind::call(&call.id, &call.name, caller);
                if let Kind::Call { arguments, custom, .. } = &mut kind {
                    *arguments = match custom {
                        true => custom::input(&call.arguments),
                        false => call.arguments.clone(),
                    };
                }
                kind
            }
            Part::Opaque(opaque) => match of_opaque(opaque) {
                Some(kind) => kind,
                // What another vendor's servers did has no word here.
                None => continue,
            },
            _ => continue,
        };
        let id = item_id(&kind, &caller.id, items.len());
        items.push(Item { id, kind });
    }
    cite(&mut items, &answer.citations);
    let model = answer.model.as_deref().unwrap_or(&caller.model);
    let ending = Ending { stop: answer.stop.as_ref(), own, usage: &answer.usage, error: None };
    Object::text(|object| put_response(object, (&id, model), caller, &items, Some(&ending))).into()
}

/// Puts the sources of an answer at the texts that they are of; their ranges are then of those.
fn cite(items: &mut [Item], citations: &[Citation]) {
    for citation in citations {
        let (mut start, mut found) = (0, None);
        for (n, item) in items.iter().enumerate() {
            let Kind::Text { text, .. } = &item.kind else { continue };
            let end = start + text.chars().count() as u64;
            found = Some((n, start));
            if citation.range.is_some_and(|(from, _)| from < end) {
                break;
            }
            start = end;
        }
        if let Some((n, start)) = found
            && let Kind::Text { citations, .. } = &mut items[n].kind
        {
            let mut citation = citation.clone();
            let shift = |at: u64| at.saturating_sub(start);
            citation.range = citation.range.map(|(from, to)| (shift(from), shift(to)));
            citations.push(citation);
        }
    }
}
