//! Fitting a request to one target.

use steadfast_core::{Dialect, Failure, OnUnsupported, Profile, Reason, Scope};

use std::sync::Arc;

use crate::{
    ChatRequest, Message, ModelFacts, Part, Role,
    transcript::{self, Repairs, TranscriptRule, TranscriptRules},
};

/// Fits `request` to `profile`: its model, its output limit, its parameters, what it can read.
pub(super) fn adapt(request: &mut ChatRequest, profile: &Profile) -> Result<(), Failure> {
    let mut most = profile.can.max_output;
    if let Some(model) = profile.target.model()
        && request.model != model
    {
        request.model = model.into();
        // The limit was set for another model.
        most = most.or_else(|| ModelFacts::of(model)?.output);
    }
    request.on_unsupported = profile.can.on_unsupported;
    if let (Some(requested), Some(most)) = (request.params.max_output, most)
        && requested > most
    {
        request.params.max_output = Some(most);
    }
    for name in &profile.can.unsupported {
        if !request.params.clear(name) {
            continue;
        }
        if profile.can.on_unsupported == OnUnsupported::Refuse {
            return Err(refused(profile, &format!("it does not take the parameter `{name}`")));
        }
    }
    if !profile.can.tools && !request.tools.is_empty() {
        return Err(refused(profile, "it does not call tools"));
    }
    let foreign = profile.foreign_history || request.is_replayed_for(&profile.target);
    let drops_images = !profile.can.vision
        && request.messages.iter().flat_map(Message::parts).any(Part::has_image);
    if drops_images && profile.can.on_unsupported == OnUnsupported::Refuse {
        return Err(refused(profile, "it does not read images"));
    }
    // A request in the target's own dialect is sent as the caller wrote it; one that has to be
    // changed or translated must follow the target's rules.
    let dialect = profile.asked_in(request.dialect()).or(request.dialect());
    let dialect = dialect.unwrap_or(Dialect::OpenAi);
    let translated = request.dialect().is_some_and(|own| own != dialect);
    if drops_images || foreign || translated {
        let rules = TranscriptRules::for_profile(dialect, profile);
        if translated {
            takes_content(request, &rules).map_err(|what| refused(profile, what))?;
        }
        // What could not be repaired the provider refuses, with an error message of its own.
        let repairs = transcript::repair(request, &rules);
        if translated {
            request.taken_out = taken_out(&repairs);
        }
    }
    Ok(())
}

/// Whether the target takes all content where it stands that a repair would otherwise replace or drop.
fn takes_content(request: &ChatRequest, rules: &TranscriptRules) -> Result<(), &'static str> {
    let is_media = |part: &Part| matches!(part, Part::Media(_));
    for message in &request.messages {
        let misplaced = match message.role() {
            Role::System => true,
            Role::Assistant => !rules.images.in_answers,
            _ => false,
        };
        if misplaced && message.parts().iter().any(is_media) {
            return Err("it takes no media in messages of the system or the model");
        }
        let extra = message.dialect().and_then(|dialect| message.extra(dialect));
        if message.parts().is_empty()
            && extra.and_then(|extra| extra.get("audio")).is_some_and(|audio| !audio.is_null())
        {
            return Err("it has no word for `messages[].audio`");
        }
    }
    Ok(())
}

/// The rules by which something is gone that an answer can do without.
fn taken_out(repairs: &Repairs) -> Option<Arc<[TranscriptRule]>> {
    let taken = [TranscriptRule::Orphan, TranscriptRule::Thinking];
    let rules: Vec<_> = taken
        .into_iter()
        .filter(|rule| repairs.done.iter().any(|repair| repair.rule == *rule))
        .collect();
    (!rules.is_empty()).then(|| rules.into())
}

fn refused(profile: &Profile, why: &str) -> Failure {
    Failure::refused(Reason::Unsupported, format!("{} was passed over: {why}", profile.target))
        .with_target(profile.target.clone())
        .with_scope(Scope::Request)
        .with_evidence("capability")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Thinking, ThinkingConfig};
    use steadfast_core::{Call, Target};

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
    fn a_target_that_accepts_everything_changes_only_the_model() {
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
        profile.can.max_output = Some(8_000);
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.max_output, Some(8_000));
        profile.can.max_output = Some(99_000);
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.max_output, Some(8_000));
    }

    #[test]
    fn a_limit_for_another_model_is_lowered_to_what_is_known_of_this_one() {
        for (model, asked, sent) in
            [("gpt-4o", 32_000, 16_384), ("gpt-4o", 8_000, 8_000), ("house-model", 32_000, 32_000)]
        {
            let mut request = history().with_max_output(asked);
            request.adapt(&Profile::new(Target::new("p").with_model(model))).unwrap();
            assert_eq!(request.params.max_output, Some(sent), "{model}");
        }
        let mut own = history().with_max_output(32_000).with_model("gpt-4o");
        own.adapt(&Profile::new(Target::new("p").with_model("gpt-4o"))).unwrap();
        assert_eq!(own.params.max_output, Some(32_000), "the caller knows better");
    }

    #[test]
    fn foreign_thinking_is_removed_and_leaves_no_empty_message() {
        let mut request = history();
        let mut profile = profile();
        profile.foreign_history = true;
        request.adapt(&profile).unwrap();
        assert_eq!(request.messages.len(), 2);
        assert_eq!(request.messages[1].parts(), [Part::text("a cat")]);
    }

    #[test]
    fn thinking_is_turned_off_in_an_open_tool_loop_that_lost_its_thinking() {
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
        assert_eq!(request.params.thinking, None);
    }

    #[test]
    fn images_are_described_or_refused() {
        let mut profile = profile();
        profile.can.vision = false;
        let mut request = history();
        request.adapt(&profile).unwrap();
        assert!(!request.needs().vision);
        assert_eq!(request.messages[0].parts().len(), 2, "a text replaces it");

        profile.can.on_unsupported = OnUnsupported::Refuse;
        let failure = history().adapt(&profile).unwrap_err();
        assert_eq!(failure.reason(), Reason::Unsupported);
        assert!(failure.message().contains("p/small"), "{failure}");
    }

    #[test]
    fn unsupported_parameters_are_dropped_or_refused() {
        let mut profile = profile();
        profile.can.unsupported = vec!["temperature".into(), "seed".into()];
        let mut request = history();
        request.params.temperature = Some(0.1);
        request.adapt(&profile).unwrap();
        assert_eq!(request.params.temperature, None);
        profile.can.on_unsupported = OnUnsupported::Refuse;
        request.adapt(&profile).expect("the parameter is not set any more");
        request.params.seed = Some(1);
        assert!(request.adapt(&profile).unwrap_err().message().contains("`seed`"));
    }
}
