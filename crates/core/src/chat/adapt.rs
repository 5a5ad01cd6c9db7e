//! Fitting a request to one target.

use crate::{
    ChatRequest, Dialect, Failure, Message, OnUnsupported, Params, Part, Profile, Reason, Scope,
    ThinkingConfig,
};

/// What stands in place of an image that a target can not read.
const IMAGE_PLACEHOLDER: &str = "[image omitted: this model does not read images]";

/// Fits `request` to `profile`: its model, its output limit, its parameters, what it can read.
pub(super) fn adapt(request: &mut ChatRequest, profile: &Profile) -> Result<(), Failure> {
    if let Some(model) = profile.target.model()
        && request.model != model
    {
        model.clone_into(&mut request.model);
    }
    if let (Some(asked), Some(most)) = (request.params.max_output, profile.max_output)
        && asked > most
    {
        request.params.max_output = Some(most);
    }
    for name in &profile.unsupported {
        if !clear(&mut request.params, name) {
            continue;
        }
        if profile.on_unsupported == OnUnsupported::Refuse {
            return Err(refused(profile, &format!("it does not take the parameter `{name}`")));
        }
    }
    if !profile.tools && !request.tools.is_empty() {
        return Err(refused(profile, "it does not call tools"));
    }
    let blind = !profile.vision;
    let foreign = profile.foreign_history;
    if !(blind || foreign) {
        return Ok(());
    }
    let touches = |message: &Message| {
        message
            .parts()
            .iter()
            .any(|part| (blind && part.has_image()) || (foreign && is_foreign(part)))
    };
    if !request.messages.iter().any(touches) {
        return Ok(());
    }
    if blind && profile.on_unsupported == OnUnsupported::Refuse {
        return Err(refused(profile, "it does not read images"));
    }
    for message in request.messages.make_mut() {
        if !touches(message) {
            continue;
        }
        let parts = message.parts_mut();
        if foreign {
            parts.retain(|part| !part.is_thinking());
            parts.iter_mut().for_each(drop_signature);
        }
        if blind {
            parts.iter_mut().for_each(blank_image);
        }
    }
    // A message that was nothing but thinking is gone with it.
    request.messages.make_mut().retain(|message| !message.parts().is_empty());
    if foreign
        && profile.dialect == Some(Dialect::Anthropic)
        && request.params.thinking.is_some()
        && request.messages.last().is_some_and(|last| last.tool_results().next().is_some())
    {
        // Anthropic refuses to think in the middle of a tool loop whose thinking is not there.
        request.params.thinking = Some(ThinkingConfig::Off);
    }
    Ok(())
}

fn refused(profile: &Profile, why: &str) -> Failure {
    Failure::refused(Reason::Unsupported, format!("{} was passed over: {why}", profile.target))
        .with_target(profile.target.clone())
        .with_scope(Scope::Request)
        .with_evidence("capability")
}

/// Whether only the target that wrote it can read it.
fn is_foreign(part: &Part) -> bool {
    part.is_thinking()
        || match part {
            Part::Text(text) => text.signature.is_some(),
            Part::ToolCall(call) => call.signature.is_some(),
            _ => false,
        }
}

fn drop_signature(part: &mut Part) {
    match part {
        Part::Text(text) => text.signature = None,
        Part::ToolCall(call) => call.signature = None,
        _ => {}
    }
}

fn blank_image(part: &mut Part) {
    if let Part::ToolResult(result) = part {
        result.content.iter_mut().for_each(blank_image);
    } else if part.has_image() {
        *part = Part::text(IMAGE_PLACEHOLDER);
    }
}

/// Clears the parameter that OpenAI's dialect calls `name`; whether it was set.
fn clear(params: &mut Params, name: &str) -> bool {
    match name {
        "max_tokens" | "max_completion_tokens" => params.max_output.take().is_some(),
        "temperature" => params.temperature.take().is_some(),
        "top_p" => params.top_p.take().is_some(),
        "top_k" => params.top_k.take().is_some(),
        "stop" => !std::mem::take(&mut params.stop).is_empty(),
        "seed" => params.seed.take().is_some(),
        "presence_penalty" => params.presence_penalty.take().is_some(),
        "frequency_penalty" => params.frequency_penalty.take().is_some(),
        "tool_choice" => params.tool_choice.take().is_some(),
        "parallel_tool_calls" => params.parallel_tool_calls.take().is_some(),
        "reasoning_effort" | "thinking" => params.thinking.take().is_some(),
        "response_format" => params.format.take().is_some(),
        "user" => params.user.take().is_some(),
        "n" => params.answers.take().is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, Role, Target, Thinking};

    fn history() -> ChatRequest {
        ChatRequest::new(vec![
            Message::new(
                Role::User,
                vec![Part::text("what is this?"), Part::image("image/png", "AAAA")],
            ),
            Message::new(
                Role::Assistant,
                vec![Part::Thinking(Thinking {
                    text: "hm".into(),
                    signature: Some("s".into()),
                    extra: None,
                })],
            ),
            Message::new(
                Role::Assistant,
                vec![Part::Redacted { data: "x".into() }, Part::text("a cat")],
            ),
        ])
        .with_max_output(64_000)
        .with_model("big")
    }

    fn profile() -> Profile {
        Profile::new(Target::new("p").with_model("small"))
    }

    #[test]
    fn a_target_that_takes_everything_changes_the_model_alone() {
        let mut request = history();
        let before = request.messages.clone();
        request.adapt(&profile()).unwrap();
        assert_eq!(request.model, "small");
        assert!(request.messages.same(&before), "not even copied");
    }

    #[test]
    fn limits_are_clamped_never_raised() {
        let mut request = history();
        let mut profile = profile();
        profile.max_output = Some(8_000);
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.max_output, Some(8_000));
        profile.max_output = Some(99_000);
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.max_output, Some(8_000));
    }

    #[test]
    fn foreign_thinking_goes_and_leaves_no_empty_message() {
        let mut request = history();
        let mut profile = profile();
        profile.foreign_history = true;
        request.adapt(&profile).unwrap();
        assert_eq!(request.messages.len(), 2);
        assert_eq!(request.messages[1].parts(), [Part::text("a cat")]);
    }

    #[test]
    fn an_open_tool_loop_that_lost_its_thinking_goes_on_without() {
        let mut request = history();
        request.params.thinking = Some(ThinkingConfig::Budget(2_000));
        let mut profile = profile();
        profile.foreign_history = true;
        profile.dialect = Some(Dialect::Anthropic);
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.thinking, Some(ThinkingConfig::Budget(2_000)), "no loop is open");

        let mut request = history();
        request.params.thinking = Some(ThinkingConfig::Budget(2_000));
        let messages = request.messages.make_mut();
        messages.push(Message::new(Role::Assistant, vec![Part::tool_call("1", "look", "{}")]));
        messages.push(Message::tool("1", "nothing"));
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.thinking, Some(ThinkingConfig::Off));
    }

    #[test]
    fn images_are_described_or_refused() {
        let mut profile = profile();
        profile.vision = false;
        let mut request = history();
        request.adapt(&profile).unwrap();
        assert!(!request.needs().vision);
        assert_eq!(request.messages[0].parts().len(), 2, "something stands in its place");

        profile.on_unsupported = OnUnsupported::Refuse;
        let failure = history().adapt(&profile).unwrap_err();
        assert_eq!(failure.reason(), Reason::Unsupported);
        assert!(failure.message().contains("p/small"), "{failure}");
    }

    #[test]
    fn unsupported_parameters_are_dropped_or_refused() {
        let mut profile = profile();
        profile.unsupported = vec!["temperature".into(), "seed".into()];
        let mut request = history();
        request.params.temperature = Some(0.1);
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.temperature, None);
        profile.on_unsupported = OnUnsupported::Refuse;
        request.adapt(&profile).expect("nothing of the kind is asked any more");
        request.params.seed = Some(1);
        assert!(request.adapt(&profile).unwrap_err().message().contains("`seed`"));
    }
}
