//! A request for a provider, written.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use steadfast_chat::{
    ChatRequest, ModelFacts, RawJson, ResponseFormat, ThinkingConfig, Tool, ToolChoice,
};
use steadfast_core::{Dialect, Failure};

use super::{DIALECT, messages};
use crate::{
    dialect::{
        Wire, effort, fault,
        held::is_strict,
        responses::shared,
        schema::{is_object, json_schema},
        translation::spoken,
        turns,
    },
    json::{Array, Object, Patch, patched, quoted, text_of},
};

pub(super) fn encode(request: &ChatRequest, wire: &Wire) -> Result<Bytes, Failure> {
    fault::no_thread(request, DIALECT)?;
    let request = &*spoken(request, DIALECT)?;
    let params = &request.params;
    let translated = request.dialect().is_some_and(|read| read != DIALECT);
    if translated && params.answers.is_some_and(|answers| answers != 1) {
        return Err(fault::unsupported(DIALECT, "several answers to a request of another dialect"));
    }
    let reasons = is_reasoning(&request.model);
    let mut body = Patch::new(request, DIALECT);
    // Written for another vendor, or for another model than the one that failover chose: what this
    // one would refuse is left out.
    let moved = body.read().is_some_and(|read| read.model != request.model);
    // Reasoning models refuse sampling parameters.
    let sampling = !(reasons && (translated || moved));

    body.set(&["model"], body.is_same(|r| &r.model), || some(&request.model))?;
    let same = body.read().is_some_and(|read| turns::same(&read.messages, &request.messages));
    body.write(&["messages"], same, |out| messages::write(out, request))?;
    max_tokens(&mut body, request, wire, moved && reasons)?;
    body.field(&["temperature"], sampling, |r| &r.params.temperature);
    body.field(&["top_p"], sampling, |r| &r.params.top_p);
    body.set(&["stop"], body.is_same(|r| &r.params.stop), || {
        maybe(&Some(&params.stop).filter(|stop| !stop.is_empty()))
    })?;
    body.field(&["seed"], true, |r| &r.params.seed);
    body.field(&["presence_penalty"], true, |r| &r.params.presence_penalty);
    body.field(&["frequency_penalty"], true, |r| &r.params.frequency_penalty);
    body.field(&["logprobs"], true, |r| &r.params.logprobs);
    body.field(&["top_logprobs"], true, |r| &r.params.top_logprobs);
    let same_tools = body.is_same(|r| &r.tools);
    let same_choice = body.is_same(|r| &r.params.tool_choice);
    // A caller who declared functions by the older name is answered by it, so it keeps it.
    if params.functions && !translated {
        body.set(&["functions"], same_tools, || functions(&request.tools))?;
        body.set(&["function_call"], same_choice, || Ok(params.tool_choice.as_ref().map(older)))?;
    } else {
        body.set(&["tools"], same_tools, || tools(&request.tools))?;
        body.set(&["functions"], same_tools, || Ok(None))?;
        body.set(&["tool_choice"], same_choice, || {
            Ok(params.tool_choice.as_ref().filter(|_| !request.tools.is_empty()).map(choice))
        })?;
    }
    body.set(&["parallel_tool_calls"], body.is_same(|r| &r.params.parallel_tool_calls), || {
        maybe(&params.parallel_tool_calls.filter(|_| !request.tools.is_empty()))
    })?;
    // A program does not know which model its request goes to.
    let chosen = moved || request.dialect().is_none();
    let thinks = reasons || !(translated || (chosen && never_reasons(&request.model)));
    let facts = if translated || moved { ModelFacts::of(&request.model) } else { None };
    let same = thinks && facts.is_none() && body.is_same(|r| &r.params.thinking);
    body.set(&["reasoning_effort"], same, || {
        maybe(&effort_word(request, thinks, translated, facts))
    })?;
    body.set(&["response_format"], body.is_same(|r| &r.params.format), || {
        let format = params.format.as_ref();
        format.map(|format| response_format(format, request.dialect())).transpose()
    })?;
    body.field(&["user"], true, |r| &r.params.user);
    shared(&mut body, request, Dialect::Responses)?;
    body.field(&["n"], !translated, |r| &r.params.answers);
    body.set(&["stream"], body.is_same(|r| &r.stream), || {
        Ok(request.stream.then(|| "true".to_owned()))
    })?;
    stream_options(&mut body, request, wire)?;
    body.finish()
}

/// The output limit, under the name the model and its server know. Reasoning models know the newer
/// name alone; `renamed` when the caller wrote for one that knew the older.
fn max_tokens(
    body: &mut Patch<'_>,
    request: &ChatRequest,
    wire: &Wire,
    renamed: bool,
) -> Result<(), Failure> {
    const OLDER: &[&str] = &["max_tokens"];
    const NEWER: &[&str] = &["max_completion_tokens"];
    let limit = &request.params.max_output;
    let other = request.params.other_limit_name;
    let written = match renamed || other {
        true if body.old(OLDER)?.is_some() => Some([OLDER, NEWER]),
        true if other && body.old(NEWER)?.is_some() => Some([NEWER, OLDER]),
        _ => None,
    };
    if let Some([from, to]) = written {
        body.set(from, false, || Ok(None))?;
        return body.set(to, false, || maybe(limit));
    }
    let newer = wire.max_completion_tokens || is_reasoning(&request.model);
    let names: &[&str] = if newer != other {
        &["max_completion_tokens", "max_tokens"]
    } else {
        &["max_tokens", "max_completion_tokens"]
    };
    body.field(names, true, |r| &r.params.max_output);
    Ok(())
}

/// Usage is always asked for: without it nobody knows what a stream cost. Without a stream the
/// field is refused.
fn stream_options(body: &mut Patch<'_>, request: &ChatRequest, wire: &Wire) -> Result<(), Failure> {
    const NAME: &[&str] = &["stream_options"];
    if request.params.withheld.contains(&NAME[0]) {
        // The provider does not know it.
        return Ok(());
    }
    if request.stream && wire.stream_usage {
        let asked = body.read().is_some_and(asks_usage);
        body.change(NAME, asked, |old| {
            patched(old, &[(&["include_usage"], Some("true".to_owned()))]).map(Some)
        })
    } else {
        let same = (!request.stream && body.is_same(|r| &r.stream)) || body.old(NAME)?.is_none();
        body.change(NAME, same, |_| Ok(None))
    }
}

fn asks_usage(request: &ChatRequest) -> bool {
    request.params.stream_usage == Some(true)
}

fn some<T: Serialize + ?Sized>(value: &T) -> Result<Option<String>, Failure> {
    Ok(Some(quoted(value)))
}

fn maybe<T: Serialize>(value: &Option<T>) -> Result<Option<String>, Failure> {
    Ok(value.as_ref().map(quoted))
}

/// Whether OpenAI's model of this name reasons: o1 and its successors, GPT-5 and later.
pub(in crate::dialect) fn is_reasoning(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let digit = |prefix: &str, from: char| {
        name.strip_prefix(prefix)
            .and_then(|rest| rest.chars().next())
            .is_some_and(|c| c.is_ascii_digit() && c >= from)
    };
    digit("o", '1') || digit("gpt-", '5') || name.starts_with("gpt-oss")
}

/// Whether OpenAI's model of this name is known not to reason.
pub(in crate::dialect) fn never_reasons(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    ["gpt-3", "gpt-4", "chatgpt-4"].iter().any(|family| name.starts_with(family))
}

/// The name of the effort to ask for. Where the model is not the one that the caller wrote for, it is the nearest
/// that this one takes: of one that nothing is known of, the nearest that all know.
pub(in crate::dialect) fn effort_word<'a>(
    request: &'a ChatRequest,
    thinks: bool,
    translated: bool,
    facts: Option<&'static ModelFacts>,
) -> Option<&'a str> {
    if facts.is_some()
        && let Some(only) = only_effort(request)
    {
        return Some(only);
    }
    let asked = request.params.thinking.as_ref().filter(|_| thinks)?;
    let word = match asked {
        ThinkingConfig::Off | ThinkingConfig::Budget(0) => "none",
        ThinkingConfig::Budget(tokens) => effort::word(*tokens),
        ThinkingConfig::Effort(word) => word,
        _ => return None,
    };
    match facts {
        Some(facts) if !facts.efforts.is_empty() => {
            effort::nearest(word, facts.efforts.iter().map(|known| &**known))
        }
        _ if translated => effort::nearest(word, effort::COMMON),
        _ => Some(word),
    }
}

/// The one effort that the model takes beside the request's tools, where it is one.
fn only_effort(request: &ChatRequest) -> Option<&'static str> {
    let facts = ModelFacts::of(&request.model).filter(|_| !request.tools.is_empty())?;
    facts.effort_with_tools.as_deref()
}

/// What a translated request loses because of the model that it goes to, by the names of
/// [`Params`](steadfast_chat::Params).
pub(super) fn leaves_out(request: &ChatRequest) -> Vec<&'static str> {
    let params = &request.params;
    let translated = request.dialect().is_some_and(|read| read != DIALECT);
    let mut names = Vec::new();
    if is_reasoning(&request.model) {
        names.extend(params.temperature.map(|_| "temperature"));
        names.extend(params.top_p.map(|_| "top_p"));
    }
    let thinks = params.thinking.as_ref().is_some_and(|thinking| *thinking != ThinkingConfig::Off);
    let never = !is_reasoning(&request.model) && (translated || never_reasons(&request.model));
    if thinks && (never || only_effort(request).is_some()) {
        names.push("thinking");
    }
    if loses_strict(request) {
        names.push("strict");
    }
    names
}

/// Whether the model is not held to a schema to which the request wants it to be.
pub(in crate::dialect) fn loses_strict(request: &ChatRequest) -> bool {
    let holds = |tool: &Tool| matches!(tool, Tool::Function { strict: Some(true), .. });
    let loose = |tool: &Tool| holds(tool) && strict(tool).is_none();
    let format = match &request.params.format {
        Some(ResponseFormat::Schema { schema, strict: Some(true), .. }) => {
            !may_be_strict(&json_schema(schema, request.dialect()), request.dialect())
        }
        _ => false,
    };
    format || request.tools.iter().any(loose)
}

/// Tools by the older name of the field.
fn functions(tools: &[Tool]) -> Result<Option<String>, Failure> {
    if tools.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        for tool in tools {
            let Tool::Function { extra, dialect, .. } = tool else {
                return Err(fault::unsupported(DIALECT, "a tool that is no function"));
            };
            let mut function = list.object();
            put_function(&mut function, tool);
            function.extra(extra.as_deref().filter(|_| *dialect == Some(DIALECT)));
        }
    }
    Ok(Some(text_of(out)))
}

/// A choice of the older form.
fn older(choice: &ToolChoice) -> String {
    match choice {
        ToolChoice::Tool(name) => Object::text(|object| {
            object.put("name", name);
        }),
        ToolChoice::None => quoted("none"),
        _ => quoted("auto"),
    }
}

/// Whether the model may be held to `schema`, which was read in this dialect or made by a program, or else fits.
pub(in crate::dialect) fn may_be_strict(schema: &RawJson, read: Option<Dialect>) -> bool {
    read.is_none_or(|read| matches!(read, DIALECT | Dialect::Responses)) || is_strict(schema)
}

/// Whether the model is to be held to the schema of a tool.
pub(in crate::dialect) fn strict(tool: &Tool) -> Option<bool> {
    let Tool::Function { parameters, strict, dialect, .. } = tool else { return None };
    let fits = || {
        let parameters = parameters.as_ref().map(|schema| json_schema(schema, *dialect));
        parameters.is_none_or(|schema| may_be_strict(&schema, *dialect))
    };
    strict.filter(|strict| !strict || fits())
}

fn put_function(function: &mut Object<'_>, tool: &Tool) {
    let Tool::Function { name, description, parameters, dialect, .. } = tool else {
        return;
    };
    function.put("name", name).put_some("description", description.as_ref());
    if let Some(parameters) = parameters {
        function.raw("parameters", json_schema(parameters, *dialect).get());
    }
    function.put_some("strict", strict(tool));
}

fn tools(tools: &[Tool]) -> Result<Option<String>, Failure> {
    if tools.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        for tool in tools {
            match tool {
                Tool::Function { extra, dialect, .. } => {
                    let mut item = list.object();
                    item.put("type", "function");
                    let extra = extra.as_deref().filter(|_| *dialect == Some(DIALECT));
                    {
                        let mut function = item.object("function");
                        put_function(&mut function, tool);
                        let inner = extra.and_then(|extra| extra.get("function"));
                        function.extra(inner.and_then(Value::as_object));
                    }
                    for (name, value) in extra.into_iter().flatten() {
                        if name != "function" {
                            item.put(name, value);
                        }
                    }
                }
                Tool::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
                Tool::Opaque(opaque) => {
                    let what = format!("the {} tool `{}`", opaque.dialect, opaque.kind);
                    return Err(fault::unsupported(DIALECT, &what));
                }
                _ => return Err(fault::unsupported(DIALECT, "a tool")),
            }
        }
    }
    Ok(Some(text_of(out)))
}

fn choice(choice: &ToolChoice) -> String {
    match choice {
        ToolChoice::Tool(name) => Object::text(|object| {
            object.put("type", "function").object("function").put("name", name);
        }),
        ToolChoice::Allowed { names, required } => Object::text(|object| {
            object.put("type", "allowed_tools");
            let mut allowed = object.object("allowed_tools");
            allowed.put("mode", if *required { "required" } else { "auto" });
            let mut tools = allowed.array("tools");
            for name in names {
                tools.object().put("type", "function").object("function").put("name", name);
            }
        }),
        ToolChoice::None => quoted("none"),
        ToolChoice::Required => quoted("required"),
        _ => quoted("auto"),
    }
}

fn response_format(format: &ResponseFormat, read: Option<Dialect>) -> Result<String, Failure> {
    if let ResponseFormat::Schema { schema, .. } = format
        && read.is_some_and(|read| read != DIALECT)
        && !is_object(&json_schema(schema, read))
    {
        let what = "a schema of the answer whose root is no object";
        return Err(fault::unsupported(DIALECT, what));
    }
    Ok(Object::text(|object| match format {
        ResponseFormat::Schema { name, schema, strict } => {
            object.put("type", "json_schema");
            let mut inner = object.object("json_schema");
            inner.put("name", name.as_deref().unwrap_or("answer"));
            let schema = json_schema(schema, read);
            inner.raw("schema", schema.get());
            inner.put_some(
                "strict",
                strict.filter(|strict| !strict || may_be_strict(&schema, read)),
            );
        }
        ResponseFormat::Json => {
            object.put("type", "json_object");
        }
        _ => {
            object.put("type", "text");
        }
    }))
}
