//! Reading: fields are borrowed from the text, errors say where.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use steadfast_chat::{Extra, RawJson, surrogates};
use steadfast_core::{Failure, Reason};

use super::{Raw, scan::depth};

/// A string, borrowed where it has no escapes. Read as [`Raw::text`] does.
#[derive(Debug)]
pub(crate) struct Str<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Raw::deserialize(deserializer)?.text().map(Str).map_err(D::Error::custom)
    }
}

/// The name of a field.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// How deep a body may nest: 128 levels, which is as deep as common JSON parsers read a value and
/// far deeper than any provider does.
const MAX_DEPTH: usize = 128;

/// A request body that can not be read: where, what is wrong there, and what would be right.
///
/// ```
/// use steadfast_client::dialect::{Route, codec};
/// use steadfast_core::Dialect;
///
/// let body = br#"{"model":"m","messages":[{"role":"user","content":7}]}"#[..].into();
/// let error = codec(Dialect::OpenAi).decode_request(&body, Route::default()).unwrap_err();
/// assert_eq!(error.path(), "messages[0].content");
/// assert_eq!(
///     error.to_string(),
///     "messages[0].content: is a number, but has to be a string or a list of parts",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RequestError {
    path: String,
    problem: String,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            write!(f, "the request body {}", self.problem)
        } else {
            write!(f, "{}: {}", self.path, self.problem)
        }
    }
}

impl RequestError {
    /// A problem with the value at hand; callers up the tree add where that is.
    pub(crate) fn new(problem: impl Into<String>) -> Self {
        Self { path: String::new(), problem: problem.into() }
    }

    /// The body is no JSON.
    pub(crate) fn invalid(error: impl fmt::Display) -> Self {
        Self::new(format!("is not valid JSON: {error}"))
    }

    /// The value at hand is of the wrong kind.
    pub(crate) fn expected(what: &str, raw: Raw<'_>) -> Self {
        Self::new(format!("is {}, but has to be {what}", kind(raw)))
    }

    /// Where in the body, such as `messages[3].content[0].type`; empty for the body itself.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is wrong there.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    fn under(mut self, step: impl fmt::Display) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{step}{dot}{}", self.path);
        self
    }
}

impl From<RequestError> for Failure {
    /// The caller's fault, and no provider was asked.
    fn from(error: RequestError) -> Self {
        Failure::refused(Reason::Format, error.to_string())
            .with_evidence("request")
            .with_source(error)
    }
}

/// Says where an error happened.
pub(crate) trait At: Sized {
    /// In the field `name`.
    fn at(self, name: &str) -> Self;
    /// In the item number `index`.
    fn index(self, index: usize) -> Self;
}

impl<T> At for Result<T, RequestError> {
    fn at(self, name: &str) -> Self {
        self.map_err(|error| error.under(name))
    }

    fn index(self, index: usize) -> Self {
        self.map_err(|error| error.under(format_args!("[{index}]")))
    }
}

/// The fields of an object in their order; each is taken once, what is left over is what nobody
/// knew.
#[derive(Default)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Option<Raw<'a>>)>);

/// What is in an object: its fields, and the items of the field that is read as a list meanwhile.
type Members<'a> = (Fields<'a>, Option<Vec<Raw<'a>>>);

/// Reads [`Members`]; the name of the list, if there is one.
struct ReadMembers(Option<&'static str>);

impl<'de> Visitor<'de> for ReadMembers {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut fields, mut items) = (Vec::with_capacity(8), None);
        while let Some(Name(name)) = map.next_key()? {
            if self.0 == Some(&*name) {
                items = map.next_value()?;
            } else {
                fields.push((name, Some(map.next_value()?)));
            }
        }
        Ok((Fields(fields), items))
    }
}

impl<'de> DeserializeSeed<'de> for ReadMembers {
    type Value = Members<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Fields<'a> {
    /// The fields of a whole body.
    pub(crate) fn of_body(body: &'a [u8]) -> Result<Self, RequestError> {
        Self::members(body, None).map(|(fields, _)| fields)
    }

    /// The fields of a whole body, and the items of its field `list`. That is most of the body, and
    /// is so read in the same pass.
    pub(crate) fn with_list(
        body: &'a [u8],
        list: &'static str,
    ) -> Result<(Self, Vec<Raw<'a>>), RequestError> {
        let (fields, items) = Self::members(body, Some(list))?;
        let missing = || Err(RequestError::new("is missing")).at(list);
        Ok((fields, items.map_or_else(missing, Ok)?))
    }

    fn members(body: &'a [u8], list: Option<&'static str>) -> Result<Members<'a>, RequestError> {
        let text = std::str::from_utf8(body).map_err(RequestError::invalid)?;
        let mut json = serde_json::Deserializer::from_str(text);
        let read = ReadMembers(list).deserialize(&mut json);
        let (fields, list_items) = match read.and_then(|read| json.end().map(|()| read)) {
            Ok(read) => read,
            // What it is instead of an object with a list, if it is JSON at all. Of repeated fields
            // only the last has to be a list.
            Err(_) => {
                let all = serde_json::from_str(text).map_err(RequestError::invalid)?;
                let mut fields = Self::read(all)?;
                let list_items = list.map(|list| fields.get(list, items)).transpose()?.flatten();
                (fields, list_items)
            }
        };
        // A body of fewer brackets can not nest that deep, which is counted sooner.
        let brackets = memchr::memchr2_iter(b'{', b'[', body).count();
        if brackets > MAX_DEPTH && depth(text) > MAX_DEPTH {
            let deep = fields.iter().find(|(_, raw)| depth(raw.get()) >= MAX_DEPTH);
            let name = deep.map(|(name, _)| name).or(list).unwrap_or_default();
            let problem = format!(
                "is nested deeper than {MAX_DEPTH} levels, which no provider takes; make it flatter"
            );
            return Err(RequestError::new(problem)).at(name);
        }
        Ok((fields, list_items))
    }

    /// The fields of `raw`.
    pub(crate) fn read(raw: Raw<'a>) -> Result<Self, RequestError> {
        if !raw.is_object() {
            return Err(RequestError::expected("an object", raw));
        }
        let mut json = serde_json::Deserializer::from_str(raw.get());
        match ReadMembers(None).deserialize(&mut json) {
            Ok((fields, _)) => Ok(fields),
            Err(error) => Err(RequestError::new(format!("can not be read: {error}"))),
        }
    }

    /// The fields that have not been taken, as they stand.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Raw<'a>)> {
        self.0.iter().filter_map(|(name, raw)| Some((&**name, (*raw)?)))
    }

    /// The value of `name`, unless it is missing or null. The last one, when there are several.
    pub(crate) fn take(&mut self, name: &str) -> Option<Raw<'a>> {
        let mut found = None;
        for (key, value) in &mut self.0 {
            if key == name {
                found = value.take().or(found);
            }
        }
        found.filter(|raw| raw.get() != "null")
    }

    /// The value under the first of `names` that is there, with that name.
    pub(crate) fn take_any<'n>(&mut self, names: &[&'n str]) -> Option<(&'n str, Raw<'a>)> {
        names.iter().find_map(|name| Some((*name, self.take(name)?)))
    }

    /// The names of what has not been taken.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| &**name)
    }

    /// The value of `name` read by `read`.
    pub(crate) fn get<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Raw<'a>) -> Result<T, RequestError>,
    ) -> Result<Option<T>, RequestError> {
        self.take(name).map(read).transpose().at(name)
    }

    /// The value of `name`, which has to be there.
    pub(crate) fn need<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Raw<'a>) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        match self.take(name) {
            Some(raw) => read(raw).at(name),
            None => Err(RequestError::new("is missing")).at(name),
        }
    }

    /// What nobody took.
    pub(crate) fn rest(self) -> Extra {
        let mut rest = Map::new();
        for (name, value) in self.0 {
            if let Some(raw) = value
                && let Ok(value) = surrogates::read::<Value>(raw.get())
            {
                rest.insert(name.into_owned(), value);
            }
        }
        (!rest.is_empty()).then(|| Box::new(rest))
    }
}

/// What kind of value it is, for messages.
pub(crate) fn kind(raw: Raw<'_>) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// The items of a list.
pub(crate) fn items(raw: Raw<'_>) -> Result<Vec<Raw<'_>>, RequestError> {
    serde_json::from_str(raw.get()).map_err(|_| RequestError::expected("a list", raw))
}

/// The items of a list, each read by `read`.
pub(crate) fn list<'a, T>(
    raw: Raw<'a>,
    read: impl FnMut(Raw<'a>) -> Result<T, RequestError>,
) -> Result<Vec<T>, RequestError> {
    each(items(raw)?, read)
}

/// Each of `items` read by `read`.
pub(crate) fn each<'a, T>(
    items: Vec<Raw<'a>>,
    mut read: impl FnMut(Raw<'a>) -> Result<T, RequestError>,
) -> Result<Vec<T>, RequestError> {
    items.into_iter().enumerate().map(|(i, raw)| read(raw).index(i)).collect()
}

/// A list of strings.
pub(crate) fn strings(raw: Raw<'_>) -> Result<Vec<String>, RequestError> {
    list(raw, string)
}

/// An object, kept as text for any dialect.
pub(crate) fn raw_object(raw: Raw<'_>) -> Result<RawJson, RequestError> {
    if raw.is_object() { Ok(raw.repaired()) } else { Err(RequestError::expected("an object", raw)) }
}

fn scalar<T: DeserializeOwned>(raw: Raw<'_>, what: &str) -> Result<T, RequestError> {
    serde_json::from_str(raw.get()).map_err(|_| RequestError::expected(what, raw))
}

/// A string.
pub(crate) fn string(raw: Raw<'_>) -> Result<String, RequestError> {
    borrowed(raw).map(Cow::into_owned)
}

/// A string, borrowed where it has no escapes.
pub(crate) fn borrowed(raw: Raw<'_>) -> Result<Cow<'_, str>, RequestError> {
    raw.text().map_err(|_| RequestError::expected("a string", raw))
}

/// A whole number from zero.
pub(crate) fn uint(raw: Raw<'_>) -> Result<u64, RequestError> {
    scalar(raw, "a whole number, not negative")
}

/// A whole number.
pub(crate) fn int(raw: Raw<'_>) -> Result<i64, RequestError> {
    scalar(raw, "a whole number")
}

/// A number.
pub(crate) fn float(raw: Raw<'_>) -> Result<f64, RequestError> {
    scalar(raw, "a number")
}

/// True or false.
pub(crate) fn flag(raw: Raw<'_>) -> Result<bool, RequestError> {
    scalar(raw, "true or false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_taken_is_left_over_in_order() {
        let mut fields = Fields::of_body(br#"{"z":1,"a":{"b":[1.50]},"k":null,"z":2}"#).unwrap();
        assert_eq!(fields.iter().count(), 4);
        assert_eq!(fields.take("z").unwrap().get(), "2", "the last one counts");
        assert!(fields.take("z").is_none());
        assert!(fields.take("k").is_none(), "null is as good as missing");
        assert_eq!(Value::Object(*fields.rest().unwrap()).to_string(), r#"{"a":{"b":[1.5]}}"#);
    }

    #[test]
    fn errors_say_where() {
        let body = br#"{"list":[{},{"n":"x"}]}"#;
        let mut fields = Fields::of_body(body).unwrap();
        let error = fields
            .need("list", |raw| {
                for (i, item) in items(raw)?.into_iter().enumerate() {
                    Fields::read(item).and_then(|mut item| item.get("n", uint)).index(i)?;
                }
                Ok(())
            })
            .unwrap_err();
        assert_eq!(error.path(), "list[1].n");
        assert_eq!(
            error.to_string(),
            "list[1].n: is a string, but has to be a whole number, not negative"
        );
        assert_eq!(fields.need("model", string).unwrap_err().to_string(), "model: is missing");
        assert_eq!(
            Fields::of_body(b"[]").err().unwrap().to_string(),
            "the request body is a list, but has to be an object"
        );
        let broken = Fields::of_body(b"{\"a\":").err().unwrap().to_string();
        assert!(broken.starts_with("the request body is not valid JSON: "), "{broken}");
        let failure = Failure::from(error);
        assert_eq!((failure.reason(), failure.attempts()), (Reason::Format, 0));
    }
}
