//! Writing: directly into bytes, values as the text they came in where they have one.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};
use steadfast_chat::ChatRequest;

/// `value` as JSON text.
pub(super) fn value<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    // Into memory, and nothing written here has keys other than strings: it can not fail. Should
    // a value ever refuse, null keeps the text well-formed.
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// `value` as JSON text of its own.
pub(crate) fn quoted<T: Serialize + ?Sized>(of: &T) -> String {
    let mut out = Vec::new();
    value(&mut out, of);
    text_of(out)
}

/// Room for the conversation of `request`, which takes about as much in one dialect as in another, and for `more`.
pub(super) fn room(request: &ChatRequest, more: usize) -> Vec<u8> {
    Vec::with_capacity(request.unchanged_body().map_or(0, Bytes::len) + more)
}

/// The text that was written.
pub(crate) fn text_of(out: Vec<u8>) -> String {
    // Only text and serde's output is ever written, both UTF-8.
    String::from_utf8(out)
        .unwrap_or_else(|broken| String::from_utf8_lossy(broken.as_bytes()).into_owned())
}

/// An object being written; dropping it closes it.
pub(crate) struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    /// Opens one.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    /// The text of an object that `fill` fills.
    pub(crate) fn text(fill: impl FnOnce(&mut Object<'_>)) -> String {
        let mut out = Vec::new();
        fill(&mut Object::new(&mut out));
        text_of(out)
    }

    fn key(&mut self, name: &str) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        value(self.out, name);
        self.out.push(b':');
    }

    /// Writes a field.
    pub(crate) fn put<T: Serialize + ?Sized>(&mut self, name: &str, of: &T) -> &mut Self {
        self.key(name);
        value(self.out, of);
        self
    }

    /// Writes a field when there is a value.
    pub(crate) fn put_some<T: Serialize>(&mut self, name: &str, of: Option<T>) -> &mut Self {
        if let Some(of) = of {
            self.put(name, &of);
        }
        self
    }

    /// Writes a field whose value is JSON text already.
    pub(crate) fn raw(&mut self, name: &str, json: &str) -> &mut Self {
        self.key(name);
        self.out.extend_from_slice(json.as_bytes());
        self
    }

    /// Opens an object in a field.
    pub(crate) fn object(&mut self, name: &str) -> Object<'_> {
        self.key(name);
        Object::new(self.out)
    }

    /// Opens a list in a field.
    pub(crate) fn array(&mut self, name: &str) -> Array<'_> {
        self.key(name);
        Array::new(self.out)
    }

    /// Writes fields kept from elsewhere.
    pub(crate) fn extra(&mut self, extra: Option<&Map<String, Value>>) -> &mut Self {
        for (name, of) in extra.into_iter().flatten() {
            self.put(name, of);
        }
        self
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        self.out.push(b'}');
    }
}

/// A list being written; dropping it closes it.
pub(crate) struct Array<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Array<'a> {
    /// Opens one.
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'[');
        Self { out, first: true }
    }

    fn next(&mut self) {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
    }

    /// Whether it has no item so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.first
    }

    /// Writes an item that is JSON text already.
    pub(crate) fn raw(&mut self, json: &str) {
        self.next();
        self.out.extend_from_slice(json.as_bytes());
    }

    /// Writes an item.
    pub(crate) fn put<T: Serialize + ?Sized>(&mut self, of: &T) {
        self.next();
        value(self.out, of);
    }

    /// Opens an object as an item.
    pub(crate) fn object(&mut self) -> Object<'_> {
        self.next();
        Object::new(self.out)
    }
}

impl Drop for Array<'_> {
    fn drop(&mut self) {
        self.out.push(b']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_it_is_given_and_nothing_else() {
        let mut out = Vec::new();
        {
            let mut top = Object::new(&mut out);
            top.put("a\"", "b\n").put_some("none", None::<u64>).raw("r", "[1.50]");
            let mut list = top.array("l");
            list.object().put("x", &1);
            list.raw("2");
            list.object();
        }
        assert_eq!(text_of(out), r#"{"a\"":"b\n","r":[1.50],"l":[{"x":1},2,{}]}"#);
    }
}
