# paste
export OPENAI_BASE_URL={gateway}/v1
export OPENAI_API_KEY={key}
export OPENAI_MODEL=gpt-4.1
# end
export QWEN_CODE_SUPPRESS_YOLO_WARNING=1
mkdir -p "$HOME/.qwen"
cat > "$HOME/.qwen/settings.json" <<'JSON'
{
  "general": { "enableAutoUpdate": false },
  "privacy": { "usageStatisticsEnabled": false }
}
JSON
exec qwen --yolo --prompt "$PROMPT"
