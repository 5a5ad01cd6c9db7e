//! Instructions in user space by valgrind: the same on a busy machine and on a quiet one.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::{
    Error, Options,
    load::{self, Callers, Until},
    process::Cpu,
    variant::{self, RunFiles, Variant},
    wire,
};

/// Instructions of one variant.
pub(crate) struct Instructions {
    pub(crate) name: &'static str,
    /// For a request with a whole answer.
    pub(crate) request: f64,
    /// For an event of a stream that arrived alone.
    pub(crate) event: f64,
    /// For an event that arrived with seven others.
    pub(crate) burst: f64,
}

/// Runs the minimal proxy and the gateway under callgrind, if it is installed.
pub(crate) async fn measure(
    options: &Options,
    files: &RunFiles,
    ours: Cpu,
) -> Result<Vec<Instructions>, Error> {
    if !can_be_counted() {
        return Ok(Vec::new());
    }
    let upstream = variant::upstream(files, ours)?;
    let at = upstream.address;
    let mut all = Vec::new();
    for through in [Through::Proxy, Through::Gateway, Through::Responses] {
        let start = |out: &str| {
            let out = files.file(out);
            let wrap = move |program: &Path| counting(&out, program);
            match through {
                Through::Proxy => variant::proxy(files, at, wrap),
                Through::Gateway => variant::gateway(files, options, at, wrap),
                Through::Responses => variant::gateway(files, options, at, wrap)
                    .map(|variant| variant.by_responses("steadfast, responses")),
            }
        };
        let mut name = "";
        let mut totals = Vec::new();
        // All of them include the start and the first request of every connection.
        for load in [
            Load::Requests(200),
            Load::Requests(1_200),
            Load::Events(10),
            Load::Events(60),
            Load::Bursts(10),
            Load::Bursts(60),
        ] {
            eprintln!("instructions: {load:?}, {through:?}");
            let variant = start("callgrind.out")?;
            name = variant.name;
            load.run(&variant).await?;
            if let Some(process) = variant.process {
                process.stop()?;
            }
            totals.push(total(&files.file("callgrind.out"))?);
        }
        let each = |at: usize, more: f64| (totals[at + 1] - totals[at]) / more;
        all.push(Instructions {
            name,
            request: each(0, 1_000.0),
            event: each(2, 50.0 * STREAMS as f64),
            burst: each(4, 8.0 * 50.0 * STREAMS as f64),
        });
    }
    Ok(all)
}

const STREAMS: usize = 16;

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum Through {
    Proxy,
    Gateway,
    /// The gateway, by OpenAI's Responses API.
    Responses,
}

#[derive(Clone, Copy, Debug)]
enum Load {
    Requests(u64),
    Events(u32),
    Bursts(u32),
}

impl Load {
    async fn run(self, variant: &Variant) -> Result<(), Error> {
        let gap = Duration::from_millis(20);
        let stream = match self {
            Load::Requests(count) => {
                let request = variant.whole();
                let callers = Callers::without_pause(4);
                load::whole(variant.address, &request, callers, Until::Count(count), || ()).await?;
                return Ok(());
            }
            Load::Events(count) => wire::Stream { events: count, gap, burst: 1 },
            Load::Bursts(count) => wire::Stream { events: 8 * count, gap, burst: 8 },
        };
        let request = variant.stream(stream);
        let first = variant.first();
        load::streams(variant.address, &first, &request, STREAMS, variant.events(&stream), || ())
            .await?;
        Ok(())
    }
}

/// Whether valgrind is there; says so where it is not.
pub(crate) fn can_be_counted() -> bool {
    let is_there = Command::new("valgrind").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("instructions: valgrind is not installed");
    }
    is_there
}

/// `program` under callgrind, which writes to `out` when it ends.
pub(crate) fn counting(out: &Path, program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program);
    command
}

/// The sum in a file of callgrind.
pub(crate) fn total(file: &Path) -> Result<f64, Error> {
    let text = fs::read_to_string(file)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("summary:").or_else(|| line.strip_prefix("totals:")));
    line.and_then(|line| line.trim().parse().ok()).ok_or_else(|| "callgrind wrote no sum".into())
}
