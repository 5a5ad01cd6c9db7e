//! Changing some fields of an object and leaving every byte of the others.

use std::cell::OnceCell;

use bytes::Bytes;
use serde::Serialize;
use steadfast_chat::ChatRequest;
use steadfast_core::{Dialect, Failure, FaultSide, Reason};

use super::{
    Fields, Object, Raw, RequestError, quoted, text_of,
    write::{room, value},
};

/// A request body being written: on top of the one that was read, when that was in the same
/// dialect, else from nothing.
pub(crate) struct Patch<'a> {
    request: &'a ChatRequest,
    dialect: Dialect,
    /// Those of the body that was read, once something between them has to change.
    fields: OnceCell<Result<Fields<'a>, RequestError>>,
    set: Set,
}

/// What has been set.
enum Set {
    /// Of a body that was read in this dialect.
    Changes(Vec<Change>),
    /// The body written so far, where there was none.
    Anew(Vec<u8>),
}

struct Change {
    /// The names the field goes by; the first is written when it is new.
    names: &'static [&'static str],
    value: Option<String>,
}

impl<'a> Patch<'a> {
    /// Begins.
    pub(crate) fn new(request: &'a ChatRequest, dialect: Dialect) -> Self {
        let set = match request.origin(dialect) {
            Some(_) => Set::Changes(Vec::new()),
            None => Set::Anew(room(request, 1_024)),
        };
        Self { request, dialect, fields: OnceCell::new(), set }
    }

    fn push(&mut self, names: &'static [&'static str], value: Option<String>) {
        match (&mut self.set, names, value) {
            (Set::Changes(changes), _, value) => changes.push(Change { names, value }),
            (Set::Anew(out), [name, ..], Some(value)) => {
                field(out, name).extend_from_slice(value.as_bytes());
            }
            (Set::Anew(_), ..) => {}
        }
    }

    /// The request as it was read, when that was in this dialect.
    pub(crate) fn read(&self) -> Option<&'a ChatRequest> {
        Some(self.request.origin(self.dialect)?.read())
    }

    /// A field as it was read. To ask is to read them all.
    pub(crate) fn old(&self, names: &[&str]) -> Result<Option<Raw<'a>>, Failure> {
        let mut fields = self.fields()?.iter();
        Ok(fields.find(|(name, _)| names.contains(name)).map(|(_, raw)| raw))
    }

    /// None of a body that was not read, or in another dialect.
    fn fields(&self) -> Result<&Fields<'a>, Failure> {
        let fields = self.fields.get_or_init(|| read_again(self.request, self.dialect));
        fields.as_ref().map_err(|error| misread("the body", error))
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
            self.push(names, value()?);
        }
        Ok(())
    }

    /// Writes the field that most of the body is anew unless it is the `same` as it was read: where there was no body,
    /// at once to its end.
    pub(crate) fn write(
        &mut self,
        name: &'static [&'static str; 1],
        same: bool,
        value: impl FnOnce(&mut Vec<u8>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if same {
            return Ok(());
        }
        match &mut self.set {
            Set::Anew(out) => value(field(out, name[0])),
            Set::Changes(changes) => {
                let mut out = room(self.request, 0);
                value(&mut out)?;
                changes.push(Change { names: name, value: Some(text_of(out)) });
                Ok(())
            }
        }
    }

    /// Writes a field that may be left out anew, unless its value is as it was read. Where it is not
    /// `allowed`, it is left out.
    pub(crate) fn field<T: PartialEq + Serialize>(
        &mut self,
        names: &'static [&'static str],
        allowed: bool,
        of: impl Fn(&ChatRequest) -> &Option<T>,
    ) {
        if !(allowed && self.is_same(&of)) {
            let value = of(self.request).as_ref().filter(|_| allowed).map(quoted);
            self.push(names, value);
        }
    }

    /// Writes a field anew, out of what it was, unless it is the `same` as it was read.
    pub(crate) fn change(
        &mut self,
        names: &'static [&'static str],
        same: bool,
        value: impl FnOnce(Option<Raw<'a>>) -> Result<Option<String>, Failure>,
    ) -> Result<(), Failure> {
        if !same {
            let value = value(self.old(names)?)?;
            self.push(names, value);
        }
        Ok(())
    }

    /// The body. The very bytes that were read, when nothing changed.
    ///
    /// # Errors
    ///
    /// When those can not be read again.
    pub(crate) fn finish(self) -> Result<Bytes, Failure> {
        let Self { request, dialect, fields, set } = self;
        let changes = match set {
            Set::Changes(changes) => changes,
            Set::Anew(mut out) => {
                out.extend_from_slice(if out.is_empty() { b"{}" } else { b"}" });
                return Ok(out.into());
            }
        };
        let origin = request.origin(dialect);
        let withheld = &request.params.withheld;
        if let Some(origin) = origin
            && changes.is_empty()
            && withheld.is_empty()
        {
            return Ok(origin.body.clone());
        }
        let fields = fields.into_inner().unwrap_or_else(|| read_again(request, dialect));
        let fields = fields.map_err(|error| misread("the body", &error))?;
        // As large as it can become, so that it is copied once: a body may have many megabytes.
        let set = changes.iter().map(|Change { names, value }| {
            let value = value.as_ref().map_or(0, String::len);
            names.first().map_or(0, |name| name.len() + value + 4)
        });
        let kept = origin.map_or(2, |origin| origin.body.len());
        let mut out = Vec::with_capacity(kept + set.sum::<usize>());
        write(
            &mut Object::new(&mut out),
            fields
                .iter()
                .filter(|(name, _)| !withheld.contains(name))
                .map(|(name, raw)| (name, raw.get())),
            changes.iter().map(|change| (change.names, change.value.as_deref())).collect(),
        );
        Ok(out.into())
    }
}

/// Begins a field of the body that `out` is.
fn field<'o>(out: &'o mut Vec<u8>, name: &str) -> &'o mut Vec<u8> {
    out.push(if out.is_empty() { b'{' } else { b',' });
    value(out, name);
    out.push(b':');
    out
}

/// The fields of the body that `request` was read from, as they stand; none when that was in another
/// dialect.
///
/// # Errors
///
/// When the body can not be read again: to write it without them would lose what nobody changed.
pub(crate) fn fields_of(request: &ChatRequest, dialect: Dialect) -> Result<Fields<'_>, Failure> {
    read_again(request, dialect).map_err(|error| misread("the body", &error))
}

/// The fields of a `body` that was written or read before.
///
/// # Errors
///
/// When it can not be read.
pub(crate) fn fields_of_body(body: &Bytes) -> Result<Fields<'_>, Failure> {
    Fields::of_body(body).map_err(|error| misread("the body", &error))
}

fn read_again(request: &ChatRequest, dialect: Dialect) -> Result<Fields<'_>, RequestError> {
    let Some(origin) = request.origin(dialect) else { return Ok(Fields::default()) };
    Fields::of_body(&origin.body)
}

/// What was read before can not be read again.
fn misread(what: &str, error: &RequestError) -> Failure {
    let message = format!("{what} the request was read from can not be read again: {error}");
    Failure::refused(Reason::Format, message).with_fault(FaultSide::Local).with_evidence("misread")
}

/// `old` with the fields of `set` changed: replaced where they stand, added at the end, or removed.
/// What else is in `old` stays as it is.
///
/// # Errors
///
/// When `old` is no object, and not null either.
pub(crate) fn patched(
    old: Option<Raw<'_>>,
    set: &[(&'static [&'static str], Option<String>)],
) -> Result<String, Failure> {
    let fields = old.filter(|old| old.get() != "null").map(Fields::read).transpose();
    let fields = fields.map_err(|error| misread("an object", &error))?.unwrap_or_default();
    let mut out = Vec::new();
    write(
        &mut Object::new(&mut out),
        fields.iter().map(|(name, raw)| (name, raw.get())),
        set.iter().map(|(names, value)| (*names, value.as_deref())).collect(),
    );
    Ok(text_of(out))
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
    fn other_fields_keep_their_bytes_and_order() {
        let new = patched(
            serde_json::from_str(r#"{ "b" : 1.50, "a":[ 1 ], "c":null, "a":2 }"#).unwrap(),
            &[
                (&["a", "A"], Some("9".into())),
                (&["c"], None),
                (&["new", "other"], Some("true".into())),
                (&["never"], None),
            ],
        )
        .unwrap();
        assert_eq!(new, r#"{"b":1.50,"a":9,"new":true}"#);
        assert_eq!(patched(None, &[(&["x"], Some("1".into()))]).unwrap(), r#"{"x":1}"#);
    }

    #[test]
    fn what_can_not_be_read_again_is_an_error_and_never_left_out() {
        assert!(patched(serde_json::from_str("[1]").unwrap(), &[(&["x"], None)]).is_err());
        for body in ["", "[]", r#"{"model":"m","x":1"#] {
            let mut request = ChatRequest::user("hi").with_model("m");
            request = request.with_origin(Dialect::OpenAi, body.into());
            let mut patch = Patch::new(&request, Dialect::OpenAi);
            patch.set(&["model"], false, || Ok(Some("\"n\"".to_owned()))).unwrap();
            let failure = patch.finish().unwrap_err();
            assert_eq!((failure.reason(), failure.fault()), (Reason::Format, FaultSide::Local));
            assert!(
                failure.message().starts_with("the body the request was read from"),
                "{failure}"
            );
            // What has not been changed needs no reader.
            let same = Patch::new(&request, Dialect::OpenAi).finish().unwrap();
            assert_eq!(same, body);
        }
    }
}
