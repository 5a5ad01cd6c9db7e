//! What types can not say.

use std::{collections::BTreeSet, fmt::Display, path::Path};

use http::{HeaderName, HeaderValue};
use steadfast_chat::Params;
use steadfast_client::headers::may_pass;
use steadfast_core::{Failover, Reason};

use super::{
    Auth, CloudCredential, Config, ConfigError, ConfigErrors, Link, OtelConfig, Source,
    SpendLimitConfig, StateConfig, SummariserConfig, TenantConfig,
};
use crate::{admission::LEAST_MIB, keys::long_enough, secrets::credential, stack::is_address};

/// What is wrong with what is set of a layer, by section.
type PolicyCheck = fn(&Config) -> Option<String>;

const POLICIES: [(&str, PolicyCheck); 14] = [
    ("failover", |config| problem(config.failover.policy.validate())),
    ("health", |config| problem(config.health.policy.validate())),
    ("rate_limit", |config| problem(config.rate_limit.validate())),
    ("spend_limit", |config| problem(config.spend_limit.policy.validate())),
    ("retry", |config| problem(config.retry.policy.validate())),
    ("breaker", |config| problem(config.breaker.validate())),
    ("timeout", |config| problem(config.timeout.deadline.validate())),
    ("timeout", |config| problem(config.timeout.stall.validate())),
    ("escalation", |config| problem(config.escalation.policy.validate())),
    ("guard", |config| problem(config.guard.policy.validate())),
    ("continuation", |config| problem(config.continuation.policy.validate())),
    ("resume", |config| problem(config.resume.policy.validate())),
    ("compaction", |config| problem(config.compaction.policy.policy.validate())),
    ("compaction", |config| {
        let summariser = config.compaction.policy.summariser.as_ref();
        summariser.and_then(|summariser| problem(summariser.policy.validate()))
    }),
];

fn problem<E: Display>(checked: Result<(), E>) -> Option<String> {
    checked.err().map(|error| error.to_string())
}

impl Config {
    /// Checks every value that could not work; `source` says where it stands.
    ///
    /// # Errors
    ///
    /// All of them at once.
    pub fn validate(&self, source: &Source) -> Result<(), ConfigErrors> {
        let mut check = Check { source, errors: Vec::new() };
        check.server(self);
        check.tenants(self);
        check.providers(self);
        check.chains(self);
        check.summariser(self);
        check.escalation(self);
        check.otel(self);
        check.state(self);
        check.spend(self);
        check.policies(self);
        check.recovery(self);
        check.aliases(self);
        check.routes(self);
        if check.errors.is_empty() { Ok(()) } else { Err(ConfigErrors(check.errors)) }
    }
}

struct Check<'a> {
    source: &'a Source,
    errors: Vec<ConfigError>,
}

impl Check<'_> {
    fn fail(&mut self, key: impl AsRef<str>, message: impl Into<String>) {
        self.errors.push(self.source.error(key.as_ref(), message));
    }

    fn require(&mut self, holds: bool, key: impl AsRef<str>, message: impl Into<String>) {
        if !holds {
            self.fail(key, message);
        }
    }

    fn server(&mut self, config: &Config) {
        let server = &config.server;
        if server.auth == Auth::None && !server.listen.ip().to_canonical().is_loopback() {
            self.fail(
                "server.auth",
                format!(
                    "auth = \"none\" serves everyone who can reach {}; listen on 127.0.0.1, or set \
                     auth = \"keys\" and add [[tenants]]",
                    server.listen
                ),
            );
        }
        if server.auth == Auth::Keys && config.tenants.is_empty() {
            self.fail(
                "server.auth",
                "callers need a key, but there are no [[tenants]]; add one, or set auth = \"none\" \
                 on a loopback address",
            );
        }
        self.require(server.body_limit > 0, "server.body_limit", "must be above 0 bytes");
        for (key, limit) in [
            ("body_timeout_s", server.body_timeout),
            ("body_progress_s", server.body_progress),
            ("send_timeout_s", server.send_timeout),
            ("idle_timeout_s", server.idle_timeout),
            ("keepalive_s", server.keepalive),
        ] {
            self.require(!limit.is_zero(), format!("server.{key}"), "must be above 0 seconds");
        }
        for (key, most) in
            [("max_connections", server.max_connections), ("max_in_flight", server.max_in_flight)]
        {
            self.require(most > 0, format!("server.{key}"), "must be above 0");
        }
        self.require(
            server.memory_mib.is_none_or(|mib| mib >= LEAST_MIB),
            "server.memory_mib",
            format!("must be {LEAST_MIB} MiB at least"),
        );
        self.require(
            server.state_file.as_ref().is_none_or(|path| path.file_name().is_some()),
            "server.state_file",
            "must be the path of a file, such as /var/lib/steadfast/state.json",
        );
        for (index, name) in server.forward_headers.iter().enumerate() {
            let key = format!("server.forward_headers[{index}]");
            match HeaderName::try_from(name.as_str()) {
                Err(_) => self.fail(key, format!("`{name}` is no header name")),
                Ok(header) if !may_pass(&header) => {
                    let why = "it is a credential, or belongs to this connection";
                    self.fail(key, format!("`{name}` is never passed on: {why}"));
                }
                Ok(_) => {}
            }
        }
        if let Some(admin) = &server.admin_key {
            self.secret("server.admin_key", admin, true);
        }
    }

    fn tenants(&mut self, config: &Config) {
        let mut names = BTreeSet::new();
        for (index, tenant) in config.tenants.iter().enumerate() {
            let at = format!("tenants[{index}]");
            self.require(!tenant.name.is_empty(), format!("{at}.name"), "must not be empty");
            self.require(
                names.insert(&tenant.name),
                format!("{at}.name"),
                format!("there is a tenant `{}` already", tenant.name),
            );
            self.require(!tenant.keys.is_empty(), format!("{at}.keys"), "needs at least one key");
            for (n, key) in tenant.keys.iter().enumerate() {
                self.secret(&format!("{at}.keys[{n}]"), key, true);
            }
        }
    }

    /// Secrets do not stand in the file.
    fn secret(&mut self, at: &str, value: &str, hash_allowed: bool) {
        let sha = value.strip_prefix("sha256:");
        let ok = match sha {
            Some(hex) if hash_allowed => {
                if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    self.fail(at, "after `sha256:` come 64 hexadecimal digits");
                }
                true
            }
            _ => value.starts_with("env:") || value.starts_with("file:"),
        };
        let forms = if hash_allowed {
            "`env:NAME`, `file:PATH` or `sha256:HEX`"
        } else {
            "`env:NAME` or `file:PATH`"
        };
        self.require(ok, at, format!("a secret does not stand in the file; write {forms}"));
    }

    fn providers(&mut self, config: &Config) {
        let mut names = BTreeSet::new();
        for (index, provider) in config.providers.iter().enumerate() {
            let at = format!("providers[{index}]");
            self.require(!provider.name.is_empty(), format!("{at}.name"), "must not be empty");
            self.require(
                names.insert(&provider.name),
                format!("{at}.name"),
                format!("there is a provider `{}` already", provider.name),
            );
            let mut called = BTreeSet::new();
            for (n, credential) in provider.credentials.iter().enumerate() {
                let at = format!("{at}.credentials[{n}]");
                let is_known = match CloudCredential::of(credential) {
                    Some(Err(why)) => {
                        self.fail(&at, why);
                        false
                    }
                    Some(Ok(_)) => true,
                    None => {
                        self.secret(&at, credential, false);
                        credential.starts_with("env:") || credential.starts_with("file:")
                    }
                };
                let name = credential_name(credential);
                if is_known && !called.insert(name) {
                    self.fail(
                        at,
                        format!(
                            "there is a credential called `{name}` already; it is named after its \
                             variable, or its file without the ending, so give it another one"
                        ),
                    );
                }
            }
            for (key, why) in provider.platform().err().unwrap_or_default() {
                self.fail(format!("{at}.{key}"), why);
            }
            if let Some(url) = &provider.base_url {
                let parsed = url.parse::<http::Uri>().ok();
                let fits = parsed.as_ref().is_some_and(|uri| {
                    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
                });
                self.require(
                    fits,
                    format!("{at}.base_url"),
                    format!("`{url}` is no address; write one such as https://api.openai.com/v1"),
                );
            }
            for (name, value) in &provider.headers {
                let key = format!("{at}.headers.{name}");
                if HeaderName::try_from(name.as_str()).is_err() {
                    self.fail(&key, format!("`{name}` is no header name"));
                }
                if HeaderValue::try_from(value.as_str()).is_err() {
                    self.fail(&key, "the value has characters that no header can carry");
                }
                if let Some(Err(why)) = credential(name, value).map(long_enough) {
                    self.fail(&key, format!("the value {why}"));
                }
            }
            for (n, name) in provider.unsupported.iter().enumerate() {
                self.require(
                    Params::NAMES.contains(&name.as_str()),
                    format!("{at}.unsupported[{n}]"),
                    format!("`{name}` is no parameter; one of {}", Params::NAMES.join(", ")),
                );
            }
            for (key, limit) in [("window", provider.window), ("max_output", provider.max_output)] {
                self.require(limit != Some(0), format!("{at}.{key}"), "must be above 0 tokens");
            }
        }
    }

    /// Caps of single tenants and keys are of those that there are.
    fn spend(&mut self, config: &Config) {
        let given = &config.spend_limit;
        let tenants: Vec<_> = config.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        let keys: Vec<_> = config.tenants.iter().flat_map(TenantConfig::key_names).collect();
        for (what, caps, general, all) in [
            ("tenant", &given.tenants, given.policy.tenant_caps(), tenants),
            ("key", &given.keys, given.policy.key_caps(), keys),
        ] {
            for (name, caps) in caps {
                let at = format!("spend_limit.{what}s.{name}");
                self.require(
                    all.contains(name),
                    &at,
                    format!("there is no {what} `{name}`; there are: {}", all.join(", ")),
                );
                if let Some(problem) = SpendLimitConfig::problem(caps, general) {
                    self.fail(&at, problem);
                }
            }
        }
    }

    fn escalation(&mut self, config: &Config) {
        let Some(webhook) = &config.escalation.webhook else { return };
        let refers = webhook.starts_with("env:") || webhook.starts_with("file:");
        self.require(
            refers || is_address(webhook),
            "escalation.webhook",
            "write an address such as https://HOST/PATH, without a password, or `env:NAME` or \
             `file:PATH` where the address is a secret",
        );
    }

    fn state(&mut self, config: &Config) {
        let StateConfig { url, prefix, fleet, .. } = &config.state;
        for (key, name) in [("state.prefix", prefix), ("state.fleet", fleet)] {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
            self.require(
                (1..=64).contains(&name.len()) && name.bytes().all(is_name),
                key,
                "must be 1 to 64 letters, digits and any of - _ . :",
            );
        }
        if let Some(url) = url.as_deref().filter(|url| !crate::keys::is_reference(url)) {
            self.require(
                !url.contains('@'),
                "state.url",
                "a password does not stand in the file; write `env:NAME` or `file:PATH` of the whole address",
            );
            let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
            self.require(
                scheme == "unix" || ["redis", "valkey"].iter().any(|name| scheme.starts_with(name)),
                "state.url",
                "write an address such as redis://localhost:6379, or rediss:// for TLS",
            );
        }
    }

    fn otel(&mut self, config: &Config) {
        let OtelConfig { endpoint, protocol, .. } = &config.otel;
        self.require(
            endpoint.as_deref().is_none_or(is_address),
            "otel.endpoint",
            "write an address such as http://localhost:4317, without a password; what a collector wants of that kind is \
             in OTEL_EXPORTER_OTLP_HEADERS",
        );
        let is_known = |name: &str| ["grpc", "http/protobuf"].contains(&name);
        self.require(
            protocol.as_deref().is_none_or(is_known),
            "otel.protocol",
            "there are grpc and http/protobuf",
        );
    }

    fn chains(&mut self, config: &Config) {
        let failover = &config.failover;
        for (key, chain) in [
            ("failover.chain", &failover.chain),
            ("failover.chains.vision", &failover.chains.vision),
            ("failover.chains.large", &failover.chains.large),
        ] {
            self.chain(config, key, chain);
        }
    }

    fn chain(&mut self, config: &Config, key: &str, chain: &[Link]) {
        let mut seen = BTreeSet::new();
        for (index, link) in chain.iter().enumerate() {
            let position = format!("{key}[{index}]");
            self.require(!link.names().is_empty(), &position, "must not be empty");
            for (n, name) in link.names().iter().enumerate() {
                let at = match link {
                    Link::One(_) => position.clone(),
                    Link::Equals(_) => format!("{position}[{n}]"),
                };
                self.provider(config, &at, name);
                self.require(seen.insert(name), &at, format!("`{name}` stands there twice"));
            }
        }
    }

    fn aliases(&mut self, config: &Config) {
        for (alias, model) in &config.aliases {
            let at = format!("aliases.{alias}");
            self.require(
                !alias.is_empty() && !alias.contains('*'),
                &at,
                "an alias is a whole name",
            );
            self.require(!model.is_empty(), &at, "must not be empty");
            self.require(
                !config.aliases.contains_key(model),
                &at,
                format!("`{model}` is an alias too; write the model itself"),
            );
        }
    }

    fn routes(&mut self, config: &Config) {
        let tenants: Vec<_> = config.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        for (name, route) in config.routes() {
            let at = format!("routes.{name}");
            self.chain(config, &format!("{at}.chain"), &route.chain);
            self.require(
                [&route.models, &route.tenants, &route.agents].iter().any(|list| !list.is_empty()),
                &at,
                "it takes every request; name its `models`, `tenants` or `agents`, or set [failover]",
            );
            for (key, names) in [("models", &route.models), ("agents", &route.agents)] {
                for (index, pattern) in names.iter().enumerate() {
                    let stars = pattern.strip_suffix('*').unwrap_or(pattern).contains('*');
                    self.require(
                        !pattern.is_empty() && !stars,
                        format!("{at}.{key}[{index}]"),
                        "write a name, or the beginning of names and one `*` at its end",
                    );
                }
            }
            for (index, tenant) in route.tenants.iter().enumerate() {
                self.require(
                    tenants.contains(&tenant.as_str()),
                    format!("{at}.tenants[{index}]"),
                    format!("there is no tenant `{tenant}`; there are: {}", tenants.join(", ")),
                );
            }
            match self.source.route(config, name) {
                Err(errors) => self.errors.extend(errors.0),
                Ok(own) => self.route(config, &at, &own),
            }
        }
    }

    /// What a route sets has to make sense with what it does not.
    fn route(&mut self, config: &Config, at: &str, own: &Config) {
        for (key, chain) in [
            ("failover.chains.vision", &own.failover.chains.vision),
            ("failover.chains.large", &own.failover.chains.large),
        ] {
            self.chain(config, &format!("{at}.{key}"), chain);
        }
        for (section, check) in POLICIES {
            if let Some(problem) = check(own)
                && check(config).as_ref() != Some(&problem)
            {
                self.fail(format!("{at}.{section}"), problem);
            }
        }
    }

    /// Requires that there is a provider of this name.
    fn provider(&mut self, config: &Config, key: impl AsRef<str>, name: &str) {
        let known: Vec<_> = config.providers.iter().map(|one| one.name.as_str()).collect();
        if !known.contains(&name) {
            let known = known.join(", ");
            self.fail(key, format!("there is no provider `{name}`; there are: {known}"));
        }
    }

    fn summariser(&mut self, config: &Config) {
        let Some(summariser) = &config.compaction.policy.summariser else { return };
        let SummariserConfig { provider, model, .. } = summariser;
        let key = "compaction.summariser";
        self.provider(config, format!("{key}.provider"), provider);
        self.require(!model.is_empty(), format!("{key}.model"), "must not be empty");
    }

    /// What is set of the layers is checked by their policies.
    fn policies(&mut self, config: &Config) {
        for (section, check) in POLICIES {
            if let Some(problem) = check(config) {
                let cause = self.source.cause(section, &problem, check);
                self.fail(cause.as_deref().unwrap_or(section), problem);
            }
        }
    }

    fn recovery(&mut self, config: &Config) {
        for (reason, rule) in &config.recovery.reasons {
            let key = format!("recovery.reasons.{reason}");
            if *reason == Reason::Safety {
                self.fail(key, "what the safety guard stops can not be allowed here");
            } else if *reason == Reason::SpendCap {
                self.fail(key, "what a spend cap refuses can not be allowed here; raise the cap");
            } else if rule.failover == Some(Failover::Forbidden) {
                let key = format!("{key}.failover");
                self.fail(key, "`forbidden` is the safety guard's alone; write `never`");
            }
        }
    }
}

/// What a tenant's key is called: the tenant's name, and the variable, the file's stem or the beginning of the hash
/// that the configuration has, as `acme/CI_KEY`.
pub(crate) fn key_name(tenant: &str, reference: &str) -> String {
    let name = match reference.strip_prefix("sha256:") {
        Some(hex) => hex.get(..8).unwrap_or(hex),
        None => credential_name(reference),
    };
    format!("{tenant}/{name}")
}

/// What a credential is called in logs and on targets: the name of its variable, file or profile.
pub(crate) fn credential_name(reference: &str) -> &str {
    if let Some(Ok(cloud)) = CloudCredential::of(reference) {
        return cloud.name();
    }
    match reference.split_once(':') {
        Some(("file", path)) => {
            let path = path.trim();
            Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or(path)
        }
        Some((_, name)) => name.trim(),
        None => reference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let source = Source::text(text);
        match source.parse().unwrap().validate(&source) {
            Ok(()) => Vec::new(),
            Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn nobody_is_served_by_accident() {
        assert!(errors("").iter().any(|e| e.contains("server.auth") && e.contains("[[tenants]]")));
        assert!(errors("[server]\nauth='none'").is_empty());
        let open = errors("[server]\nauth='none'\nlisten='0.0.0.0:80'");
        assert!(
            open[0].contains(":2:6: server.auth") && open[0].contains("0.0.0.0:80"),
            "{open:?}"
        );
        assert!(errors("[server]\nauth='none'\nlisten='[::1]:80'").is_empty());
    }

    #[test]
    fn a_collector_is_an_address_by_a_protocol_that_there_is() {
        let with = |lines: &str| errors(&format!("[server]\nauth='none'\n[otel]\n{lines}"));
        assert!(with("endpoint='http://localhost:4317'\nprotocol='grpc'").is_empty());
        for (lines, part) in [
            ("endpoint='localhost:4317'", "otel.endpoint: write an address"),
            ("endpoint='http://me:secret@host'", "otel.endpoint: write an address"),
            ("protocol='http/json'", "otel.protocol: there are grpc"),
        ] {
            let errors = with(lines);
            assert!(errors.len() == 1 && errors[0].contains(part), "{errors:?}");
            assert!(!errors[0].contains("secret"));
        }
    }

    #[test]
    fn a_store_has_an_address_without_a_password_and_plain_names() {
        let with = |lines: &str| errors(&format!("[server]\nauth='none'\n[state]\n{lines}"));
        for url in [
            "redis://localhost",
            "rediss://a:1",
            "valkey://b",
            "redis-cluster://c:1,d:2",
            "env:URL",
        ] {
            assert_eq!(with(&format!("url='{url}'\nprefix='a-b.c'")), [""; 0]);
        }
        for (lines, part) in [
            ("url='localhost:6379'", "state.url: write an address such as redis://"),
            ("url='http://localhost'", "state.url: write an address such as redis://"),
            ("url='redis://me:secret@host'", "state.url: a password does not stand in the file"),
            ("prefix='a{b}'", "state.prefix: must be 1 to 64 letters"),
            ("fleet=''", "state.fleet: must be 1 to 64 letters"),
        ] {
            let errors = with(lines);
            assert!(errors.len() == 1 && errors[0].contains(part), "{errors:?}");
            assert!(!errors[0].contains("secret"));
        }
    }

    #[test]
    fn caps_of_single_tenants_and_keys_are_of_those_that_there_are() {
        let text = "[server]\n[[tenants]]\nname='acme'\nkeys=['env:CI_KEY']\n[spend_limit]\ntokens_hour = 9\n";
        let with = |caps: &str| errors(&format!("{text}{caps}"));
        let none: [String; 0] = [];
        assert_eq!(with("tenants.acme.tokens_hour = 0\nkeys.'acme/CI_KEY'.cost_day = 1"), none);
        for (caps, part) in [
            (
                "tenants.acmee = {}",
                "spend_limit.tenants.acmee: there is no tenant `acmee`; there are: acme",
            ),
            (
                "keys.CI_KEY = {}",
                "spend_limit.keys.CI_KEY: there is no key `CI_KEY`; there are: acme/CI_KEY",
            ),
            ("tenants.acme.tokens_day = 8", "spend_limit.tenants.acme: "),
        ] {
            let errors = with(caps);
            assert!(errors.len() == 1 && errors[0].contains(part), "{errors:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_reported_at_once() {
        let text = "
[server]
auth = 'none'
forward_headers = ['Authorization', 'x y']
[[providers]]
name = 'a'
dialect = 'openai'
base_url = 'ftp://x'
credentials = ['sk-live-secret']
window = 0
unsupported = ['seed', 'warmth']
[[providers]]
name = 'a'
dialect = 'gemini'
[failover]
chain = ['a', 'b', 'a']
[breaker]
failure_rate = 1.5
[timeout]
first_content_ms = 5000
stall_ms = 1000
[retry]
base_ms = 0
[compaction]
compact_at = 1.5
[recovery.reasons.safety]
retry = true
[recovery.reasons.format]
failover = 'forbidden'
";
        let all = errors(text);
        for expected in [
            "server.forward_headers[0]: `Authorization` is never passed on",
            "server.forward_headers[1]: `x y` is no header name",
            "providers[0].base_url: `ftp://x` is no address",
            "providers[0].credentials[0]: a secret does not stand in the file",
            "providers[0].window: must be above 0",
            "providers[0].unsupported[1]: `warmth` is no parameter; one of max_tokens",
            "providers[1].name: there is a provider `a` already",
            "failover.chain[1]: there is no provider `b`; there are: a",
            "failover.chain[2]: `a` stands there twice",
            "breaker.failure_rate: breaker policy: `failure_rate` is 1.5; it must be",
            ":21:12: timeout.stall_ms: `first_content` 5s is above `stall` 1s",
            ":23:11: retry.base_ms: backoff base is zero",
            "compaction.compact_at: `compact_at` is 1.5",
            "recovery.reasons.safety: what the safety guard stops can not be allowed here",
            "recovery.reasons.format.failover: `forbidden` is the safety guard's alone",
        ] {
            assert!(all.iter().any(|error| error.contains(expected)), "{expected} in {all:#?}");
        }
        assert_eq!(all.len(), 15, "{all:#?}");
        assert!(!all.iter().any(|error| error.contains("sk-live")), "no secret is shown");
    }

    #[test]
    fn equal_providers_are_checked_like_others() {
        let text = |chain: &str| {
            format!(
                "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\nweight=3\n\
                 [[providers]]\nname='b'\ndialect='openai'\n[failover]\nbalance='weight'\nchain={chain}"
            )
        };
        assert_eq!(errors(&text("[['a', 'b']]")), [""; 0]);
        let all = errors(&text("[['a', 'x'], 'a', []]"));
        for expected in [
            ":12:14: failover.chain[0][1]: there is no provider `x`",
            ":12:20: failover.chain[1]: `a` stands there twice",
            "failover.chain[2]: must not be empty",
        ] {
            assert!(all.iter().any(|error| error.contains(expected)), "{expected} in {all:#?}");
        }
        let wrong = Source::text(text("[3]")).parse().unwrap_err().to_string();
        assert!(wrong.contains("expected the name of a provider, or a list of names"), "{wrong}");
    }

    #[test]
    fn routes_and_aliases_are_checked() {
        let text = "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n\
                    [aliases]\nfast='small'\nquick='fast'\n'f*'='small'\nnone=''\n\
                    [routes.all]\nchain=['a', 'nobody']\n\
                    [routes.who]\ntenants=['acme']\nmodels=['*-mini', 'gpt-*']\n\
                    [routes.late]\nagents=['x']\ntimeout={ stall_ms = 1000, first_content_ms = 5000 }\n\
                    [routes.see]\nagents=['y']\nfailover={ chains = { vision = ['b'] } }\n";
        let all = errors(text);
        for expected in [
            "aliases.quick: `fast` is an alias too; write the model itself",
            "aliases.f*: an alias is a whole name",
            "aliases.none: must not be empty",
            ": routes.all: it takes every request; name its `models`",
            ": routes.all.chain[1]: there is no provider `nobody`",
            "routes.who.tenants[0]: there is no tenant `acme`",
            "routes.who.models[0]: write a name, or the beginning of names",
            "routes.late.timeout: `first_content` 5s is above `stall` 1s",
            "routes.see.failover.chains.vision[0]: there is no provider `b`",
        ] {
            assert!(all.iter().any(|error| error.contains(expected)), "{expected} in {all:#?}");
        }
        assert_eq!(all.len(), 9, "{all:#?}");
    }

    #[test]
    fn two_credentials_of_one_name_are_refused() {
        let text = "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n\
                    credentials=[\n'file:/one/key.txt',\n'env:key',\n'env:KEY']\n";
        let all = errors(text);
        assert_eq!(all.len(), 1, "{all:?}");
        let expected = "configuration:8:1: providers[0].credentials[1]: there is a credential called \
                     `key` already";
        assert!(all[0].starts_with(expected), "{all:?}");
        // Of two providers they may be the same.
        let apart = text.replace("'env:key',\n", "")
            + "[[providers]]\nname='b'\ndialect='openai'\ncredentials=['file:/two/key.txt']\n";
        assert!(errors(&apart).is_empty());
    }

    #[test]
    fn a_short_credential_in_a_header_is_refused() {
        let text = |value: &str| {
            format!(
                "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n\
                 headers={{ Authorization='{value}', x-title='me' }}\n"
            )
        };
        assert_eq!(errors(&text("Bearer 12345678")), [""; 0]);
        let all = errors(&text("Bearer 1234567"));
        assert!(
            all.len() == 1 && all[0].contains("headers.Authorization: the value has 7 bytes"),
            "{all:?}"
        );
    }

    #[test]
    fn the_summarisers_numbers_are_keys() {
        let text = "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n\
                    [compaction.summariser]\nprovider='a'\nmodel='small'\n\
                    failures=3\nrest_s=90\nprobe_s=10\n";
        assert_eq!(errors(text), [""; 0]);
        let config = Source::text(text).parse().unwrap();
        let policy = config.compaction.policy.summariser.unwrap().policy;
        let seconds = [policy.rest, policy.probe, policy.patience].map(|time| time.as_secs());
        assert_eq!((policy.failures, seconds), (3, [90, 10, 5]));
        let all = errors(&text.replace("failures=3", "failures=0"));
        let expected = "configuration:9:10: compaction.summariser.failures: `failures` is 0";
        assert!(all.len() == 1 && all[0].starts_with(expected), "{all:?}");
        let unknown = Source::text(text.replace("probe_s", "probe")).parse().unwrap_err();
        assert!(unknown.to_string().contains("compaction.summariser.probe"), "{unknown}");
    }

    #[test]
    fn keys_of_tenants_are_hashes_or_references() {
        let good =
            format!("[[tenants]]\nname='t'\nkeys=['sha256:{}','env:K','file:/k']", "ab".repeat(32));
        assert!(errors(&good).is_empty());
        assert!(errors("[[tenants]]\nname='t'\nkeys=['sha256:12']")[0].contains("64 hexadecimal"));
        assert!(errors("[[tenants]]\nname='t'\nkeys=['bare']")[0].contains("sha256:HEX"));
    }
}
