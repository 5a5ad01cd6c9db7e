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

fn join(seen: &str, came: &str) -> Option<String> {
    let pieces: Vec<String> = came.chars().map(String::from).collect();
    let one = run(Overlap::new(seen, OverlapPolicy::default()), [came]);
    let many = run(Overlap::new(seen, OverlapPolicy::default()), pieces.iter().map(String::as_str));
    assert_eq!(one.is_ok(), many.is_ok(), "{seen:?} {came:?}: {one:?} {many:?}");
    if let (Ok(one), Ok(many)) = (&one, &many) {
        assert_eq!(one, many, "{seen:?} {came:?}");
    }
    one.ok()
}

const SEEN: &str =
    "The queen counted every star above her tower, and wrote the number down in a book";

#[test]
fn a_table_of_continuations() {
    let tail = |n: usize| &SEEN[SEEN.len() - n..];
    for n in [6, 7, 11, 12, 13, 16, 20, 24, 31, 32, 40, 41, 60, SEEN.len()] {
        let came = format!("{} bound in blue.", tail(n));
        assert_eq!(join(SEEN, &came).as_deref(), Some(" bound in blue."), "{n} repeated");
    }
    // Too little to be sure of.
    for n in [0, 1, 3, 5] {
        assert_eq!(join(SEEN, &format!("{} bound in blue.", tail(n))), None, "{n} repeated");
    }
    // Up to eight characters before it, and not nine.
    for lead in ["\"", "...", "Sure: ", "12345678"] {
        let came = format!("{lead}{} bound", tail(40));
        assert_eq!(join(SEEN, &came).as_deref(), Some(" bound"), "{lead:?}");
    }
    let came = format!("1234567890123456789012345678901234567890{} bound", tail(40));
    assert_eq!(join(SEEN, &came), None);
}

#[test]
fn white_space_and_quotes_are_as_good_as_others() {
    for (seen, came, new) in [
        (
            "she said \u{201c}it\u{2019}s late\u{201d} and",
            "she said \"it's late\" and left",
            " left",
        ),
        ("one two\n\nthree four five", "one two three   four five six", " six"),
        // White space that was shown is not said again, and what was not is not lost.
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
        // Not of one byte each.
        (
            "na\u{ef}ve caf\u{e9}s \u{1f980}\u{1f980} serve",
            "s \u{1f980}\u{1f980} serve th\u{e9}",
            " th\u{e9}",
        ),
    ] {
        assert_eq!(join(seen, came).as_deref(), Some(new), "{seen:?} {came:?}");
    }
}

#[test]
fn a_phrase_said_twice_is_cut_where_all_of_it_ends() {
    let seen = "A cat. Now the cat sat on the mat. Then the cat sat on the mat.";
    let came = "he cat sat on the mat. Then the cat sat on the mat. Then it left.";
    assert_eq!(join(seen, came).as_deref(), Some(" Then it left."));
}

#[test]
fn paraphrases_have_no_overlap() {
    for came in [
        "",
        "I apologise for the interruption. Let me go on.",
        "Her Majesty noted all of it in a volume bound in blue.",
        "bound in blue.",
        "The monarch counted each star.",
    ] {
        assert_eq!(join(SEEN, came), None, "{came:?}");
    }
}

#[test]
fn what_is_held_back_is_bounded() {
    // Looks like the beginning of a repetition for as long as it can.
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
    for (seen, came, new) in [
        ("one two", " three", " three"),
        ("one two ", " three", "three"),
        ("one two ", "  three", " three"),
        ("one two\n\n", "\nthree", "three"),
        ("one one", " one one", " one one"),
    ] {
        assert_eq!(run(Overlap::prefilled(seen), [came]).unwrap(), new, "{seen:?}");
    }
    assert_eq!(run(Overlap::prefilled("done"), []).unwrap(), "", "it had nothing to add");
}

#[test]
fn unasked_for_repetitions_are_cut_only_when_they_are_long() {
    let cut = |seen: &str, came: &str| run(Overlap::unasked(seen), [came]);
    assert_eq!(cut(SEEN, " bound in blue").unwrap_err(), " bound in blue");
    assert_eq!(cut(SEEN, &format!("{} bound", &SEEN[SEEN.len() - 30..])).unwrap(), " bound");
    assert!(cut(SEEN, "in a book in a book").is_err(), "too short to be one");
    // A table goes on as it began: nothing of that is a repetition.
    let row = "| 0 | 0 | 0 | 0 | 0 | 0 |\n";
    assert_eq!(cut(&row.repeat(9), row).unwrap(), row);
    assert_eq!(cut("short ", "short").unwrap(), "short");
}

#[test]
fn the_words_to_ask_for_are_the_last() {
    let policy = OverlapPolicy::default();
    assert_eq!(Overlap::anchor("short \n", &policy), "short");
    assert_eq!(Overlap::anchor(SEEN, &policy), SEEN[SEEN.len() - 40..].trim_start());
    assert_eq!(Overlap::anchor(&"\u{1f980}".repeat(50), &policy).chars().count(), 40);
}

/// Texts of words and white space, of which no six characters occur twice by design of the words.
fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[a-z]{1,9}",
        Just("\u{201c}caf\u{e9}\u{201d}".to_owned()),
        Just("\u{1f980}".to_owned()),
        Just("it\u{2019}s".to_owned()),
    ];
    let space =
        prop_oneof![6 => Just(" "), 1 => Just("\n"), 1 => Just("\r\n"), 1 => Just("\n\n  ")];
    proptest::collection::vec((word, space), 4..120).prop_map(|words| {
        let parts = words.iter().enumerate();
        parts.map(|(at, (word, space))| format!("{at}{word}{space}")).collect()
    })
}

fn cut_at(text: &str, share: usize) -> usize {
    let ends: Vec<usize> = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
    ends[share % ends.len()]
}

/// The same, as a model might write it.
fn respelt(text: &str) -> String {
    text.replace(['\u{201c}', '\u{201d}'], "\"").replace('\u{2019}', "'").replace("\n\n  ", " ")
}

proptest! {
    /// What is asked for is repeated: the text comes out whole, wherever it was cut and however
    /// the continuation is cut into pieces.
    #[test]
    fn a_faithful_continuation_makes_the_text_whole(
        text in text(), share in any::<usize>(), size in 1usize..50, respell in any::<bool>(),
    ) {
        let (seen, rest) = text.split_at(cut_at(&text, share));
        let words = seen.trim_end();
        let anchor = Overlap::anchor(seen, &OverlapPolicy::default());
        let repeated = if respell { respelt(anchor) } else { anchor.to_owned() };
        let came: Vec<char> = format!("{repeated}{}{rest}", &seen[words.len()..]).chars().collect();
        let pieces: Vec<String> = came.chunks(size).map(|piece| piece.iter().collect()).collect();
        let new = run(Overlap::new(seen, OverlapPolicy::default()), pieces.iter().map(String::as_str));
        prop_assert_eq!(format!("{seen}{}", new.unwrap()), text);
    }

    /// Any amount is repeated, from a dozen characters on.
    #[test]
    fn however_much_is_repeated(text in text(), share in any::<usize>(), much in 12usize..200) {
        let (seen, rest) = text.split_at(cut_at(&text, share));
        let chars: Vec<char> = seen.chars().collect();
        prop_assume!(seen.trim_end().chars().count() >= 12 && seen.trim_end() == seen);
        let repeated: String = chars[chars.len().saturating_sub(much)..].iter().collect();
        prop_assume!(repeated.trim_start() == repeated);
        let new = run(Overlap::new(seen, OverlapPolicy::default()), [&*repeated, rest]);
        prop_assert_eq!(format!("{seen}{}", new.unwrap()), text);
    }

    /// Other words are never taken for the same.
    #[test]
    fn a_paraphrase_has_no_overlap(text in text(), other in "[A-Z.,!]{1,400}", size in 1usize..50) {
        let other: Vec<char> = other.chars().collect();
        let pieces: Vec<String> = other.chunks(size).map(|piece| piece.iter().collect()).collect();
        let new = run(Overlap::new(&text, OverlapPolicy::default()), pieces.iter().map(String::as_str));
        prop_assert!(new.is_err());
    }

    /// Whatever comes: no panic, and what comes out is the end of what went in.
    #[test]
    fn anything_may_come(seen in any::<String>(), came in proptest::collection::vec(any::<String>(), 0..9)) {
        let all: String = came.concat();
        for overlap in [
            Overlap::new(&seen, OverlapPolicy::default()),
            Overlap::unasked(&seen),
            Overlap::prefilled(&seen),
        ] {
            match run(overlap, came.iter().map(String::as_str)) {
                Ok(new) => prop_assert!(all.ends_with(&new)),
                Err(held) => prop_assert!(all.starts_with(&held)),
            }
        }
    }
}
