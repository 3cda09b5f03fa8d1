// SPDX-License-Identifier: Apache-2.0
//! Classes in JSON: the code, and also the name where a schema has a field for it.

use crate::class::{Confidence, FindingClass};
use serde_core::de::{Deserialize, Deserializer, Error};
use serde_core::ser::{Serialize, SerializeStruct, Serializer};

impl Serialize for FindingClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for FindingClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FindingClass, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Confidence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Confidence::Confirmed => "confirmed",
            Confidence::Suspect => "suspect",
        })
    }
}

/// The fields of [`describe_class`], and the `advice` of the class.
///
/// # Errors
/// An error of the serializer.
pub fn describe<S: Serializer>(class: &FindingClass, to: S) -> Result<S::Ok, S::Error> {
    let mut fields = to.serialize_struct("FindingClass", 5)?;
    describe_in::<S>(class, &mut fields)?;
    fields.serialize_field("advice", class.advice())?;
    fields.end()
}

/// The fields `class` (the code), `name`, `verb` and `page` of an object that a class belongs to:
/// for `#[serde(flatten, serialize_with = "describe_class")]`.
///
/// # Errors
/// An error of the serializer.
pub fn describe_class<S: Serializer>(class: &FindingClass, to: S) -> Result<S::Ok, S::Error> {
    let mut fields = to.serialize_struct("FindingClass", 4)?;
    describe_in::<S>(class, &mut fields)?;
    fields.end()
}

fn describe_in<S: Serializer>(
    class: &FindingClass,
    fields: &mut S::SerializeStruct,
) -> Result<(), S::Error> {
    fields.serialize_field("class", class.code())?;
    fields.serialize_field("name", class.name())?;
    fields.serialize_field("verb", class.verb())?;
    fields.serialize_field("page", &class.documentation())
}
