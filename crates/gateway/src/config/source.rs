//! A configuration's text, and where its keys stand in it.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    ChainsConfig, Config, ConfigError, ConfigErrors, keys, overlay::overlay, preset_keys, routes,
};

/// A configuration with the text it was read from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    file: Option<PathBuf>,
    text: String,
}

impl Source {
    /// A configuration given as text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { file: None, text: text.into() }
    }

    /// A configuration file.
    ///
    /// # Errors
    ///
    /// When it can not be read.
    pub fn file(path: &Path) -> Result<Self, ConfigErrors> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { file: Some(path.to_owned()), text }),
            Err(error) => {
                let source = Self { file: Some(path.to_owned()), text: String::new() };
                Err(source
                    .error_at(String::new(), None, format!("can not be read: {error}"))
                    .into())
            }
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The file, when it is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the keys. Their values are checked by [`Config::validate`].
    ///
    /// # Errors
    ///
    /// When it is no TOML, or a key is unknown or of the wrong type: all of these at once.
    pub fn parse(&self) -> Result<Config, ConfigErrors> {
        let root = DeTable::parse(&self.text).map_err(|error| self.at(&error, None))?;
        let mut errors: Vec<ConfigError> = Vec::new();
        keys::unknown(root.get_ref(), &mut |path, offset, message| {
            let message = moved(path).map_or(message, str::to_owned);
            errors.push(self.error_at(path.to_owned(), Some(offset), message));
        });
        if let Some(DeValue::Table(all)) = find(root.get_ref(), "routes").map(Spanned::get_ref) {
            for (name, route) in all {
                let DeValue::Table(route) = route.get_ref() else { continue };
                routes::not_for_routes(name.get_ref(), route, &mut |key, offset, message| {
                    // It says more than that there is no such key.
                    errors.retain(|error| error.key != key);
                    errors.push(self.error_at(key, Some(offset), message));
                });
            }
        }
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        let config =
            self.read(root.get_ref()).map_err(|error| self.wrong(root.get_ref(), &error))?;
        for (name, _) in config.routes() {
            let route = routes::table(root.get_ref(), name);
            let changed = route.map(routes::sections).unwrap_or_default();
            keys::unknown(&changed, &mut |path, offset, message| {
                errors.push(self.error_at(format!("routes.{name}.{path}"), Some(offset), message));
            });
            if let Err(error) = self.read(&changed) {
                errors.extend(self.wrong(&changed, &error).0.into_iter().map(|error| {
                    ConfigError { key: format!("routes.{name}.{}", error.key), ..error }
                }));
            }
        }
        if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
    }

    /// All that is of the wrong type in `root`, which could not be read for `error`.
    fn wrong(&self, root: &DeTable<'_>, error: &toml::de::Error) -> ConfigErrors {
        // serde says where only for types that are not flattened: keys are tried one by one.
        let errors = leaves(root).into_iter().filter_map(|leaf| {
            let one = pick(root, &mut Vec::new(), &|path| *path == leaf.path);
            self.read(&one).err().map(|error| self.at(&error, Some(&leaf)))
        });
        let errors: Vec<ConfigError> = errors.collect();
        if errors.is_empty() { self.at(error, None).into() } else { ConfigErrors(errors) }
    }

    /// What a route goes by: `config`, with what the route sets laid over the file.
    ///
    /// # Errors
    ///
    /// When it can not be read.
    pub(crate) fn route(&self, config: &Config, name: &str) -> Result<Config, ConfigErrors> {
        let root = DeTable::parse(&self.text).map_err(|error| self.at(&error, None))?;
        let route = routes::table(root.get_ref(), name);
        let changed = route.map(routes::sections).unwrap_or_default();
        let whole = overlay(root.get_ref(), &changed);
        let mut read = self.read(&whole).map_err(|error| self.at(&error, None))?;
        if find(&whole, "failover.downgrades").is_none() {
            // Of the environment.
            read.failover.downgrades.clone_from(&config.failover.downgrades);
        }
        let chain = config.routes.get(name).map(|route| route.chain.clone()).unwrap_or_default();
        if !chain.is_empty() {
            read.failover.chain = chain;
            if find(&changed, "failover.chains").is_none() {
                read.failover.chains = ChainsConfig::default();
            }
        }
        let Config { failover, retry, timeout, guard, continuation, resume, compaction, .. } = read;
        let base = config.clone();
        Ok(Config { failover, retry, timeout, guard, continuation, resume, compaction, ..base })
    }

    fn read(&self, root: &DeTable<'_>) -> Result<Config, toml::de::Error> {
        let preset = find(root, "preset").and_then(|name| name.get_ref().as_str()?.parse().ok());
        let below = preset.map(preset_keys).unwrap_or_default();
        let below = DeTable::parse(&below)?;
        let merged = overlay(below.get_ref(), root);
        let has_cap = find(&merged, "retry.cap_ms").is_some();
        let whole = Spanned::new(0..self.text.len(), merged);
        let mut config = Config::deserialize(toml::Deserializer::from(whole))?;
        config.follow(|key| find(root, key).is_some());
        routes::positions(root, &mut config.routes);
        if !has_cap {
            // A backoff alone does not know which retries it is for.
            config.retry.policy = config.retry.policy.with_default_cap();
        }
        Ok(config)
    }

    /// The key of `section` to which `problem` is due: the last without which there is another or
    /// none. `check` says what is wrong with a configuration.
    pub(super) fn cause(
        &self,
        section: &str,
        problem: &str,
        check: impl Fn(&Config) -> Option<String>,
    ) -> Option<String> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut leaves = leaves(root.get_ref());
        leaves.retain(|leaf| leaf.path[0] == section);
        leaves.sort_by_key(|leaf| leaf.span.start);
        let found = leaves.into_iter().rev().find(|leaf| {
            let rest = pick(root.get_ref(), &mut Vec::new(), &|path| *path != leaf.path);
            self.read(&rest).is_ok_and(|config| check(&config).as_deref() != Some(problem))
        })?;
        Some(found.path.join("."))
    }

    /// An error of the parser's, in the value of `leaf` where that is known.
    fn at(&self, error: &toml::de::Error, leaf: Option<&Leaf>) -> ConfigError {
        let items = leaf.map_or(&[][..], |leaf| leaf.items.as_deref().unwrap_or_default());
        // Of what is in a flattened section, serde says no more than where the section begins.
        let is_exact = |span: &Range<usize>| {
            leaf.is_none_or(|leaf| !items.is_empty() && leaf.span.start <= span.start)
        };
        let span = error.span().filter(is_exact).or(leaf.map(|leaf| leaf.span.clone()));
        let start = span.map(|span| span.start);
        let is_there = |item: &&Leaf| start.is_some_and(|start| item.span.contains(&start));
        let found = items.iter().rev().find(is_there).or(leaf);
        let key = found.map_or_else(String::new, |leaf| leaf.path.join("."));
        self.error_at(key, start, error.message().trim())
    }

    fn error_at(
        &self,
        key: String,
        offset: Option<usize>,
        message: impl Into<String>,
    ) -> ConfigError {
        let position = offset.map(|offset| self.line_column(offset));
        ConfigError { file: self.file.clone(), position, key, message: message.into() }
    }

    /// An error at `key`, such as `providers[1].dialect`.
    pub fn error(&self, key: &str, message: impl Into<String>) -> ConfigError {
        let root = DeTable::parse(&self.text);
        let span = root.ok().and_then(|root| Some(find(root.get_ref(), key)?.span()));
        self.error_at(key.to_owned(), span.map(|span| span.start), message)
    }

    /// The file as it was parsed, when it can be.
    pub(crate) fn table(&self) -> Option<DeTable<'_>> {
        DeTable::parse(&self.text).ok().map(Spanned::into_inner)
    }

    fn line_column(&self, offset: usize) -> (usize, usize) {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        (line, column)
    }
}

/// What to write for a key that is no more.
fn moved(key: &str) -> Option<&'static str> {
    (key == "recovery.preset").then_some(
        "write `preset = \"adr-012\"` at the top of the file, or another of codebuddy, claude-code, comis \
         and guppy: a preset is of all layers now",
    )
}

/// A key that stands in the file, and what is set there.
struct Leaf {
    path: Vec<String>,
    span: Range<usize>,
    /// Of an array, what is in it.
    items: Option<Vec<Leaf>>,
}

/// All keys that stand in `table`. An array is one key's value, whatever is in it.
fn leaves(table: &DeTable<'_>) -> Vec<Leaf> {
    fn table_leaves(table: &DeTable<'_>, path: &[String], all: &mut Vec<Leaf>) {
        for (name, value) in table {
            add(value, [path, &[name.get_ref().to_string()]].concat(), all);
        }
    }

    fn add(value: &Spanned<DeValue<'_>>, path: Vec<String>, all: &mut Vec<Leaf>) {
        let items = match value.get_ref() {
            DeValue::Table(table) => return table_leaves(table, &path, all),
            DeValue::Array(array) => {
                let mut items = Vec::new();
                for (index, item) in array.iter().enumerate() {
                    let mut path = path.clone();
                    if let Some(name) = path.last_mut() {
                        *name += &format!("[{index}]");
                    }
                    items.push(Leaf { path: path.clone(), span: item.span(), items: None });
                    add(item, path, &mut items);
                }
                Some(items)
            }
            _ => None,
        };
        all.push(Leaf { path, span: value.span(), items });
    }

    let mut all = Vec::new();
    table_leaves(table, &[], &mut all);
    all
}

/// Of `table` the keys that `keep` wants, in the tables they stand in.
fn pick<'i>(
    table: &DeTable<'i>,
    path: &mut Vec<String>,
    keep: &dyn Fn(&Vec<String>) -> bool,
) -> DeTable<'i> {
    let mut picked = DeTable::new();
    for (name, value) in table {
        path.push(name.get_ref().to_string());
        let kept = match value.get_ref() {
            DeValue::Table(inner) => {
                let inner = pick(inner, path, keep);
                (!inner.is_empty()).then(|| Spanned::new(value.span(), DeValue::Table(inner)))
            }
            _ => keep(path).then(|| value.clone()),
        };
        path.pop();
        if let Some(kept) = kept {
            picked.insert(name.clone(), kept);
        }
    }
    picked
}

/// What `key` is set to, such as `providers[1].dialect`.
fn find<'t, 'i>(root: &'t DeTable<'i>, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
    let mut table = Some(root);
    let mut array: Option<&[Spanned<DeValue<'i>>]> = None;
    let mut found = None;
    for step in key.split(['.', '[']) {
        let value = match step.strip_suffix(']') {
            Some(index) => array?.get(index.parse::<usize>().ok()?)?,
            None => table?.iter().find(|(name, _)| name.get_ref() == step)?.1,
        };
        found = Some(value);
        (table, array) = match value.get_ref() {
            DeValue::Table(inner) => (Some(inner), None),
            DeValue::Array(inner) => (None, Some(&inner[..])),
            _ => (None, None),
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::Link, *};

    fn errors(text: &str) -> String {
        Source::text(text).parse().unwrap_err().to_string()
    }

    #[test]
    fn the_empty_file_is_valid() {
        let config = Source::text("").parse().unwrap();
        assert_eq!(config.server.listen.port(), 8080);
        assert!(config.providers.is_empty());
    }

    #[test]
    fn unknown_keys_are_named_with_their_position() {
        let text = "[server]\nlisten = \"127.0.0.1:1\"\nport = 3\n";
        let error = errors(text);
        assert!(error.starts_with("configuration:3:1: server.port: unknown field"), "{error}");
        assert!(error.contains("listen"), "it says which there are: {error}");
        let error = errors("[[providers]]\nname='a'\ndialect='openai'\nbaseurl='x'\n");
        assert!(error.contains(":4:1: providers[0].baseurl: unknown field"), "{error}");
        assert!(errors("[weather]\n").contains("weather"), "there is no such section");
    }

    #[test]
    fn wrong_types_and_values_are_named_with_their_position() {
        let error = errors("[retry]\nretries = \"many\"\n");
        assert!(error.contains(":2:11: retry.retries: invalid type: string"), "{error}");
        let error = errors("[[providers]]\nname='a'\ndialect='cobol'\n");
        assert!(error.contains(":3:9: providers[0].dialect:"), "{error}");
        assert!(error.contains("openai"), "{error}");
        let error = errors("[[providers]]\nname='a'\ndialect='openai'\n[[providers]]\nname='b'\n");
        assert!(error.contains(":4:1: providers[1]: missing field `dialect`"), "{error}");
        let error = errors("[guard]\ntools = [{ name = 'a' }, { name = 'b', limit = 'x' }]\n");
        assert!(error.contains(":2:9: guard.tools: invalid type: string \"x\""), "{error}");
        let error = errors("[retry]\nretries = -1\n");
        assert!(error.contains("retry.retries"), "{error}");
    }

    #[test]
    fn everything_that_can_not_be_read_is_reported_at_once() {
        let error = errors("[retry]\nretrys = 1\n[guard]\nloop = {}\n[guard.loops]\nx = 1\n");
        for expected in [":2:1: retry.retrys: ", ":4:1: guard.loop: ", ":6:1: guard.loops.x: "] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let error = errors(
            "[retry]\nretries = 'many'\nbase_ms = -1\n[guard]\nevents = 3\ntime_s = 'x'\n\
             [guard.loops]\ncycle = [1]\n[cooldown]\ntiredness = 3\n[failover]\nwhen_exhausted = 'cry'\n",
        );
        for expected in [
            ":2:11: retry.retries: invalid type: string \"many\", expected u32",
            ":3:11: retry.base_ms: invalid value: integer `-1`",
            ":6:10: guard.time_s: invalid type: string \"x\"",
            ":8:9: guard.loops.cycle: expected [ADVISE, STOP]",
            "cooldown.tiredness: unknown variant `tiredness`, expected one of `auth`, `billing`",
            ":12:18: failover.when_exhausted: unknown variant `cry`, expected one of `fail`, `wait`",
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert_eq!(error.lines().count(), 6, "{error}");
    }

    #[test]
    fn a_limit_for_everybody_is_the_one_of_named_tasks_too() {
        for (text, everybody, named) in [
            ("", None, Some(400)),
            ("[guard]\nevents = 9\n[guard.named]\ntime_s = 5\n", None, Some(400)),
            ("[guard]\ncalls = 100\n", Some(100), Some(100)),
            ("[guard]\ncalls = 1000\n", Some(1_000), Some(1_000)),
            ("[guard]\ncalls = 0\n", None, None),
            ("[guard.named]\ncalls = 50\n", None, Some(50)),
            ("[guard]\nnamed = { calls = 0 }\n", None, None),
            ("[guard]\ncalls = 100\n[guard.named]\ncalls = 50\n", Some(100), Some(50)),
            ("[guard]\ncalls = 100\n[guard.named]\ncalls = 200\n", Some(100), Some(200)),
        ] {
            let policy = Source::text(text).parse().unwrap().guard.policy;
            assert_eq!((policy.limits.calls, policy.named.calls), (everybody, named), "{text}");
        }
        let every =
            "[guard]\nevents = 1\ncalls = 2\ntime_s = 3\nper_tool = 4\nedits_per_file = 5\n";
        let policy = Source::text(every).parse().unwrap().guard.policy;
        assert_eq!(policy.limits, policy.named);
        assert_eq!(policy.named.edits_per_file, Some(5));
        let error = errors("[guard.named]\ncals = 3\n");
        assert!(error.contains(":2:1: guard.named.cals: unknown field"), "{error}");
        let error = errors("[guard.named]\ncalls = 'x'\n");
        assert!(error.contains(":2:9: guard.named.calls: invalid type: string \"x\""), "{error}");
    }

    const ROUTES: &str = "[retry]\nretries = 7\n[timeout]\nstall_ms = 9000\n[failover]\nchain = ['a']\n\
                          chains = { vision = ['a'] }\n\
                          [routes.z]\nmodels = ['m']\ntimeout = { pipeline_ms = 5000 }\n\
                          [routes.b]\nagents = ['x']\nchain = ['c']\n[routes.b.retry]\nretries = 1\n\
                          [routes.b.guard]\ncalls = 3\n\
                          [routes.m]\nagents = ['y']\ncontinuation = { enabled = false }\n";

    #[test]
    fn a_route_goes_by_its_own_keys_laid_over_the_files() {
        let source = Source::text(ROUTES);
        let config = source.parse().unwrap();
        let names: Vec<_> = config.routes().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["z", "b", "m"], "the order of the file");
        let seen = |name: &str| {
            let own = source.route(&config, name).unwrap();
            (
                own.chain(),
                own.failover.chains.vision.len(),
                own.retry.policy.retries,
                (own.timeout.deadline.pipeline.as_secs(), own.timeout.stall.stall.as_secs()),
                own.guard.policy.named.calls,
                own.continuation.enabled,
            )
        };
        let list = |name: &str| vec![Link::from(name)];
        assert_eq!(seen("z"), (list("a"), 1, 7, (5, 9), Some(400), true));
        assert_eq!(seen("b"), (list("c"), 0, 1, (600, 9), Some(3), true), "keys follow others too");
        assert_eq!(seen("m"), (list("a"), 1, 7, (600, 9), Some(400), false));
    }

    #[test]
    fn what_is_wrong_in_a_route_is_named_where_it_stands() {
        let error = errors(
            "[routes.a]\nmodels = ['x']\nmodel = 'y'\n[routes.a.breaker]\nfailures = 3\n\
             [routes.a.failover]\nchain = ['a']\nrest_after = 2\n[routes.a.retry]\nbudget = 0\n",
        );
        for expected in [
            ":3:1: routes.a.model: unknown field `model`",
            ":4:11: routes.a.breaker: it belongs to the targets, which all routes share; set [breaker]",
            ":7:1: routes.a.failover.chain: the chain of a route stands in [routes.a] itself",
            ":8:1: routes.a.failover.rest_after: it belongs to what all routes share; set it in [failover]",
            ":10:1: routes.a.retry.budget: it belongs to what all routes share; set it in [retry]",
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert_eq!(error.lines().count(), 5, "{error}");
        let error = errors(
            "[routes.a]\nagents = ['x']\ntimeout = { stal_ms = 3 }\nretry = { retries = 'x' }\n\
             guard = { loops = { cycle = [1] } }\n",
        );
        assert!(error.contains(":3:13: routes.a.timeout.stal_ms: unknown field"), "{error}");
        assert!(error.contains(":4:21: routes.a.retry.retries: invalid type: string"), "{error}");
        assert!(error.contains("routes.a.guard.loops.cycle: expected [ADVISE, STOP]"), "{error}");
    }

    #[test]
    fn broken_toml_is_named_with_its_position() {
        let error = errors("[server\nlisten = 1");
        assert!(error.starts_with("configuration:1:8"), "{error}");
    }

    #[test]
    fn keys_are_found_where_they_stand() {
        let source = Source::text(
            "[failover]\nchain = ['a',\n  'b']\n[[providers]]\nname='x'\n[[providers]]\nname = 'y'\n",
        );
        assert_eq!(source.error("failover.chain[1]", "").position, Some((3, 3)));
        assert_eq!(source.error("providers[1].name", "").position, Some((7, 8)));
        assert_eq!(source.error("providers[2].name", "").position, None);
    }
}
