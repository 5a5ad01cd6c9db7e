//! The page of metrics as Prometheus' own messages, which alone have native histograms.
//!
//! They are made of the text, so that nothing is in one of them that is not in the other.

use std::{borrow::Cow, str::FromStr};

use http::{HeaderMap, header};
use prost::Message;

use super::native::{NativeTimes, SCHEMA, ZERO};

/// What the messages are.
pub(crate) const CONTENT_TYPE: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// What all names begin with.
const PREFIX: &str = "steadfast_";

/// A histogram of the page that has native buckets as well.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    pub(super) family: &'static str,
    pub(super) dialect: &'static str,
    pub(super) times: NativeTimes,
}

/// Whether whoever asks prefers these messages to text.
pub(crate) fn is_preferred(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter();
    let ranges = ranges.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let (mut messages, mut text) = (0.0, 0.0);
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let (mut weight, mut is_ours) = (1.0, kind == "application/vnd.google.protobuf");
        for part in parts {
            match part.split_once('=') {
                Some(("q", given)) => weight = given.parse().unwrap_or(0.0),
                Some(("proto", proto)) => is_ours &= proto == "io.prometheus.client.MetricFamily",
                Some(("encoding", encoding)) => is_ours &= encoding == "delimited",
                _ => {}
            }
        }
        let best = if is_ours { &mut messages } else { &mut text };
        *best = f64::max(*best, weight);
    }
    messages > 0.0 && messages >= text
}

/// The messages of `page`, which is in OpenMetrics' text format, one behind the other.
pub(crate) fn encode(page: &str, natives: &[Native]) -> Vec<u8> {
    let mut families = families(page);
    for native in natives {
        let dialect = LabelPair { name: "dialect".to_owned(), value: native.dialect.to_owned() };
        let is_own = |family: &&mut MetricFamily| {
            family.name.strip_prefix(PREFIX).is_some_and(|name| name == native.family)
        };
        let of_family = families.iter_mut().find(is_own);
        let metrics = of_family.into_iter().flat_map(|family| &mut family.metric);
        for metric in metrics.filter(|metric| metric.label.contains(&dialect)) {
            metric.histogram.get_or_insert_default().add(&native.times);
        }
    }
    families.iter().fold(Vec::new(), |mut bytes, family| {
        bytes.extend(family.encode_length_delimited_to_vec());
        bytes
    })
}

fn families(page: &str) -> Vec<MetricFamily> {
    let mut all: Vec<MetricFamily> = Vec::new();
    let (mut help, mut own, mut kind) = (String::new(), "", "");
    for line in page.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("HELP"), Some(_), text) => help = unescaped(text.unwrap_or_default()).into(),
                (Some("TYPE"), Some(name), Some(of)) => {
                    (own, kind) = (name, of);
                    // Its names are those of its series; the text has the ends of names beside it.
                    let (r#type, end) = match kind {
                        "counter" => (MetricType::Counter, "_total"),
                        "histogram" => (MetricType::Histogram, ""),
                        "info" => (MetricType::Gauge, "_info"),
                        "gauge" => (MetricType::Gauge, ""),
                        _ => (MetricType::Untyped, ""),
                    };
                    all.push(MetricFamily {
                        name: format!("{name}{end}"),
                        help: std::mem::take(&mut help),
                        r#type: r#type.into(),
                        metric: Vec::new(),
                    });
                }
                _ => {}
            }
            continue;
        }
        let (Some(family), Some(sample)) = (all.last_mut(), Sample::read(line)) else { continue };
        let Some(end) = sample.name.strip_prefix(own) else { continue };
        match kind {
            "histogram" => family.add_to_histogram(end, sample),
            _ => family.metric.push(Metric::of(family.r#type(), sample)),
        }
    }
    all
}

/// A line of the page.
#[derive(Debug)]
struct Sample<'p> {
    name: &'p str,
    labels: Vec<LabelPair>,
    value: f64,
    exemplar: Option<Exemplar>,
}

impl<'p> Sample<'p> {
    fn read(line: &'p str) -> Option<Self> {
        let (name, rest) = line.split_at(line.find(['{', ' '])?);
        let (labels, rest) = labels(rest)?;
        let (value, exemplar) = match rest.split_once(" # ") {
            Some((value, exemplar)) => (value, exemplar_of(exemplar)),
            None => (rest, None),
        };
        Some(Self { name, labels, value: first(value)?, exemplar })
    }
}

fn exemplar_of(text: &str) -> Option<Exemplar> {
    let (label, rest) = labels(text)?;
    Some(Exemplar { label, value: first(rest)? })
}

/// The labels that `text` begins with, and what is behind them.
fn labels(text: &str) -> Option<(Vec<LabelPair>, &str)> {
    let mut all = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else { return Some((all, text)) };
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((all, behind));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = quoted.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        let value = unescaped(&quoted[..end]).into_owned();
        all.push(LabelPair { name: name.to_owned(), value });
        rest = &quoted[end + 1..];
    }
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return text.into();
    }
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            (c, false) => out.push(c),
        }
    }
    out.into()
}

/// The first number in `text`.
fn first<T: FromStr>(text: &str) -> Option<T> {
    text.split_whitespace().next()?.parse().ok()
}

impl MetricFamily {
    /// A line of a histogram: those of the same labels follow each other.
    fn add_to_histogram(&mut self, end: &str, sample: Sample<'_>) {
        let Sample { mut labels, value, exemplar, .. } = sample;
        let bound = labels.iter().position(|label| label.name == "le").map(|at| labels.remove(at));
        if self.metric.last().is_none_or(|last| last.label != labels) {
            self.metric.push(Metric { label: labels, ..Metric::default() });
        }
        let Some(metric) = self.metric.last_mut() else { return };
        let histogram = metric.histogram.get_or_insert_default();
        match (end, bound) {
            ("_sum", _) => histogram.sample_sum = value,
            ("_count", _) => histogram.sample_count = value as u64,
            ("_bucket", Some(bound)) => {
                let upper_bound = bound.value.parse().unwrap_or(f64::INFINITY);
                let cumulative_count = value as u64;
                histogram.bucket.push(Bucket { cumulative_count, upper_bound, exemplar });
            }
            _ => {}
        }
    }
}

impl Metric {
    fn of(r#type: MetricType, sample: Sample<'_>) -> Self {
        let mut metric = Self { label: sample.labels, ..Self::default() };
        let value = Some(Value { value: sample.value });
        match r#type {
            MetricType::Counter => metric.counter = value,
            MetricType::Gauge => metric.gauge = value,
            _ => metric.untyped = value,
        }
        metric
    }
}

impl Histogram {
    fn add(&mut self, times: &NativeTimes) {
        let written = times.spans();
        // A call may have ended since the text was written, and what is in the buckets has to be the count.
        (self.sample_count, self.sample_sum) = (times.count(), times.sum);
        (self.schema, self.zero_threshold, self.zero_count) = (SCHEMA, ZERO, times.zero);
        let spans = written.spans.into_iter();
        self.positive_span = spans.map(|(offset, length)| BucketSpan { offset, length }).collect();
        self.positive_delta = written.deltas;
    }
}

// The parts of `metrics.proto` of prometheus/client_model that are sent.

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum MetricType {
    Counter = 0,
    Gauge = 1,
    Untyped = 3,
    Histogram = 4,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// A counter, a gauge, or what has no type.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(double, tag = "1")]
    value: f64,
}

#[derive(Clone, PartialEq, Message)]
struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(double, tag = "2")]
    value: f64,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, tag = "1")]
    cumulative_count: u64,
    #[prost(double, tag = "2")]
    upper_bound: f64,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, tag = "1")]
    sample_count: u64,
    #[prost(double, tag = "2")]
    sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    schema: i32,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "5")]
    untyped: Option<Value>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(enumeration = "MetricType", tag = "3")]
    r#type: i32,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PAGE: &str = "\
# HELP steadfast_requests Requests \\\\ and\\nmore.
# TYPE steadfast_requests counter
steadfast_requests_total{dialect=\"openai\",outcome=\"a\\\"b\\\\c,d}\\ne\"} 7
steadfast_requests_total 1
# HELP steadfast_time_seconds Time.
# TYPE steadfast_time_seconds histogram
steadfast_time_seconds_sum{dialect=\"openai\"} 0.75
steadfast_time_seconds_count{dialect=\"openai\"} 2
steadfast_time_seconds_bucket{le=\"0.5\",dialect=\"openai\"} 1 # {trace_id=\"abc\"} 0.25
steadfast_time_seconds_bucket{le=\"+Inf\",dialect=\"openai\"} 2
steadfast_time_seconds_count{dialect=\"gemini\"} 0
# TYPE steadfast_build info
steadfast_build_info{version=\"1\"} 1
# TYPE steadfast_in_flight gauge
steadfast_in_flight 3.5
nonsense
# EOF
";

    fn decoded(mut bytes: &[u8]) -> Vec<MetricFamily> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            all.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
        }
        all
    }

    fn label(name: &str, value: &str) -> LabelPair {
        LabelPair { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn the_messages_have_what_the_text_has_and_native_buckets() {
        let mut times = NativeTimes::default();
        times.add(Duration::from_millis(250));
        times.add(Duration::from_millis(500));
        let native = Native { family: "time_seconds", dialect: "openai", times };
        let all = decoded(&encode(PAGE, &[native]));
        let names: Vec<_> = all.iter().map(|family| (&*family.name, family.r#type())).collect();
        assert_eq!(
            names,
            [
                ("steadfast_requests_total", MetricType::Counter),
                ("steadfast_time_seconds", MetricType::Histogram),
                ("steadfast_build_info", MetricType::Gauge),
                ("steadfast_in_flight", MetricType::Gauge),
            ]
        );
        let requests = &all[0];
        assert_eq!(requests.help, "Requests \\ and\nmore.");
        assert_eq!(requests.metric[0].counter.as_ref().unwrap().value, 7.0);
        let expected = [label("dialect", "openai"), label("outcome", "a\"b\\c,d}\ne")];
        assert_eq!(requests.metric[0].label, expected);
        assert_eq!(requests.metric[1].label, []);
        assert_eq!(all[3].metric[0].gauge.as_ref().unwrap().value, 3.5);

        let [openai, gemini] = &all[1].metric[..] else { panic!("{:?}", all[1]) };
        let histogram = openai.histogram.as_ref().unwrap();
        assert_eq!((histogram.sample_count, histogram.sample_sum), (2, 0.75));
        let bounds: Vec<_> = histogram.bucket.iter().map(|bucket| bucket.upper_bound).collect();
        assert_eq!(bounds, [0.5, f64::INFINITY]);
        let exemplar = histogram.bucket[0].exemplar.as_ref().unwrap();
        assert_eq!((&exemplar.label[..], exemplar.value), (&[label("trace_id", "abc")][..], 0.25));
        let spans = [BucketSpan { offset: -16, length: 1 }, BucketSpan { offset: 7, length: 1 }];
        assert_eq!(histogram.positive_span, spans);
        assert_eq!((histogram.schema, &histogram.positive_delta[..]), (3, &[1, 0][..]));
        assert_eq!(gemini.histogram.as_ref().unwrap().positive_span, []);
    }

    #[test]
    fn text_is_sent_unless_messages_are_preferred() {
        let own = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let prometheus =
            format!("{own},application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1");
        for (accept, expected) in [
            ("", false),
            ("*/*", false),
            ("application/openmetrics-text", false),
            (&*prometheus, true),
            (own, true),
            (&format!("text/plain;q=0.5, {own};q=0.4"), false),
            (&format!("{own};q=0"), false),
            ("application/vnd.google.protobuf;proto=other;encoding=delimited", false),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
                false,
            ),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            assert_eq!(is_preferred(&headers), expected, "{accept}");
        }
    }

    #[test]
    fn a_broken_line_is_left_out() {
        for line in
            ["a{", "a{b", "a{b=\"", "a{b=\"\\", "a{b=\"c\"", "a{b=\"c\"} x", "a", "a ", "a{} "]
        {
            assert!(Sample::read(line).is_none(), "{line}");
        }
    }
}
