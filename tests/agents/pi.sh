# paste
mkdir -p ~/.pi/agent
cat > ~/.pi/agent/models.json <<'JSON'
{ "providers": { "anthropic": { "baseUrl": "{gateway}" } } }
JSON
export ANTHROPIC_API_KEY={key}
# end
export PI_OFFLINE=1 PI_TELEMETRY=0
exec pi --print --model anthropic/claude-sonnet-4-6 "$PROMPT"
