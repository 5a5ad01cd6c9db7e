//! Whether a text may hold a secret at all, at a fraction of what a search costs.

/// How many bytes are compared at a time.
const GRAM: usize = 8;

/// The most bytes from one place that is compared to the next.
const MAX_STRIDE: usize = 16;

/// The fewest words of the filter, 8 KiB of them: with a few secrets one text in a thousand is searched in vain.
const MIN_WORDS: usize = 1_024;

/// A Bloom filter of pieces of secrets.
///
/// A text is compared at each `stride`-th byte, and every secret has pieces from as many bytes on: wherever
/// it stands, one of them is compared.
#[derive(Clone)]
pub(super) struct Sample {
    /// `None` when a secret is too short to be found by its pieces.
    words: Option<Box<[u64]>>,
    stride: usize,
}

impl Sample {
    /// Of all that is searched for.
    pub(super) fn of(secrets: &[Vec<u8>]) -> Self {
        let shortest = secrets.iter().map(Vec::len).min().unwrap_or(usize::MAX);
        let Some(more) = shortest.checked_sub(GRAM) else { return Self { words: None, stride: 1 } };
        let stride = more.saturating_add(1).min(MAX_STRIDE);
        let size = (secrets.len() * stride).next_power_of_two().max(MIN_WORDS);
        let mut words = vec![0; size].into_boxed_slice();
        for gram in secrets.iter().flat_map(|secret| secret.windows(GRAM).take(stride)) {
            let (index, [first, second]) = position(gram, size);
            words[index] |= first | second;
        }
        Self { words: Some(words), stride }
    }

    /// The first byte of `text` around which there may be a secret.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
        let Some(words) = &self.words else { return (!text.is_empty()).then_some(0) };
        let found = text.windows(GRAM).step_by(self.stride).position(|gram| {
            let (index, [first, second]) = position(gram, words.len());
            let word = words[index];
            word & first != 0 && word & second != 0
        });
        found.map(|step| step * self.stride)
    }
}

/// The word of `size` and the bits in it that stand for `gram`.
fn position(gram: &[u8], size: usize) -> (usize, [u64; 2]) {
    let number = gram.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // Fibonacci hashing, folded so that the low bits depend on all of it.
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = hash ^ (hash >> 32);
    // The size is a power of two.
    let index = (hash >> 12) as usize & (size - 1);
    (index, [1 << (hash & 63), 1 << ((hash >> 6) & 63)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(rng: &mut fastrand::Rng, length: usize) -> Vec<u8> {
        (0..length).map(|_| rng.alphanumeric() as u8).collect()
    }

    #[test]
    fn no_secret_is_missed_wherever_it_stands() {
        let mut rng = fastrand::Rng::with_seed(5);
        for shortest in 1..30 {
            let secrets: Vec<_> = (0..20).map(|more| random(&mut rng, shortest + more)).collect();
            let sample = Sample::of(&secrets);
            for secret in &secrets {
                for before in 0..20 {
                    let mut text = random(&mut rng, before);
                    text.extend_from_slice(secret);
                    let end = rng.usize(0..20);
                    text.extend(random(&mut rng, end));
                    assert!(sample.find(&text).is_some(), "{shortest}, {before}");
                }
            }
        }
    }

    #[test]
    fn few_texts_are_searched_in_vain() {
        let mut rng = fastrand::Rng::with_seed(6);
        for (count, most) in [(0, 0), (14, 10), (1_000, 150)] {
            let secrets: Vec<_> = (0..count).map(|_| random(&mut rng, 40)).collect();
            let sample = Sample::of(&secrets);
            let texts = (0..1_000).map(|_| random(&mut rng, 350));
            let found = texts.filter(|text| sample.find(text).is_some()).count();
            assert!(found <= most, "{found} with {count}");
        }
    }
}
