# paste
mkdir -p ~/.gemini
cat > ~/.gemini/settings.json <<'JSON'
{ "security": { "auth": { "selectedType": "gemini-api-key" } } }
JSON
export GOOGLE_GEMINI_BASE_URL={gateway}
export GEMINI_API_KEY={key}
# end
cat > ~/.gemini/settings.json <<'JSON'
{
  "general": { "enableAutoUpdate": false },
  "privacy": { "usageStatisticsEnabled": false },
  "security": { "auth": { "selectedType": "gemini-api-key" } }
}
JSON
export GEMINI_CLI_TRUST_WORKSPACE=true
exec gemini --yolo --prompt "$PROMPT"
