# paste
export ANTHROPIC_BASE_URL={gateway}
export ANTHROPIC_API_KEY={key}
# end
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
exec claude --print "$PROMPT" --allowedTools "Read Edit Write Bash"
