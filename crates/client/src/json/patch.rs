//! Changing some fields of an object and leaving every byte of the others.

use std::cell::OnceCell;

use bytes::Bytes;
use steadfast_chat::ChatRequest;
use steadfast_core::{Dialect, Failure};

use super::{Fields, Object, Raw, text_of};

/// A request body being written: on top of the one that was read, when that was in the same
/// dialect, else from nothing.
pub(crate) struct Patch<'a> {
    request: &'a ChatRequest,
    dialect: Dialect,
    /// Those of the body that was read, once something between them has to change.
    fields: OnceCell<Fields<'a>>,
    set: Vec<Change>,
}

struct Change {
    /// The names the field goes by; the first is written when it is new.
    names: &'static [&'static str],
    value: Option<String>,
}

impl<'a> Patch<'a> {
    /// Begins.
    pub(crate) fn new(request: &'a ChatRequest, dialect: Dialect) -> Self {
        Self { request, dialect, fields: OnceCell::new(), set: Vec::new() }
    }

    /// The request as it was read, when that was in this dialect.
    pub(crate) fn read(&self) -> Option<&'a ChatRequest> {
        Some(self.request.origin(self.dialect)?.read())
    }

    /// A field as it was read. To ask is to read them all.
    pub(crate) fn old(&self, names: &[&str]) -> Option<Raw<'a>> {
        self.fields().iter().find(|(name, _)| names.contains(name)).map(|(_, raw)| raw)
    }

    /// None of a body that was not read, or in another dialect.
    fn fields(&self) -> &Fields<'a> {
        self.fields.get_or_init(|| fields_of(self.request, self.dialect))
    }

    /// Whether `what` of the request is as it was read.
    pub(crate) fn is_same<T: PartialEq + ?Sized>(&self, what: impl Fn(&ChatRequest) -> &T) -> bool {
        self.read().is_some_and(|read| what(read) == what(self.request))
    }

    /// Writes a field anew unless it is the `same` as it was read.
    pub(crate) fn set(
        &mut self,
        names: &'static [&'static str],
        same: bool,
        value: impl FnOnce() -> Result<Option<String>, Failure>,
    ) -> Result<(), Failure> {
        if !same {
            self.set.push(Change { names, value: value()? });
        }
        Ok(())
    }

    /// Writes a field anew, out of what it was, unless it is the `same` as it was read.
    pub(crate) fn change(
        &mut self,
        names: &'static [&'static str],
        same: bool,
        value: impl FnOnce(Option<Raw<'a>>) -> Option<String>,
    ) {
        if !same {
            self.set.push(Change { names, value: value(self.old(names)) });
        }
    }

    /// The body. The very bytes that were read, when nothing changed.
    pub(crate) fn finish(self) -> Bytes {
        let origin = self.request.origin(self.dialect);
        if let Some(origin) = origin
            && self.set.is_empty()
        {
            return origin.body.clone();
        }
        let mut out = Vec::with_capacity(origin.map_or(1_024, |origin| origin.body.len() + 256));
        write(
            &mut Object::new(&mut out),
            self.fields().iter().map(|(name, raw)| (name, raw.get())),
            self.set.iter().map(|change| (change.names, change.value.as_deref())).collect(),
        );
        out.into()
    }
}

/// The fields of the body that `request` was read from, as they stand; none when that was in another
/// dialect.
pub(crate) fn fields_of(request: &ChatRequest, dialect: Dialect) -> Fields<'_> {
    let raw = request.origin(dialect).and_then(|origin| Raw::read(&origin.body).ok());
    raw.and_then(|raw| Fields::read(raw).ok()).unwrap_or_default()
}

/// `old` with the fields of `set` changed: replaced where they stand, added at the end, or removed.
/// What else is in `old` stays as it is.
pub(crate) fn patched(
    old: Option<Raw<'_>>,
    set: &[(&'static [&'static str], Option<String>)],
) -> String {
    let fields = old.and_then(|old| Fields::read(old).ok()).unwrap_or_default();
    let mut out = Vec::new();
    write(
        &mut Object::new(&mut out),
        fields.iter().map(|(name, raw)| (name, raw.get())),
        set.iter().map(|(names, value)| (*names, value.as_deref())).collect(),
    );
    text_of(out)
}

fn write<'a>(
    object: &mut Object<'_>,
    old: impl Iterator<Item = (&'a str, &'a str)>,
    mut set: Vec<(&'static [&'static str], Option<&'a str>)>,
) {
    for (name, raw) in old {
        match set.iter_mut().find(|(names, _)| names.contains(&name)) {
            None => {
                object.raw(name, raw);
            }
            Some((_, value)) => {
                // A field that stands there twice is written once.
                if let Some(value) = value.take() {
                    object.raw(name, value);
                }
            }
        }
    }
    for (names, value) in set {
        if let (Some(name), Some(value)) = (names.first(), value) {
            object.raw(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_keeps_its_bytes_and_its_place() {
        let new = patched(
            Raw::check(br#"{ "b" : 1.50, "a":[ 1 ], "c":null, "a":2 }"#),
            &[
                (&["a", "A"], Some("9".into())),
                (&["c"], None),
                (&["new", "other"], Some("true".into())),
                (&["never"], None),
            ],
        );
        assert_eq!(new, r#"{"b":1.50,"a":9,"new":true}"#);
        assert_eq!(patched(None, &[(&["x"], Some("1".into()))]), r#"{"x":1}"#);
    }
}
