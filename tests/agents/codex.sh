# paste
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<'TOML'
model = "gpt-5.4"
model_provider = "steadfast"
# The search is OpenAI's own: without this line no other provider is asked.
web_search = "disabled"
# A conversation is compacted at nine tenths of the model's window; at fewer tokens by:
# model_auto_compact_token_limit = 200000

[model_providers.steadfast]
# Called "OpenAI", it is asked for compactions; called anything else, the model is asked for a summary.
name = "steadfast"
base_url = "{gateway}/v1"
env_key = "STEADFAST_KEY"
wire_api = "responses"
# Answers over a WebSocket:
# supports_websockets = true
# The gateway's models and their windows, in place of Codex's own list:
# model_catalog_url = "{gateway}/v1/models"
# [features]
# api_key_model_discovery = true
TOML
export STEADFAST_KEY={key}
# end
exec codex exec --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check "$PROMPT" </dev/null
