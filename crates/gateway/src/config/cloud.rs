//! What a configuration says of clouds: where a provider's models are, and where its credentials come from.

use std::path::Path;

use steadfast::client::Platform;

use super::{ProviderConfig, ProviderKind};

/// A key of the configuration, and what is wrong with it.
type Problem = (&'static str, String);

impl ProviderConfig {
    /// Who serves its models.
    ///
    /// # Errors
    ///
    /// When something is missing for that, or is set that means nothing there.
    pub(crate) fn platform(&self) -> Result<Platform, Vec<Problem>> {
        let mut problems = self.strays();
        let mut need = |key: &'static str, value: &Option<String>, example: &str| {
            let value = value.clone().filter(|value| !value.is_empty());
            value.unwrap_or_else(|| {
                problems.push((key, format!("is needed with this `kind`, such as `{example}`")));
                example.to_owned()
            })
        };
        let platform = match self.kind {
            ProviderKind::Vendor => Platform::vendor(),
            ProviderKind::Azure => {
                need("base_url", &self.base_url, "https://my-resource.openai.azure.com");
                match self.api_version.as_deref() {
                    Some(version) => Platform::azure_version(version),
                    None => Platform::azure(),
                }
            }
            ProviderKind::Vertex => Platform::vertex(
                need("project", &self.project, "my-project"),
                need("location", &self.location, "us-east5"),
            ),
            #[cfg(feature = "aws")]
            ProviderKind::Bedrock => {
                Platform::bedrock(need("region", &self.region, "eu-central-1"))
            }
            #[cfg(not(feature = "aws"))]
            ProviderKind::Bedrock => {
                problems.push(("kind", "this build has no `bedrock`".to_owned()));
                Platform::vendor()
            }
        };
        for dialect in std::iter::once(self.dialect).chain(self.also) {
            if !platform.speaks(dialect) {
                let key = if dialect == self.dialect { "dialect" } else { "also" };
                problems.push((key, format!("there are no models in `{dialect}` of this `kind`")));
            }
        }
        if let Some(problem) = platform.problem() {
            problems.push(("kind", problem.to_owned()));
        }
        if problems.is_empty() { Ok(platform) } else { Err(problems) }
    }

    /// Keys that belong to another kind.
    fn strays(&self) -> Vec<Problem> {
        let keys = [
            ("api_version", ProviderKind::Azure, "azure", &self.api_version),
            ("project", ProviderKind::Vertex, "vertex", &self.project),
            ("location", ProviderKind::Vertex, "vertex", &self.location),
            ("region", ProviderKind::Bedrock, "bedrock", &self.region),
        ];
        let stray =
            keys.into_iter().filter(|(_, kind, _, value)| value.is_some() && self.kind != *kind);
        stray
            .map(|(key, _, kind, _)| {
                (key, format!("means something with `kind = \"{kind}\"` alone"))
            })
            .collect()
    }
}

/// Where a credential that expires comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloudCredential<'a> {
    /// AWS, wherever its own tools look.
    AwsDefault,
    /// A profile of AWS.
    AwsProfile(&'a str),
    /// Google, wherever its own tools look.
    GoogleDefault,
    /// The file of a service account of Google.
    GoogleFile(&'a str),
}

impl<'a> CloudCredential<'a> {
    /// The one that `reference` is, if it is of a cloud.
    pub(crate) fn of(reference: &'a str) -> Option<Result<Self, String>> {
        let (cloud, rest) = reference.split_once(':')?;
        let rest = rest.trim();
        match cloud {
            "aws" => Some(match rest.split_once('/') {
                None if rest == "default" => Ok(Self::AwsDefault),
                Some(("profile", name)) if !name.is_empty() => Ok(Self::AwsProfile(name)),
                _ => Err("write `aws:default` or `aws:profile/NAME`".to_owned()),
            }),
            "google" => Some(match rest {
                "" => Err("write `google:default` or `google:PATH`".to_owned()),
                "default" => Ok(Self::GoogleDefault),
                path => Ok(Self::GoogleFile(path)),
            }),
            _ => None,
        }
    }

    /// What it is called.
    pub(crate) fn name(self) -> &'a str {
        match self {
            Self::AwsDefault => "aws",
            Self::GoogleDefault => "google",
            Self::AwsProfile(name) => name,
            Self::GoogleFile(path) => {
                Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or(path)
            }
        }
    }
}
