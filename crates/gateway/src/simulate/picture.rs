//! A simulation as a picture: SVG that needs nothing else, light or dark as its reader likes.

use std::fmt::Write as _;

use super::{
    Figures, Simulation,
    figures::{INTERVALS, Interval},
    report::{self, number},
};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
const BAND: f64 = 34.0;
const PANEL: f64 = 120.0;
const GAP: f64 = 44.0;

/// Colours by what they stand for; of text and of what is good or bad there is a light and a dark one.
const STYLE: &str = "\
.s{font:12px system-ui,sans-serif;background:#fff}\
.s text{fill:#1f2328}.s .m{fill:#59636e}.s .h{font-weight:600;font-size:13px}.s .t{font-weight:600;font-size:15px}\
.s .g{stroke:#d1d9e0;stroke-width:1}.s .well{fill:#cdebd6}.s .ill{fill:#e5534b}.s .rest{fill:#8b6cc7}.s .asked{fill:#2f6fde}\
.s .bg{fill:#f3f5f7}.s .paper{fill:#fff}\
.s .l0{stroke:#2f6fde}.s .l1{stroke:#bf8700}.s .l2{stroke:#8c959f}.s .l{fill:none;stroke-width:1.6}\
.s .f0{fill:#2f6fde}.s .f1{fill:#bf8700}.s .f2{fill:#8c959f}\
@media (prefers-color-scheme:dark){.s{background:#0d1117}.s text{fill:#e6edf3}.s .m{fill:#9198a1}.s .g{stroke:#30363d}\
.s .well{fill:#1c4a2c}.s .ill{fill:#f0605a}.s .rest{fill:#a98be0}.s .asked{fill:#6ea0ff}.s .bg{fill:#161b22}.s .paper{fill:#0d1117}\
.s .l0{stroke:#6ea0ff}.s .l1{stroke:#d9a622}.s .f0{fill:#6ea0ff}.s .f1{fill:#d9a622}}";

/// Takes what a caller has chosen for text.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in crate::escape::text(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// What happened, over time.
pub(crate) fn svg(of: &Simulation, all: &[Figures]) -> String {
    let mut picture =
        Picture { hours: of.options().length.as_secs_f64() / 3_600.0, ..Picture::default() };
    let (title, numbers) = report::title(of);
    picture.y = 28.0;
    for line in wrapped(&title, 110) {
        picture.text(16.0, "t", "start", &line);
        picture.y += 20.0;
    }
    picture.text(16.0, "m", "start", &numbers);
    picture.y += 34.0;
    picture.bands(all);
    let panels: [(&str, Unit, Of); 4] = [
        ("answered, % of calls", Unit::Percent, |one| share(one.answered, one.asked)),
        ("until the first content, s, 95 % within", Unit::Most, |one| {
            time(one.first.quantile(0.95))
        }),
        ("of that added by waits and attempts before, s, 95 % within", Unit::Most, |one| {
            time(one.added.quantile(0.95))
        }),
        ("cost, $ an interval", Unit::Most, |one| Some(one.micro_dollars as f64 / 1e6)),
    ];
    for (name, unit, of) in panels {
        picture.panel(name, unit, all, of);
    }
    picture.axis();
    picture.finish(&format!("{title}. {numbers}"))
}

/// A figure of an interval.
type Of = fn(&Interval) -> Option<f64>;

#[derive(Clone, Copy)]
enum Unit {
    /// Up to a hundred.
    Percent,
    /// Up to the most that there is.
    Most,
}

fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| 100.0 * part as f64 / all as f64)
}

fn time(ms: Option<u32>) -> Option<f64> {
    ms.map(|ms| f64::from(ms) / 1e3)
}

#[derive(Default)]
struct Picture {
    body: String,
    y: f64,
    hours: f64,
}

impl Picture {
    fn text(&mut self, x: f64, class: &str, anchor: &str, text: &str) {
        let (y, text) = (self.y, escaped(text));
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" class="{class}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    fn x(at: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * at / INTERVALS as f64
    }

    /// Rectangles of one kind, those next to each other as one; `of` is how strong, from 0 to 1.
    fn strip(&mut self, class: &str, y: f64, height: f64, of: impl Fn(usize) -> f64) {
        let level = |at: usize| (of(at).clamp(0.0, 1.0) * 10.0).round() / 10.0;
        let mut from = 0;
        for at in 1..=INTERVALS {
            if at < INTERVALS && level(at) == level(from) {
                continue;
            }
            if level(from) > 0.0 {
                let (x, end) = (Self::x(from as f64), Self::x(at as f64));
                let _ = writeln!(
                    self.body,
                    r#"<rect x="{x:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}" class="{class}" opacity="{:.1}"/>"#,
                    end - x,
                    level(from)
                );
            }
            from = at;
        }
    }

    /// A band a target: how it is, whether the stack lets it rest, and its share of the answers.
    fn bands(&mut self, all: &[Figures]) {
        let Some(ours) = all.first() else { return };
        self.text(16.0, "h", "start", "targets");
        let legend = [
            ("well", "well"),
            ("ill", "ill"),
            ("rest", "resting"),
            ("asked", "its share of the answers"),
        ];
        let mut x = LEFT;
        for (class, name) in legend {
            let y = self.y - 9.0;
            let _ = writeln!(
                self.body,
                r#"<rect x="{x:.1}" y="{y:.1}" width="10" height="10" class="{class}"/>"#
            );
            self.text(x + 15.0, "m", "start", name);
            x += 40.0 + 7.0 * name.len() as f64;
        }
        self.y += 12.0;
        for (position, (name, _)) in ours.targets.iter().enumerate() {
            let y = self.y;
            let part = |count: u32, of: u32| f64::from(count) / f64::from(of.max(1));
            let one = |at: usize| &ours.intervals[at];
            self.strip("well", y, 9.0, |at| 1.0 - part(one(at).ill[position], one(at).samples));
            self.strip("ill", y, 9.0, |at| part(one(at).ill[position], one(at).samples));
            self.strip("bg", y + 10.0, 5.0, |_| 1.0);
            self.strip("rest", y + 10.0, 5.0, |at| {
                part(one(at).resting[position], one(at).samples)
            });
            self.strip("bg", y + 16.0, 9.0, |_| 1.0);
            self.strip("asked", y + 16.0, 9.0, |at| {
                one(at).by[position] as f64 / one(at).answered.max(1) as f64
            });
            self.y += 16.0;
            self.text(LEFT - 10.0, "", "end", name);
            self.y += BAND - 16.0;
        }
        self.y += GAP - 10.0;
    }

    fn panel(&mut self, name: &str, unit: Unit, all: &[Figures], of: Of) {
        self.text(16.0, "h", "start", name);
        let mut x = WIDTH - RIGHT - 320.0;
        for (at, one) in all.iter().enumerate() {
            let y = self.y - 9.0;
            let _ = writeln!(
                self.body,
                r#"<rect x="{x:.1}" y="{y:.1}" width="10" height="10" class="f{at}"/>"#
            );
            self.text(x + 15.0, "m", "start", &one.name);
            x += 110.0;
        }
        self.y += 12.0;
        let (top, bottom) = (self.y, self.y + PANEL);
        let values = all.iter().flat_map(|one| one.intervals.iter().filter_map(of));
        let most = match unit {
            Unit::Percent => 100.0,
            Unit::Most => round_up(values.fold(0.0, f64::max)),
        };
        for part in 0..=2 {
            let value = most * f64::from(part) / 2.0;
            let y = bottom - PANEL * f64::from(part) / 2.0;
            let _ = writeln!(
                self.body,
                r#"<line x1="{LEFT}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}" class="g"/>"#,
                WIDTH - RIGHT
            );
            self.y = y + 4.0;
            self.text(LEFT - 10.0, "m", "end", &number(value));
        }
        // Ours last, above the others.
        for (at, one) in all.iter().enumerate().rev() {
            let mut path = String::new();
            let mut pen = 'M';
            for (at, interval) in one.intervals.iter().enumerate() {
                let Some(value) = of(interval) else {
                    pen = 'M';
                    continue;
                };
                let (x, y) = (Self::x(at as f64 + 0.5), bottom - PANEL * (value / most).min(1.0));
                let _ = write!(path, "{pen}{x:.1} {y:.1}");
                pen = 'L';
            }
            let _ = writeln!(self.body, r#"<path d="{path}" class="l l{at}"/>"#);
        }
        self.y = top + PANEL + GAP;
    }

    fn axis(&mut self) {
        self.y -= GAP - 18.0;
        let parts = 8;
        for part in 0..=parts {
            let at = f64::from(part) / f64::from(parts);
            let anchor = if part == parts { "end" } else { "middle" };
            let hours = number(self.hours * at);
            self.text(Self::x(at * INTERVALS as f64), "m", anchor, &format!("{hours} h"));
        }
        self.y += 16.0;
    }

    fn finish(self, description: &str) -> String {
        let (height, description) = (self.y, escaped(description));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"s\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
             aria-label=\"{description}\">\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// A number that is easy to read, and not below `value`.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let size = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    size * steps.into_iter().find(|step| value <= size * step * 1.000_001).unwrap_or(10.0)
}

/// Lines of words, none longer than `most` characters unless a word is.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_round_and_never_below() {
        for (value, bound) in
            [(0.0, 1.0), (1.0, 1.0), (1.2, 1.5), (97.0, 100.0), (0.031, 0.04), (7.0, 8.0)]
        {
            assert!((round_up(value) - bound).abs() < 1e-9, "{value}: {}", round_up(value));
        }
        assert_eq!([number(0.5), number(12.0), number(0.1234)], ["0.5", "12", "0.123"]);
    }

    #[test]
    fn a_long_text_has_lines() {
        assert_eq!(wrapped("one two three four", 9), ["one two", "three", "four"]);
        assert!(wrapped("", 9).is_empty());
    }

    #[test]
    fn names_are_text() {
        assert_eq!(escaped("<a & \"b\">\u{1b}"), "&lt;a &amp; &quot;b&quot;&gt;\\u{1b}");
    }
}
