//! Tools that a model may call.

use serde::{Deserialize, Serialize};
use steadfast_core::Dialect;

use crate::{Extra, Opaque, RawJson};

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Tool {
    /// A function the caller runs.
    Function {
        /// Its name.
        name: String,
        /// What it is for.
        description: Option<String>,
        /// The JSON schema of its arguments.
        parameters: Option<RawJson>,
        /// Whether the provider must hold the model to the schema.
        strict: Option<bool>,
        /// The tool as OpenAI's responses have it, if it takes free text there: in other dialects it is a function
        /// with the text as the argument `input`.
        custom: Option<RawJson>,
        /// Other fields of the tool, such as a cache mark.
        extra: Extra,
        /// The dialect it was read in.
        dialect: Option<Dialect>,
    },
    /// A tool that the provider runs, such as web search.
    Opaque(Opaque),
}

/// What vendors put around a declaration, at most, in tokens.
const PER_TOOL: usize = 32;

impl Tool {
    /// The most tokens that its declaration can be taken to be.
    pub(crate) fn most_tokens(&self) -> usize {
        let json = |json: &RawJson| json.get().len();
        let bytes = match self {
            Tool::Function { name, description, parameters, .. } => {
                let description = description.as_ref().map_or(0, String::len);
                name.len() + description + parameters.as_ref().map_or(0, json)
            }
            Tool::Opaque(opaque) => json(&opaque.json),
        };
        PER_TOOL + crate::part::most_tokens(bytes)
    }

    /// A function with this schema of arguments.
    pub fn function(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: RawJson,
    ) -> Self {
        Tool::Function {
            name: name.into(),
            description: Some(description.into()),
            parameters: Some(parameters),
            strict: None,
            custom: None,
            extra: None,
            dialect: None,
        }
    }

    /// The function's name.
    pub fn name(&self) -> Option<&str> {
        match self {
            Tool::Function { name, .. } => Some(name),
            Tool::Opaque(_) => None,
        }
    }
}

/// Which tools the model may or must call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// None.
    None,
    /// At least one, whichever.
    Required,
    /// This one.
    Tool(String),
    /// One of these, or none unless it has to call one.
    Allowed {
        /// The tools.
        names: Vec<String>,
        /// At least one of them has to be called.
        required: bool,
    },
}
