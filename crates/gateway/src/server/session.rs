//! Which conversation a request belongs to, by what clients really send: the table `data/sessions.jsonl`.
//!
//! A session is where a failover took the conversation, the task of the guard, one witness of failures and one
//! state of compaction. So what several conversations share (OpenAI's `user`, a `prompt_cache_key` of a whole
//! program) is none by itself: a stop of one would stop them all, and their failures would count as one caller's. It
//! is one together with how the conversation begins.

use std::{
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::LazyLock,
};

use http::HeaderMap;
use serde::Deserialize;
use steadfast_chat::{ChatRequest, Message, Part, Role};
use steadfast_client::dialect::text_field;
use steadfast_core::Dialect;

const TABLE: &str = include_str!("../../data/sessions.jsonl");

/// The longest name of a session that is believed, in bytes: 512. Those of the table have some 40.
const LONGEST: usize = 512;

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    // A line that is no row is left out; a test reads all of them.
    TABLE.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
});

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A row of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    header: Option<Box<str>>,
    body: Option<Field>,
    dialect: Option<Dialect>,
    part: Option<Box<str>>,
    is: Kind,
    /// Who sends it.
    #[cfg_attr(not(test), expect(dead_code, reason = "for whoever reads the table"))]
    client: Box<str>,
}

/// A field of the body.
#[derive(Clone, Copy, Debug, Deserialize)]
enum Field {
    #[serde(rename = "prompt_cache_key")]
    PromptCacheKey,
    /// A parameter that requests have.
    #[serde(rename = "user", alias = "metadata.user_id")]
    User,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Conversation,
    Group,
    Inside,
}

/// Names the conversation of `request`, whose head has `headers`, and the agent that leads it, as far as the caller
/// says. What it says for this gateway has precedence.
pub(super) fn identify(request: &mut ChatRequest, headers: &HeaderMap) {
    let Some((row, mut session)) =
        ROWS.iter().find_map(|row| Some((row, row.find(request, headers)?)))
    else {
        return;
    };
    let mut context = std::mem::take(&mut request.context);
    if let Some(part) = row.part.as_deref().and_then(|name| text(headers, name)) {
        session.push('/');
        session.push_str(part);
        if context.agent().is_none() {
            context = context.with_agent(part);
        }
    }
    request.context = context.with_session(session);
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    (!text.is_empty() && text.len() <= LONGEST).then_some(text)
}

impl Row {
    fn find(&self, request: &ChatRequest, headers: &HeaderMap) -> Option<String> {
        if let Some(name) = &self.header {
            return text(headers, name).map(str::to_owned);
        }
        if self.dialect != request.dialect() {
            return None;
        }
        let value = match self.body? {
            Field::PromptCacheKey => text_field(request, "prompt_cache_key"),
            Field::User => request.params.user.as_deref().map(str::to_owned),
        };
        let value = value.filter(|value| !value.is_empty() && value.len() <= LONGEST)?;
        match self.is {
            Kind::Conversation => Some(value),
            Kind::Group => Some(format!("{value}#{:016x}", beginning(request)?)),
            Kind::Inside => inside(&value),
        }
    }
}

/// How the conversation begins: what the user wrote first.
fn beginning(request: &ChatRequest) -> Option<u64> {
    let first = request.messages.iter().find(|message| message.role() == Role::User)?;
    let mut hash = HASHER.build_hasher();
    for text in Message::parts(first).iter().filter_map(Part::as_text) {
        text.hash(&mut hash);
    }
    Some(hash.finish())
}

/// The session in what a client calls a user.
fn inside(user: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Known {
        session_id: String,
    }
    let session = match user.starts_with('{') {
        true => serde_json::from_str::<Known>(user).ok()?.session_id,
        false => user.rsplit_once("_session_")?.1.to_owned(),
    };
    (!session.is_empty()).then_some(session)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::{Value, json};
    use steadfast_client::dialect::{Route, codec};

    use super::*;

    #[test]
    fn every_row_is_read() {
        let rows: Vec<_> = TABLE.lines().skip(1).collect();
        for line in &rows {
            let row: Row =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert!(row.header.is_some() != row.body.is_some(), "{line}: a header or a field");
            assert_eq!(row.body.is_some(), row.dialect.is_some(), "{line}: fields are a dialect's");
            assert!(!row.client.is_empty(), "{line}: who sends it?");
        }
        assert_eq!(rows.len(), ROWS.len());
    }

    fn session(
        dialect: Dialect,
        headers: &[(&'static str, &'static str)],
        body: &Value,
    ) -> (Option<String>, Option<String>) {
        let body = body.to_string().into();
        let route = Route { model: Some("m"), stream: None };
        let mut request = codec(dialect).decode_request(&body, route).unwrap();
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), HeaderValue::from_static(value))
        });
        identify(&mut request, &headers.collect());
        let context = &request.context;
        (context.session().map(str::to_owned), context.agent().map(str::to_owned))
    }

    fn chat(more: &Value) -> Value {
        let mut body = json!({
            "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
        });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    #[test]
    fn the_first_that_is_there_names_the_conversation() {
        let old = json!({"metadata": {"user_id": "user_ab_account_cd_session_5f-6"}});
        let new = json!({"metadata": {"user_id":
            r#"{"device_id":"d","account_uuid":"","session_id":"5f-6"}"#}});
        let person = json!({"metadata": {"user_id": "user-77"}});
        let broken = json!({"metadata": {"user_id": "{\"session_id\":"}});
        let none = json!({});
        for (headers, body, expected, agent) in [
            (
                &[("x-steadfast-session", "a"), ("x-claude-code-session-id", "b")][..],
                &new,
                Some("a"),
                None,
            ),
            (&[("x-claude-code-session-id", "b"), ("session-id", "c")], &new, Some("b"), None),
            (
                &[("x-claude-code-session-id", "b"), ("x-claude-code-agent-id", "w1")],
                &new,
                Some("b/w1"),
                Some("w1"),
            ),
            (&[("session-id", "c"), ("thread-id", "t")], &none, Some("c/t"), Some("t")),
            (&[("thread-id", "t")], &none, Some("t"), None),
            (&[("x-session-affinity", "ses_1")], &none, Some("ses_1"), None),
            (&[("x-claude-code-session-id", "")], &new, Some("5f-6"), None),
            (&[], &old, Some("5f-6"), None),
            (&[], &new, Some("5f-6"), None),
            (&[("x-claude-code-agent-id", "w1")], &old, Some("5f-6/w1"), Some("w1")),
            (&[], &person, None, None),
            (&[], &broken, None, None),
            (&[], &none, None, None),
        ] {
            let found = session(Dialect::Anthropic, headers, &chat(body));
            let expected = (expected.map(str::to_owned), agent.map(str::to_owned));
            assert_eq!(found, expected, "{headers:?} {body}");
        }
    }

    #[test]
    fn what_conversations_share_is_none_by_itself() {
        let of = |more: &Value| session(Dialect::OpenAi, &[], &chat(more)).0;
        for group in ["user", "prompt_cache_key"] {
            let first = of(&json!({group: "app"}));
            assert!(first.is_some(), "{group}");
            let ask = |text: &str| json!([{"role": "user", "content": text}]);
            let mut longer = ask("hi");
            let more = json!([{"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go"}]);
            longer.as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
            assert_eq!(of(&json!({group: "app", "messages": longer})), first, "the next turn");
            assert_ne!(of(&json!({group: "app", "messages": ask("ho")})), first, "another one");
            assert_ne!(of(&json!({group: "other"})), first);
        }
        let key = of(&json!({"prompt_cache_key": "k", "user": "u"}));
        assert!(key.is_some_and(|key| key.starts_with("k#")), "it comes before the user");
        assert_eq!(of(&json!({"prompt_cache_key": 7})), None);
        // Anthropic has no such field.
        let foreign = chat(&json!({"prompt_cache_key": "k"}));
        assert_eq!(session(Dialect::Anthropic, &[], &foreign).0, None);
    }
}
