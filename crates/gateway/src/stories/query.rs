//! Which stories are asked for.

use http::Uri;

use super::{Outcome, Story};

/// How many stories are listed where nobody says how many.
const LISTED: usize = 100;

/// The most that are listed at once: some 500 KiB.
const MOST: usize = 1_000;

/// What `GET /admin/requests` is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoryQuery {
    pub(crate) limit: usize,
    outcome: Option<Asked>,
    target: Option<String>,
    tenant: Option<String>,
    model: Option<String>,
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Outcome(Outcome),
    Recovered,
}

impl Default for StoryQuery {
    fn default() -> Self {
        Self { limit: LISTED, outcome: None, target: None, tenant: None, model: None, reason: None }
    }
}

impl StoryQuery {
    /// What the query of `uri` asks for.
    ///
    /// # Errors
    ///
    /// Which part of it is unknown, and what would be right.
    pub(crate) fn of(uri: &Uri) -> Result<Self, String> {
        let mut asked = Self::default();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let value = value.into_owned();
            match &*name {
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                    asked.limit =
                        limit.ok_or_else(|| format!("limit: write a number from 1 to {MOST}"))?;
                }
                "outcome" => asked.outcome = Some(outcome(&value)?),
                "target" => asked.target = Some(value),
                "tenant" => asked.tenant = Some(value),
                "model" => asked.model = Some(value),
                "reason" => asked.reason = Some(value),
                // The admin key of a browser's address.
                "key" => {}
                other => {
                    return Err(format!(
                        "{other}: there are outcome, target, tenant, model, reason and limit"
                    ));
                }
            }
        }
        Ok(asked)
    }

    /// Whether it asks for `story`.
    pub(crate) fn takes(&self, story: &Story) -> bool {
        let outcome = match self.outcome {
            None => true,
            Some(Asked::Recovered) => story.is_recovered(),
            Some(Asked::Outcome(outcome)) => story.outcome() == outcome,
        };
        let is = |asked: &Option<String>, found: Option<&str>| {
            asked.as_deref().is_none_or(|asked| found == Some(asked))
        };
        // A provider, or all of a target's name.
        let target = self.target.as_deref().is_none_or(|asked| {
            story.targets().any(|target| target.provider() == asked || target.as_str() == asked)
        });
        outcome
            && target
            && is(&self.tenant, story.draft.who[0].as_deref())
            && is(&self.model, Some(&story.draft.model))
            && is(&self.reason, story.reason().map(|reason| reason.as_str()))
    }
}

fn outcome(word: &str) -> Result<Asked, String> {
    use Outcome::{Cancelled, Failed, Ok as Answered, Running};
    if word == "recovered" {
        return Ok(Asked::Recovered);
    }
    [Running, Answered, Failed, Cancelled]
        .into_iter()
        .find(|outcome| outcome.as_str() == word)
        .map(Asked::Outcome)
        .ok_or_else(|| "outcome: there are running, ok, recovered, failed and cancelled".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_or_refused_with_what_would_be_right() {
        let read =
            |query: &str| StoryQuery::of(&format!("/admin/requests?{query}").parse().unwrap());
        assert_eq!(read("").unwrap(), StoryQuery::default());
        let asked = read("outcome=recovered&target=openai%2Fgpt&limit=5&key=x").unwrap();
        assert_eq!((asked.limit, asked.outcome), (5, Some(Asked::Recovered)));
        assert_eq!(asked.target.as_deref(), Some("openai/gpt"));
        for (query, right) in [
            ("limit=0", "1 to 1000"),
            ("limit=x", "1 to 1000"),
            ("outcome=bad", "recovered"),
            ("who=me", "tenant"),
        ] {
            assert!(read(query).unwrap_err().contains(right), "{query}");
        }
    }
}
