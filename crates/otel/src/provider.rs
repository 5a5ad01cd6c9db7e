//! The conventions' names of providers.

/// What the conventions call the providers that configurations call by one of several names. Any other name is left as it is.
const KNOWN: [(&str, &[&str]); 16] = [
    ("openai", &["openai"]),
    ("anthropic", &["anthropic", "claude"]),
    ("gcp.gemini", &["gemini", "google-ai"]),
    ("gcp.vertex_ai", &["vertex", "vertexai", "vertex-ai"]),
    ("aws.bedrock", &["bedrock", "aws"]),
    ("azure.ai.openai", &["azure", "azure-openai"]),
    ("azure.ai.inference", &["azure-ai"]),
    ("cohere", &["cohere"]),
    ("deepseek", &["deepseek"]),
    ("groq", &["groq"]),
    ("mistral_ai", &["mistral", "mistralai"]),
    ("moonshot_ai", &["moonshot", "kimi"]),
    ("perplexity", &["perplexity"]),
    ("x_ai", &["xai", "x-ai", "grok"]),
    ("ibm.watsonx.ai", &["watsonx"]),
    ("gcp.gen_ai", &["google"]),
];

/// The conventions' name of the provider that is configured as `name`.
pub(crate) fn known_as(name: &str) -> &str {
    let is_it = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    KNOWN.iter().find(|(_, names)| is_it(names)).map_or(name, |(known, _)| known)
}

#[cfg(test)]
mod tests {
    use super::known_as;

    #[test]
    fn usual_names_are_the_conventions_and_others_are_left() {
        for (name, known) in
            [("OpenAI", "openai"), ("mistral", "mistral_ai"), ("our-llama", "our-llama")]
        {
            assert_eq!(known_as(name), known);
        }
    }
}
