//! Azure: a key header of its own, deployments and a version in the address.

use http::HeaderName;
use steadfast_core::Dialect;

use super::{Azure, Operation, is_plain};
use crate::dialect::segment;

pub(super) const EXAMPLE: &str = "https://my-resource.openai.azure.com";

pub(super) const SUFFIXES: &[&str] =
    &["/openai/v1", "/openai", "/anthropic/v1/messages", "/anthropic/v1", "/anthropic"];

pub(super) const KEY: (HeaderName, &str) = (HeaderName::from_static("api-key"), "");

impl Azure {
    pub(super) fn problem(&self) -> Option<&'static str> {
        let is_odd = self.api_version.as_deref().is_some_and(|version| !is_plain(version));
        is_odd.then_some("an api-version is a date, such as `2024-10-21`, perhaps with `-preview`")
    }

    pub(super) fn path(
        &self,
        dialect: Dialect,
        what: Operation,
        model: &str,
        vendor: &str,
    ) -> String {
        if dialect == Dialect::Anthropic {
            return format!("/anthropic{vendor}");
        }
        let Some(version) = &self.api_version else { return format!("/openai/v1{vendor}") };
        let folder = match (dialect, what) {
            (Dialect::OpenAi, Operation::Generate { .. } | Operation::Embed) => {
                format!("/deployments/{}", segment(model))
            }
            _ => String::new(),
        };
        let and = if vendor.contains('?') { '&' } else { '?' };
        format!("/openai{folder}{vendor}{and}api-version={version}")
    }
}
