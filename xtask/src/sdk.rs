//! `cargo xtask sdk`: the vendors' own SDKs, unmodified, against the gateway.
//!
//! Five SDKs, OpenAI's by both of its APIs, each in front of a provider of each dialect: 28 runs of the scripts in
//! `tests/sdk`, each with a gateway and simulated providers of its own. Then four SDKs in front of simulated clouds.

mod clouds;
mod report;

use std::{
    env,
    path::{Path, PathBuf},
};

use report::Outcome;

use crate::{
    program,
    scripts::{
        self,
        lines::Line,
        setup::{self, Kit, Tools},
        stage::{Between, Stage},
    },
    workspace,
};

/// An SDK, in the order of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sdk {
    /// Its package.
    name: &'static str,
    /// Where the package comes from.
    from: &'static str,
    /// Its script in `tests/sdk`.
    script: &'static str,
}

const SDKS: [Sdk; 7] = [
    Sdk { name: "openai", from: "PyPI", script: "python/openai_sdk.py" },
    Sdk { name: "anthropic", from: "PyPI", script: "python/anthropic_sdk.py" },
    Sdk { name: "google-genai", from: "PyPI", script: "python/genai_sdk.py" },
    Sdk { name: "openai", from: "npm", script: "node/openai_sdk.mjs" },
    Sdk { name: "openai responses", from: "PyPI", script: "python/responses_sdk.py" },
    Sdk { name: "openai responses", from: "npm", script: "node/responses_sdk.mjs" },
    Sdk { name: "@anthropic-ai/sdk", from: "npm", script: "node/anthropic_sdk.mjs" },
];

/// A provider's dialect, and what it calls the callers' models: one that answers, one that thinks,
/// two kept for rate limits (they rest when they were limited), one that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Upstream {
    dialect: &'static str,
    models: &'static str,
}

const UPSTREAMS: [Upstream; 4] = [
    Upstream {
        dialect: "openai",
        models: r#"{ fast = "gpt-4o", smart = "gpt-5", limited = "gpt-4o-mini", brief = "gpt-4.1-mini", missing = "no-such-model" }"#,
    },
    Upstream {
        dialect: "responses",
        models: r#"{ fast = "gpt-4o", smart = "gpt-5", limited = "gpt-4o-mini", brief = "gpt-4.1-mini", missing = "no-such-model" }"#,
    },
    Upstream {
        dialect: "anthropic",
        models: r#"{ fast = "claude-sonnet-4-5", smart = "claude-opus-4-5", limited = "claude-haiku-4-5", brief = "claude-sonnet-4", missing = "no-such-model" }"#,
    },
    Upstream {
        dialect: "gemini",
        models: r#"{ fast = "gemini-2.5-flash", smart = "gemini-3.1-pro-preview", limited = "gemini-2.5-pro", brief = "gemini-2.0-flash", missing = "no-such-model" }"#,
    },
];

/// One SDK in front of one provider.
#[derive(Clone, Copy, Debug)]
struct Combination {
    sdk: Sdk,
    upstream: Upstream,
}

impl Combination {
    fn name(&self) -> String {
        format!("{} ({}) -> {}", self.sdk.name, self.sdk.from, self.upstream.dialect)
    }
}

/// Runs every combination whose name has all of `words` in it.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    if env::var_os("STEADFAST_SKIP_SDKS").is_some_and(|value| value == "1") {
        println!("== sdk: skipped, STEADFAST_SKIP_SDKS is 1");
        return Ok(());
    }
    let all = SDKS
        .into_iter()
        .flat_map(|sdk| UPSTREAMS.into_iter().map(move |upstream| Combination { sdk, upstream }));
    let chosen: Vec<_> =
        all.filter(|one| words.iter().all(|word| one.name().contains(word.as_str()))).collect();
    let chosen_clouds = clouds::chosen(words);
    if chosen.is_empty() && chosen_clouds.is_empty() {
        return Err(format!("no SDK and provider is called `{}`", words.join(" ")));
    }

    let root = workspace::root();
    let work = root.join("target/sdk");
    let binary = program::gateway("sdk")?;
    let tools = setup::tools(Kit {
        task: "sdk",
        skip: "STEADFAST_SKIP_SDKS",
        root,
        pinned: "tests/sdk",
        work: work.clone(),
        node: None,
    })?;
    let harness = Harness { root, work, binary, tools };

    println!("== sdk: {} runs", chosen.len() + chosen_clouds.len());
    let run = |of| Outcome { of, lines: harness.run_one(of) };
    let outcomes = scripts::run_all(&chosen, 1, run, Outcome::print);
    let Harness { tools, work, .. } = &harness;
    let on_clouds = clouds::run(&chosen_clouds, tools, work)?;

    let mut failed = 0;
    if !outcomes.is_empty() {
        failed += report::print(&outcomes);
    }
    if !on_clouds.is_empty() {
        failed += clouds::print(&on_clouds);
    }
    if failed > 0 {
        return Err(format!("sdk: {failed} checks failed; they are named above"));
    }
    if chosen.len() == SDKS.len() * UPSTREAMS.len() {
        report::keep(root, &outcomes)?;
    }
    if clouds::is_whole(&chosen_clouds) {
        clouds::keep(root, &on_clouds)?;
    }
    Ok(())
}

/// What every run needs.
struct Harness {
    root: &'static Path,
    work: PathBuf,
    binary: PathBuf,
    tools: Tools,
}

impl Harness {
    /// One script from its start to its end; what went wrong around it is a failed check.
    fn run_one(&self, one: Combination) -> Vec<Line> {
        let Upstream { dialect, models } = one.upstream;
        let name = format!("{}-{dialect}", one.sdk.script.replace(['/', '.'], "-"));
        let folder = self.work.join("runs").join(name);
        let run = || {
            let template = &self.root.join("tests/sdk/steadfast.toml");
            let between = Between::Gateway { template, models };
            let stage = Stage::set(&self.binary, &folder, dialect, between)?;
            let mut script = self.tools.script(one.sdk.script);
            script.envs(stage.environment());
            let mut lines = scripts::run(script, &folder)?;
            lines.extend(report::missing(&lines).into_iter().map(Line::broken));
            Ok(lines)
        };
        run().unwrap_or_else(|message: String| vec![Line::broken(message)])
    }
}
