//! Secrets are taken out of what is exported.

use std::borrow::Cow;

use opentelemetry::{Array, KeyValue, Value, trace::Status};
use opentelemetry_sdk::trace::SpanData;

/// `Some` where a text has to be replaced.
pub(crate) type MaskText = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Every text of `span`.
pub(crate) fn span(span: &mut SpanData, mask: &MaskText) {
    if let Some(name) = mask(&span.name) {
        span.name = Cow::Owned(name);
    }
    attributes(&mut span.attributes, mask);
    for event in &mut span.events.events {
        attributes(&mut event.attributes, mask);
    }
    if let Status::Error { description } = &mut span.status
        && let Some(masked) = mask(description)
    {
        *description = Cow::Owned(masked);
    }
}

/// Every text of `attributes`.
pub(crate) fn attributes(attributes: &mut [KeyValue], mask: &MaskText) {
    for attribute in attributes {
        match &mut attribute.value {
            Value::String(text) => {
                if let Some(masked) = mask(text.as_str()) {
                    *text = masked.into();
                }
            }
            Value::Array(Array::String(texts)) => {
                for text in texts {
                    if let Some(masked) = mask(text.as_str()) {
                        *text = masked.into();
                    }
                }
            }
            _ => {}
        }
    }
}
