//! Settings that an agent's script has as comments.

/// What a run does beside the task, in an agent's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// It asks over a WebSocket.
    Socket,
    /// It compacts the conversation by a summary that it has the model write.
    Summary,
    /// It compacts the conversation by asking for a compaction.
    Compaction,
    /// It reads the list of models.
    Models,
}

/// When the conversation is compacted, in tokens: what the agent says before any of it is well below.
const LIMIT: u64 = 15_000;

impl Setting {
    /// `script` with it.
    pub(super) fn set(self, script: &str) -> String {
        let replaced: &[(&str, String)] = match self {
            Self::Socket => &[("# supports_websockets", "supports_websockets".to_owned())],
            Self::Summary => &[limit()],
            Self::Compaction => {
                &[limit(), ("name = \"steadfast\"", "name = \"OpenAI\"".to_owned())]
            }
            Self::Models => &[
                ("# model_catalog_url", "model_catalog_url".to_owned()),
                ("# [features]", "[features]".to_owned()),
                ("# api_key_model", "api_key_model".to_owned()),
            ],
        };
        replaced.iter().fold(script.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Whether the conversation is compacted by it.
    pub(super) fn compacts(self) -> bool {
        matches!(self, Self::Summary | Self::Compaction)
    }
}

fn limit() -> (&'static str, String) {
    (
        "# model_auto_compact_token_limit = 200000",
        format!("model_auto_compact_token_limit = {LIMIT}"),
    )
}
