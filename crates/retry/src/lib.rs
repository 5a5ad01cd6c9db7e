//! Retry LLM calls: hints, budgets, streams before their first content
