//! Vertex AI: everything is below a project and a location.

use bytes::Bytes;
use http::HeaderMap;
use steadfast_core::{Dialect, Failure};

use super::{Operation, Vertex, changed, is_plain};
use crate::{
    dialect::segment,
    json::{Array, Fields, Object, Raw, fields_of_body, items, patched, text_of},
};

pub(super) const SUFFIXES: &[&str] = &["/v1", "/v1beta1"];

/// The version of Anthropic's API there, which is in the body; the vendor's documentation has had no other since 2023.
const VERSION: &str = "\"vertex-2023-10-16\"";

impl Vertex {
    pub(super) fn problem(&self) -> Option<&'static str> {
        (!is_plain(&self.project) || !is_plain(&self.location)).then_some(
            "a project and a location are made of letters, digits and hyphens, such as `my-project` and `us-east5`",
        )
    }

    /// As the vendors' SDKs have it: one host for all the world, two for a continent each, and one a region.
    pub(super) fn base_url(&self) -> String {
        match &*self.location {
            "global" => "https://aiplatform.googleapis.com".to_owned(),
            continent @ ("eu" | "us") => {
                format!("https://aiplatform.{continent}.rep.googleapis.com")
            }
            region => format!("https://{region}-aiplatform.googleapis.com"),
        }
    }

    pub(super) fn path(
        &self,
        dialect: Dialect,
        what: Operation,
        model: &str,
        vendor: &str,
    ) -> Option<String> {
        let Self { project, location } = self;
        // What Google's own SDK uses has fields that the other one lacks.
        let version = if dialect == Dialect::Gemini { "v1beta1" } else { "v1" };
        let rest = match (dialect, what) {
            (_, Operation::List | Operation::Embed) => return None,
            (Dialect::Gemini, _) => {
                format!("publishers/google/{}", vendor.strip_prefix("/v1beta/")?)
            }
            (Dialect::Anthropic, Operation::Count) => {
                "publishers/anthropic/models/count-tokens:rawPredict".to_owned()
            }
            (Dialect::Anthropic, Operation::Generate { stream }) => {
                let method = if stream { "streamRawPredict" } else { "rawPredict" };
                format!("publishers/anthropic/models/{}:{method}", segment(model))
            }
            (Dialect::Anthropic, Operation::Stored) => return None,
            (Dialect::OpenAi, _) => format!("endpoints/openapi{vendor}"),
            (Dialect::Responses, _) => format!("publishers/openai/v1{vendor}"),
        };
        Some(format!("/{version}/projects/{project}/locations/{location}/{rest}"))
    }
}

/// Anthropic's request: its version is in the body, its model in the address, except where tokens are counted.
pub(super) fn messages(
    what: Operation,
    body: &Bytes,
    headers: &mut HeaderMap,
) -> Result<Bytes, Failure> {
    headers.remove("anthropic-version");
    let version = (&["anthropic_version"][..], Some(VERSION.to_owned()));
    match what {
        Operation::Count => changed(body, &[version]),
        _ => changed(body, &[(&["model"], None), version]),
    }
}

/// Gemini's request: each content has a role there, and what is counted stands in no `generateContentRequest`.
pub(super) fn gemini(what: Operation, body: Bytes) -> Result<Bytes, Failure> {
    let body = if what == Operation::Count { counted(&body)? } else { body };
    let mut fields = fields_of_body(&body)?;
    let contents = fields.take("contents").and_then(|contents| items(contents).ok());
    let Some(contents) = contents else { return Ok(body) };
    let lacks_role = |content: &Raw<'_>| {
        Fields::read(*content).is_ok_and(|mut content| content.take("role").is_none())
    };
    if !contents.iter().any(lacks_role) {
        return Ok(body);
    }
    let mut out = Vec::new();
    {
        let mut list = Array::new(&mut out);
        for content in contents {
            if lacks_role(&content) {
                list.raw(&patched(Some(content), &[(&["role"], Some("\"user\"".to_owned()))])?);
            } else {
                list.raw(content.get());
            }
        }
    }
    changed(&body, &[(&["contents"], Some(text_of(out)))])
}

/// What of a request to count Vertex knows.
fn counted(body: &Bytes) -> Result<Bytes, Failure> {
    const KNOWN: [&str; 4] = ["contents", "systemInstruction", "tools", "generationConfig"];
    let fields = fields_of_body(body)?;
    let inner = fields.iter().find(|(name, _)| *name == "generateContentRequest");
    let inner = inner.map(|(_, raw)| Bytes::copy_from_slice(raw.get().as_bytes()));
    let mut out = Vec::with_capacity(body.len());
    {
        let mut object = Object::new(&mut out);
        let from = fields_of_body(inner.as_ref().unwrap_or(body))?;
        for (name, raw) in from.iter().filter(|(name, _)| KNOWN.contains(name)) {
            object.raw(name, raw.get());
        }
    }
    Ok(text_of(out).into())
}

/// Whether a refusal is Anthropic's own, and not the platform's, which are as Gemini's.
pub(super) fn is_anthropic_error(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Refusal<'a> {
        #[serde(rename = "type", borrow)]
        kind: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<Refusal<'_>>(body).is_ok_and(|refusal| refusal.kind == "error")
}
