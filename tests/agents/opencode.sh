# paste
mkdir -p ~/.config/opencode
cat > ~/.config/opencode/opencode.json <<'JSON'
{
  "$schema": "https://opencode.ai/config.json",
  "model": "anthropic/claude-sonnet-4-6",
  "provider": { "anthropic": { "options": { "baseURL": "{gateway}/v1" } } }
}
JSON
export ANTHROPIC_API_KEY={key}
# end
export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1
exec opencode run "$PROMPT"
