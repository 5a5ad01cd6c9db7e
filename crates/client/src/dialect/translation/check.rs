//! Going through a body by the table.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::Value;
use steadfast_chat::{ChatRequest, Origin, Params, surrogates, transcript::TranscriptRule};
use steadfast_core::{Dialect, Failure, OnUnsupported};

use super::{
    LeftOut,
    table::{At, Kind, Outcome, Row, Tree, Where, tree},
};
use crate::{
    dialect::{Wire, codec, fault},
    json::{Fields, Raw, fields_of, items},
};

/// Goes through `request`, as it is now, before it is written in the dialect `to`: what has to be left
/// out of it.
///
/// Its body in its own dialect is what is gone through: as it was read, or, where a layer has changed
/// it, as it would be sent to a provider of that dialect now. So each field that a caller has sent is
/// found, whether this crate knows it or not: one that is in no row of the table is refused where
/// content is, and left out and named elsewhere.
///
/// # Errors
///
/// [`Reason::Unsupported`](steadfast_core::Reason), naming the field by its path, when the dialect has
/// no word for something that no answer can do without, and for whatever would be left out where the
/// target is [to refuse](OnUnsupported::Refuse) that.
pub fn check(request: &ChatRequest, to: Dialect) -> Result<LeftOut, Failure> {
    let mut left_out = LeftOut::new();
    let Some(from) = request.dialect() else {
        check_messages(request, to, &mut left_out)?;
        return refuse(request, to, left_out);
    };
    fitted(request, from, &mut left_out);
    if from == to {
        let read = request.origin(from).map(Origin::read);
        if read.is_some_and(|read| read.model != request.model) {
            name_params(request, to, &mut left_out);
        }
        return refuse(request, to, left_out);
    }
    for rule in request.taken_out.iter().flat_map(|rules| rules.iter()) {
        left_out.add(taken_out(from, *rule));
    }
    fault::no_thread(request, to)?;
    let body = body_now(request, from)?;
    Walk::new(from, to, Where::Request, &mut left_out)
        .body(&body)
        .map_err(|field| unsaid(to, &field))?;
    name_params(request, to, &mut left_out);
    refuse(request, to, left_out)
}

/// What is left out because of the model that the request goes to.
fn name_params(request: &ChatRequest, to: Dialect, left_out: &mut LeftOut) {
    for param in codec(to).leaves_out(request) {
        left_out.add_param(request, param);
    }
}

/// The field of the dialect `from` that a repair by `rule` has taken out.
fn taken_out(from: Dialect, rule: TranscriptRule) -> &'static str {
    match (rule, from) {
        (TranscriptRule::Thinking, Dialect::Anthropic) => "messages[].content[thinking]",
        (TranscriptRule::Thinking, Dialect::Gemini) => "contents[].parts[].thought",
        (TranscriptRule::Thinking, Dialect::OpenAi) => "messages[].reasoning_content",
        (TranscriptRule::Thinking, Dialect::Responses) => "input[reasoning]",
        (_, Dialect::Anthropic) => "messages[].content[tool_result]",
        (_, Dialect::Gemini) => "contents[].parts[].functionResponse",
        (_, Dialect::OpenAi) => "messages[].tool_call_id",
        (_, Dialect::Responses) => "input[function_call_output]",
    }
}

/// What was taken from the request, which was read in the dialect `from`, to fit it to the model it goes to: a
/// parameter that this one does not take, and an output limit that is above its own.
fn fitted(request: &ChatRequest, from: Dialect, left_out: &mut LeftOut) {
    let Some(read) = request.origin(from).map(Origin::read) else { return };
    if read.params == request.params {
        return;
    }
    let has = |params: &Params, name| params.clone().clear(name);
    for name in Params::NAMES {
        if has(&read.params, name) && !has(&request.params, name) {
            left_out.add_param(request, name);
        }
    }
    let withheld = &request.params.withheld;
    if !withheld.is_empty()
        && let Ok(body) = fields_of(request, from)
    {
        // What the caller does not have was added for it.
        let has = |name: &&str| body.iter().any(|(has, raw)| has == *name && raw.get() != "null");
        withheld.iter().copied().filter(has).for_each(|name| left_out.add(name));
    }
    if request.params.max_output.is_some() && request.params.max_output < read.params.max_output {
        left_out.add_param(request, "max_tokens");
    }
}

fn refuse(request: &ChatRequest, to: Dialect, left_out: LeftOut) -> Result<LeftOut, Failure> {
    if request.on_unsupported == OnUnsupported::Refuse && !left_out.is_empty() {
        return Err(unsaid(to, &left_out.to_string()));
    }
    Ok(left_out)
}

fn unsaid(to: Dialect, field: &str) -> Failure {
    fault::unsupported(to, field)
}

/// The body that `request` would have in the dialect it was read in.
fn body_now(request: &ChatRequest, from: Dialect) -> Result<Bytes, Failure> {
    let Some(origin) = request.origin(from) else { return Ok(Bytes::from_static(b"{}")) };
    let read = origin.read();
    let is_same = read.messages.same(&request.messages)
        && read.tools.same(&request.tools)
        && read.params == request.params;
    if is_same {
        return Ok(origin.body.clone());
    }
    // For the model that it was written for: what another one takes is no matter here.
    let mut own = request.clone();
    own.model = read.model.clone();
    codec(from).encode_request(&own, &Wire::default())
}

/// Of a request that a program made: the messages in it that were read in other dialects, as a session
/// keeps them.
fn check_messages(
    request: &ChatRequest,
    to: Dialect,
    left_out: &mut LeftOut,
) -> Result<(), Failure> {
    for from in Dialect::ALL.into_iter().filter(|from| *from != to) {
        let foreign = request.messages.iter().filter(|message| message.dialect() == Some(from));
        let foreign: Vec<_> = foreign.cloned().collect();
        if foreign.is_empty() {
            continue;
        }
        let messages = ChatRequest::new(foreign).with_model("m");
        let body = codec(from).encode_request(&messages, &Wire::default())?;
        let walk = Walk::new(from, to, Where::Request, left_out);
        walk.body(&body).map_err(|field| unsaid(to, &field))?;
    }
    Ok(())
}

/// What has no word in the other dialect: where it stands, and what it is.
pub(super) type Unsaid = String;

/// Goes through one body.
pub(super) struct Walk<'w> {
    tree: &'static Tree,
    to: Dialect,
    left_out: &'w mut LeftOut,
    /// Where it is, with the numbers of items.
    path: String,
}

impl<'w> Walk<'w> {
    pub(super) fn new(from: Dialect, to: Dialect, side: Where, left_out: &'w mut LeftOut) -> Self {
        Self { tree: tree(from, side), to, left_out, path: String::new() }
    }

    /// Goes through a whole body.
    pub(super) fn body(mut self, body: &[u8]) -> Result<(), Unsaid> {
        // What can not be read was refused before, or is by who reads it next.
        match serde_json::from_slice::<Raw<'_>>(body) {
            Ok(raw) => self.value(0, raw),
            Err(_) => Ok(()),
        }
    }

    fn value(&mut self, at: At, raw: Raw<'_>) -> Result<(), Unsaid> {
        let node = self.tree.node(at);
        if matches!(raw.get(), "null" | "[]") {
            return Ok(());
        }
        if let Some(row) = &node.row
            && (is_nothing(row, raw) || !self.judge(row)?)
        {
            return Ok(());
        }
        if raw.is_list() {
            return self.list(at, raw);
        }
        if raw.is_object() {
            let Ok(fields) = Fields::read(raw) else { return Ok(()) };
            return self.object(at, &fields);
        }
        match raw.text().ok().and_then(|text| node.value(&text).map(|found| (found, text))) {
            Some((Some(value), _)) => self.value(value, Raw::TRUE),
            Some((None, text)) => self.unknown(at, &text),
            None => Ok(()),
        }
    }

    /// What the row says; whether what is beneath is to be gone through.
    fn judge(&mut self, row: &'static Row) -> Result<bool, Unsaid> {
        match row.outcome(self.to) {
            Outcome::Translated => return Ok(true),
            Outcome::LeftOut => self.left_out.add(&row.field),
            Outcome::Refused => return Err(self.unsaid(&row.field)),
            Outcome::Bookkeeping => {}
        }
        Ok(false)
    }

    fn list(&mut self, at: At, raw: Raw<'_>) -> Result<(), Unsaid> {
        let node = self.tree.node(at);
        if node.items.is_none() && !node.has_tags() {
            return Ok(());
        }
        let Ok(items) = items(raw) else { return Ok(()) };
        let length = self.path.len();
        for (n, item) in items.into_iter().enumerate() {
            let _ = write!(self.path, "[{n}]");
            match node.items {
                Some(at) => self.value(at, item)?,
                // Of a list of strings each is text.
                None if item.is_object() => {
                    let Ok(fields) = Fields::read(item) else { continue };
                    self.object(at, &fields)?;
                }
                None => {}
            }
            self.path.truncate(length);
        }
        Ok(())
    }

    fn object(&mut self, at: At, fields: &Fields<'_>) -> Result<(), Unsaid> {
        let node = self.tree.node(at);
        if node.has_tags() {
            let tag = self.tree.tag(fields);
            match self.tree.tagged(at, &tag) {
                Some(kind) => return self.tagged(kind, fields),
                None if tag != "-" || !node.has_fields() => return self.unknown(at, &tag),
                None => {}
            }
        }
        if node.has_fields() { self.fields(at, fields) } else { Ok(()) }
    }

    /// An object of a kind that has rows of its own.
    fn tagged(&mut self, at: At, fields: &Fields<'_>) -> Result<(), Unsaid> {
        let node = self.tree.node(at);
        match &node.row {
            Some(row) if !self.judge(row)? => Ok(()),
            _ => self.fields(at, fields),
        }
    }

    fn fields(&mut self, at: At, fields: &Fields<'_>) -> Result<(), Unsaid> {
        let length = self.path.len();
        for (name, raw) in fields.iter() {
            if matches!(raw.get(), "null" | "[]") || self.tree.is_tag(name) {
                continue;
            }
            match self.tree.field(at, name) {
                Some(field) => {
                    if length > 0 {
                        self.path.push('.');
                    }
                    self.path.push_str(name);
                    self.value(field, raw)?;
                    self.path.truncate(length);
                }
                None => self.unknown_field(at, name)?,
            }
        }
        Ok(())
    }

    /// A kind of object, or a value, that is in no row.
    fn unknown(&mut self, at: At, tag: &str) -> Result<(), Unsaid> {
        let node = self.tree.node(at);
        match node.kind {
            Kind::Content => Err(self.unsaid(&format!("{}[{tag}]", node.path))),
            Kind::Parameter => {
                self.left_out.add_unknown(&node.path, tag);
                Ok(())
            }
        }
    }

    fn unknown_field(&mut self, at: At, name: &str) -> Result<(), Unsaid> {
        let node = self.tree.node(at);
        match node.kind {
            Kind::Content => {
                let dot = if self.path.is_empty() { "" } else { "." };
                let _ = write!(self.path, "{dot}{name}");
                Err(self.unsaid(&format!("{}{dot}{name}", node.path)))
            }
            Kind::Parameter => {
                self.left_out.add_unknown(&node.path, name);
                Ok(())
            }
        }
    }

    /// What is reported: where it stands, and which row of the table it is, where that says more.
    fn unsaid(&self, row: &str) -> Unsaid {
        let (at, what) = (short(&self.path), short(row));
        if at == what { at.to_owned() } else { format!("{at} ({what})") }
    }
}

/// A path as it is reported: names of fields may be the caller's own.
fn short(path: &str) -> &str {
    const MAX: usize = 160;
    let end = path.char_indices().map(|(at, _)| at).find(|at| *at >= MAX);
    &path[..end.unwrap_or(path.len())]
}

/// Whether a value asks for nothing.
fn is_nothing(row: &Row, raw: Raw<'_>) -> bool {
    !row.nothing.is_empty()
        && surrogates::read::<Value>(raw.get()).is_ok_and(|value| row.nothing.contains(&value))
}
