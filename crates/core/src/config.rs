//! How policies are written in a configuration: types for serde's `with` attribute, such as
//! `#[serde(rename = "stall_ms", with = "steadfast_core::config::Millis")]`.
//!
//! A duration is a number of the unit that its key ends with, and a limit that can be switched off
//! is switched off by 0.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A [`Duration`], or an optional one, in milliseconds: for keys that end with `_ms`.
#[derive(Clone, Copy, Debug)]
pub struct Millis;

/// A [`Duration`], or an optional one, in seconds: for keys that end with `_s`.
#[derive(Clone, Copy, Debug)]
pub struct Seconds;

/// An optional number.
#[derive(Clone, Copy, Debug)]
pub struct ZeroIsOff;

/// What can be written as a duration; where it is optional, zero is `None`.
pub trait AsDuration: Sized {
    /// As a duration.
    fn to_duration(&self) -> Duration;
    /// From a duration.
    fn from_duration(duration: Duration) -> Self;
}

impl AsDuration for Duration {
    fn to_duration(&self) -> Duration {
        *self
    }

    fn from_duration(duration: Duration) -> Self {
        duration
    }
}

impl AsDuration for Option<Duration> {
    fn to_duration(&self) -> Duration {
        self.unwrap_or_default()
    }

    fn from_duration(duration: Duration) -> Self {
        (!duration.is_zero()).then_some(duration)
    }
}

impl Millis {
    /// For serde.
    ///
    /// # Errors
    ///
    /// Those of `serializer`.
    pub fn serialize<T: AsDuration, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let millis = value.to_duration().as_millis();
        serializer.serialize_u64(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// For serde.
    ///
    /// # Errors
    ///
    /// When it is no whole number.
    pub fn deserialize<'de, T: AsDuration, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        Ok(T::from_duration(Duration::from_millis(u64::deserialize(deserializer)?)))
    }
}

impl Seconds {
    /// For serde.
    ///
    /// # Errors
    ///
    /// Those of `serializer`.
    pub fn serialize<T: AsDuration, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let duration = value.to_duration();
        if duration.subsec_nanos() == 0 {
            serializer.serialize_u64(duration.as_secs())
        } else {
            serializer.serialize_f64(duration.as_secs_f64())
        }
    }

    /// For serde.
    ///
    /// # Errors
    ///
    /// When it is no number, or negative.
    pub fn deserialize<'de, T: AsDuration, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds).map(T::from_duration).map_err(D::Error::custom)
    }
}

impl ZeroIsOff {
    /// For serde.
    ///
    /// # Errors
    ///
    /// Those of `serializer`.
    pub fn serialize<N: Serialize + Copy + Default, S: Serializer>(
        value: &Option<N>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.unwrap_or_default().serialize(serializer)
    }

    /// For serde.
    ///
    /// # Errors
    ///
    /// When it is no such number.
    pub fn deserialize<'de, N, D>(deserializer: D) -> Result<Option<N>, D::Error>
    where
        N: Deserialize<'de> + Default + PartialEq,
        D: Deserializer<'de>,
    {
        let number = N::deserialize(deserializer)?;
        Ok((number != N::default()).then_some(number))
    }
}

#[cfg(feature = "schemars")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Millis, Seconds, ZeroIsOff};

    impl JsonSchema for Millis {
        fn schema_name() -> Cow<'static, str> {
            "Millis".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "integer", "minimum": 0 })
        }
    }

    impl JsonSchema for Seconds {
        fn schema_name() -> Cow<'static, str> {
            "Seconds".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "number", "minimum": 0 })
        }
    }

    impl JsonSchema for ZeroIsOff {
        fn schema_name() -> Cow<'static, str> {
            "ZeroIsOff".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "number", "minimum": 0 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Written {
        #[serde(rename = "stall_ms", with = "Millis")]
        stall: Duration,
        #[serde(rename = "hedge_ms", with = "Millis")]
        hedge: Option<Duration>,
        #[serde(rename = "window_s", with = "Seconds")]
        window: Duration,
        #[serde(with = "ZeroIsOff")]
        calls: Option<u32>,
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (text, written) in [
            (
                r#"{"stall_ms":1500,"hedge_ms":0,"window_s":60,"calls":0}"#,
                Written {
                    stall: Duration::from_millis(1_500),
                    hedge: None,
                    window: Duration::from_secs(60),
                    calls: None,
                },
            ),
            (
                r#"{"stall_ms":0,"hedge_ms":7,"window_s":0.25,"calls":3}"#,
                Written {
                    stall: Duration::ZERO,
                    hedge: Some(Duration::from_millis(7)),
                    window: Duration::from_millis(250),
                    calls: Some(3),
                },
            ),
        ] {
            assert_eq!(serde_json::from_str::<Written>(text).unwrap(), written);
            assert_eq!(serde_json::to_string(&written).unwrap(), text);
        }
        for wrong in ["-1", "\"many\"", "1e300"] {
            let text = format!(r#"{{"stall_ms":1,"hedge_ms":1,"window_s":{wrong},"calls":1}}"#);
            assert!(serde_json::from_str::<Written>(&text).is_err(), "{wrong}");
        }
    }
}
