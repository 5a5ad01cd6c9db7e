//! `steadfast serve`: the gateway.

use std::net::SocketAddr;

use tokio::{net::TcpListener, sync::oneshot};

use super::{Exit, ServeArgs, print};
use crate::{
    config::Config,
    fleet,
    server::{App, StateFile, serve},
    stack::Gateway,
};

pub(super) fn run(args: &ServeArgs) -> Result<(), Exit> {
    let (mut config, source) = Config::load(args.config.as_deref())?;
    if let Some(listen) = args.listen {
        config.server.listen = listen;
    }
    config.validate(&source)?;
    let _logs = crate::logs::start(config.log);
    super::runtime().block_on(async {
        let app = App::new(&config, &source, Gateway::connect(&config, &source)?)?;
        app.traces().start(&config, &source)?;
        app.traces().set_servers(&app.gateway());
        let listen = config.server.listen;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| Exit::failed(format_args!("can not listen on {listen}: {error}")))?;
        let at = listener.local_addr().unwrap_or(listen);
        if let Some(state) = fleet::connect(&config, &source)? {
            app.share(state, at.to_string());
        }
        // Before anybody learns that it runs: until then the signal ends it.
        reload_on_hangup(app.clone());
        // And before anything is accepted.
        let state = config.server.state_file.as_deref().map(|path| StateFile::open(path, &app));
        let (stop_saving, stopped) = oneshot::channel();
        let saving = state.map(|file| tokio::spawn(file.keep(app.clone(), stopped)));
        print::announce(banner(at, &app));
        let (draining, stopping) = (app.clone(), app.clone());
        let stop = async move {
            super::stop_signal().await;
            draining.drain();
        };
        let grace = config.server.shutdown;
        let cut = serve(listener, app.router(), app.connection_limits(), stop, grace).await;
        drop(stop_saving);
        if let Some(saving) = saving {
            // It ends with what is known now; that it panicked is logged.
            let _ = saving.await;
        }
        stopping.traces().stop().await;
        match cut? {
            0 => Ok(()),
            cut => Err(Exit::failed(format_args!(
                "{cut} connections were still busy after {grace:?} and were cut"
            ))),
        }
    })
}

/// Where it serves, and what.
fn banner(at: SocketAddr, app: &App) -> String {
    let gateway = app.gateway();
    let mut text = format!(
        "steadfast serves on http://{at}\n\
         \x20 OpenAI SDKs     base URL http://{at}/v1\n\
         \x20 Anthropic SDKs  base URL http://{at}\n\
         \x20 Gemini SDKs     base URL http://{at}\n\
         \x20 Dashboard       http://{at}/dashboard"
    );
    if !app.has_admin_key() {
        text.push_str(
            "\n  /admin/*        for programs of this machine, without a key: `server.admin_key` is not set",
        );
    }
    for route in gateway.routes() {
        let name = if gateway.routes().len() == 1 { "chain" } else { route.name() };
        let chain: Vec<_> = route.chain().iter().map(ToString::to_string).collect();
        text.push_str(&format!("\n  {name:<14}  {}", chain.join(" -> ")));
    }
    if let Some(shared) = app.fleet().destination() {
        text.push_str(&format!("\n  Shared state    {shared}"));
    }
    for sent in app.traces().destinations() {
        text.push_str(&format!("\n  OpenTelemetry   {sent}"));
    }
    text
}

/// Reads the configuration again on SIGHUP, until it ends.
fn reload_on_hangup(app: App) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                let app = app.clone();
                // The result is logged.
                let _ = tokio::task::spawn_blocking(move || app.reload()).await;
            }
        });
    }
    #[cfg(not(unix))]
    drop(app);
}
