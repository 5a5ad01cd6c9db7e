//! `steadfast sim`: the simulated providers as a server.

use std::{fmt::Display, net::SocketAddr, path::Path};

use steadfast_sim::{Dialect, FaultPlan, Journal, SimProvider, SimServer, Task};

use super::{Exit, SimArgs, print};

/// Requests remembered a provider: enough to see what just happened.
const JOURNAL: usize = 1_000;

pub(super) fn run(args: &SimArgs) -> Result<(), Exit> {
    let plan =
        args.plan.as_deref().map(|path| read(path, FaultPlan::from_toml, FaultPlan::from_json));
    let plan = plan.transpose().map_err(Exit::usage)?.unwrap_or_default();
    let task = args.task.as_deref().map(|path| read(path, Task::from_toml, Task::from_json));
    let task = task.transpose().map_err(Exit::usage)?;
    let can_not_listen =
        |at: SocketAddr| move |error| Exit::failed(format_args!("can not listen on {at}: {error}"));
    super::runtime().block_on(async {
        let mut servers = Vec::new();
        for (offset, dialect) in Dialect::ALL.into_iter().enumerate() {
            let provider = SimProvider::builder(dialect)
                .with_seed(args.seed)
                .with_faults(plan.clone())
                .with_journal(&Journal::keeping(JOURNAL))
                .build();
            provider.set_task(task.clone());
            let at = next_port(args.listen, offset);
            servers.push(SimServer::bind(at, provider).await.map_err(can_not_listen(at))?);
        }
        for server in &servers {
            let dialect = server.provider().dialect().to_string();
            print::announce(format_args!("{dialect:<10} {}", server.base_url()));
        }
        if let Some(at) = args.control {
            let providers = servers.iter().map(|server| server.provider().clone());
            let at = super::control::start(at, providers).await.map_err(can_not_listen(at))?;
            print::announce(format_args!("{:<10} http://{at}", "control"));
        }
        print::announce("any key is accepted; Ctrl-C stops");
        super::stop_signal().await;
        for server in servers {
            server.shutdown().await;
        }
        Ok(())
    })
}

/// The dialects listen on ports next to each other; port 0 lets the system choose each.
fn next_port(listen: SocketAddr, offset: usize) -> SocketAddr {
    let mut addr = listen;
    if addr.port() != 0 {
        addr.set_port(addr.port().saturating_add(u16::try_from(offset).unwrap_or(0)));
    }
    addr
}

/// What a file has, by the end of its name TOML or JSON.
fn read<T, E: Display>(
    path: &Path,
    toml: fn(&str) -> Result<T, E>,
    json: fn(&str) -> Result<T, E>,
) -> Result<T, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} can not be read: {error}", path.display()))?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let value = if is_json { json(&text) } else { toml(&text) };
    value.map_err(|error| format!("{}: {error}", path.display()))
}
