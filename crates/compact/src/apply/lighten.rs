//! A request that the provider refused for its bytes or for its media: media and large results become
//! markers. A message in which nothing changes stays the same.

use std::cmp::Reverse;

use steadfast_chat::{Media, MediaKind, MediaSource, Message, Part, Role};

use super::strip::{MARKER, marked, may_go, size, tool_names};

/// Why a medium is not there: its provider did not take it.
const REFUSED: &str = "the provider refused it";

/// Why a medium is not there: the request had too many bytes.
const TOO_LARGE: &str = "the request was too large for the provider";

/// Something that may go, those that go first being the least.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Only the media of recent messages may go, and only after all others.
    is_recent: bool,
    saves: Reverse<usize>,
    message: usize,
    part: usize,
    /// A result that goes as a whole; else the media in the part.
    is_whole: bool,
}

/// Whether there are images or other media in a conversation.
pub(crate) fn has_media(list: &[Message]) -> bool {
    list.iter().flat_map(Message::parts).any(holds_media)
}

/// Replaces all media by markers; returns how many.
pub(crate) fn omit_media(list: &mut [Message]) -> usize {
    let mut omitted = 0;
    for message in list.iter_mut().filter(|message| message.parts().iter().any(holds_media)) {
        for part in message.parts_mut() {
            omitted += omit(part, REFUSED);
        }
    }
    omitted
}

/// Replaces results and media by markers, the largest first, until half of the bytes are gone. Results
/// go before `border` where they are longer than `over` characters and the model has seen them; media
/// go there first, and then elsewhere. `pinned` messages are kept. Returns how many were replaced, and
/// whether half of the bytes are gone.
pub(crate) fn lighten(
    list: &mut [Message],
    pinned: &[bool],
    border: usize,
    over: usize,
) -> (usize, bool) {
    let over = over.max(MARKER);
    let seen = list.iter().rposition(|message| message.role() == Role::Assistant).unwrap_or(0);
    let wanted = list.iter().flat_map(Message::parts).map(bytes).sum::<usize>().div_ceil(2);
    let mut candidates = Vec::new();
    for (message, one) in list.iter().enumerate() {
        if pinned.get(message) == Some(&true) {
            continue;
        }
        for (part, value) in one.parts().iter().enumerate() {
            let is_recent = message >= border;
            let is_whole = !is_recent
                && message < seen
                && value.as_tool_result().is_some_and(|result| may_go(result, over));
            let saves = if is_whole { bytes(value) } else { media_bytes(value) };
            if saves > MARKER {
                let saves = Reverse(saves);
                candidates.push(Candidate { is_recent, saves, message, part, is_whole });
            }
        }
    }
    candidates.sort_unstable();
    let names = tool_names(list);
    let (mut markers, mut saved) = (0, 0);
    for candidate in &candidates {
        if saved >= wanted {
            break;
        }
        match &mut list[candidate.message].parts_mut()[candidate.part] {
            Part::ToolResult(result) if candidate.is_whole => {
                let name = result.name.as_deref().or(names.get(&result.id).map(String::as_str));
                *result = marked(result, name);
                markers += 1;
            }
            part => markers += omit(part, TOO_LARGE),
        }
        saved += candidate.saves.0;
    }
    (markers, saved >= wanted)
}

fn holds_media(part: &Part) -> bool {
    match part {
        Part::Media(_) => true,
        Part::ToolResult(result) => result.content.iter().any(holds_media),
        _ => false,
    }
}

/// Replaces a part that is a medium, or those in a result; returns how many.
fn omit(part: &mut Part, why: &str) -> usize {
    match part {
        Part::Media(media) => {
            let text = format!("[{} omitted: {why}]", kind(media));
            *part = Part::text(text);
            1
        }
        Part::ToolResult(result) => result.content.iter_mut().map(|part| omit(part, why)).sum(),
        _ => 0,
    }
}

fn kind(media: &Media) -> &'static str {
    match media.kind {
        MediaKind::Image => "image",
        MediaKind::Document => "document",
        MediaKind::Audio => "audio",
        MediaKind::Video => "video",
        _ => "file",
    }
}

/// Bytes that a part takes in a request's body, roughly.
fn bytes(part: &Part) -> usize {
    match part {
        Part::Media(_) => media_bytes(part),
        Part::ToolResult(result) => result.content.iter().map(bytes).sum(),
        other => size(other),
    }
}

/// Those of them that are media.
fn media_bytes(part: &Part) -> usize {
    match part {
        Part::Media(media) => match &media.source {
            MediaSource::Base64 { data, .. } => data.len(),
            MediaSource::Url { url, .. } => url.len(),
            MediaSource::File { id, .. } => id.len(),
            _ => 0,
        },
        Part::ToolResult(result) => result.content.iter().map(media_bytes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use steadfast_chat::ToolResult;

    use super::*;

    fn picture(bytes: usize) -> Part {
        Part::image("image/png", "A".repeat(bytes))
    }

    fn user(parts: Vec<Part>) -> Message {
        Message::new(Role::User, parts)
    }

    /// A call and its result, after a picture of the user's; the last message is recent.
    fn session(picture_bytes: usize, result_bytes: usize, last_bytes: usize) -> Vec<Message> {
        vec![
            user(vec![Part::text("what is this?"), picture(picture_bytes)]),
            Message::new(Role::Assistant, vec![Part::tool_call("1", "read_file", "{}")]),
            user(vec![Part::tool_result("1", "x".repeat(result_bytes))]),
            Message::assistant("a cat"),
            user(vec![Part::text("and this?"), picture(last_bytes)]),
        ]
    }

    /// What is a marker now.
    fn markers(list: &[Message]) -> Vec<usize> {
        let is_marker = |part: &Part| match part {
            Part::Text(text) => text.text.starts_with('['),
            Part::ToolResult(result) => {
                result.content[0].as_text().is_some_and(|text| text.starts_with('['))
            }
            _ => false,
        };
        let marked = |message: &Message| message.parts().iter().any(is_marker);
        (0..list.len()).filter(|at| marked(&list[*at])).collect()
    }

    #[test]
    fn the_largest_goes_first_until_half_is_gone() {
        for (picture, result, last, expected, halved) in [
            (9_000, 4_000, 1_000, vec![0], true),
            (4_000, 9_000, 1_000, vec![2], true),
            (4_000, 5_000, 3_000, vec![0, 2], true),
            (1_000, 1_000, 9_000, vec![0, 2, 4], true),
            (100, 100, 100, vec![], false),
            (0, 100, 9_000, vec![4], true),
        ] {
            let mut list = session(picture, result, last);
            let before = list.clone();
            let (count, is_halved) = lighten(&mut list, &[], 4, 200);
            let case = format!("{picture} {result} {last}");
            assert_eq!((markers(&list), is_halved), (expected.clone(), halved), "{case}");
            assert_eq!(count, expected.len(), "{case}");
            for (at, (one, old)) in list.iter().zip(&before).enumerate() {
                assert_eq!(one.same(old), !expected.contains(&at), "{case}: {at}");
            }
        }
    }

    #[test]
    fn pinned_messages_and_results_that_were_not_seen_are_kept() {
        let mut list = session(9_000, 9_000, 10);
        let pinned = [true, false, false, false, false];
        lighten(&mut list, &pinned, 4, 200);
        assert_eq!(markers(&list), [2]);

        // Of a result that the model has not seen only the media go.
        let content = vec![Part::text("y".repeat(5_000)), picture(9_000)];
        let result = ToolResult { id: "1".into(), content, ..ToolResult::default() };
        let mut list = session(10, 10, 10);
        list.truncate(2);
        list.push(user(vec![Part::ToolResult(result)]));
        let (count, halved) = lighten(&mut list, &[], 3, 200);
        assert_eq!((count, halved), (1, true));
        let result = list[2].tool_results().next().unwrap();
        assert_eq!(result.content[0].as_text().map(str::len), Some(5_000));
        assert_eq!(
            result.content[1].as_text(),
            Some("[image omitted: the request was too large for the provider]")
        );
    }

    #[test]
    fn all_media_become_markers() {
        let mut list = session(10, 10, 10);
        let shown = ToolResult { content: vec![picture(10)], ..ToolResult::default() };
        list.push(user(vec![Part::ToolResult(shown)]));
        let before = list.clone();
        assert!(has_media(&list));
        assert_eq!(omit_media(&mut list), 3);
        assert!(!has_media(&list));
        assert_eq!(list[0].parts()[1].as_text(), Some("[image omitted: the provider refused it]"));
        assert!((1..4).all(|at| list[at].same(&before[at])), "others are not copied");
        assert_eq!(omit_media(&mut list), 0);
    }
}
