//! The report, as Markdown.

use std::fmt;

use crate::{
    instructions::Instructions,
    measure::{Streams, Whole},
    memory::Memory,
};

const PROXY: &str = "minimal proxy";

/// All figures.
pub(crate) struct Report {
    pinned: bool,
    quick: bool,
    pub(crate) whole: Vec<Whole>,
    pub(crate) streams: Vec<Streams>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) instructions: Vec<Instructions>,
    pub(crate) notes: Vec<String>,
}

impl Report {
    pub(crate) fn new(pinned: bool, quick: bool) -> Self {
        Self {
            pinned,
            quick,
            whole: Vec::new(),
            streams: Vec::new(),
            memory: Vec::new(),
            instructions: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// The median; zero of none.
pub(crate) fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = of.collect();
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// `mine` as a multiple of the minimal proxy's.
fn times(mine: f64, proxy: Option<f64>) -> String {
    proxy
        .filter(|proxy| *proxy > 0.0)
        .map_or_else(String::new, |proxy| format!("{:.2} x", mine / proxy))
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "One provider, one tenant with a key, every layer, logs and metrics by default, beside a \
             minimal reverse proxy on hyper (a pooled client, bodies passed through unread). HTTP/1.1 \
             over loopback; requests and answers of about 1 KB, events of about 200 bytes; CPU is user \
             and system time of the process, all its threads."
        )?;
        if self.pinned {
            writeln!(
                f,
                "The load and the upstream run on CPU 0, the variant under test on CPU 1, alone. \
                 Variants take turns, round by round; numbers are medians of the rounds."
            )?;
        }
        if self.quick {
            writeln!(f, "\nA quick run: short rounds, no peers.")?;
        }
        self.whole(f)?;
        self.streams(f)?;
        self.memory(f)?;
        self.instructions(f)?;
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

impl Report {
    fn whole(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.whole.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n### Whole answers\n")?;
        writeln!(
            f,
            "| connections | through | CPU a request, us | of the proxy | requests/s | p50, us | p99, us | p50 added | p99 added |"
        )?;
        writeln!(f, "|--:|---|--:|--:|--:|--:|--:|--:|--:|")?;
        for one in &self.whole {
            let proxy = self
                .whole
                .iter()
                .find(|other| other.name == PROXY && other.callers == one.callers)
                .map(|proxy| micros(proxy.cpu));
            let direct = one.name == "direct";
            let (cpu, compared) = if direct {
                (String::new(), String::new())
            } else {
                (format!("{:.1}", micros(one.cpu)), times(micros(one.cpu), proxy))
            };
            let added = |added: f64| if direct { String::new() } else { format!("{added:.0}") };
            writeln!(
                f,
                "| {} | {} | {cpu} | {compared} | {:.0} | {:.0} | {:.0} | {} | {} |",
                one.callers,
                one.name,
                one.rate,
                micros(one.p50),
                micros(one.p99),
                added(one.added_p50),
                added(one.added_p99),
            )?;
        }
        Ok(())
    }

    fn streams(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.streams.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n### Streams\n")?;
        writeln!(
            f,
            "Events that arrive together are sent in one write; nothing waits for more to arrive.\n"
        )?;
        writeln!(
            f,
            "| pace | through | CPU an event, us | of the proxy | events an HTTP chunk | events a read of the caller |"
        )?;
        writeln!(f, "|---|---|--:|--:|--:|--:|")?;
        for one in &self.streams {
            let proxy = self
                .streams
                .iter()
                .find(|other| other.name == PROXY && other.pace == one.pace)
                .map(|proxy| micros(proxy.cpu));
            let (cpu, compared) = if one.name == "direct" {
                (String::new(), String::new())
            } else {
                (format!("{:.2}", micros(one.cpu)), times(micros(one.cpu), proxy))
            };
            writeln!(
                f,
                "| {} | {} | {cpu} | {compared} | {:.1} | {:.1} |",
                one.pace, one.name, one.events_a_chunk, one.events_a_read,
            )?;
        }
        Ok(())
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.memory.is_empty() {
            return Ok(());
        }
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        writeln!(f, "\n### Memory\n")?;
        writeln!(
            f,
            "Resident memory of the process. Streams start a hundred at a time and stay open; the \
             requests are made after the streams have been dropped.\n"
        )?;
        writeln!(
            f,
            "| through | idle, MiB | streams open | with them, MiB | KB a stream | after requests | MiB | after requests | MiB |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|--:|--:|")?;
        for one in &self.memory {
            writeln!(
                f,
                "| {} | {:.1} | {} | {:.1} | {:.1} | {} | {:.1} | {} | {:.1} |",
                one.name,
                mib(one.idle),
                one.streams,
                mib(one.open),
                one.a_stream() as f64 / 1_000.0,
                one.requests.0,
                mib(one.after.0),
                one.requests.1,
                mib(one.after.1),
            )?;
        }
        Ok(())
    }

    fn instructions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.instructions.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n### Instructions in user space\n")?;
        writeln!(f, "By callgrind; without the kernel's instructions.\n")?;
        writeln!(
            f,
            "| through | a request | of the proxy | an event alone | of the proxy | an event in a burst of 8 | of the proxy |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|--:|")?;
        let proxy = self.instructions.iter().find(|one| one.name == PROXY);
        for one in &self.instructions {
            writeln!(
                f,
                "| {} | {:.0} | {} | {:.0} | {} | {:.0} | {} |",
                one.name,
                one.request,
                times(one.request, proxy.map(|proxy| proxy.request)),
                one.event,
                times(one.event, proxy.map(|proxy| proxy.event)),
                one.burst,
                times(one.burst, proxy.map(|proxy| proxy.burst)),
            )?;
        }
        Ok(())
    }
}
