use proptest::prelude::*;

use super::*;

/// Feeds `pieces` and ends: the new text, or what was held when there is no overlap.
fn run<'a>(
    mut overlap: Overlap,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Result<String, String> {
    let mut out: Option<String> = None;
    let mut held = String::new();
    for piece in pieces {
        match &mut out {
            Some(out) => out.push_str(piece),
            None => {
                held.push_str(piece);
                match overlap.push(piece) {
                    OverlapFound::NotYet => {}
                    OverlapFound::Cut(new) => out = Some(new),
                    OverlapFound::Nothing(text) => {
                        assert!(held.starts_with(&text), "nothing is lost");
                        return Err(held);
                    }
                }
            }
        }
    }
    match out {
        Some(out) => Ok(out),
        None => match overlap.finish() {
            OverlapFound::Cut(new) => Ok(new),
            OverlapFound::Nothing(text) => Err(text),
            OverlapFound::NotYet => unreachable!("it is the end"),
        },
    }
}

fn join(seen: &str, continued: &str) -> Option<String> {
    let pieces: Vec<String> = continued.chars().map(String::from).collect();
    let one = run(Overlap::new(seen, OverlapPolicy::default()), [continued]);
    let many = run(Overlap::new(seen, OverlapPolicy::default()), pieces.iter().map(String::as_str));
    assert_eq!(one.is_ok(), many.is_ok(), "{seen:?} {continued:?}: {one:?} {many:?}");
    if let (Ok(one), Ok(many)) = (&one, &many) {
        assert_eq!(one, many, "{seen:?} {continued:?}");
    }
    one.ok()
}

const SEEN: &str =
    "The queen counted every star above her tower, and wrote the number down in a book";

#[test]
fn a_table_of_continuations() {
    let tail = |n: usize| &SEEN[SEEN.len() - n..];
    for n in [6, 7, 11, 12, 13, 16, 20, 24, 31, 32, 40, 41, 60, SEEN.len()] {
        let continued = format!("{} bound in blue.", tail(n));
        assert_eq!(join(SEEN, &continued).as_deref(), Some(" bound in blue."), "{n} repeated");
    }
    // Too short to be an overlap.
    for n in [0, 1, 3, 5] {
        assert_eq!(join(SEEN, &format!("{} bound in blue.", tail(n))), None, "{n} repeated");
    }
    // Up to eight characters before it, and not nine.
    for lead in ["\"", "...", "Sure: ", "12345678"] {
        let continued = format!("{lead}{} bound", tail(40));
        assert_eq!(join(SEEN, &continued).as_deref(), Some(" bound"), "{lead:?}");
    }
    let continued = format!("1234567890123456789012345678901234567890{} bound", tail(40));
    assert_eq!(join(SEEN, &continued), None);
}

#[test]
fn white_space_and_quotes_are_normalised() {
    for (seen, continued, new) in [
        (
            "she said \u{201c}it\u{2019}s late\u{201d} and",
            "she said \"it's late\" and left",
            " left",
        ),
        ("one two\n\nthree four five", "one two three   four five six", " six"),
        // White space is neither repeated nor lost.
        ("one two three four ", "two three four five", "five"),
        ("one two three four ", "two three four  five", " five"),
        ("one two three four\n", "two three four\n\nfive", "\nfive"),
        ("one two three four\r", "two three four\r\nfive", "\nfive"),
        ("one two three four\r\n", "two three four\nfive", "five"),
        ("one two three four\n", "two three four\r\nfive", "five"),
        ("one two three four\r\n\r", "two three four\r\n\r\nfive", "\nfive"),
        ("one two three four", "\n two three four five", " five"),
        // Short, and all of it.
        ("No", "No, thanks", ", thanks"),
        ("  ", "  hello", "hello"),
        ("", "hello", "hello"),
        // Characters of several bytes.
        (
            "na\u{ef}ve caf\u{e9}s \u{1f980}\u{1f980} serve",
            "s \u{1f980}\u{1f980} serve th\u{e9}",
            " th\u{e9}",
        ),
    ] {
        assert_eq!(join(seen, continued).as_deref(), Some(new), "{seen:?} {continued:?}");
    }
}

#[test]
fn a_repetition_with_a_phrase_twice_is_cut_at_its_end() {
    let seen = "A cat. Now the cat sat on the mat. Then the cat sat on the mat.";
    let continued = "he cat sat on the mat. Then the cat sat on the mat. Then it left.";
    assert_eq!(join(seen, continued).as_deref(), Some(" Then it left."));
}

#[test]
fn paraphrases_have_no_overlap() {
    for continued in [
        "",
        "I apologise for the interruption. Let me go on.",
        "Her Majesty noted all of it in a volume bound in blue.",
        "bound in blue.",
        "The monarch counted each star.",
    ] {
        assert_eq!(join(SEEN, continued), None, "{continued:?}");
    }
}

#[test]
fn what_is_held_back_is_bounded() {
    // The whole text may be the beginning of a repetition.
    let seen = "abcdefghij".repeat(60);
    let mut overlap =
        Overlap::new(&seen[..595], OverlapPolicy { anchor: 0, ..OverlapPolicy::default() });
    let mut held = 0;
    for c in seen.chars() {
        held += 1;
        if overlap.push(&c.to_string()) != OverlapFound::NotYet {
            break;
        }
    }
    assert!(held <= 240, "{held}");
}

#[test]
fn a_prefill_is_continued_exactly() {
    for (seen, continued, new) in [
        ("one two", " three", " three"),
        ("one two ", " three", "three"),
        ("one two ", "  three", " three"),
        ("one two\n\n", "\nthree", "three"),
        ("one one", " one one", " one one"),
    ] {
        assert_eq!(run(Overlap::prefilled(seen), [continued]).unwrap(), new, "{seen:?}");
    }
    assert_eq!(run(Overlap::prefilled("done"), []).unwrap(), "", "nothing new");
}

#[test]
fn unasked_for_repetitions_are_cut_only_when_they_are_long() {
    let cut = |seen: &str, continued: &str| run(Overlap::unasked(seen), [continued]);
    assert_eq!(cut(SEEN, " bound in blue").unwrap_err(), " bound in blue");
    assert_eq!(cut(SEEN, &format!("{} bound", &SEEN[SEEN.len() - 30..])).unwrap(), " bound");
    assert!(cut(SEEN, "in a book in a book").is_err(), "too short to be one");
    // The next row of a table is no repetition.
    let row = "| 0 | 0 | 0 | 0 | 0 | 0 |\n";
    assert_eq!(cut(&row.repeat(9), row).unwrap(), row);
    assert_eq!(cut("short ", "short").unwrap(), "short");
}

#[test]
fn the_requested_text_is_the_end() {
    let policy = OverlapPolicy::default();
    assert_eq!(Overlap::anchor("short \n", &policy), "short");
    assert_eq!(Overlap::anchor(SEEN, &policy), SEEN[SEEN.len() - 40..].trim_start());
    assert_eq!(Overlap::anchor(&"\u{1f980}".repeat(50), &policy).chars().count(), 40);
}

/// Texts of terms and white space, of which no six characters occur twice by design of the terms.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[a-z]{1,9}",
        Just("\u{201c}caf\u{e9}\u{201d}".to_owned()),
        Just("\u{1f980}".to_owned()),
        Just("it\u{2019}s".to_owned()),
    ];
    let space =
        prop_oneof![6 => Just(" "), 1 => Just("\n"), 1 => Just("\r\n"), 1 => Just("\n\n  ")];
    proptest::collection::vec((word, space), 4..120).prop_map(|terms| {
        let parts = terms.iter().enumerate();
        parts.map(|(at, (word, space))| format!("{at}{word}{space}")).collect()
    })
}

fn cut_at(text: &str, share: usize) -> usize {
    let ends: Vec<usize> = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
    ends[share % ends.len()]
}

/// The same with other quotes and white space.
fn respelt(text: &str) -> String {
    text.replace(['\u{201c}', '\u{201d}'], "\"").replace('\u{2019}', "'").replace("\n\n  ", " ")
}

proptest! {
    /// With the requested text repeated, the whole text is restored, for any cut and any pieces of the
    /// continuation.
    #[test]
    fn a_faithful_continuation_restores_the_text(
        text in text(), share in any::<usize>(), size in 1usize..50, respell in any::<bool>(),
    ) {
        let (seen, rest) = text.split_at(cut_at(&text, share));
        let terms = seen.trim_end();
        let anchor = Overlap::anchor(seen, &OverlapPolicy::default());
        let repeated = if respell { respelt(anchor) } else { anchor.to_owned() };
        let continued: Vec<char> = format!("{repeated}{}{rest}", &seen[terms.len()..]).chars().collect();
        let pieces: Vec<String> = continued.chunks(size).map(|piece| piece.iter().collect()).collect();
        let new = run(Overlap::new(seen, OverlapPolicy::default()), pieces.iter().map(String::as_str));
        prop_assert_eq!(format!("{seen}{}", new.unwrap()), text);
    }

    /// Any length of repetition is found, from 12 characters on.
    #[test]
    fn any_length_of_repetition_is_found(text in text(), share in any::<usize>(), much in 12usize..200) {
        let (seen, rest) = text.split_at(cut_at(&text, share));
        let chars: Vec<char> = seen.chars().collect();
        prop_assume!(seen.trim_end().chars().count() >= 12 && seen.trim_end() == seen);
        let repeated: String = chars[chars.len().saturating_sub(much)..].iter().collect();
        prop_assume!(repeated.trim_start() == repeated);
        let new = run(Overlap::new(seen, OverlapPolicy::default()), [&*repeated, rest]);
        prop_assert_eq!(format!("{seen}{}", new.unwrap()), text);
    }

    /// Other words are never an overlap.
    #[test]
    fn a_paraphrase_has_no_overlap(text in text(), other in "[A-Z.,!]{1,400}", size in 1usize..50) {
        let other: Vec<char> = other.chars().collect();
        let pieces: Vec<String> = other.chunks(size).map(|piece| piece.iter().collect()).collect();
        let new = run(Overlap::new(&text, OverlapPolicy::default()), pieces.iter().map(String::as_str));
        prop_assert!(new.is_err());
    }

    /// Any text: no panic, and the result is the end of the input.
    #[test]
    fn any_text_is_read(seen in any::<String>(), continued in proptest::collection::vec(any::<String>(), 0..9)) {
        let all: String = continued.concat();
        for overlap in [
            Overlap::new(&seen, OverlapPolicy::default()),
            Overlap::unasked(&seen),
            Overlap::prefilled(&seen),
        ] {
            match run(overlap, continued.iter().map(String::as_str)) {
                Ok(new) => prop_assert!(all.ends_with(&new)),
                Err(held) => prop_assert!(all.starts_with(&held)),
            }
        }
    }
}
