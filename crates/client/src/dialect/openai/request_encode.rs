//! A request for a provider, written.

use bytes::Bytes;
use serde::Serialize;
use steadfast_chat::{ChatRequest, ResponseFormat, ThinkingConfig, Tool, ToolChoice};
use steadfast_core::{Dialect, Failure};

use super::{DIALECT, messages};
use crate::{
    dialect::{Wire, effort, fault, schema::json_schema, turns},
    json::{Array, Object, Patch, patched, quoted, text_of},
};

pub(super) fn encode(request: &ChatRequest, wire: &Wire) -> Result<Bytes, Failure> {
    let params = &request.params;
    fault::no_thread(request, DIALECT)?;
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
    body.set(&["tools"], body.is_same(|r| &r.tools), || tools(&request.tools))?;
    body.set(&["tool_choice"], body.is_same(|r| &r.params.tool_choice), || {
        Ok(params.tool_choice.as_ref().filter(|_| !request.tools.is_empty()).map(choice))
    })?;
    body.set(&["parallel_tool_calls"], body.is_same(|r| &r.params.parallel_tool_calls), || {
        maybe(&params.parallel_tool_calls.filter(|_| !request.tools.is_empty()))
    })?;
    let thinks = reasons || !(translated || (moved && never_reasons(&request.model)));
    body.set(&["reasoning_effort"], thinks && body.is_same(|r| &r.params.thinking), || {
        let word = params.thinking.as_ref().and_then(|thinking| effort_word(thinking, translated));
        maybe(&word.filter(|_| thinks))
    })?;
    body.set(&["response_format"], body.is_same(|r| &r.params.format), || {
        Ok(params.format.as_ref().map(|format| response_format(format, request.dialect())))
    })?;
    body.field(&["user"], true, |r| &r.params.user);
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
    if renamed && body.old(OLDER)?.is_some() {
        body.set(OLDER, false, || Ok(None))?;
        return body.set(&["max_completion_tokens"], false, || maybe(&request.params.max_output));
    }
    let newer = wire.max_completion_tokens || is_reasoning(&request.model);
    let names: &[&str] = if newer {
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
fn is_reasoning(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let digit = |prefix: &str, from: char| {
        name.strip_prefix(prefix)
            .and_then(|rest| rest.chars().next())
            .is_some_and(|c| c.is_ascii_digit() && c >= from)
    };
    digit("o", '1') || digit("gpt-", '5') || name.starts_with("gpt-oss")
}

/// Whether OpenAI's model of this name is known not to reason.
fn never_reasons(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    ["gpt-3", "gpt-4", "chatgpt-4"].iter().any(|family| name.starts_with(family))
}

/// The name of an effort. Those that only newer models know become the nearest that all know, when
/// the caller wrote for another vendor.
fn effort_word(thinking: &ThinkingConfig, translated: bool) -> Option<&str> {
    match thinking {
        ThinkingConfig::Off => (!translated).then_some("none"),
        ThinkingConfig::Budget(0) => None,
        ThinkingConfig::Budget(tokens) => Some(effort::word(*tokens)),
        ThinkingConfig::Effort(word) if !translated => Some(word),
        ThinkingConfig::Effort(word) => Some(match word.as_str() {
            word @ ("low" | "medium" | "high") => word,
            "minimal" => "low",
            _ => "high",
        }),
        _ => None,
    }
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
                Tool::Function { name, description, parameters, strict, extra, dialect } => {
                    let mut item = list.object();
                    item.put("type", "function");
                    {
                        let mut function = item.object("function");
                        function.put("name", name).put_some("description", description.as_ref());
                        if let Some(parameters) = parameters {
                            function.raw("parameters", json_schema(parameters, *dialect).get());
                        }
                        function.put_some("strict", *strict);
                    }
                    item.extra(extra.as_deref().filter(|_| *dialect == Some(DIALECT)));
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
        ToolChoice::None => quoted("none"),
        ToolChoice::Required => quoted("required"),
        _ => quoted("auto"),
    }
}

fn response_format(format: &ResponseFormat, read: Option<Dialect>) -> String {
    Object::text(|object| match format {
        ResponseFormat::Schema { name, schema, strict } => {
            object.put("type", "json_schema");
            let mut inner = object.object("json_schema");
            inner.put("name", name.as_deref().unwrap_or("answer"));
            inner.raw("schema", json_schema(schema, read).get());
            inner.put_some("strict", *strict);
        }
        ResponseFormat::Json => {
            object.put("type", "json_object");
        }
        _ => {
            object.put("type", "text");
        }
    })
}
