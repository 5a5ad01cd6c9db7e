//! The texts in a call's arguments, with the names that they have.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Gives each text in a JSON object to `found`, with the name of its innermost field: every one, where a field
/// is there twice. Whether it was an object.
///
/// What reads the call later may keep the first of two fields or the last, so both are checked.
pub(super) fn texts(json: &str, mut found: impl FnMut(&str, &str)) -> bool {
    let mut reader = serde_json::Deserializer::from_str(json);
    let root = Texts { name: "", found: &mut found, object: true };
    root.deserialize(&mut reader).is_ok() && reader.end().is_ok()
}

struct Texts<'a, F> {
    name: &'a str,
    found: &'a mut F,
    /// Only an object will do.
    object: bool,
}

impl<'de, F: FnMut(&str, &str)> DeserializeSeed<'de> for Texts<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        match self.object {
            true => json.deserialize_map(self),
            false => json.deserialize_any(self),
        }
    }
}

impl<'de, F: FnMut(&str, &str)> Visitor<'de> for Texts<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        (self.found)(self.name, text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { name, found, .. } = self;
        while items.next_element_seed(Texts { name, found: &mut *found, object: false })?.is_some()
        {
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            fields.next_value_seed(Texts {
                name: &name,
                found: &mut *self.found,
                object: false,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_found() {
        let all = |json: &str| {
            let mut all = Vec::new();
            let object = texts(json, |name, text| all.push(format!("{name}={text}")));
            (object, all.join(" "))
        };
        for (json, object, found) in [
            (
                r#"{"path":"a","n":1,"deep":{"paths":["b",["c"],{"path":"d"}]}}"#,
                true,
                "path=a paths=b paths=c path=d",
            ),
            (r#"{"path":"first","path":"last"}"#, true, "path=first path=last"),
            (r#"{"p\u0061th":"\u0061"}"#, true, "path=a"),
            ("{}", true, ""),
            ("", false, ""),
            ("[\"a\"]", false, ""),
            (r#"{"path":"a"} x"#, false, "path=a"),
        ] {
            assert_eq!(all(json), (object, found.to_owned()), "{json}");
        }
    }
}
