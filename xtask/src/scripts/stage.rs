//! A gateway and simulated providers, running.

use std::{fs, path::Path};

use crate::{
    program::Program,
    workspace::{read, write},
};

/// The keys of a run. They open nothing.
const TENANT_KEY: &str = "scripts-tenant";
const PROVIDER_KEY: &str = "scripts-provider";

/// What stands between a script and the provider.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Between<'a> {
    Nothing,
    /// A gateway with this configuration, in which `{models}` is to be filled in, and with what.
    Gateway {
        template: &'a Path,
        models: &'a str,
    },
}

/// What one script runs against. It is taken down when dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    gateway: String,
    control: String,
    dialect: &'static str,
    _programs: Vec<Program>,
}

impl Stage {
    /// Starts the providers and what is in front of the one of `dialect`, with their logs in `folder`.
    pub(crate) fn set(
        binary: &Path,
        folder: &Path,
        dialect: &'static str,
        between: Between<'_>,
    ) -> Result<Self, String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;

        let mut sim = Program::kept(binary);
        sim.args(["sim", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]);
        let (sim, lines) = Program::start(sim, &folder.join("sim.log"), "any key is accepted")?;
        let address = |name: &str| {
            lines
                .iter()
                .find_map(|line| line.strip_prefix(name).map(|rest| rest.trim().to_owned()))
                .ok_or_else(|| format!("`steadfast sim` did not say where its {name} is"))
        };
        let (provider, control) = (address(dialect)?, address("control")?);

        let control = format!("{control}/{dialect}");
        let (gateway, programs) = match between {
            Between::Nothing => (provider.trim_end_matches("/v1").to_owned(), vec![sim]),
            Between::Gateway { template, models } => {
                let config = folder.join("steadfast.toml");
                let text = read(template)?
                    .replace("{models}", models)
                    .replace("{upstream}", dialect)
                    .replace("{base_url}", &provider);
                write(&config, &text)?;
                let (program, address) = gateway(binary, &config, &folder.join("gateway.log"))?;
                (address, vec![program, sim])
            }
        };
        Ok(Self { gateway, control, dialect, _programs: programs })
    }

    /// What the script has to know.
    pub(crate) fn environment(&self) -> [(&'static str, &str); 4] {
        [
            ("SDK_GATEWAY", &self.gateway),
            ("SDK_CONTROL", &self.control),
            ("SDK_UPSTREAM", self.dialect),
            ("SDK_KEY", TENANT_KEY),
        ]
    }
}

/// A gateway, and its address.
fn gateway(binary: &Path, config: &Path, log: &Path) -> Result<(Program, String), String> {
    let mut gateway = Program::kept(binary);
    gateway
        .args(["serve", "--config"])
        .arg(config)
        .env("SDK_TENANT_KEY", TENANT_KEY)
        .env("SDK_PROVIDER_KEY", PROVIDER_KEY)
        .env("NO_COLOR", "1");
    let (program, lines) = Program::start(gateway, log, "steadfast serves on")?;
    let address = lines
        .last()
        .and_then(|line| line.strip_prefix("steadfast serves on "))
        .map(|address| address.trim().to_owned())
        .ok_or("`steadfast serve` did not say where it serves")?;
    Ok((program, address))
}
