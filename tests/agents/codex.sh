# paste
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<'TOML'
model = "gpt-5.4"
model_provider = "steadfast"
# The search is OpenAI's own: without this line no other provider is asked.
web_search = "disabled"

[model_providers.steadfast]
name = "steadfast"
base_url = "{gateway}/v1"
env_key = "STEADFAST_KEY"
wire_api = "responses"
# Answers over a WebSocket:
# supports_websockets = true
TOML
export STEADFAST_KEY={key}
# end
exec codex exec --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check "$PROMPT" </dev/null
