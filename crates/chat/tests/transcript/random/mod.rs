//! Random histories: valid ones are not changed; damaged ones become valid in one repair, keep every
//! text, and are accepted whatever the encoder.

use std::collections::HashMap;

use proptest::prelude::*;
use steadfast_chat::{
    ChatRequest, Message, Part, Role,
    transcript::{TranscriptRule, TranscriptRules, open_loop, repair, unbind_edited, validate},
};
use steadfast_core::Dialect;

use self::{
    damage::{apply, damage, shuffling},
    history::{plan, write},
    oracle::{accepts, encode},
};

mod damage;
mod history;
mod oracle;

/// Rules that differ from the dialect's in the bits that are set.
fn rules(dialect: Dialect, bits: u8) -> TranscriptRules {
    let mut rules = TranscriptRules::for_dialect(dialect);
    rules.prefill = bits & 1 != 0;
    rules.images.vision = bits & 2 == 0;
    rules.signed_calls = bits & 4 != 0 && dialect == Dialect::Gemini;
    rules.foreign_history = bits & 24 == 24;
    rules
}

/// Every text of every message, in order; white space is no text.
fn texts(request: &ChatRequest) -> Vec<String> {
    let parts = request.messages.iter().flat_map(Message::parts).filter_map(Part::as_text);
    parts.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

fn is_subsequence(part: &[String], whole: &[String]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|text| whole.any(|other| other == text))
}

/// Those in which every result is a message.
fn is_openais(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::OpenAi | Dialect::Responses)
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(Dialect::ALL.to_vec())
}

/// As many cases as run in a second, unless `PROPTEST_CASES` is set.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 400;
    }
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_valid_history_is_not_changed(dialect in dialect(), plan in plan(), bits in 0..8_u8) {
        let mut request = write(dialect, &plan);
        let mut rules = rules(dialect, bits & !2);
        rules.prefill = false;
        let before = request.clone();
        let repairs = repair(&mut request, &rules);
        prop_assert!(repairs.is_empty(), "{repairs:#?}\n{:#?}", before.messages);
        prop_assert!(request.messages.same(&before.messages));
        prop_assert!(request.tools.same(&before.tools));
        prop_assert_eq!(&request.params, &before.params);
        // The oracle accepts what is valid, so that its refusals below mean something.
        prop_assert_eq!(accepts(&encode(&request, dialect, true), dialect), Ok(()));
    }

    #[test]
    fn an_edit_leaves_no_thinking_that_it_unbinds(plan in plan(), at in any::<prop::sample::Index>()) {
        let rules = TranscriptRules::for_dialect(Dialect::Anthropic);
        let mut request = write(Dialect::Anthropic, &plan);
        let is_callers = |message: &Message| {
            let has_text = message.parts().iter().any(|part| part.as_text().is_some());
            message.role() == Role::User && has_text
        };
        let editable: Vec<_> =
            (0..request.messages.len()).filter(|index| is_callers(&request.messages[*index])).collect();
        prop_assume!(!editable.is_empty());
        let edited = editable[at.index(editable.len())];
        let before = request.messages.clone();
        request.messages.make_mut()[edited].parts_mut().push(Part::text("and one thing more"));
        let open = open_loop(&request, &rules);
        let dropped = unbind_edited(&mut request, &rules, &before);
        prop_assert_eq!(unbind_edited(&mut request, &rules, &before), 0, "once is enough");
        prop_assert!(validate(&request, &rules).is_ok(), "{:?}", validate(&request, &rules));
        let thinking = |list: &[Message]| -> Vec<Part> {
            list.iter().flat_map(Message::parts).filter(|part| part.is_thinking()).cloned().collect()
        };
        // All that is in front of it stays, but for the beginning of a loop that goes whole.
        let mut kept = edited;
        if open.contains(&edited) && dropped > 0 {
            kept = open.start;
        }
        prop_assert_eq!(thinking(&request.messages), thinking(&before[..kept]));
        prop_assert_eq!(texts(&request).len(), texts(&ChatRequest::new(before)).len() + 1);
    }

    #[test]
    fn a_damaged_history_is_repaired(
        from in dialect(),
        target in dialect(),
        plan in plan(),
        damages in prop::collection::vec(damage(), 1..8),
        bits in 0..32_u8,
    ) {
        let mut request = write(from, &plan);
        for damage in &damages {
            apply(&mut request, target, damage);
        }
        let rules = rules(target, bits);
        let before = request.clone();
        let repairs = repair(&mut request, &rules);
        let after = || format!("{repairs:#?}\nbefore {:#?}\nafter {:#?}", before.messages, request.messages);

        // Valid, unless no message is left.
        if request.messages.is_empty() {
            prop_assert_eq!(repairs.unrepaired.len(), 1);
            prop_assert_eq!(repairs.unrepaired[0].rule, TranscriptRule::FirstMessage);
        } else {
            prop_assert!(repairs.unrepaired.is_empty(), "{}", after());
            prop_assert!(validate(&request, &rules).is_ok());
        }

        // No text is lost.
        prop_assert!(is_subsequence(&texts(&before), &texts(&request)), "{}", after());

        // A second repair changes nothing.
        let repaired = request.clone();
        let again = repair(&mut request, &rules);
        prop_assert!(again.done.is_empty(), "{again:#?}");
        prop_assert!(request.messages.same(&repaired.messages));
        prop_assert!(request.tools.same(&repaired.tools));
        prop_assert_eq!(&request.params, &repaired.params);

        // The same request has the same repair.
        let mut twin = before.clone();
        let _ = repair(&mut twin, &rules);
        prop_assert_eq!(&*twin.messages, &*repaired.messages);

        // Valid whatever the encoder does with instructions.
        for moves_instructions in [true, false] {
            let wire = encode(&repaired, target, moves_instructions || is_openais(target));
            prop_assert_eq!(accepts(&wire, target), Ok(()));
        }
    }

    /// Where only the order and number of parts are wrong, a request is refused exactly when the
    /// oracle refuses it.
    #[test]
    fn pairs_are_refused_exactly_when_a_provider_refuses_them(
        dialect in dialect(),
        plan in plan(),
        damages in prop::collection::vec(shuffling(), 0..5),
    ) {
        let mut request = write(dialect, &plan);
        let list = request.messages.make_mut();
        list.retain(|message| message.role() != Role::System);
        for damage in &damages {
            apply(&mut request, dialect, damage);
        }
        // Joining may leave a message of mixed roles, which other rules are about.
        request.messages.make_mut().retain(|message| !message.parts().is_empty());
        let pairing = [
            TranscriptRule::Answered,
            TranscriptRule::Orphan,
            TranscriptRule::Duplicate,
            TranscriptRule::Order,
            TranscriptRule::Batch,
        ];
        let refused: Vec<_> = match validate(&request, &TranscriptRules::for_dialect(dialect)) {
            Ok(()) => Vec::new(),
            // Gemini's ids are part of its pairs; it has no other rules for them.
            Err(found) => found
                .into_iter()
                .filter(|v| {
                    pairing.contains(&v.rule)
                        || (v.rule == TranscriptRule::Ids && dialect == Dialect::Gemini)
                })
                .collect(),
        };
        let mixed = request.messages.iter().any(|message| {
            let texts = message.parts().iter().any(|part| part.as_tool_result().is_none());
            message.role() == Role::Tool && texts
        });
        if !mixed {
            let oracle = accepts(&encode(&request, dialect, true), dialect);
            prop_assert_eq!(refused.is_empty(), oracle.is_ok(), "{:#?}\n{:?}", refused, oracle);
        }
    }

    /// A history of one vendor can be sent to every other.
    #[test]
    fn a_history_moves_between_dialects(from in dialect(), to in dialect(), plan in plan()) {
        let mut request = write(from, &plan);
        let before = request.clone();
        let mut rules = TranscriptRules::for_dialect(to);
        rules.foreign_history = from != to;
        let repairs = repair(&mut request, &rules);
        prop_assert!(repairs.unrepaired.is_empty(), "{repairs:#?}");
        prop_assert_eq!(texts(&before), texts(&request));
        // Every result survives, under the id of its call.
        let outputs = |request: &ChatRequest| {
            let mut texts = HashMap::<String, usize>::new();
            for result in request.messages.iter().flat_map(Message::tool_results) {
                for text in result.content.iter().filter_map(Part::as_text) {
                    *texts.entry(text.to_owned()).or_default() += 1;
                }
            }
            texts
        };
        prop_assert_eq!(outputs(&before), outputs(&request));
        prop_assert_eq!(accepts(&encode(&request, to, true), to), Ok(()));
    }
}
