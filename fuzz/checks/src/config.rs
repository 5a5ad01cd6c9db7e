//! The gateway's configuration file.

use steadfast_gateway::config::{ConfigErrors, Source};

/// * Any text is a configuration, or is refused with a message and a position inside it.
/// * A valid one is valid when it is read again.
/// * No error message contains a secret.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let source = Source::text(text);
    match source.parse() {
        Err(errors) => named(&errors, text),
        Ok(config) => {
            let checked = config.validate(&source);
            if let Err(errors) = &checked {
                named(errors, text);
                let secrets = config
                    .providers
                    .iter()
                    .flat_map(|provider| &provider.credentials)
                    .chain(config.tenants.iter().flat_map(|tenant| &tenant.keys));
                for secret in secrets.filter(|secret| secret.starts_with("sk-") && secret.len() > 8)
                {
                    let shown = errors.to_string();
                    // Unless the same text is also used elsewhere, as a name.
                    let twice = text.matches(secret.as_str()).count() > 1;
                    assert!(twice || !shown.contains(secret.as_str()), "{shown}");
                }
            }
            let again = Source::text(text).parse().expect("as before").validate(&source);
            assert_eq!(checked, again);
        }
    }
}

fn named(errors: &ConfigErrors, text: &str) {
    assert!(!errors.0.is_empty());
    let lines = text.split('\n').count();
    for error in &errors.0 {
        assert!(!error.message.trim().is_empty(), "{error}");
        if let Some((line, column)) = error.position {
            assert!((1..=lines).contains(&line), "{error}");
            let there = text.split('\n').nth(line - 1).map_or(0, |line| line.chars().count());
            assert!((1..=there + 1).contains(&column), "{error}");
        }
    }
}
