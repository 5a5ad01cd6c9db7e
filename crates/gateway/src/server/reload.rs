//! Reading the configuration again, while requests go on.

use std::{fmt, sync::Arc};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{App, Setup};
use crate::{
    admission::Limits,
    config::{Config, ConfigErrors, Source},
};

/// Keys that are read once, at the start.
type Fixed = (&'static str, fn(&Config) -> String);

const FIXED: [Fixed; 11] = [
    ("log.libraries", |config| config.log.libraries.to_string()),
    ("otel.endpoint", |config| format!("{:?}", config.otel.endpoint)),
    ("otel.protocol", |config| format!("{:?}", config.otel.protocol)),
    ("server.listen", |config| config.server.listen.to_string()),
    ("server.send_timeout_s", |config| config.server.send_timeout.as_secs_f64().to_string()),
    ("server.idle_timeout_s", |config| config.server.idle_timeout.as_secs_f64().to_string()),
    ("server.max_connection_age_s", |config| {
        config.server.max_connection_age.unwrap_or_default().as_secs_f64().to_string()
    }),
    ("server.max_connections", |config| config.server.max_connections.to_string()),
    ("server.shutdown_s", |config| config.server.shutdown.as_secs().to_string()),
    ("server.state_file", |config| format!("{:?}", config.server.state_file)),
    ("state", |config| format!("{:?}", config.state)),
];

/// What a reload has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Keys that were changed in the file and take a restart: what they were is still in force.
    pub need_restart: Vec<&'static str>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reloaded\n")?;
        for key in &self.need_restart {
            writeln!(f, "{key} takes a restart and is left as it was")?;
        }
        Ok(())
    }
}

/// How often, when last, and what was wrong.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    times: u64,
    failed: u64,
    last: Option<Instant>,
    /// Of the last one, if it failed.
    error: Option<String>,
}

impl Reloads {
    /// What was wrong with the last one.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    pub(super) fn json(&self) -> Value {
        let ago = self.last.map(|at| at.elapsed().as_secs());
        json!({
            "times": self.times,
            "failed": self.failed,
            "last_ago_s": ago,
            "last_error": self.error,
        })
    }
}

impl App {
    /// Reads the file of the configuration again, and the keys that it names, and goes by it from now on.
    /// Requests under way end undisturbed, by what was in force when they came; what is known of what stays
    /// is kept: cooldowns, breakers, the budget, tasks, conversations, connections. Blocks while files are
    /// read.
    ///
    /// # Errors
    ///
    /// What is wrong with it: then nothing has changed.
    pub fn reload(&self) -> Result<Reloaded, ConfigErrors> {
        // One at a time; nobody else waits for it.
        let mut reloads = self.0.reloads.lock();
        let result = self.read_again();
        reloads.last = Some(Instant::now());
        reloads.error = result.as_ref().err().map(ToString::to_string);
        self.metrics().reloaded(result.is_ok());
        match &result {
            Ok(done) => {
                reloads.times += 1;
                tracing::info!(
                    name: "steadfast::gateway::reloaded",
                    target: "steadfast::gateway",
                    need_restart = %done.need_restart.join(", "),
                    "the configuration has been read again"
                );
            }
            Err(errors) => {
                reloads.failed += 1;
                tracing::error!(
                    name: "steadfast::gateway::not_reloaded",
                    target: "steadfast::gateway",
                    %errors,
                    "the configuration is wrong and the one before stays in force"
                );
            }
        }
        result
    }

    fn read_again(&self) -> Result<Reloaded, ConfigErrors> {
        let before = self.setup();
        let Some(path) = before.source.path() else {
            let message = "there is no file to read again; start with --config FILE";
            return Err(before.source.error("", message).into());
        };
        let source = Source::file(path)?;
        let mut config = Config::read(&source)?;
        // As the file had it: what the command line overrides is no change of the file.
        let old = before.source.parse().unwrap_or_else(|_| before.config.clone());
        let changed = FIXED.iter().filter(|(_, of)| of(&old) != of(&config));
        let need_restart = changed.map(|(key, _)| *key).collect();
        config.server.listen = before.config.server.listen;
        config.server.shutdown = before.config.server.shutdown;
        config.validate(&source)?;
        let setup = Setup::new(&config, &source, &before.own_secrets, |config, source| {
            before.gateway.renewed(config, source)
        })?;
        self.admission().set_limits(Limits::of(&config.server, config.tenants.len()));
        self.responses().set_policy(config.responses);
        self.stories().set_policy(&config.observe);
        self.traces().set_servers(&setup.gateway);
        self.fleet().renew(&setup.gateway, setup.source.as_str());
        *self.0.setup.write() = Arc::new(setup);
        Ok(Reloaded { need_restart })
    }
}
