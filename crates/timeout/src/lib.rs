//! Stall, first-content, makespan and pipeline limits for LLM calls
