//! Numbers in JSON: a number, or one of the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
//!
//! JSON has no NaN, and `serde_json` would write `null` for it. A loss that has become NaN is what one
//! looks for in a log, and a checkpoint that holds one must be read again. So every number that is saved or
//! reported is written as a [`Number`], or by `#[serde(with)]` one of the modules here.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The word for a number that JSON does not have.
pub(crate) fn word(value: f64) -> Option<&'static str> {
    match value {
        _ if value.is_finite() => None,
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        _ => Some("NaN"),
    }
}

/// A number in this form. It comes back bit for bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Number(pub f64);

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl From<Number> for f64 {
    fn from(Number(value): Number) -> Self {
        value
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match word(self.0) {
            Some(word) => serializer.serialize_str(word),
            None => serializer.serialize_f64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor).map(Self)
    }
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = f64;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a number, \"NaN\", \"Infinity\" or \"-Infinity\"")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        let known = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let value = known.into_iter().find(|value| word(*value) == Some(text));
        value.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// For `#[serde(with)]` on a number.
pub mod single {
    use super::{Deserialize, Deserializer, Number, Serialize, Serializer};

    /// Writes a [`Number`].
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &f64, out: S) -> Result<S::Ok, S::Error> {
        Number(*value).serialize(out)
    }

    /// Reads a [`Number`].
    ///
    /// # Errors
    /// What is no number.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Number::deserialize(from).map(|number| number.0)
    }
}

/// For `#[serde(with)]` on a number that may be absent.
pub mod optional {
    use super::{Deserialize, Deserializer, Number, Serialize, Serializer};

    /// Writes a [`Number`], or `null`.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<f64>, out: S) -> Result<S::Ok, S::Error> {
        value.map(Number).serialize(out)
    }

    /// Reads a [`Number`], or `null`.
    ///
    /// # Errors
    /// What is neither.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Number>::deserialize(from)?.map(|number| number.0))
    }
}

/// For `#[serde(with)]` on a map from names to numbers.
pub mod by_name {
    use std::collections::BTreeMap;

    use super::{Deserialize, Deserializer, Number, Serializer};

    /// Writes an object of [`Number`]s.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        values: &BTreeMap<String, f64>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.collect_map(values.iter().map(|(name, value)| (name, Number(*value))))
    }

    /// Reads an object of [`Number`]s.
    ///
    /// # Errors
    /// What is no such object.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, f64>, D::Error> {
        let values = BTreeMap::<String, Number>::deserialize(from)?;
        Ok(values.into_iter().map(|(name, Number(value))| (name, value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_and_other_words_are_refused() {
        let numbers = [0.0, -0.0, 0.1, 1e300, 5e-324, f64::MAX, f64::INFINITY, -f64::INFINITY];
        for value in numbers {
            let text = serde_json::to_string(&Number(value)).unwrap();
            let Number(back) = serde_json::from_str(&text).unwrap();
            assert_eq!(back.to_bits(), value.to_bits(), "{text}");
        }
        let nan = serde_json::to_string(&Number(f64::NAN)).unwrap();
        assert_eq!(nan, "\"NaN\"");
        assert!(serde_json::from_str::<Number>(&nan).unwrap().0.is_nan());
        assert_eq!(serde_json::from_str::<Number>("-3").unwrap().0, -3.0);
        for wrong in ["\"nan\"", "null", "[1]", "\"1\""] {
            let error = serde_json::from_str::<Number>(wrong).map(|n| n.0).unwrap_err();
            assert!(error.to_string().contains("expected a number"), "{error}");
        }
    }
}
