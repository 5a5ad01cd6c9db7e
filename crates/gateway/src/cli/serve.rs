//! `steadfast serve`: the gateway.

use std::process::ExitCode;

use tokio::net::TcpListener;

use super::{FAILED, ServeArgs, USAGE, fail};
use crate::{
    config::{Config, ConfigErrors, Source},
    server::{App, serve},
    stack::Gateway,
};

pub(crate) fn run(args: &ServeArgs) -> ExitCode {
    let _logs = crate::logs::start();
    let (config, source) = match load(args) {
        Ok(loaded) => loaded,
        Err(errors) => return fail(USAGE, errors),
    };
    super::runtime().block_on(async {
        let app = match Gateway::connect(&config, &source)
            .and_then(|gateway| App::new(&config, &source, gateway))
        {
            Ok(app) => app,
            Err(errors) => return fail(USAGE, errors),
        };
        let listen = config.server.listen;
        let listener = match TcpListener::bind(listen).await {
            Ok(listener) => listener,
            Err(error) => return fail(FAILED, format_args!("can not listen on {listen}: {error}")),
        };
        let at = listener.local_addr().unwrap_or(listen);
        println!("steadfast serves on http://{at}");
        println!("  OpenAI SDKs     base URL http://{at}/v1");
        println!("  Anthropic SDKs  base URL http://{at}");
        println!("  Gemini SDKs     base URL http://{at}");
        println!("  chain           {}", app.gateway().chain().join(" -> "));
        let draining = app.clone();
        let stop = async move {
            super::stop_signal().await;
            draining.drain();
            eprintln!("steadfast: stopping; answers in progress may finish");
        };
        let grace = config.server.shutdown;
        match serve(listener, app.router(), stop, grace).await {
            Ok(0) => ExitCode::SUCCESS,
            Ok(cut) => fail(
                FAILED,
                format_args!("{cut} connections were still busy after {grace:?} and were cut"),
            ),
            Err(error) => fail(FAILED, error),
        }
    })
}

fn load(args: &ServeArgs) -> Result<(Config, Source), ConfigErrors> {
    let (mut config, source) = Config::load(args.config.as_deref())?;
    if let Some(listen) = args.listen {
        config.server.listen = listen;
    }
    config.validate(&source)?;
    Ok((config, source))
}
