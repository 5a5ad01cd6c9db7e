//! A request for a provider, written. The model is in the address, not in here.

use bytes::Bytes;
use serde::Serialize;
use steadfast_chat::{
    ChatRequest, Params, RawJson, ResponseFormat, ThinkingConfig, Tool, ToolChoice,
};
use steadfast_core::{Dialect, Failure};

use super::{
    DIALECT, contents,
    request_decode::{
        ALLOWED, BUDGET, CALLING, CONFIG, COUNT, FREQUENCY, JSON_SCHEMA, LEVEL, LOGPROBS,
        MAX_OUTPUT, MIME, Names, PRESENCE, SCHEMA, SHOW, STOP, SYSTEM, THINKING, TOOL_CONFIG,
        TOP_K, TOP_LOGPROBS, TOP_P,
    },
};
use crate::{
    dialect::{
        effort, fault,
        translation::spoken,
        turns::{self, instructions},
    },
    json::{Array, Fields, Patch, Raw, patched, quoted, text_of},
};

pub(super) fn encode(request: &ChatRequest) -> Result<Bytes, Failure> {
    fault::no_thread(request, DIALECT)?;
    let request = &*spoken(request, DIALECT)?;
    let translated = request.dialect().is_some_and(|read| read != DIALECT);
    if translated && request.params.answers.is_some_and(|answers| answers != 1) {
        return Err(fault::unsupported(DIALECT, "several answers to a request of another dialect"));
    }
    let mut body = Patch::new(request, DIALECT);
    let read = body.read();
    let same = read.is_some_and(|read| {
        let count = |request: &ChatRequest| instructions(&request.messages).count();
        let mut both = instructions(&read.messages).zip(instructions(&request.messages));
        count(read) == count(request) && both.all(|((_, a), (_, b))| a.same(b))
    });
    body.set(SYSTEM, same, || Ok(contents::system(request)))?;
    let same = read.is_some_and(|read| turns::same(&read.messages, &request.messages));
    body.write(&["contents"], same, |out| contents::contents(out, request))?;
    let same = body.is_same(|r| &r.tools);
    body.set(&["tools"], same, || tools(&request.tools))?;
    let same = body.is_same(|r| &r.params.tool_choice);
    body.change(TOOL_CONFIG, same, |old| tool_config(request, old))?;
    let model_same = body.is_same(|r| &r.model) || request.params.thinking.is_none();
    let same = read.is_some_and(|read| same_config(&read.params, &request.params)) && model_same;
    body.change(CONFIG, same, |old| config(request, read, old))?;
    body.finish()
}

/// Whether everything in `generationConfig` is the same.
fn same_config(a: &Params, b: &Params) -> bool {
    let apart = |params: &Params| {
        let mut params = params.clone();
        params.tool_choice = None;
        params.parallel_tool_calls = None;
        params.user = None;
        params.stream_usage = None;
        params
    };
    apart(a) == apart(b)
}

/// The configuration: fields that are as they were read keep their text.
fn config(
    request: &ChatRequest,
    read: Option<&ChatRequest>,
    old: Option<Raw<'_>>,
) -> Result<Option<String>, Failure> {
    let params = &request.params;
    let read = read.map(|read| &*read.params);
    let mut config = Config { read, params, set: Vec::new() };
    config.field(MAX_OUTPUT, |params| &params.max_output);
    config.field(&["temperature"], |params| &params.temperature);
    config.field(TOP_P, |params| &params.top_p);
    config.field(TOP_K, |params| &params.top_k);
    config.field(&["seed"], |params| &params.seed);
    config.field(PRESENCE, |params| &params.presence_penalty);
    config.field(LOGPROBS, |params| &params.logprobs);
    config.field(TOP_LOGPROBS, |params| &params.top_logprobs);
    config.field(FREQUENCY, |params| &params.frequency_penalty);
    let stop = Some(&params.stop).filter(|stop| !stop.is_empty());
    config.set(STOP, |params| &params.stop, json(&stop));
    let answers = params.answers.filter(|_| request.dialect() != Some(Dialect::OpenAi));
    config.set(COUNT, |params| &params.answers, json(&answers));
    let (mime, schema) = match &params.format {
        Some(ResponseFormat::Schema { schema, .. }) => {
            (Some("application/json"), Some(schema.get().to_owned()))
        }
        Some(ResponseFormat::Json) => (Some("application/json"), None),
        _ => (None, None),
    };
    config.set(MIME, |params| &params.format, json(&mime));
    // Google's older field takes a part of JSON schema only, the newer one all of it.
    config.set(JSON_SCHEMA, |params| &params.format, schema);
    config.set(SCHEMA, |params| &params.format, None);
    let mut set = config.set;
    let old_thinking = old.map(|old| field(old, THINKING)).transpose()?.flatten();
    let same =
        read.is_some_and(|read| read.thinking == params.thinking) && request_model_same(request);
    if !same {
        let thinking = match &params.thinking {
            Some(thinking) => thinking_config(thinking, &request.model, old_thinking)?,
            None => None,
        };
        set.push((THINKING, thinking));
    }
    let text = patched(old, &set)?;
    Ok((text != "{}" || old.is_some()).then_some(text))
}

/// What changes of the configuration.
struct Config<'a> {
    read: Option<&'a Params>,
    params: &'a Params,
    set: Vec<(Names, Option<String>)>,
}

impl Config<'_> {
    /// Writes `value` unless what it is made `of` is as it was read.
    fn set<T: PartialEq>(
        &mut self,
        names: Names,
        of: impl Fn(&Params) -> &T,
        value: Option<String>,
    ) {
        if self.read.is_none_or(|read| of(read) != of(self.params)) {
            self.set.push((names, value));
        }
    }

    fn field<T: PartialEq + Serialize>(
        &mut self,
        names: Names,
        of: impl Fn(&Params) -> &Option<T>,
    ) {
        let value = json(of(self.params));
        self.set(names, of, value);
    }
}

fn request_model_same(request: &ChatRequest) -> bool {
    request.origin(DIALECT).is_some_and(|origin| origin.read().model == request.model)
}

fn json<T: Serialize>(value: &Option<T>) -> Option<String> {
    value.as_ref().map(quoted)
}

/// A field of an object.
fn field<'a>(object: Raw<'a>, names: Names) -> Result<Option<Raw<'a>>, Failure> {
    Ok(Fields::read(object)?.take_any(names).map(|(_, raw)| raw))
}

/// Gemini 3 has levels, its predecessors budgets. The pro models always think, 128 tokens at the
/// least.
fn thinking_config(
    thinking: &ThinkingConfig,
    model: &str,
    old: Option<Raw<'_>>,
) -> Result<Option<String>, Failure> {
    let levels = model.contains("gemini-3");
    let pro = model.contains("pro");
    let (budget, level): (Option<i64>, Option<&str>) = match thinking {
        ThinkingConfig::Off if levels => (None, Some("low")),
        ThinkingConfig::Off => (Some(if pro { 128 } else { 0 }), None),
        ThinkingConfig::Budget(tokens) if levels => (None, Some(level_of(effort::word(*tokens)))),
        ThinkingConfig::Budget(tokens) => (i64::try_from(*tokens).ok(), None),
        ThinkingConfig::Effort(word) if levels => (None, Some(level_of(word))),
        ThinkingConfig::Effort(word) => (i64::try_from(effort::budget(word)).ok(), None),
        _ if levels => (None, None),
        _ => (Some(-1), None),
    };
    let show = !matches!(thinking, ThinkingConfig::Off);
    let mut set = vec![(BUDGET, budget.map(|n| n.to_string())), (LEVEL, json(&level))];
    if old.is_none() && show {
        set.push((SHOW, Some("true".to_owned())));
    }
    Ok(Some(patched(old, &set)?).filter(|text| text != "{}"))
}

/// Low and high are the levels that every Gemini 3 knows.
fn level_of(word: &str) -> &'static str {
    match word {
        "minimal" | "low" | "none" => "low",
        _ => "high",
    }
}

fn tools(tools: &[Tool]) -> Result<Option<String>, Failure> {
    if tools.is_empty() {
        return Ok(None);
    }
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        if tools.iter().any(|tool| tool.name().is_some()) {
            let mut holder = list.object();
            let mut functions = holder.array("functionDeclarations");
            for tool in tools {
                if let Tool::Function { name, description, parameters, extra, dialect, .. } = tool {
                    let own = *dialect == Some(DIALECT);
                    let mut object = functions.object();
                    object.put("name", name).put_some("description", description.as_ref());
                    if let Some(parameters) = parameters {
                        // Google's older field takes its own style, the newer one JSON schemas.
                        let old_style = own && is_old_style(parameters);
                        let name = if old_style { "parameters" } else { "parametersJsonSchema" };
                        object.raw(name, parameters.get());
                    }
                    object.extra(extra.as_deref().filter(|_| own));
                }
            }
        }
        for tool in tools {
            match tool {
                Tool::Opaque(opaque) if opaque.dialect == DIALECT => list.raw(opaque.json.get()),
                Tool::Opaque(opaque) => {
                    let what = format!("the {} tool `{}`", opaque.dialect, opaque.kind);
                    return Err(fault::unsupported(DIALECT, &what));
                }
                _ => {}
            }
        }
    }
    Ok(Some(text_of(out)))
}

/// Whether a schema is written in Google's style: its types in capitals.
fn is_old_style(schema: &RawJson) -> bool {
    schema.to_value()["type"]
        .as_str()
        .is_some_and(|kind| kind.bytes().all(|byte| byte.is_ascii_uppercase()))
}

/// Whether the model is to be held to the schema of a tool, which is a mode for all of them here.
fn strict(request: &ChatRequest) -> bool {
    request.tools.iter().any(|tool| matches!(tool, Tool::Function { strict: Some(true), .. }))
}

fn tool_config(request: &ChatRequest, old: Option<Raw<'_>>) -> Result<Option<String>, Failure> {
    let strict = strict(request);
    let choice = request.params.tool_choice.as_ref().or(strict.then_some(&ToolChoice::Auto));
    let calling = choice.filter(|_| !request.tools.is_empty()).map(|choice| {
        let (mode, only) = match choice {
            ToolChoice::None => ("NONE", None),
            ToolChoice::Required => ("ANY", None),
            ToolChoice::Tool(name) => ("ANY", Some(quoted(&[name]))),
            ToolChoice::Allowed { names, required } => {
                (if *required { "ANY" } else { "VALIDATED" }, Some(quoted(names)))
            }
            _ if strict => ("VALIDATED", None),
            _ => ("AUTO", None),
        };
        let old = old.map(|old| field(old, CALLING)).transpose()?.flatten();
        patched(old, &[(&["mode"], Some(quoted(mode))), (ALLOWED, only)])
    });
    let text = patched(old, &[(CALLING, calling.transpose()?)])?;
    Ok((text != "{}").then_some(text))
}
