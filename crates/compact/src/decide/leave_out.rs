//! Parameters that a provider has refused, left out of requests that were not written for it.

use std::{borrow::Cow, collections::HashMap};

use serde_json::value::RawValue;
use steadfast_chat::{ChatRequest, Origin, Params};
use steadfast_core::{Dialect, Failure, OnUnsupported, RefusedParameter};

use crate::measure::model;

/// What a target has refused, and in which dialect it is spoken to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refused {
    pub(crate) parameter: RefusedParameter,
    /// With the value that it had: another one may be taken, and what one caller asks for in vain is not taken from
    /// what others ask for.
    pub(crate) value: Params,
    /// The same of a field that is none of these.
    pub(crate) field: Option<Box<str>>,
    /// `None` where a service does not know.
    pub(crate) dialect: Option<Dialect>,
}

impl Refused {
    /// What `failure` says is refused of `request`, if it says that.
    pub(crate) fn of(failure: &Failure, request: &ChatRequest) -> Option<Self> {
        let dialect = failure.upstream().and_then(|upstream| upstream.dialect);
        let parameter = failure.parameter()?;
        let value = request.params.only(parameter.name);
        Some(Self { parameter, value, field: field(request, dialect, parameter.name), dialect })
    }

    /// Whether both are one thing to remember.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.parameter.name == other.parameter.name
            && (self.is_limit() || (self.value == other.value && self.field == other.field))
    }

    /// A limit is refused whatever its value is, or above a value that is stated.
    fn is_limit(&self) -> bool {
        matches!(self.parameter.name, "max_tokens" | "max_completion_tokens")
    }

    /// Whether `request` has it, and may lose it.
    ///
    /// One that its caller wrote in this dialect and for this model keeps everything: what is refused of it is the
    /// caller's business.
    pub(crate) fn is_in(&self, request: &ChatRequest) -> bool {
        if request.on_unsupported == OnUnsupported::Refuse {
            return false;
        }
        let dialect = self.dialect.or(request.dialect());
        let origin = dialect.and_then(|dialect| request.origin(dialect));
        let is_own = origin.map(Origin::read).is_some_and(|read| read.model == *model(request));
        let name = self.parameter.name;
        let has = field(request, self.dialect, name);
        // Usage is asked for with every stream, without the caller's doing.
        let is_added = name == "stream_options" && has.is_none() && request.stream;
        let has_field = has == self.field && (has.is_some() || Params::NAMES.contains(&name));
        let has_value =
            self.is_limit() || (request.params.only(name) == self.value && (is_added || has_field));
        (!is_own || is_added) && has_value && self.leave_out_of(&mut request.params.clone())
    }

    /// Takes it from `params`; whether it was there.
    pub(crate) fn leave_out_of(&self, params: &mut Params) -> bool {
        let RefusedParameter { name, most } = self.parameter;
        match (name, most) {
            ("max_tokens" | "max_completion_tokens", Some(most)) => {
                let is_more = params.max_output.is_some_and(|limit| limit > most);
                params.max_output = params.max_output.map(|limit| limit.min(most));
                is_more
            }
            // Not the limit is refused but its name, of which there is another.
            ("max_tokens" | "max_completion_tokens", None) => {
                let has_another = self.dialect == Some(Dialect::OpenAi);
                has_another
                    && params.max_output.is_some()
                    && !std::mem::replace(&mut params.other_limit_name, true)
            }
            // Who takes none of these takes none of those.
            ("presence_penalty" | "frequency_penalty", _) => {
                params.clear("presence_penalty") | params.clear("frequency_penalty")
            }
            ("logprobs" | "top_logprobs", _) => {
                params.clear("logprobs") | params.clear("top_logprobs")
            }
            (name, _) if Params::NAMES.contains(&name) => params.clear(name),
            (name, _) => params.withhold(name),
        }
    }
}

/// The field `name` as the caller wrote it, where [`Params`] have no word for it.
fn field(request: &ChatRequest, dialect: Option<Dialect>, name: &str) -> Option<Box<str>> {
    if Params::NAMES.contains(&name) {
        return None;
    }
    let origin = request.origin(dialect.or(request.dialect())?)?;
    // A body may be large, and most do not have it.
    let body = std::str::from_utf8(&origin.body).ok().filter(|body| body.contains(name))?;
    let fields: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(body).ok()?;
    fields.get(name).map(|raw| raw.get()).filter(|raw| *raw != "null").map(Into::into)
}

#[cfg(test)]
mod tests {
    use steadfast_core::{Call, Target};

    use super::*;

    fn refused(name: &'static str, most: Option<u64>, dialect: Dialect) -> Refused {
        let value = request("m").params.only(name);
        let parameter = RefusedParameter { name, most };
        Refused { parameter, value, field: None, dialect: Some(dialect) }
    }

    fn request(model: &str) -> ChatRequest {
        let mut request = ChatRequest::user("hi").with_model(model).with_max_output(32_000);
        request.params.temperature = Some(0.2);
        request.params.frequency_penalty = Some(0.5);
        request
    }

    #[test]
    fn what_a_caller_wrote_for_this_model_is_the_callers_business() {
        let temperature = refused("temperature", None, Dialect::OpenAi);
        let own = request("gpt-x").with_origin(Dialect::OpenAi, Default::default());
        assert!(!temperature.is_in(&own));
        let mut moved = own.clone();
        moved.context_mut().target = Some(Target::new("p").with_model("gpt-y"));
        assert!(temperature.is_in(&moved), "another model");
        let foreign = request("gpt-x").with_origin(Dialect::Anthropic, Default::default());
        assert!(temperature.is_in(&foreign), "another dialect");
        assert!(temperature.is_in(&request("gpt-x")), "a program knows no dialects");
        let mut strict = foreign.clone();
        strict.on_unsupported = OnUnsupported::Refuse;
        assert!(!temperature.is_in(&strict), "the operator wants nothing left out");
        assert!(!refused("top_k", None, Dialect::OpenAi).is_in(&foreign), "it has none");
        let untold = Refused { dialect: None, ..temperature };
        assert!(!untold.is_in(&own) && untold.is_in(&moved));
        moved.params.temperature = Some(1.0);
        assert!(!untold.is_in(&moved), "another value may be taken");
    }

    #[test]
    fn a_field_that_is_no_parameter_is_known_by_its_text() {
        let of = |model: &str, body: &'static str| {
            request(model).with_origin(Dialect::OpenAi, body.into()).with_model("gpt-y")
        };
        let refuse = |request: &ChatRequest, name| {
            let parameter = RefusedParameter { name, most: None };
            let field = field(request, Some(Dialect::OpenAi), name);
            let value = Params::default();
            Refused { parameter, value, field, dialect: Some(Dialect::OpenAi) }
        };
        let moved = of("gpt-x", r#"{"model":"gpt-x","service_tier":"flex","messages":[]}"#);
        let tier = refuse(&moved, "service_tier");
        assert_eq!(tier.field.as_deref(), Some("\"flex\""));
        assert!(tier.is_in(&moved));
        assert!(!tier.is_in(&of("gpt-x", r#"{"service_tier":"auto"}"#)), "another value");
        assert!(!tier.is_in(&of("gpt-x", "{}")), "it has none");
        assert!(!refuse(&moved, "store").is_in(&moved), "it has none");
        let own = of("gpt-y", r#"{"service_tier":"flex"}"#);
        assert!(!tier.is_in(&own), "the caller's business");
        let mut without = moved.clone();
        assert!(tier.leave_out_of(&mut without.params) && !tier.is_in(&without));

        // It is sent with every stream.
        let own = of("gpt-y", "{}").streaming();
        let usage = refuse(&own, "stream_options");
        assert!(usage.is_in(&own) && usage.is_in(&moved.streaming()));
        assert!(!usage.is_in(&of("gpt-y", "{}")), "only with a stream");
        let asked = of("gpt-y", r#"{"stream_options":{"include_usage":true}}"#).streaming();
        assert!(!usage.is_in(&asked), "the caller's business");
    }

    #[test]
    fn an_output_limit_is_lowered_or_renamed_and_the_others_go() {
        let mut params = (*request("m").params).clone();
        assert!(refused("max_tokens", Some(8_192), Dialect::Anthropic).leave_out_of(&mut params));
        assert_eq!(params.max_output, Some(8_192));
        assert!(!refused("max_tokens", Some(8_192), Dialect::Anthropic).leave_out_of(&mut params));
        assert!(!refused("max_tokens", None, Dialect::Gemini).leave_out_of(&mut params));
        assert!(!params.other_limit_name, "there it has one name");
        let renamed = refused("max_tokens", None, Dialect::OpenAi);
        assert!(renamed.leave_out_of(&mut params) && params.other_limit_name);
        assert!(!renamed.leave_out_of(&mut params), "there are only two");
        assert!(refused("presence_penalty", None, Dialect::Gemini).leave_out_of(&mut params));
        assert_eq!((params.frequency_penalty, params.max_output), (None, Some(8_192)));
        assert!(refused("temperature", None, Dialect::Gemini).leave_out_of(&mut params));
        assert!(!refused("temperature", None, Dialect::Gemini).leave_out_of(&mut params));
    }
}
