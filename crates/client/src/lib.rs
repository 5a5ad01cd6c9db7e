//! An HTTP LLM client for three wire dialects over any tower HTTP service
