//! LLM providers that misbehave on command
