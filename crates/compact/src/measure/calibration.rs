//! Learning from reported usage how good an estimate is.

/// What an estimate is made from: the sizes of a request that providers' counts follow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Tokens by the scheme: its encoding, times its factor, and what is no text.
    pub(super) scheme: f64,
    /// A quarter of the text's bytes: what a tokenizer with a vocabulary unlike the scheme's comes
    /// to.
    pub(super) quarter: f64,
    /// The part of `scheme` that the provider adds to the request as a whole: for some a sentence, for others
    /// instructions about tools.
    pub(super) added: f64,
}

impl Sample {
    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            scheme: self.scheme - other.scheme,
            quarter: self.quarter - other.quarter,
            added: self.added - other.added,
        }
    }
}

/// How a model's tokens follow from the sizes of a request, learned from reports, and how sure
/// that is. Pure.
///
/// The weights are fitted by least squares over the reports, newer ones counting more, and are
/// drawn to the scheme's own estimate: so much that a few reports on texts of one kind, which can
/// not distinguish the sizes, change the estimate of other texts little.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Sums of products of the sizes, of each two.
    products: [[f64; SIZES]; SIZES],
    /// Sums of the sizes times what the scheme's own estimate missed.
    missed: [f64; SIZES],
    weights: [f64; SIZES],
    /// The relative error that the last reports show, or the scheme's own before there are any.
    error: f64,
    seen: u32,
}

/// The sizes of a [`Sample`].
const SIZES: usize = 3;

/// A report this many times off the scheme's estimate is about something else than the request
/// that was counted.
const FARTHEST: f64 = 4.0;

/// What is left of a report's weight after another one: a change of tokenizer behind a model's name
/// is followed within some dozens.
const FADING: f64 = 0.97;

/// What is left of an error after a report that shows a smaller one.
const DECAY: f64 = 0.8;

/// The pull of the scheme's own estimate, as a share of what was learned.
const PULL: f64 = 0.002;

/// The least error assumed: reports differ by that much for equal text (role marks, date lines).
const LEAST_ERROR: f64 = 0.005;

/// Smaller estimates are not learned from: what a provider adds to each message outweighs them.
const LEAST_TAUGHT: f64 = 64.0;

impl Calibration {
    /// Nothing learned yet; the estimate is off by `error` at most, as a share of it.
    pub(super) fn new(error: f64) -> Self {
        Self {
            products: [[0.0; SIZES]; SIZES],
            missed: [0.0; SIZES],
            weights: [1.0, 0.0, 0.0],
            error: error.clamp(LEAST_ERROR, 1.0),
            seen: 0,
        }
    }

    /// A provider counted `actual` tokens for a text of these sizes.
    pub(super) fn observe(&mut self, sample: Sample, actual: u64) {
        let Sample { scheme, quarter, added } = sample;
        let actual = actual as f64;
        let is_sound = [scheme, quarter, added].iter().all(|size| size.is_finite())
            && quarter >= 0.0
            && added >= 0.0;
        if !is_sound
            || scheme < LEAST_TAUGHT
            || !(FARTHEST.recip()..=FARTHEST).contains(&(actual / scheme))
        {
            return;
        }
        let miss = (actual / self.predict(sample) - 1.0).abs();
        // What the first report corrects is no error any more: only what is off afterwards is.
        let shown = if self.seen == 0 { 0.0 } else { miss };
        self.error = shown.max(self.error * DECAY).clamp(LEAST_ERROR, 1.0);
        self.seen = self.seen.saturating_add(1);

        // Each report counts alike, however long its text.
        let sizes = [1.0, quarter / scheme, added / scheme];
        let miss = (actual - scheme) / scheme;
        let add = |sum: &mut f64, value: f64| *sum = *sum * FADING + value;
        for (row, size) in sizes.iter().enumerate() {
            for (column, other) in sizes.iter().enumerate() {
                add(&mut self.products[row][column], size * other);
            }
            add(&mut self.missed[row], size * miss);
        }
        let mut matrix = self.products;
        let pull = PULL * (0..SIZES).map(|at| matrix[at][at]).sum::<f64>();
        (0..SIZES).for_each(|at| matrix[at][at] += pull);
        self.weights = solved(matrix, self.missed);
        self.weights[0] += 1.0;
    }

    /// The tokens to expect for a text of these sizes: never four times more or less than by the
    /// scheme.
    pub(super) fn predict(&self, sample: Sample) -> f64 {
        let [scheme, quarter, added] = self.weights;
        let likely = sample.scheme * scheme + sample.quarter * quarter + sample.added * added;
        let bounds = sample.scheme.max(0.0);
        likely.clamp(bounds / FARTHEST, bounds * FARTHEST)
    }

    /// The error to be expected, as a share of what is estimated.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// How many reports it rests on.
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// The tokens to expect for a text of these sizes, rounded up.
    pub(super) fn tokens(&self, sample: Sample) -> u64 {
        to_tokens(self.predict(sample))
    }
}

/// The `x` of `matrix * x = sums`, by elimination. The matrix is positive definite, so no pivot is zero.
fn solved(mut matrix: [[f64; SIZES]; SIZES], mut sums: [f64; SIZES]) -> [f64; SIZES] {
    for at in 0..SIZES {
        let (pivot, sum) = (matrix[at], sums[at]);
        for below in at + 1..SIZES {
            let factor = matrix[below][at] / pivot[at];
            for (value, above) in matrix[below].iter_mut().zip(pivot) {
                *value -= factor * above;
            }
            sums[below] -= factor * sum;
        }
    }
    for at in (0..SIZES).rev() {
        let known: f64 = (at + 1..SIZES).map(|column| matrix[at][column] * sums[column]).sum();
        sums[at] = (sums[at] - known) / matrix[at][at];
    }
    sums
}

/// Rounds up; a float too large or not a number becomes the nearest number there is.
pub(super) fn to_tokens(tokens: f64) -> u64 {
    tokens.ceil() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(scheme: f64) -> Sample {
        Sample { scheme, quarter: scheme, added: 0.0 }
    }

    #[test]
    fn learns_from_one_report_and_becomes_more_certain() {
        let mut learned = Calibration::new(0.15);
        learned.observe(sample(1_000.0), 1_250);
        assert!(learned.tokens(sample(2_000.0)).abs_diff(2_500) <= 2, "{learned:?}");
        for _ in 0..30 {
            learned.observe(sample(1_000.0), 1_250);
        }
        assert!(learned.error() <= LEAST_ERROR, "{learned:?}");
    }

    #[test]
    fn sizes_are_distinguished_once_texts_differ() {
        let mut learned = Calibration::new(0.15);
        // A provider that counts bytes, for prose and for digits.
        let prose = Sample { scheme: 1_000.0, quarter: 1_300.0, added: 0.0 };
        let digits = Sample { scheme: 1_000.0, quarter: 500.0, added: 0.0 };
        for _ in 0..2 {
            learned.observe(prose, 1_300);
            learned.observe(digits, 500);
        }
        let code = Sample { scheme: 2_000.0, quarter: 1_800.0, added: 0.0 };
        assert!((learned.predict(code) / 1_800.0 - 1.0).abs() < 0.01, "{learned:?}");
    }

    #[test]
    fn what_a_provider_adds_is_learned_apart_from_the_text() {
        let mut learned = Calibration::new(0.05);
        // It adds nothing, and counts the text as it is.
        let of = |text: f64| Sample { scheme: text + 346.0, quarter: text, added: 346.0 };
        for text in [200.0, 700.0, 100.0, 300.0, 2_000.0, 150.0, 500.0, 120.0] {
            learned.observe(of(text), text as u64);
        }
        for text in [150.0, 400.0, 2_000.0, 9_000.0] {
            let off = learned.predict(of(text)) / text - 1.0;
            assert!(off.abs() < 0.03, "{text}: {off} {learned:?}");
        }
    }

    #[test]
    fn reports_on_one_kind_of_text_change_others_by_the_same_factor() {
        let mut learned = Calibration::new(0.15);
        for _ in 0..20 {
            learned.observe(Sample { scheme: 1_000.0, quarter: 1_000.0, added: 0.0 }, 1_100);
        }
        let other = Sample { scheme: 1_000.0, quarter: 600.0, added: 0.0 };
        let tokens = learned.predict(other);
        assert!((1_050.0..=1_110.0).contains(&tokens), "{tokens}");
    }

    #[test]
    fn an_error_shows_at_once_and_fades() {
        let mut learned = Calibration::new(0.01);
        learned.observe(sample(1_000.0), 1_000);
        learned.observe(sample(1_000.0), 1_100);
        assert!(learned.error() > 0.099);
        let before = learned.error();
        learned.observe(sample(1_000.0), learned.tokens(sample(1_000.0)));
        assert!(learned.error() < before);
    }

    #[test]
    fn nonsense_teaches_nothing() {
        let mut learned = Calibration::new(0.1);
        for (scheme, actual) in
            [(0.0, 10), (1_000.0, 0), (1_000.0, u64::MAX), (f64::NAN, 5), (3.0, 6), (-5.0, 9)]
        {
            learned.observe(sample(scheme), actual);
        }
        learned.observe(Sample { scheme: 100.0, quarter: f64::INFINITY, added: 0.0 }, 100);
        assert_eq!(learned, Calibration::new(0.1));
    }

    proptest! {
        #[test]
        fn stays_finite_and_within_bounds(
            reports in prop::collection::vec((64.0..1e7_f64, 0.0..1e7_f64, 0.0..1e5_f64, any::<u64>()), 0..60),
            scheme in 0.0..1e9_f64,
            quarter in 0.0..1e9_f64,
            added in 0.0..1e5_f64,
        ) {
            let mut learned = Calibration::new(0.1);
            for (scheme, quarter, added, actual) in reports {
                learned.observe(Sample { scheme, quarter, added }, actual % (scheme as u64 * 5));
            }
            let tokens = learned.predict(Sample { scheme, quarter, added });
            prop_assert!(tokens >= scheme / FARTHEST && tokens <= scheme * FARTHEST);
            prop_assert!((LEAST_ERROR..=1.0).contains(&learned.error()));
        }
    }
}
