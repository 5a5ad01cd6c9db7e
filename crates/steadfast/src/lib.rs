//! Resilience layers for LLM calls: one tower layer a concern
