//! Messages that an agent writes by itself into the user's role.

use crate::data::AUTOMATIC_MESSAGES;

/// Whether the user has nothing to do with `text`: all of it is what agents write by themselves, such as a reminder, or
/// a demand to go on after a cut. The list is `automatic_messages` of `data/names.txt`.
pub(crate) fn is_automatic(text: &str) -> bool {
    let mut rest = text.trim();
    // Reminders stand before other text, too. Few texts begin with a tag.
    while rest.starts_with('<')
        && let Some(after) = AUTOMATIC_MESSAGES.iter().find_map(|entry| after_block(rest, entry))
    {
        rest = after.trim_start();
        if rest.is_empty() {
            return true;
        }
    }
    AUTOMATIC_MESSAGES.iter().any(|entry| match entry.strip_suffix('*') {
        Some(start) => begins_with(rest, start),
        None => rest.eq_ignore_ascii_case(entry),
    })
}

/// What comes after the block that `text` begins with, if `tag` is its tag.
fn after_block<'t>(text: &'t str, tag: &str) -> Option<&'t str> {
    let name = tag.strip_prefix('<')?;
    if !begins_with(text, tag) {
        return None;
    }
    let end = format!("</{name}");
    let at = text.find(&end)?;
    Some(&text[at + end.len()..])
}

fn begins_with(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_go_on_without_their_user() {
        for text in [
            "Output token limit hit. Resume directly \u{2014} no apology, no recap of what you were doing. Pick up \
             mid-thought if that is where the cut happened.",
            "Your response above was cut off mid-stream. Resume directly from where it stops \u{2014} no apology, no \
             recap. If none of it survived, answer the request from the start.",
            "[Your previous response had no visible output. Please continue and produce a user-visible response.]",
            "<system-reminder>\nThe todo list is empty.\n</system-reminder>",
            " <system-reminder>a</system-reminder>\n<system-reminder>b</system-reminder>\n",
            "<system-reminder>a</system-reminder> continue",
            "<environment_context>\n  <cwd>/x</cwd>\n</environment_context>",
            "# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>...",
            "Continue if you have next steps, or stop and ask for clarification if you are unsure how to proceed.",
            "Please continue.",
            "System: Potential loop detected. Details: x. Please take a step back",
            "Continue",
        ] {
            assert!(is_automatic(text), "{text}");
        }
    }

    #[test]
    fn a_users_words_are_the_users() {
        for text in [
            "Continue with the second file.",
            "please continue, but without tests",
            "<system-reminder>a</system-reminder>\nNow fix the other bug.",
            "<system-reminder> is a tag of which I have never seen the end",
            "Why does it say \"Output token limit hit\"?",
            "<html></html>",
        ] {
            assert!(!is_automatic(text), "{text}");
        }
    }
}
