//! How a family of models counts tokens.

use std::sync::LazyLock;

use serde::Deserialize;

use steadfast_core::model_names::names;

/// How a family of models counts tokens: data, to be replaced for a model of one's own
/// ([`Counter::with_scheme`](super::Counter::with_scheme)).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Scheme {
    /// The vocabulary that text is split by.
    pub encoding: Encoding,
    /// Tokens of the model to one of the encoding.
    pub factor: f64,
    /// Tokens of a message beyond its content: role and separators.
    pub message: u32,
    /// Tokens of a call or a result beyond its text.
    pub call: u32,
    /// Tokens of a tool's declaration beyond its text.
    pub tool: u32,
    /// Tokens that the provider adds once there are any tools.
    pub tools: u32,
    /// Tokens that the provider adds to every request.
    pub request: u32,
    /// Tokens of an image. Providers count by its size, which may not be known (an address): this
    /// is the cost of a large one.
    pub image: u32,
    /// The error of the count before anything was learned, as a share of it. Where text is
    /// estimated (see [`Encoding`]) it is never less than 0.15.
    pub error: f64,
}

/// The vocabulary that text is split by. The tables of OpenAI's vocabularies are 47 MB of a binary, so
/// they are behind the feature `exact-tokens`; without it their count is estimated from the text's
/// letters, digits and punctuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Encoding {
    /// OpenAI's since gpt-4o.
    O200k,
    /// OpenAI's before that.
    Cl100k,
    /// So many bytes a token, rounded up for each text: for models without a public vocabulary
    /// where speed counts more than accuracy. Zero counts as one.
    Bytes(u32),
}

impl Encoding {
    /// The tokens of a text. Linear in its length, whatever the text.
    pub fn count(self, text: &str) -> u64 {
        match self {
            _ if text.is_empty() => 0,
            Encoding::Bytes(bytes) => text.len().div_ceil(bytes.max(1) as usize) as u64,
            #[cfg(feature = "exact-tokens")]
            Encoding::O200k => bpe_openai::o200k_base().count(text) as u64,
            #[cfg(feature = "exact-tokens")]
            Encoding::Cl100k => bpe_openai::cl100k_base().count(text) as u64,
            #[cfg(not(feature = "exact-tokens"))]
            _ => estimate(text),
        }
    }
}

/// The error of [`estimate`] before anything was learned, as a share of the count: it was within 15 %
/// of the exact count over prose, code, JSON and seven languages.
#[cfg(not(feature = "exact-tokens"))]
const ESTIMATE_ERROR: f64 = 0.15;

/// About how many tokens a vocabulary of 200,000 splits a text into, without the vocabulary.
#[cfg(any(test, not(feature = "exact-tokens")))]
fn estimate(text: &str) -> u64 {
    // What a run is made of: space, letters, digits, marks, other alphabets, ideographs.
    let kind_of = |c: char| match c {
        c if c.is_whitespace() => 0,
        c if c.is_ascii_alphabetic() => 1,
        '0'..='9' => 2,
        c if c.is_ascii() => 3,
        c if c.len_utf8() < 3 => 4,
        _ => 5,
    };
    // In hundredths of a token. Most runs of letters are one with the space before them; digits have
    // none before them.
    let cost = |kind, length: u64, next| match (kind, length) {
        (_, 0) => 0,
        (0, 1) if next != 2 => 0,
        (0, _) => 100,
        (1, _) => 100 + length.saturating_sub(6) * 12,
        (2, _) => length.div_ceil(3) * 100,
        (3, _) => 50 + length * 25,
        (4, _) => length * 34,
        _ => length * 85,
    };
    let (mut total, mut kind, mut length, mut before) = (0, 0, 0, ' ');
    for c in text.chars() {
        let next = kind_of(c);
        if next != kind || (before.is_ascii_lowercase() && c.is_ascii_uppercase()) {
            total += cost(kind, length, next);
            (kind, length) = (next, 0);
        }
        length += 1;
        before = c;
    }
    (total + cost(kind, length, 0)).div_ceil(100)
}

/// The schemes by the beginning of the model's name: the first row that a name begins with counts.
///
/// OpenAI publishes its vocabularies and its overhead: 3 tokens a message and one for the role, 3 to
/// start the answer; a large image has six tiles of 170 and 85. The open models have the same vocabulary
/// and a prompt format that servers fill in freely. For Claude, o200k times 1.25 was within 2 % over
/// prose, code and JSON; 346 tokens of tool instructions and 1,600 for a large image are Anthropic's
/// figures. An image is 1,120 tokens at Gemini's default resolution.
static TABLE: LazyLock<Vec<(&'static str, Scheme)>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Row {
        name: &'static str,
        #[serde(flatten)]
        scheme: Scheme,
    }
    let lines = include_str!("../../data/schemes.jsonl").lines();
    let rows = lines.filter_map(|line| serde_json::from_str::<Row>(line).ok());
    rows.map(|row| (row.name, row.scheme)).collect()
});

/// For models that no row is for. They have smaller vocabularies than o200k: an estimate from above is
/// the safe one.
pub(super) const OTHER: Scheme = Scheme {
    encoding: Encoding::O200k,
    factor: 1.25,
    message: 4,
    call: 6,
    tool: 8,
    tools: 12,
    request: 3,
    image: 1_600,
    error: 0.15,
};

impl Scheme {
    /// How `model` is counted, as far as its name shows.
    pub fn for_model(model: &str) -> Self {
        let row = |name: &str| TABLE.iter().find(|(start, _)| name.starts_with(start));
        let scheme = names(model).find_map(row).map_or(OTHER, |(_, scheme)| *scheme);
        #[cfg(not(feature = "exact-tokens"))]
        let scheme = Self { error: scheme.error.max(ESTIMATE_ERROR), ..scheme };
        scheme
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "exact-tokens")]
    #[test]
    fn counts_as_openai_does() {
        // From OpenAI's own tokenizer.
        for (text, o200k, cl100k) in [
            ("", 0, 0),
            ("hello world", 2, 2),
            ("antidisestablishmentarianism", 6, 6),
            ("お誕生日おめでとう", 8, 9),
        ] {
            assert_eq!(Encoding::O200k.count(text), o200k, "{text}");
            assert_eq!(Encoding::Cl100k.count(text), cl100k, "{text}");
        }
    }

    #[cfg(feature = "exact-tokens")]
    #[test]
    fn the_estimate_is_close_to_the_exact_count() {
        for (what, text) in [
            ("prose", include_str!("../lib.rs")),
            ("code", include_str!("scheme.rs")),
            ("more code", include_str!("../decide/plan.rs")),
            ("json", include_str!("../../data/schemes.jsonl")),
            (
                "german",
                "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Verpflichtung aller staatlichen Gewalt.",
            ),
            (
                "french",
                "Les hommes naissent et demeurent libres et égaux en droits. Les distinctions sociales ne peuvent être fondées que sur l'utilité commune.",
            ),
            (
                "spanish",
                "En un lugar de la Mancha, de cuyo nombre no quiero acordarme, no ha mucho tiempo que vivía un hidalgo de los de lanza en astillero.",
            ),
            (
                "russian",
                "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. Всё смешалось в доме Облонских.",
            ),
            (
                "chinese",
                "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
            ),
            ("japanese", "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"),
            ("korean", "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다."),
        ] {
            let (estimate, exact) = (estimate(text) as f64, Encoding::O200k.count(text) as f64);
            let ratio = estimate / exact;
            assert!((0.85..=1.15).contains(&ratio), "{what}: {ratio}");
        }
    }

    #[test]
    fn bytes_are_rounded_up() {
        assert_eq!(Encoding::Bytes(4).count("12345"), 2);
        assert_eq!(Encoding::Bytes(0).count("12345"), 5);
    }

    #[test]
    fn every_row_is_read() {
        let rows = include_str!("../../data/schemes.jsonl").lines().count();
        assert_eq!(TABLE.len(), rows, "a row is damaged");
        for (at, (name, _)) in TABLE.iter().enumerate() {
            let first = TABLE.iter().position(|(start, _)| name.starts_with(start));
            assert_eq!(first, Some(at), "{name} stands behind a row that it begins with");
        }
    }

    #[test]
    fn families_go_by_the_name_however_it_is_written() {
        for (model, encoding, factor) in [
            ("gpt-4", Encoding::Cl100k, 1.0),
            ("gpt-4-turbo-2024-04-09", Encoding::Cl100k, 1.0),
            ("gpt-4o-mini", Encoding::O200k, 1.0),
            ("openai/gpt-4.1", Encoding::O200k, 1.0),
            ("openai/gpt-oss-120b", Encoding::O200k, 1.0),
            ("gpt-6-sol", Encoding::O200k, 1.0),
            ("us.anthropic.claude-opus-4-7-v1:0", Encoding::O200k, 1.25),
            ("qwen3.8-max", Encoding::O200k, 1.25),
            ("", Encoding::O200k, 1.25),
        ] {
            let scheme = Scheme::for_model(model);
            assert_eq!((scheme.encoding, scheme.factor), (encoding, factor), "{model}");
        }
    }

    #[test]
    fn hostile_text_is_counted() {
        // Quadratic counting would take minutes for these.
        for text in [" ".repeat(60_000), "a".repeat(60_000), "\u{301}".repeat(20_000)] {
            assert!(Encoding::O200k.count(&text) > 0);
        }
    }
}
