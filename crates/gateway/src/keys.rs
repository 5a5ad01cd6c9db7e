//! Who a caller is.

use std::{collections::BTreeMap, fmt, sync::Arc};

use http::{HeaderMap, header, request::Parts};
use sha2::{Digest, Sha256};
use steadfast_client::Secret;

use crate::{
    authority::is_local,
    config::{Auth, Config, ConfigError, ConfigErrors, Source, key_name},
    secrets::SHORTEST,
};

/// Gateway keys and the tenants they belong to. Holds hashes alone, so nothing here can leak a
/// key.
#[derive(Clone, Default)]
pub struct KeyRing {
    /// By the hash of the key: the lookup compares hashes, so its time reveals nothing of a key.
    tenants: BTreeMap<[u8; 32], Arc<TenantKey>>,
    admin: Option<AdminKey>,
    open: bool,
}

/// What is known of the admin key.
#[derive(Clone)]
struct AdminKey {
    hash: [u8; 32],
    /// What the sessions of the dashboard are made with: another hash of the key. Not known of a key that is given by its
    /// hash: whoever reads that in a file is no operator.
    sessions: Option<[u8; 32]>,
}

/// What the hash for sessions begins with, which no key does.
const SESSIONS: &[u8] = b"steadfast dashboard sessions\0";

/// What a caller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// Ask models, on a tenant's behalf, with this key.
    Tenant(Arc<TenantKey>),
    /// Ask models, on nobody's.
    Anyone,
}

/// A key of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantKey {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The key's name, as `acme/CI_KEY`.
    pub name: Arc<str>,
}

impl TenantKey {
    fn of(tenant: &Arc<str>, reference: &str) -> Self {
        Self { tenant: tenant.clone(), name: key_name(tenant, reference).into() }
    }
}

impl KeyRing {
    /// Reads the keys that `config` names. Returns beside them those of which it does not know the hash alone.
    ///
    /// # Errors
    ///
    /// When a variable is not set, a file can not be read, or what is in it is too short for a key.
    pub fn read(config: &Config, source: &Source) -> Result<(Self, Vec<Secret>), ConfigErrors> {
        let mut ring = Self { open: config.server.auth == Auth::None, ..Self::default() };
        let mut known: Vec<Secret> = Vec::new();
        let mut errors: Vec<ConfigError> = Vec::new();
        for (index, tenant) in config.tenants.iter().enumerate() {
            let name: Arc<str> = tenant.name.as_str().into();
            for (n, key) in tenant.keys.iter().enumerate() {
                match key_hash(key, &mut known) {
                    Ok(hash) => {
                        ring.tenants.insert(hash, Arc::new(TenantKey::of(&name, key)));
                    }
                    Err(why) => {
                        errors.push(source.error(&format!("tenants[{index}].keys[{n}]"), why));
                    }
                }
            }
        }
        if let Some(key) = &config.server.admin_key {
            let before = known.len();
            match key_hash(key, &mut known) {
                Ok(hash) => {
                    let sessions = known.get(before).map(|key| {
                        let text = [SESSIONS, key.expose().as_bytes()].concat();
                        Sha256::digest(text).into()
                    });
                    ring.admin = Some(AdminKey { hash, sessions });
                }
                Err(why) => errors.push(source.error("server.admin_key", why)),
            }
        }
        if errors.is_empty() { Ok((ring, known)) } else { Err(ConfigErrors(errors)) }
    }

    /// Who sent `request`, by whichever header the dialects carry a key in, or `query_key`;
    /// `None` when the key is missing or unknown.
    pub fn caller(&self, request: &Parts, query_key: Option<&str>) -> Option<Principal> {
        if self.open {
            return is_local(request).then_some(Principal::Anyone);
        }
        let key = presented(&request.headers).or(query_key)?;
        self.tenants.get(&hash(key)).cloned().map(Principal::Tenant)
    }

    /// Whether `request` has the admin key. Without one configured, whoever reaches a loopback
    /// address is the operator, unless it is a page in the operator's browser.
    pub fn is_admin(&self, request: &Parts, loopback: bool) -> bool {
        match &self.admin {
            None => loopback && is_local(request),
            Some(_) => presented(&request.headers).is_some_and(|key| self.is_admin_key(key)),
        }
    }

    /// Whether `key` is the admin key. Compares hashes, so its time reveals nothing of the key.
    pub(crate) fn is_admin_key(&self, key: &str) -> bool {
        self.admin.as_ref().is_some_and(|admin| hash(key) == admin.hash)
    }

    /// What sessions of operators are made with, by a secret of this process where nothing else will do: they end with
    /// the admin key, and with the process where that key is not known.
    pub(crate) fn session_key(&self, process: &[u8; 32]) -> [u8; 32] {
        match &self.admin {
            Some(AdminKey { sessions: Some(sessions), .. }) => *sessions,
            Some(AdminKey { hash, sessions: None }) => {
                Sha256::digest([&process[..], hash].concat()).into()
            }
            None => *process,
        }
    }

    /// Whether `request` may see what needs no key where there are keys: whether the gateway is ready,
    /// and what it counts.
    pub fn is_observer(&self, request: &Parts) -> bool {
        !self.open || is_local(request)
    }

    /// Whether there is an admin key.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some()
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing")
            .field("keys", &self.tenants.len())
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim());
    bearer.or_else(|| text("x-api-key")).or_else(|| text("x-goog-api-key"))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn key_hash(reference: &str, known: &mut Vec<Secret>) -> Result<[u8; 32], String> {
    let Some(hex) = reference.strip_prefix("sha256:") else {
        let key = resolve(reference)?;
        known.push(key.clone());
        return Ok(hash(key.expose()));
    };
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16)
            .map_err(|_| "after `sha256:` come 64 hexadecimal digits".to_owned())?;
    }
    Ok(out)
}

/// The secret that `env:NAME` or `file:PATH` refers to, without the line end of the file.
///
/// # Errors
///
/// A sentence that names the variable or file, never the secret.
pub fn resolve(reference: &str) -> Result<Secret, String> {
    let secret = if let Some(name) = reference.strip_prefix("env:") {
        std::env::var(name)
            .map_err(|_| format!("the environment variable {name} is not set; export it"))?
    } else if let Some(path) = reference.strip_prefix("file:") {
        std::fs::read_to_string(path)
            .map_err(|error| format!("the file {path} can not be read: {error}"))?
    } else {
        return Err("write `env:NAME` or `file:PATH`".to_owned());
    };
    let secret = secret.trim();
    if secret.is_empty() {
        return Err(format!("{reference} is empty; it must hold the key"));
    }
    long_enough(secret).map_err(|why| format!("{reference} {why}"))?;
    Ok(Secret::new(secret))
}

/// Whether `text` says where something is kept, and is not that itself.
pub(crate) fn is_reference(text: &str) -> bool {
    text.starts_with("env:") || text.starts_with("file:")
}

/// # Errors
///
/// When `secret` is too short to be kept out of what leaves the gateway: how long it is.
pub(crate) fn long_enough(secret: &str) -> Result<(), String> {
    let length = secret.len();
    if length >= SHORTEST {
        return Ok(());
    }
    let bytes = if length == 1 { "byte" } else { "bytes" };
    Err(format!(
        "has {length} {bytes}; a secret has {SHORTEST} at least, so that it can be told apart from words \
         and masked in errors and logs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(text: &str) -> Result<KeyRing, ConfigErrors> {
        let source = Source::text(text);
        KeyRing::read(&source.parse().unwrap(), &source).map(|(ring, _)| ring)
    }

    fn with(name: &str, value: &str) -> Parts {
        asked(&[(name, value)])
    }

    fn asked(headers: &[(&str, &str)]) -> Parts {
        let request = http::Request::builder();
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn keys_come_in_each_dialects_header() {
        // The hash of `k1`.
        let hex: String = Sha256::digest(b"k1").iter().map(|byte| format!("{byte:02x}")).collect();
        let ring = ring(&format!("[[tenants]]\nname='acme'\nkeys=['sha256:{hex}']")).unwrap();
        let name = format!("acme/{}", &hex[..8]).into();
        let key = TenantKey { tenant: "acme".into(), name };
        let acme = Some(Principal::Tenant(Arc::new(key)));
        assert_eq!(ring.caller(&with("authorization", "Bearer k1"), None), acme);
        assert_eq!(ring.caller(&with("authorization", "bearer  k1"), None), acme);
        assert_eq!(ring.caller(&with("x-api-key", "k1"), None), acme);
        assert_eq!(ring.caller(&with("x-goog-api-key", "k1"), None), acme);
        assert_eq!(ring.caller(&asked(&[]), Some("k1")), acme);
        for refused in [with("x-api-key", "k2"), with("authorization", "Basic k1"), asked(&[])] {
            assert_eq!(ring.caller(&refused, None), None);
        }
        assert!(!format!("{ring:?}").contains("k1"));
    }

    #[test]
    fn a_missing_variable_is_named_at_its_key() {
        let error = ring("[[tenants]]\nname='t'\nkeys=['env:STEADFAST_TEST_NOT_SET']").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(":3:7: tenants[0].keys[0]") && text.contains("STEADFAST_TEST_NOT_SET"),
            "{text}"
        );
        let error = ring("[server]\nadmin_key='file:/nonexistent/key'").unwrap_err();
        assert!(error.to_string().contains("server.admin_key"), "{error}");
    }

    #[test]
    fn a_short_secret_is_refused_by_its_length_alone() {
        let path = std::env::temp_dir().join(format!("steadfast-short-{}", std::process::id()));
        for (secret, length) in [("q", "has 1 byte;"), ("hush-hu\n", "has 7 bytes;")] {
            std::fs::write(&path, secret).unwrap();
            let file = path.display();
            for (text, key) in [
                (
                    format!("[[tenants]]\nname='t'\nkeys=['file:{file}']"),
                    ":3:7: tenants[0].keys[0]",
                ),
                (format!("[server]\nadmin_key='file:{file}'"), ":2:11: server.admin_key"),
            ] {
                let error = ring(&text).unwrap_err().to_string();
                assert!(error.contains(key) && error.contains(length), "{error}");
                assert!(!error.contains("hush-hu"), "{error}");
            }
        }
        std::fs::write(&path, "hush-hus\n").unwrap();
        assert!(ring(&format!("[server]\nadmin_key='file:{}'", path.display())).is_ok());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn without_keys_no_page_of_a_browser_is_served() {
        let open = ring("[server]\nauth='none'").unwrap();
        let keyed = ring("[[tenants]]\nname='t'\nkeys=['sha256:00']").unwrap();
        for (headers, served) in [
            (&[("host", "localhost:8080")][..], true),
            (&[("host", "evil.example")], false),
            (&[("host", "localhost"), ("sec-fetch-site", "cross-site")], false),
        ] {
            let request = asked(headers);
            assert_eq!(open.caller(&request, None).is_some(), served, "{headers:?}");
            assert_eq!(open.is_admin(&request, true), served, "{headers:?}");
            assert_eq!(open.is_observer(&request), served, "{headers:?}");
            assert!(keyed.is_observer(&request), "whoever counts calls it by any name");
        }
    }

    #[test]
    fn admin_is_local_or_has_the_key() {
        let open = ring("[server]\nauth='none'").unwrap();
        assert!(open.is_admin(&asked(&[]), true) && !open.is_admin(&asked(&[]), false));
        let hex: String = Sha256::digest(b"root").iter().map(|b| format!("{b:02x}")).collect();
        let keyed = ring(&format!("[server]\nauth='none'\nadmin_key='sha256:{hex}'")).unwrap();
        assert!(!keyed.is_admin(&asked(&[]), true), "the address is not enough any more");
        assert!(keyed.is_admin(&with("authorization", "Bearer root"), false));
    }
}
