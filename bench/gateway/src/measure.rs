//! The run: starts the processes and measures them in turn.

use std::time::Duration;

use crate::{
    Error, Options, instructions,
    load::{self, Callers, Until},
    memory, peers,
    process::{Cpu, pin_self},
    report::{Report, median},
    variant::{self, RunFiles, Variant},
    wire,
};

/// The callers of whole answers. The last ones pause between two calls, some 3,500 calls a second
/// together: the variant has a core to itself and idle time, so that the latency it adds has no
/// queueing in it.
pub(crate) const CALLERS: [Callers; 4] = [
    Callers::without_pause(1),
    Callers::without_pause(16),
    Callers::without_pause(64),
    Callers { connections: 16, pause: Duration::from_millis(4) },
];

/// Streams at once while events are measured.
const STREAMS: usize = 64;

/// The paces of streams: a name, the time between bursts in milliseconds, and how many events a
/// burst has.
const PACES: [(&str, u32, u32); 3] =
    [("each event alone", 20, 1), ("bursts of 8", 20, 8), ("as fast as it takes them", 0, 1)];

/// Runs the selected parts and prints the report.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    // The load and the upstream share one CPU, the variant has the other to itself.
    let cpus = std::thread::available_parallelism()?.get();
    let pinned = cpus >= 2 && pin_self(0);
    let (ours, theirs) = if pinned { (Cpu::Only(0), Cpu::Only(1)) } else { (Cpu::Any, Cpu::Any) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let files = RunFiles::new()?;
        let upstream = variant::upstream(&files, ours)?;
        let at = upstream.address;
        let mut report = Report::new(pinned, options.quick);
        let mut variants = vec![
            upstream,
            variant::proxy(&files, at, variant::on(theirs))?,
            variant::gateway(&files, options, at, variant::on(theirs))?,
        ];
        let (installed, notes) = peers::start(options, &files, at, theirs).await;
        variants.extend(installed);
        report.notes.extend(notes);
        if options.wants("memory") {
            // First: a process that was used before holds memory that it reuses.
            for variant in &variants[1..3] {
                eprintln!("memory: {}", variant.name);
                report.memory.push(memory::measure(variant, options.quick).await?);
            }
        }
        if options.wants("whole") {
            report.whole = whole(options, &variants).await?;
        }
        if options.wants("streams") {
            report.streams = streams(options, &variants).await?;
        }
        drop(variants);
        if options.wants("instructions") {
            report.instructions = instructions::measure(options, &files, ours).await?;
        }
        Ok::<_, Error>(report)
    })?;
    print!("{report}");
    Ok(())
}

/// One load, by hand: the address, how many requests or which stream, over how many connections.
pub(crate) fn load_only(args: &[String]) -> Result<(), Error> {
    let [address, what, connections] = args else {
        return Err("load needs ADDR, REQUESTS or a stream, and CONNECTIONS".into());
    };
    let variant = Variant::new("by hand", address.parse()?, None, String::new());
    let connections = connections.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if let Some(stream) = wire::Stream::parse(what) {
            let request = variant.stream(stream);
            let (at, first) = (variant.address, variant.first());
            load::streams(at, &first, &request, connections, stream.all(), || ()).await?;
        } else {
            let until = Until::Count(what.parse()?);
            let callers = Callers::without_pause(connections);
            load::whole(variant.address, &variant.whole(), callers, until, || ()).await?;
        }
        Ok(())
    })
}

/// The figures of whole answers through one variant over so many connections.
pub(crate) struct Whole {
    pub(crate) name: &'static str,
    pub(crate) callers: Callers,
    /// CPU a request.
    pub(crate) cpu: Duration,
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// The latency it added to a direct request of the upstream, in microseconds.
    pub(crate) added_p50: f64,
    pub(crate) added_p99: f64,
}

/// Every variant in turn, round by round, so that a temporary load on the machine affects all.
async fn whole(options: &Options, variants: &[Variant]) -> Result<Vec<Whole>, Error> {
    let (rounds, time) = if options.quick { (3, 250) } else { (9, 1_000) };
    let time = Duration::from_millis(time);
    let mut seen = Vec::new();
    for callers in CALLERS {
        let mut cells: Vec<Vec<Cell>> = variants.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            eprintln!("whole answers: {}, round {}", callers, round + 1);
            for (variant, cells) in variants.iter().zip(&mut cells) {
                cells.push(variant.awake(Cell::measure(variant, callers, time)).await?);
            }
        }
        let direct = &cells[0];
        for (variant, cells) in variants.iter().zip(&cells) {
            let of = |what: fn(&Cell) -> f64| median(cells.iter().map(what));
            let added = |what: fn(&Cell) -> f64| {
                median(cells.iter().zip(direct).map(|(cell, direct)| what(cell) - what(direct)))
            };
            seen.push(Whole {
                name: variant.name,
                callers,
                cpu: Duration::from_secs_f64(of(|cell| cell.cpu.as_secs_f64())),
                rate: of(|cell| cell.rate),
                p50: Duration::from_secs_f64(of(|cell| cell.p50.as_secs_f64())),
                p99: Duration::from_secs_f64(of(|cell| cell.p99.as_secs_f64())),
                added_p50: added(|cell| cell.p50.as_secs_f64()) * 1e6,
                added_p99: added(|cell| cell.p99.as_secs_f64()) * 1e6,
            });
        }
    }
    Ok(seen)
}

struct Cell {
    cpu: Duration,
    rate: f64,
    p50: Duration,
    p99: Duration,
}

impl Cell {
    async fn measure(variant: &Variant, callers: Callers, time: Duration) -> Result<Self, Error> {
        let cpu = || variant.process.as_ref().map(|process| process.cpu()).transpose();
        let request = variant.whole();
        let (answers, before) =
            load::whole(variant.address, &request, callers, Until::Time(time), cpu)
                .await
                .map_err(|error| format!("{}: {error}", variant.name))?;
        let used = cpu()?.unwrap_or_default() - before?.unwrap_or_default();
        let count = answers.count().max(1) as u32;
        Ok(Self {
            cpu: used / count,
            rate: f64::from(count) / time.as_secs_f64(),
            p50: answers.quantile(0.50),
            p99: answers.quantile(0.99),
        })
    }
}

/// The figures of streams through one variant at one pace.
pub(crate) struct Streams {
    pub(crate) pace: &'static str,
    pub(crate) name: &'static str,
    /// CPU an event.
    pub(crate) cpu: Duration,
    /// Events per HTTP chunk that reached the caller.
    pub(crate) events_a_chunk: f64,
    /// Events per read of the caller's socket.
    pub(crate) events_a_read: f64,
}

async fn streams(options: &Options, variants: &[Variant]) -> Result<Vec<Streams>, Error> {
    let rounds = if options.quick { 3 } else { 7 };
    let mut seen = Vec::new();
    for (pace, gap, burst) in PACES {
        let time = if options.quick { 1_000 } else { 3_000 };
        let events = match gap {
            0 if options.quick => 1_000,
            0 => 4_000,
            gap => time / gap * burst,
        };
        let gap = Duration::from_millis(gap.into());
        let stream = wire::Stream { events, gap, burst };
        let mut cells: Vec<Vec<(f64, f64, f64)>> = variants.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            eprintln!("streams: {pace}, round {}", round + 1);
            for (variant, cells) in variants.iter().zip(&mut cells) {
                if peers::is_slow(variant.name) && round > 0 {
                    continue;
                }
                let cpu = || variant.process.as_ref().map(|process| process.cpu()).transpose();
                let (first, request) = (variant.first(), variant.stream(stream));
                // Peers are slow, and need this much too.
                let streams = if peers::is_slow(variant.name) { 4 } else { STREAMS };
                let (at, all) = (variant.address, stream.all());
                let sent = load::streams(at, &first, &request, streams, all, cpu);
                let (got, before) = match variant.awake(sent).await {
                    Ok(sent) => sent,
                    Err(error) if peers::is_slow(variant.name) => {
                        eprintln!("{}: {error}", variant.name);
                        continue;
                    }
                    Err(error) => return Err(format!("{}: {error}", variant.name).into()),
                };
                let used = cpu()?.unwrap_or_default() - before?.unwrap_or_default();
                let events = got.events as f64;
                cells.push((
                    used.as_secs_f64() / events,
                    events / got.chunks.max(1) as f64,
                    events / got.reads.max(1) as f64,
                ));
            }
        }
        for (variant, cells) in variants.iter().zip(&cells).filter(|(_, cells)| !cells.is_empty()) {
            seen.push(Streams {
                pace,
                name: variant.name,
                cpu: Duration::from_secs_f64(median(cells.iter().map(|cell| cell.0))),
                events_a_chunk: median(cells.iter().map(|cell| cell.1)),
                events_a_read: median(cells.iter().map(|cell| cell.2)),
            });
        }
    }
    Ok(seen)
}
