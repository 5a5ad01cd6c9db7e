//! A request for a provider, written.

use bytes::Bytes;
use steadfast_chat::{ChatRequest, ModelFacts, ResponseFormat, ThinkingConfig, Tool, ToolChoice};
use steadfast_core::{Dialect, Failure};

use super::{DIALECT, items, namespace};
use crate::{
    dialect::{
        fault,
        openai::{effort_word, is_reasoning, loses_strict, may_be_strict, never_reasons, strict},
        schema::{is_object, json_schema},
        translation::spoken,
        turns,
    },
    json::{Array, Object, Patch, fields_of, patched, quoted, text_of},
};

/// What is asked for beside the answer of a request of another dialect, so that its thinking can be sent back
/// though nothing of it is stored.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// The least limit that OpenAI takes.
const LEAST_OUTPUT: u64 = 16;

/// What is asked for to get the likelihood of tokens.
const LOGPROBS: &str = "message.output_text.logprobs";

/// The schema of a tool that declares none: the field is required.
const NO_PARAMETERS: &str = r#"{"type":"object","properties":{}}"#;

pub(super) fn encode(request: &ChatRequest) -> Result<Bytes, Failure> {
    fault::no_thread(request, DIALECT)?;
    let request = &*spoken(request, DIALECT)?;
    let params = &request.params;
    let translated = request.dialect() != Some(DIALECT);
    if translated && params.answers.is_some_and(|answers| answers != 1) {
        return Err(fault::unsupported(DIALECT, "several answers to a request of another dialect"));
    }
    let reasons = is_reasoning(&request.model);
    let mut body = Patch::new(request, DIALECT);
    let moved = body.read().is_some_and(|read| read.model != request.model);
    let sampling = !(reasons && (translated || moved));

    body.set(&["model"], body.is_same(|r| &r.model), || Ok(Some(quoted(&request.model))))?;
    let same = body.read().is_some_and(|read| turns::same(&read.messages, &request.messages));
    body.set(&["instructions"], same, || {
        let text = items::instructions(&request.messages);
        Ok((!text.is_empty()).then(|| quoted(&text)))
    })?;
    body.write(&["input"], same, |out| items::write(out, request))?;
    if request.state.as_ref().is_some_and(|state| state.is_replayed()) {
        // All of it is in the input.
        body.set(&["previous_response_id"], false, || Ok(None))?;
    }
    let most = params.max_output;
    if translated && most.is_some_and(|most| most < LEAST_OUTPUT) {
        body.set(&["max_output_tokens"], false, || Ok(Some(LEAST_OUTPUT.to_string())))?;
    } else {
        body.field(&["max_output_tokens"], true, |r| &r.params.max_output);
    }
    body.field(&["temperature"], sampling, |r| &r.params.temperature);
    body.field(&["top_p"], sampling, |r| &r.params.top_p);
    body.field(&["top_logprobs"], true, |r| &r.params.top_logprobs);
    body.set(&["tools"], body.is_same(|r| &r.tools), || tools(&request.tools))?;
    body.set(&["tool_choice"], body.is_same(|r| &r.params.tool_choice), || {
        let choice = params.tool_choice.as_ref().filter(|_| !request.tools.is_empty());
        Ok(choice.map(|one| choice_text(one, &request.tools)))
    })?;
    body.set(&["parallel_tool_calls"], body.is_same(|r| &r.params.parallel_tool_calls), || {
        let parallel = params.parallel_tool_calls.filter(|_| !request.tools.is_empty());
        Ok(parallel.map(|parallel| quoted(&parallel)))
    })?;
    let chosen = moved || request.dialect().is_none();
    let thinks = reasons || !(translated || (chosen && never_reasons(&request.model)));
    let facts = if translated || moved { ModelFacts::of(&request.model) } else { None };
    let same = thinks && facts.is_none() && body.is_same(|r| &r.params.thinking);
    body.change(&["reasoning"], same, |old| {
        let effort = effort_word(request, thinks, translated, facts).map(quoted);
        some_object(patched(old, &[(&["effort"], effort)])?)
    })?;
    body.change(&["text"], body.is_same(|r| &r.params.format), |old| {
        let format = params.format.as_ref();
        let format = format.map(|format| response_format(format, request)).transpose()?;
        some_object(patched(old, &[(&["format"], format)])?)
    })?;
    body.field(&["user"], true, |r| &r.params.user);
    shared(&mut body, request, Dialect::OpenAi)?;
    body.set(&["stream"], body.is_same(|r| &r.stream), || {
        Ok(request.stream.then(|| "true".to_owned()))
    })?;
    if translated {
        // Nobody who asks in another dialect can come back to it by its id.
        body.set(&["store"], false, || Ok(Some("false".to_owned())))?;
        body.set(&["include"], false, || {
            let mut out = Vec::new();
            {
                let mut list = Array::new(&mut out);
                if reasons {
                    list.put(ENCRYPTED);
                }
                if params.logprobs == Some(true) {
                    list.put(LOGPROBS);
                }
            }
            some_list(text_of(out))
        })?;
    }
    body.finish()
}

/// Fields of a request that both of the vendor's dialects have by the same name: those of a request that was read
/// in the other one, `from`.
pub(in crate::dialect) fn shared(
    body: &mut Patch<'_>,
    request: &ChatRequest,
    from: Dialect,
) -> Result<(), Failure> {
    const NAMES: [&[&str]; 6] = [
        &["metadata"],
        &["service_tier"],
        &["safety_identifier"],
        &["prompt_cache_key"],
        &["prompt_cache_options"],
        &["prompt_cache_retention"],
    ];
    if request.dialect() != Some(from) {
        return Ok(());
    }
    let mut read = fields_of(request, from)?;
    for names in NAMES {
        let field = names.first().and_then(|name| read.take(name));
        body.set(names, field.is_none(), || Ok(field.map(|raw| raw.get().to_owned())))?;
    }
    Ok(())
}

/// A list with something in it.
#[expect(clippy::unnecessary_wraps, reason = "the form that a change has")]
fn some_list(text: String) -> Result<Option<String>, Failure> {
    Ok((text != "[]").then_some(text))
}

/// An object with something in it.
#[expect(clippy::unnecessary_wraps, reason = "the form that a change has")]
fn some_object(text: String) -> Result<Option<String>, Failure> {
    Ok((text != "{}").then_some(text))
}

/// What a translated request loses because of the model that it goes to, by the names of
/// [`Params`](steadfast_chat::Params).
pub(super) fn leaves_out(request: &ChatRequest) -> Vec<&'static str> {
    let params = &request.params;
    let translated = request.dialect() != Some(DIALECT);
    let mut names = Vec::new();
    if is_reasoning(&request.model) {
        names.extend(params.temperature.map(|_| "temperature"));
        names.extend(params.top_p.map(|_| "top_p"));
    }
    let thinks = params.thinking.as_ref().is_some_and(|thinking| *thinking != ThinkingConfig::Off);
    let never = !is_reasoning(&request.model) && (translated || never_reasons(&request.model));
    if thinks && never {
        names.push("thinking");
    }
    if loses_strict(request) {
        names.push("strict");
    }
    names
}

fn tools(tools: &[Tool]) -> Result<Option<String>, Failure> {
    if tools.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        let mut left = tools;
        while let [first, rest @ ..] = left {
            left = match namespace::write(&mut list, left, write_tool)? {
                0 => {
                    write_tool(first, &mut list)?;
                    rest
                }
                written => &left[written..],
            };
        }
    }
    Ok(Some(text_of(out)))
}

/// Writes one tool, in its namespace if it has one.
fn write_tool(tool: &Tool, list: &mut Array<'_>) -> Result<(), Failure> {
    let namespace = namespace::of_tool(tool).and_then(|namespace| namespace.get("name")?.as_str());
    match tool {
        Tool::Function { custom: Some(custom), .. } => list.raw(custom.get()),
        Tool::Function { name, description, parameters, extra, dialect, .. } => {
            let own = namespace.and_then(|namespace| namespace::within(name, namespace));
            let mut item = list.object();
            item.put("type", "function").put("name", own.unwrap_or(name));
            item.put_some("description", description.as_ref());
            match parameters {
                Some(parameters) => {
                    item.raw("parameters", json_schema(parameters, *dialect).get());
                }
                None => {
                    item.raw("parameters", NO_PARAMETERS);
                }
            }
            // Where nothing is written the model is held to the schema, and many can not be held.
            match strict(tool) {
                None if *dialect == Some(DIALECT) => {}
                held => drop(item.put("strict", &held.unwrap_or(false))),
            }
            for (name, value) in
                extra.as_deref().filter(|_| *dialect == Some(DIALECT)).into_iter().flatten()
            {
                if name != namespace::FIELD {
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
    Ok(())
}

/// The kind and the name of a tool, as a choice names it.
fn put_named(object: &mut Object<'_>, name: &str, tools: &[Tool]) {
    let is_custom = |tool: &Tool| {
        matches!(tool, Tool::Function { custom: Some(_), .. }) && tool.name() == Some(name)
    };
    let kind = if tools.iter().any(is_custom) { "custom" } else { "function" };
    object.put("type", kind).put("name", name);
}

fn choice_text(choice: &ToolChoice, tools: &[Tool]) -> String {
    match choice {
        ToolChoice::None => quoted("none"),
        ToolChoice::Required => quoted("required"),
        ToolChoice::Tool(name) => Object::text(|object| put_named(object, name, tools)),
        ToolChoice::Allowed { names, required } => Object::text(|object| {
            object.put("type", "allowed_tools");
            object.put("mode", if *required { "required" } else { "auto" });
            let mut list = object.array("tools");
            names.iter().for_each(|name| put_named(&mut list.object(), name, tools));
        }),
        _ => quoted("auto"),
    }
}

fn response_format(format: &ResponseFormat, request: &ChatRequest) -> Result<String, Failure> {
    let read = request.dialect();
    if let ResponseFormat::Schema { schema, .. } = format
        && read.is_some_and(|read| read != DIALECT)
        && !is_object(&json_schema(schema, read))
    {
        return Err(fault::unsupported(DIALECT, "a schema of the answer whose root is no object"));
    }
    Ok(Object::text(|object| match format {
        ResponseFormat::Schema { name, schema, strict } => {
            let schema = json_schema(schema, read);
            let strict = strict.filter(|strict| !strict || may_be_strict(&schema, read));
            object.put("type", "json_schema").put("name", name.as_deref().unwrap_or("answer"));
            object.put("strict", &strict.unwrap_or(false)).raw("schema", schema.get());
        }
        ResponseFormat::Json => {
            object.put("type", "json_object");
        }
        _ => {
            object.put("type", "text");
        }
    }))
}
