//! `steadfast demo`: three providers that misbehave, the gateway in front of them, and a load.

mod load;
mod scenario;
mod scripts;
mod table;

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::Instant};

use self::{
    load::{Answered, Load},
    scenario::Scenario,
};
use super::{DemoArgs, Exit, print};
use crate::server::{App, serve};

/// How often the live view is drawn anew.
const REFRESH: Duration = Duration::from_millis(500);

pub(super) fn run(args: &DemoArgs) -> Result<(), Exit> {
    super::runtime().block_on(async { if args.once { once(args).await } else { live(args).await } })
}

/// The gateway on a port of its own, in front of a scenario's providers.
struct Running {
    app: App,
    scenario: Scenario,
    load: Load,
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<io::Result<usize>>,
}

impl Running {
    async fn start(scenario: Scenario, seed: u64) -> Result<Self, Exit> {
        let app = scenario.app()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (router, limits) = (app.router(), app.connection_limits());
        let server = tokio::spawn(async move {
            let stop = async {
                let _ = stopped.await;
            };
            serve(listener, router, limits, stop, Duration::from_secs(5)).await
        });
        let load = Load::new(address, seed).map_err(Exit::failed)?;
        Ok(Self { app, scenario, load, address, stop, server })
    }

    async fn stop(self) {
        self.app.drain();
        let _ = self.stop.send(());
        let _ = self.server.await;
        self.scenario.stop().await;
    }
}

/// The fixed scenario: so many requests, a table, and a verdict.
async fn once(args: &DemoArgs) -> Result<(), Exit> {
    let running = Running::start(Scenario::fixed(args.seed).await?, args.seed).await?;
    if !args.json {
        let line = |(name, url)| format!("  {name:<10} {url}\n");
        let addresses: String = running.scenario.addresses().map(line).collect();
        print::result(format_args!(
            "steadfast demo: the gateway on http://{}, in front of\n{addresses}{} requests in four \
             dialects, every second one streamed, some with tools or an image ...\n",
            running.address, args.requests
        ))?;
    }
    let began = Instant::now();
    let answered = running.load.run(args.requests).await;
    let took = began.elapsed();
    let mut report = table::Report::of(&running.app, &running.scenario, &answered, took);
    report.scripts = scripts::run(&running).await;
    let good = report.is_good();
    if args.json {
        print::result(serde_json::to_string_pretty(&report).map_err(Exit::failed)?)?;
    } else {
        print::result(report.to_string().trim_end())?;
    }
    running.stop().await;
    if good { Ok(()) } else { Err(Exit::failed("not everything ended as it should")) }
}

/// Faults by chance and a steady load, until somebody stops it.
async fn live(args: &DemoArgs) -> Result<(), Exit> {
    let running = Running::start(Scenario::live(args.seed).await?, args.seed).await?;
    let at = running.address;
    print::result(format_args!(
        "steadfast demo: the gateway is on http://{at}\n  \
           to watch it              http://{at}/dashboard\n  \
           how everybody is         steadfast status --watch --url http://{at}\n  \
           what became of requests  steadfast why --url http://{at}\n  \
           metrics                  http://{at}/metrics\n  \
           ask it something         curl -s http://{at}/v1/chat/completions -H 'content-type: application/json' \\\n                             \
           -d '{{\"model\":\"gpt-4o\",\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'\n\
         Ctrl-C stops\n"
    ))?;
    let mut view = View::default();
    let mut stop = std::pin::pin!(super::stop_signal());
    let mut tick = tokio::time::interval(REFRESH);
    let load = running.load.endless();
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = tick.tick() => view.draw(&running.app, &load.so_far())?,
        }
    }
    load.stop();
    print::result("")?;
    running.stop().await;
    Ok(())
}

/// The state of the providers and the load: drawn over itself in a terminal, a line every few
/// seconds elsewhere.
#[derive(Default)]
struct View {
    drawn: usize,
    ticks: u32,
}

impl View {
    fn draw(&mut self, app: &App, so_far: &Answered) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let totals = format!(
            "{} asked, {} answered, {} failed",
            so_far.asked,
            so_far.answered,
            so_far.failures.len()
        );
        if !out.is_terminal() {
            self.ticks += 1;
            if self.ticks % 4 == 1 {
                writeln!(out, "{totals}")?;
            }
            return out.flush();
        }
        let lines = table::live(app, &totals);
        if self.drawn > 0 {
            write!(out, "\x1b[{}A", self.drawn)?;
        }
        for line in &lines {
            writeln!(out, "\x1b[2K{line}")?;
        }
        self.drawn = lines.len();
        out.flush()
    }
}
