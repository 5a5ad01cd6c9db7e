//! `fleet`: what several gateways have of a state that they share, and what it costs them.
//!
//! Starts a Redis (or a Valkey, by its name), four gateways that share what they know by it, and others that are alone, all
//! on loopback, and prints a row for each figure with the bar that it is held to.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::LocalSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    Error, instructions,
    load::{self, Callers, Until},
    process::Process,
    upstream::{LIMITED, LIMITED_A_MINUTE, REFUSED, STATISTICS},
    variant::{self, RunFiles, State, Variant},
    wire,
};

/// Gateways that share.
const NODES: usize = 4;

/// Callers of all of them while the store is frozen, and while a limit is used.
const CALLERS: usize = 64;

/// Some 3,500 calls a second together: the machine has idle time, so that what a call takes has no queueing in it.
const STEADY: Callers = Callers { connections: 16, pause: Duration::from_millis(4) };

/// The longest that anything may take which is waited for here.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the program was asked for.
struct Settings {
    quick: bool,
    gateway: PathBuf,
    store: PathBuf,
}

impl Settings {
    fn read(args: &[String]) -> Result<Self, Error> {
        let mut settings =
            Self { quick: false, gateway: PathBuf::new(), store: "redis-server".into() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => settings.quick = true,
                "--gateway" => settings.gateway = value()?.into(),
                "--store" => settings.store = value()?.into(),
                other => {
                    let known = "--quick, --gateway PATH and --store PROGRAM";
                    return Err(format!("`{other}` is not known; there are {known}").into());
                }
            }
        }
        Ok(settings)
    }

    /// The longer time, or the shorter one where it is to be quick.
    fn seconds(&self, whole: u64, quick: u64) -> Duration {
        Duration::from_secs(if self.quick { quick } else { whole })
    }
}

/// One figure, and what it is held to.
struct Figure {
    name: &'static str,
    bar: &'static str,
    found: String,
    holds: bool,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, bar, found, holds } = self;
        let verdict = if *holds { "holds" } else { "**missed**" };
        writeln!(f, "| {name} | {bar} | {found} | {verdict} |")
    }
}

/// The processes of a run.
struct World<'a> {
    settings: &'a Settings,
    files: &'a RunFiles,
    store: Process,
    state: State,
    shared: Vec<Variant>,
    upstream: Variant,
}

pub(crate) fn run(args: &[String]) -> Result<(), Error> {
    let settings = Settings::read(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let missed = runtime.block_on(async {
        let files = RunFiles::new()?;
        let world = World::start(&settings, &files).await?;
        println!("| figure | bar | found | |\n|---|---|---|---|");
        let mut missed = 0;
        let mut found = |figures: Vec<Figure>| {
            missed += figures.iter().filter(|figure| !figure.holds).count();
            figures.iter().for_each(|figure| print!("{figure}"));
        };
        found(world.obeyed().await?);
        found(world.commands().await?);
        found(world.added().await?);
        found(world.instructions().await?);
        found(world.limit().await?);
        found(world.frozen().await?);
        Ok::<_, Error>(missed)
    })?;
    // Of a short run on a busy machine the figures are no measurement.
    if missed > 0 && !settings.quick {
        return Err(format!("{missed} figures miss their bar").into());
    }
    Ok(())
}

impl<'a> World<'a> {
    async fn start(settings: &'a Settings, files: &'a RunFiles) -> Result<Self, Error> {
        let at = free()?;
        let mut command = Command::new(&settings.store);
        command.args(["--port", &at.port().to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        let log = files.file("store.log");
        let store = Process::listening(command, at, &log, PATIENCE).await?;
        let upstream = variant::upstream(files, crate::process::Cpu::Any)?;
        let state = State { url: format!("redis://{at}") };
        let mut world = Self { settings, files, store, state, shared: Vec::new(), upstream };
        for node in 0..NODES {
            let node = world.gateway(&format!("node-{node}"), &world.state, direct)?;
            world.shared.push(node);
        }
        world.together().await?;
        Ok(world)
    }

    /// A gateway of its own, run as `wrap` says.
    fn gateway(
        &self,
        name: &str,
        state: &State,
        wrap: impl FnOnce(&Path) -> Command,
    ) -> Result<Variant, Error> {
        let file = |kind: &str| self.files.file(&format!("{name}.{kind}"));
        let kept = (file("toml"), file("log"));
        variant::node(&self.settings.gateway, kept, self.upstream.address, state, wrap)
    }

    /// Waits until each gateway knows of all, and the store is there.
    async fn together(&self) -> Result<Duration, Error> {
        let began = Instant::now();
        for node in &self.shared {
            until(async || {
                let fleet = get(node.address, "/admin/fleet").await?;
                Ok(fleet.contains("\"away\":false") && count(&fleet, "\"address\"") == NODES)
            })
            .await
            .map_err(|error| format!("the gateways do not find each other: {error}"))?;
        }
        Ok(began.elapsed())
    }

    /// How long it takes until a target that is refused at one node rests at the others.
    async fn obeyed(&self) -> Result<Vec<Figure>, Error> {
        let rounds = if self.settings.quick { 20 } else { 200 };
        let mut took = Vec::new();
        for round in 0..rounds {
            eprintln!("a rest is obeyed: round {}", round + 1);
            let first = &self.shared[round % NODES];
            let body = wire::request(REFUSED, false);
            let refused = ask(first.address, "POST", "/v1/chat/completions", &body).await?;
            let seen = Instant::now();
            if refused.0 == 200 {
                return Err("a call that is refused was answered".into());
            }
            let others = self.shared.iter().filter(|node| node.address != first.address);
            let tasks = LocalSet::new();
            let waiting: Vec<_> = others
                .map(|node| {
                    let at = node.address;
                    tasks.spawn_local(async move {
                        until(async || rests(at).await).await?;
                        Ok::<_, Error>(Instant::now())
                    })
                })
                .collect();
            tasks.await;
            for waiting in waiting {
                took.push((waiting.await?? - seen).as_secs_f64() * 1e3);
            }
            ask(first.address, "POST", "/admin/targets/reset?target=upstream", "").await?;
            for node in &self.shared {
                until(async || Ok(!rests(node.address).await?)).await?;
            }
        }
        took.sort_unstable_by(f64::total_cmp);
        let quantile = |share: f64| took[((took.len() - 1) as f64 * share).round() as usize];
        Ok(vec![Figure {
            name: "a rest seen at one node is obeyed at three others",
            bar: "p99 < 50 ms",
            found: format!("p50 {:.1} ms, p99 {:.1} ms", quantile(0.5), quantile(0.99)),
            holds: quantile(0.99) < 50.0,
        }])
    }

    /// Commands of the store under a steady load.
    async fn commands(&self) -> Result<Vec<Figure>, Error> {
        eprintln!("commands of the store");
        let before = self.sum_of_commands().await?;
        let calls = self.load(STEADY, self.settings.seconds(10, 3)).await?.len();
        let commands = self.sum_of_commands().await? - before;
        let a_thousand = commands as f64 * 1e3 / calls.max(1) as f64;
        Ok(vec![Figure {
            name: "store commands per 1,000 calls, steady",
            bar: "< 20",
            found: format!("{a_thousand:.2} ({commands} for {calls} calls)"),
            holds: a_thousand < 20.0,
        }])
    }

    async fn sum_of_commands(&self) -> Result<u64, Error> {
        let mut sum = 0;
        for node in &self.shared {
            let fleet = get(node.address, "/admin/fleet").await?;
            sum += number(&fleet, "\"commands\":").ok_or("there is no count of commands")?;
        }
        Ok(sum)
    }

    /// What a call takes at a gateway that shares, beside one that does not: in pairs that are new each time, as two processes of
    /// one kind differ by more than what is looked for.
    async fn added(&self) -> Result<Vec<Figure>, Error> {
        let pairs = if self.settings.quick { 3 } else { 40 };
        let mut ratios = [Vec::new(), Vec::new()];
        for pair in 0..pairs {
            eprintln!("added to a call: pair {}", pair + 1);
            let alone = self.gateway("alone", &State::default(), direct)?;
            let shares = self.gateway("shares", &self.state, direct)?;
            let nodes = [&alone, &shares];
            let load = async |node: &Variant| {
                let time = Until::Time(Duration::from_millis(500));
                load::whole(node.address, &node.whole(), STEADY, time, || ()).await
            };
            for node in nodes {
                load(node).await?;
            }
            let mut took = [Vec::new(), Vec::new()];
            // Each is first as often as the other.
            for at in [0, 1, 1, 0, 0, 1, 1, 0] {
                let at = (at + pair) % 2;
                took[at].extend(load(nodes[at]).await?.0.took);
            }
            took.iter_mut().for_each(|took| took.sort_unstable());
            for (ratios, share) in ratios.iter_mut().zip([0.5, 0.99]) {
                let [alone, shares] = [&took[0], &took[1]].map(|took| quantile(took, share));
                ratios.push((shares / alone - 1.0) * 100.0);
            }
            for process in [alone, shares].into_iter().filter_map(|node| node.process) {
                process.stop()?;
            }
        }
        let names = ["added to a call, shared against alone: p50", "the same: p99"];
        Ok(names
            .into_iter()
            .zip(ratios)
            .map(|(name, ratios)| {
                let count = ratios.len() as f64;
                let mean = ratios.iter().sum::<f64>() / count;
                let square = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>();
                let error = (square / (count - 1.0) / count).sqrt();
                Figure {
                    name,
                    bar: "within 2 %",
                    found: format!("{mean:+.1} % ± {error:.1} (standard error of {count} pairs)"),
                    holds: mean < 2.0,
                }
            })
            .collect())
    }

    /// The same in instructions, in which a busy machine makes no difference.
    async fn instructions(&self) -> Result<Vec<Figure>, Error> {
        if !instructions::can_be_counted() {
            return Ok(Vec::new());
        }
        let mut each = [0.0; 2];
        for (each, state) in each.iter_mut().zip([&State::default(), &self.state]) {
            let mut totals = [0.0; 2];
            for (total, calls) in totals.iter_mut().zip([200, 1_200]) {
                eprintln!("instructions of {calls} calls");
                let out = self.files.file("callgrind.out");
                let node = self
                    .gateway("counted", state, |program| instructions::counting(&out, program))?;
                let callers = Callers::without_pause(4);
                let calls = Until::Count(calls);
                load::whole(node.address, &node.whole(), callers, calls, || ()).await?;
                if let Some(process) = node.process {
                    process.stop()?;
                }
                *total = instructions::total(&out)?;
            }
            *each = (totals[1] - totals[0]) / 1_000.0;
        }
        let [alone, shares] = each;
        let added = (shares / alone - 1.0) * 100.0;
        Ok(vec![Figure {
            name: "the same: instructions",
            bar: "within 2 %",
            found: format!("{added:+.1} % ({shares:.0} for {alone:.0})"),
            holds: added < 2.0,
        }])
    }

    /// A provider that limits requests strictly and says so, asked by more than it takes.
    async fn limit(&self) -> Result<Vec<Figure>, Error> {
        eprintln!("a limit is kept to");
        let time = self.settings.seconds(120, 30);
        let body = wire::request(LIMITED, false);
        let before = self.statistics().await?;
        let tasks = LocalSet::new();
        let end = Instant::now() + time;
        for caller in 0..CALLERS {
            let (at, body) = (self.shared[caller % NODES].address, body.clone());
            tasks.spawn_local(async move {
                while Instant::now() < end {
                    // Refusals of ours say how long; nobody waits beyond the end.
                    let asked = ask(at, "POST", "/v1/chat/completions", &body);
                    if !matches!(asked.await, Ok((200, _))) {
                        sleep(Duration::from_millis(500)).await;
                    }
                }
            });
        }
        let left = end + Duration::from_secs(90) - Instant::now();
        timeout(left, tasks).await.map_err(|_| "callers of a limit never end")?;
        let (taken, refused) = self.statistics().await?;
        let (taken, refused) = (taken - before.0, refused - before.1);
        // All at once, and then at the rate.
        let most = LIMITED_A_MINUTE as f64 * (1.0 + time.as_secs_f64() / 60.0);
        let used = taken as f64 / most * 100.0;
        let share = refused as f64 * 100.0 / (taken + refused).max(1) as f64;
        Ok(vec![
            Figure {
                name: "quota of a strict provider, 4 nodes, 64 callers: used",
                bar: ">= 95 %",
                found: format!("{used:.1} %"),
                holds: used >= 95.0,
            },
            Figure {
                name: "the same: refused by the provider",
                bar: "< 0.5 %",
                found: format!("{share:.2} % ({refused} of {})", taken + refused),
                holds: share < 0.5,
            },
        ])
    }

    /// Requests that the strict provider has taken, and refused.
    async fn statistics(&self) -> Result<(u64, u64), Error> {
        let text = get(self.upstream.address, STATISTICS).await?;
        let all = number(&text, "\"taken\":").zip(number(&text, "\"refused\":"));
        all.ok_or_else(|| format!("the provider has no statistics: {text}").into())
    }

    /// The store stands still under load.
    async fn frozen(&self) -> Result<Vec<Figure>, Error> {
        let time = self.settings.seconds(30, 8);
        let callers = Callers { connections: CALLERS / NODES, ..STEADY };
        eprintln!("before the store is frozen");
        let before = self.load(callers, time).await?;
        self.store.freeze()?;
        eprintln!("the store is frozen");
        let frozen = self.load(callers, time).await;
        self.store.wake()?;
        // A call that is lost ends the load.
        let frozen = frozen.map_err(|error| format!("a call was lost: {error}"))?;
        let back = self.together().await?;
        let [p99, p99_frozen] = [&before, &frozen].map(|took| quantile(took, 0.99));
        let [longest, longest_frozen] = [&before, &frozen].map(|took| quantile(took, 1.0));
        Ok(vec![
            Figure {
                name: "store frozen under load: calls",
                bar: "no slower, none lost",
                found: format!(
                    "p99 {p99_frozen:.2} ms for {p99:.2} ms before, longest {longest_frozen:.0} for {longest:.0} ms; \
                     none of {} lost",
                    frozen.len()
                ),
                // Twenty percent and a millisecond are what a shared machine does by itself.
                holds: p99_frozen < p99 * 1.2 + 1.0 && longest_frozen < longest * 2.0 + 100.0,
            },
            Figure {
                name: "the store is back: all caught up",
                bar: "< 2 s",
                found: format!("{:.2} s", back.as_secs_f64()),
                holds: back < Duration::from_secs(2),
            },
        ])
    }

    /// What calls of all gateways took at once, in nanoseconds, sorted.
    async fn load(&self, callers: Callers, time: Duration) -> Result<Vec<u64>, Error> {
        let tasks = LocalSet::new();
        let running: Vec<_> = self
            .shared
            .iter()
            .map(|node| {
                let (at, request): (SocketAddr, Rc<[u8]>) = (node.address, node.whole());
                tasks.spawn_local(async move {
                    load::whole(at, &request, callers, Until::Time(time), || ()).await
                })
            })
            .collect();
        tasks.await;
        let mut took = Vec::new();
        for running in running {
            took.extend(running.await??.0.took);
        }
        took.sort_unstable();
        Ok(took)
    }
}

/// A quantile of what calls took, in milliseconds.
fn quantile(sorted: &[u64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize] as f64 / 1e6
}

/// A program as it is.
fn direct(program: &Path) -> Command {
    Command::new(program)
}

/// Whether the target rests at this gateway.
async fn rests(at: SocketAddr) -> Result<bool, Error> {
    Ok(get(at, "/admin/status").await?.contains("\"available\":false"))
}

/// Asks again and again until it is so.
async fn until(mut is_so: impl AsyncFnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    let mut last = String::new();
    while Instant::now() < end {
        match is_so().await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => last = error.to_string(),
        }
        tokio::task::yield_now().await;
    }
    Err(format!("not within {PATIENCE:?} {last}").into())
}

async fn get(at: SocketAddr, path: &str) -> Result<String, Error> {
    let (status, body) = ask(at, "GET", path, "").await?;
    match status {
        200 => Ok(body),
        _ => Err(format!("{path} answers {status}: {body}").into()),
    }
}

/// One request on a connection of its own: the status, and the body.
async fn ask(at: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String), Error> {
    let key = variant::KEY;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("an answer has no end of its head")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or("an answer has no status")?, body.to_owned()))
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// The number after `name`.
fn number(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(name)?;
    let digits = rest.trim_start().split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// An address that nobody listens on.
fn free() -> Result<SocketAddr, Error> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
