# paste
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<'TOML'
model = "gpt-5.4"
model_provider = "steadfast"
web_search = "disabled"

[model_providers.steadfast]
name = "steadfast"
base_url = "{gateway}/v1"
env_key = "STEADFAST_KEY"
wire_api = "responses"

# Where no provider of the Responses API is behind it: these are OpenAI's own.
[features]
multi_agent = false
TOML
export STEADFAST_KEY={key}
# end
exec codex exec --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check "$PROMPT" </dev/null
