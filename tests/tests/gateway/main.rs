//! The gateway as its callers, providers and operators see it. One program: each of its own would have all of the gateway in
//! it, and take minutes to link and gigabytes of disk together.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admission;
mod bounds;
mod clients;
mod clouds;
mod conversation;
mod counting;
mod dashboard;
mod edges;
mod embeddings;
mod escalation;
mod exact;
mod fleet;
mod health;
mod keys;
mod life;
mod names;
mod otel;
mod presets;
mod reload;
mod responses;
mod routes;
mod secrets;
mod shared_operators;
mod simulated;
mod spend;
mod stories;
mod streams;
mod time;
mod translation;
mod unread;
mod websocket;
