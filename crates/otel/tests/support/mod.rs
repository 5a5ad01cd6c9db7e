//! Exporters and collectors.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part")]

pub(crate) mod collector;

use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};

/// An exporter that takes everything and keeps nothing.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl SpanExporter for Nowhere {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

/// An exporter that never comes back, as one whose collector accepts a connection and says nothing.
#[derive(Debug)]
pub(crate) struct Silent;

impl SpanExporter for Silent {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        std::future::pending().await
    }
}
