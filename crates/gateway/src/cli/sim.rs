//! `steadfast sim`: the simulated providers as a server.

use std::{net::SocketAddr, path::Path, process::ExitCode};

use steadfast_sim::{Dialect, FaultPlan, Journal, SimProvider, SimServer};

use super::{FAILED, SimArgs, USAGE, fail};

/// Requests remembered a provider: enough to see what just happened.
const JOURNAL: usize = 1_000;

pub(crate) fn run(args: &SimArgs) -> ExitCode {
    let plan = match args.plan.as_deref().map(read_plan).transpose() {
        Ok(plan) => plan.unwrap_or_default(),
        Err(message) => return fail(USAGE, message),
    };
    super::runtime().block_on(async {
        let mut servers = Vec::new();
        for (offset, dialect) in
            [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini].into_iter().enumerate()
        {
            let provider = SimProvider::builder(dialect)
                .seed(args.seed)
                .faults(plan.clone())
                .journal(&Journal::keeping(JOURNAL))
                .build();
            match SimServer::bind(next_port(args.listen, offset), provider).await {
                Ok(server) => servers.push(server),
                Err(error) => {
                    return fail(
                        FAILED,
                        format_args!(
                            "can not listen on {}: {error}",
                            next_port(args.listen, offset)
                        ),
                    );
                }
            }
        }
        for server in &servers {
            println!("{:<10} {}", server.provider().dialect().to_string(), server.base_url());
        }
        if let Some(addr) = args.control {
            let providers = servers.iter().map(|server| server.provider().clone());
            match super::control::start(addr, providers).await {
                Ok(addr) => println!("{:<10} http://{addr}", "control"),
                Err(error) => {
                    return fail(FAILED, format_args!("can not listen on {addr}: {error}"));
                }
            }
        }
        println!("any key is accepted; Ctrl-C stops");
        super::stop_signal().await;
        for server in servers {
            server.shutdown().await;
        }
        ExitCode::SUCCESS
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

fn read_plan(path: &Path) -> Result<FaultPlan, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} can not be read: {error}", path.display()))?;
    let json = path.extension().is_some_and(|extension| extension == "json");
    let plan = if json { FaultPlan::from_json(&text) } else { FaultPlan::from_toml(&text) };
    plan.map_err(|error| format!("{}: {error}", path.display()))
}
