//! A circuit breaker that judges answers when they end
