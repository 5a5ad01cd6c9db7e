//! A request for a provider, written.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::{Map, Value};
use steadfast_chat::{
    ChatRequest, Message, Part, RawJson, ResponseFormat, ThinkingConfig, Tool, ToolCall, ToolChoice,
};
use steadfast_core::{Dialect, Failure};

use super::{
    DIALECT, blocks,
    cache::{is_marked, mark},
    plan::{Plan, Think, Written, takes_schema},
};
use crate::{
    dialect::{
        fault,
        held::held,
        schema::json_schema,
        translation::spoken,
        turns::{self, instructions},
    },
    json::{Array, Object, Patch, Raw, patched, quoted, text_of},
};

pub(super) fn encode(request: &ChatRequest) -> Result<Bytes, Failure> {
    let request = &*spoken(request, DIALECT)?;
    let params = &request.params;
    if params.answers.is_some_and(|answers| answers != 1) {
        return Err(fault::unsupported(DIALECT, "several answers to one request"));
    }
    let written = Written::of(request);
    let plan = Plan::new(request, written);
    let mut body = Patch::new(request, DIALECT);
    let before = body.read().map(|read| Plan::new(read, Written::ForThis));
    let same_plan =
        |part: fn(&Plan, &Plan) -> bool| before.as_ref().is_some_and(|before| part(before, &plan));
    let schema = held_schema(request);
    // A form the dialect can not hold a model to is asked for in the prompt.
    let instructed = params.format.as_ref().filter(|format| match format {
        ResponseFormat::Text => false,
        ResponseFormat::Schema { .. } => schema.is_none(),
        _ => true,
    });

    body.set(&["model"], body.is_same(|r| &r.model), || Ok(Some(quoted(&request.model))))?;
    let same = body.is_same(|r| &r.params.format)
        && body.read().is_some_and(|read| {
            let both = instructions(&read.messages).zip(instructions(&request.messages));
            instructions(&read.messages).count() == instructions(&request.messages).count()
                && both.into_iter().all(|((_, a), (_, b))| a.same(b))
        });
    body.set(&["system"], same, || Ok(blocks::system(request, instructed)))?;
    let same = body.read().is_some_and(|read| turns::same(&read.messages, &request.messages))
        && blocks::all_verbatim(&request.messages);
    body.write(&["messages"], same, |out| blocks::messages(out, request))?;
    let same =
        body.is_same(|r| &r.params.max_output) && same_plan(|a, b| a.max_tokens == b.max_tokens);
    body.set(&["max_tokens"], same, || Ok(Some(plan.max_tokens.to_string())))?;
    body.set(&["temperature"], same_plan(|a, b| a.temperature == b.temperature), || {
        Ok(plan.temperature.as_ref().map(quoted))
    })?;
    body.set(&["top_p"], same_plan(|a, b| a.top_p == b.top_p), || {
        Ok(plan.top_p.as_ref().map(quoted))
    })?;
    body.set(&["top_k"], same_plan(|a, b| a.top_k == b.top_k), || {
        Ok(plan.top_k.as_ref().map(quoted))
    })?;
    body.set(&["stop_sequences"], body.is_same(|r| &r.params.stop), || {
        // Here a text that ends an answer may not be white space alone.
        let stop: Vec<&String> = params.stop.iter().filter(|s| !s.trim().is_empty()).collect();
        Ok((!stop.is_empty()).then(|| quoted(&stop)))
    })?;
    // Here some of the tools are allowed by declaring no others.
    let narrowed = |request: &ChatRequest| {
        matches!(request.params.tool_choice, Some(ToolChoice::Allowed { .. }))
    };
    let same_tools = body.is_same(|r| &r.tools) && !narrowed(request);
    body.set(&["tools"], same_tools, || tools(request))?;
    let same =
        body.is_same(|r| &r.params.tool_choice) && body.is_same(|r| &r.params.parallel_tool_calls);
    body.set(&["tool_choice"], same, || Ok(tool_choice(request)))?;
    let same = body.is_same(|r| &r.params.thinking) && same_plan(|a, b| a.thinking == b.thinking);
    body.change(&["thinking"], same, |old| {
        plan.thinking.map(|think| thinking(think, old)).transpose()
    })?;
    let same = body.is_same(|r| &r.params.format)
        && body.is_same(|r| &r.params.thinking)
        && same_plan(|a, b| a.effort == b.effort);
    body.change(&["output_config"], same, |old| output_config(&plan, schema.as_ref(), old))?;
    body.set(&["output_format"], body.is_same(|r| &r.params.format), || Ok(None))?;
    body.change(&["metadata"], body.is_same(|r| &r.params.user), |old| {
        let user = params.user.as_ref().map(quoted);
        patched(old, &[(&["user_id"], user)]).map(some_object)
    })?;
    body.set(&["stream"], body.is_same(|r| &r.stream), || {
        Ok(request.stream.then(|| "true".to_owned()))
    })?;
    body.finish()
}

/// What a translated request loses because of the model that it goes to, by the names of
/// [`Params`](steadfast_chat::Params).
pub(super) fn leaves_out(request: &ChatRequest) -> Vec<&'static str> {
    let params = &request.params;
    let plan = Plan::new(request, Written::of(request));
    let mut names = Vec::new();
    let lost = |set: bool, kept: bool| set && !kept;
    let thinks = matches!(&params.thinking, Some(thinking) if !matches!(thinking,
        ThinkingConfig::Off | ThinkingConfig::Budget(0)));
    for (name, lost) in [
        // One that is lowered is another one.
        ("temperature", plan.temperature != params.temperature),
        ("top_p", lost(params.top_p.is_some(), plan.top_p.is_some())),
        ("top_k", lost(params.top_k.is_some(), plan.top_k.is_some())),
        ("thinking", lost(thinks, plan.thinking.is_some())),
        ("stop", !own(request.dialect()) && params.stop.iter().any(|stop| stop.trim().is_empty())),
    ] {
        if lost {
            names.push(name);
        }
    }
    names
}

/// An object with something in it.
fn some_object(text: String) -> Option<String> {
    (text != "{}").then_some(text)
}

fn thinking(think: Think, old: Option<Raw<'_>>) -> Result<String, Failure> {
    let (kind, budget) = match think {
        Think::Disabled => ("disabled", None),
        Think::Adaptive => ("adaptive", None),
        Think::Budget(tokens) => ("enabled", Some(tokens.to_string())),
    };
    patched(old, &[(&["type"], Some(quoted(kind))), (&["budget_tokens"], budget)])
}

/// The schema that the model is held to: where the caller's vendor would have held its own to it.
fn held_schema(request: &ChatRequest) -> Option<RawJson> {
    let Some(ResponseFormat::Schema { schema, strict, .. }) = &request.params.format else {
        return None;
    };
    let read = request.dialect();
    let schema = json_schema(schema, read);
    match strict {
        Some(true) if own(read) => Some(schema),
        // One that can not be held is left to the provider to refuse: the caller asked for no less.
        Some(true) => Some(held(&schema).unwrap_or(schema)),
        // Gemini always holds its models to a schema, and that has no word for it.
        _ if read == Some(Dialect::Gemini) && takes_schema(&request.model) => held(&schema),
        _ => None,
    }
}

fn output_config(
    plan: &Plan,
    schema: Option<&RawJson>,
    old: Option<Raw<'_>>,
) -> Result<Option<String>, Failure> {
    let format = schema.map(|schema| {
        Object::text(|object| {
            object.put("type", "json_schema").raw("schema", schema.get());
        })
    });
    let effort = plan.effort.as_ref().map(quoted);
    patched(old, &[(&["effort"], effort), (&["format"], format)]).map(some_object)
}

/// The tools. Where the conversation has calls and no tools are declared any more, those that were
/// called are, since calls of undeclared tools are refused.
fn tools(request: &ChatRequest) -> Result<Option<String>, Failure> {
    let allowed = match &request.params.tool_choice {
        Some(ToolChoice::Allowed { names, .. }) => Some(names),
        _ => None,
    };
    let calls: HashSet<&str> = match allowed {
        Some(_) => request.messages.iter().flat_map(Message::tool_calls).map(name).collect(),
        None => HashSet::new(),
    };
    let is_declared = |tool: &Tool| match (allowed, tool.name()) {
        (Some(names), Some(name)) => names.iter().any(|it| it == name) || calls.contains(name),
        _ => true,
    };
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        let mut declared = request.tools.iter().filter(|tool| is_declared(tool)).peekable();
        while let Some(tool) = declared.next() {
            let marked = is_marked(request) && declared.peek().is_none();
            match tool {
                Tool::Function {
                    name, description, parameters, strict, extra, dialect, ..
                } => {
                    let mut object = list.object();
                    object
                        .put("name", name)
                        .put_some("description", description.as_ref())
                        .raw("input_schema", schema(parameters.as_ref(), *dialect).get());
                    object
                        .put_some("strict", strict.filter(|strict| *strict || own(*dialect)))
                        .extra(extra.as_deref().filter(|_| own(*dialect)));
                    mark(&mut object, marked);
                }
                Tool::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
                Tool::Opaque(opaque) => {
                    let what = format!("the {} tool `{}`", opaque.dialect, opaque.kind);
                    return Err(fault::unsupported(DIALECT, &what));
                }
                _ => return Err(fault::unsupported(DIALECT, "a tool")),
            }
        }
        for name in called(request) {
            list.object().put("name", name).raw("input_schema", ANY_OBJECT);
        }
    }
    Ok((out != b"[]").then(|| text_of(out)))
}

fn own(dialect: Option<Dialect>) -> bool {
    dialect == Some(DIALECT)
}

fn name(call: &ToolCall) -> &str {
    &call.name
}

const ANY_OBJECT: &str = r#"{"type":"object"}"#;

/// The tools that were called, when none are declared.
fn called(request: &ChatRequest) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let mut seen = HashSet::new();
    if request.tools.is_empty() {
        let parts = request.messages.iter().flat_map(|message| message.parts());
        for call in parts.filter_map(Part::as_tool_call) {
            if seen.insert(call.name.as_str()) {
                names.push(&call.name);
            }
        }
    }
    names
}

/// The schema of a tool's arguments, which here has to be there and be one of an object.
fn schema(schema: Option<&RawJson>, dialect: Option<Dialect>) -> RawJson {
    let Some(schema) = schema else { return from_map(Map::new()) };
    let schema = json_schema(schema, dialect);
    let known = serde_json::from_str::<Map<String, Value>>(schema.get());
    match known {
        Ok(fields) if !fields.contains_key("type") => from_map(fields),
        _ => schema,
    }
}

fn from_map(fields: Map<String, Value>) -> RawJson {
    let mut whole = Map::from_iter([("type".to_owned(), Value::from("object"))]);
    whole.extend(fields);
    RawJson::from_value(&Value::Object(whole))
}

fn tool_choice(request: &ChatRequest) -> Option<String> {
    let params = &request.params;
    if request.tools.is_empty() {
        // Only what was called is declared, and it is not to be called again.
        let declared = !called(request).is_empty();
        return declared.then(|| {
            Object::text(|object| {
                object.put("type", "none");
            })
        });
    }
    let serial = params.parallel_tool_calls == Some(false);
    let (kind, name) = match &params.tool_choice {
        None if !serial => return None,
        Some(ToolChoice::None) => ("none", None),
        Some(ToolChoice::Required) => ("any", None),
        Some(ToolChoice::Tool(name)) => ("tool", Some(name)),
        Some(ToolChoice::Allowed { required: true, .. }) => ("any", None),
        _ => ("auto", None),
    };
    Some(Object::text(|object| {
        object.put("type", kind).put_some("name", name);
        if kind != "none" && params.parallel_tool_calls.is_some() {
            object.put("disable_parallel_tool_use", &serial);
        }
    }))
}
