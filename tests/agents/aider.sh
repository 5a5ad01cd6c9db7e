# paste
export OPENAI_API_BASE={gateway}/v1
export OPENAI_API_KEY={key}
export AIDER_MODEL=openai/gpt-4.1
# end
# It runs no commands of a model unasked; the one of the task is its check after the edits.
exec aider --yes-always --no-check-update --analytics-disable --no-show-release-notes \
    --auto-test --test-cmd "$COMMAND" --message "$PROMPT" log.txt
