//! The steadfast gateway: resilience layers for LLM calls as one binary
