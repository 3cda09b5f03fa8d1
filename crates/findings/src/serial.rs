// SPDX-License-Identifier: Apache-2.0
//! Findings, doubts and classes in JSON.

use crate::class::{Confidence, FindingClass};
use crate::doubt::Doubt;
use crate::finding::{Finding, Op, SlowPart, State};
use crate::looked::Looked;
use serde_core::de::{Deserialize, Deserializer, Error};
use serde_core::ser::{Serialize, SerializeMap, Serializer};

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
        serializer.serialize_str(self.name())
    }
}

impl Serialize for Looked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("rule", self.rule)?;
        map.serialize_entry("subject", &self.subject)?;
        map.serialize_entry("ranks", &self.ranks)?;
        map.serialize_entry("saw", &self.saw)?;
        map.serialize_entry("outcome", self.outcome.name())?;
        map.serialize_entry("because", &self.because)?;
        map.serialize_entry("nearness", &self.nearness)?;
        map.end()
    }
}

/// Adds `class` (the code), `name`, `verb` and `page` to an object that a class belongs to.
pub(crate) fn class_entries<M: SerializeMap>(
    class: FindingClass,
    fields: &mut M,
) -> Result<(), M::Error> {
    fields.serialize_entry("class", class.code())?;
    fields.serialize_entry("name", class.name())?;
    fields.serialize_entry("verb", class.verb())?;
    fields.serialize_entry("page", &class.documentation())
}

/// The name as `doubt`, the ranks and the figure of the fact, the other class, and the `text`.
impl Serialize for Doubt {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_map(None)?;
        fields.serialize_entry("doubt", self.name())?;
        fields.serialize_entry("lowers", &self.lowers())?;
        let ranks = self.ranks();
        if !ranks.is_empty() {
            fields.serialize_entry("ranks", &ranks)?;
        }
        if let Some((name, value)) = self.figure() {
            fields.serialize_entry(name, &value)?;
        }
        if let Doubt::OtherCause(class) = self {
            fields.serialize_entry("class", class)?;
        }
        fields.serialize_entry("text", &self.text())?;
        fields.end()
    }
}

/// Leaves out what is not known, except `since`, `cost` and `lost_share`.
impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_map(None)?;
        class_entries(self.class, &mut fields)?;
        fields.serialize_entry("advice", self.advice)?;
        fields.serialize_entry("title", &self.title())?;
        fields.serialize_entry("confidence", &self.confidence())?;
        fields.serialize_entry("root_ranks", &self.root_ranks)?;
        fields.serialize_entry("where", &self.help.places)?;
        fields.serialize_entry("since", &self.help.since)?;
        fields.serialize_entry("cost", &self.help.cost)?;
        some(&mut fields, "edge", self.edge)?;
        if let Some(comm) = &self.comm {
            fields.serialize_entry("comm", &comm.comm)?;
            fields.serialize_entry("comm_name", &comm.name)?;
            fields.serialize_entry("role", &self.role)?;
        }
        some(&mut fields, "op", self.op.as_ref())?;
        some(&mut fields, "age_ns", self.age_ns)?;
        some(&mut fields, "root", self.root)?;
        some(&mut fields, "share", self.share)?;
        some(&mut fields, "steps", self.steps)?;
        some(&mut fields, "factor", self.factor)?;
        some(&mut fields, "comms", Some(&self.comms).filter(|comms| !comms.is_empty()))?;
        match self.state {
            State::Hangs => fields.serialize_entry("victims", &self.victims)?,
            State::Slow => fields.serialize_entry("lost_share", &self.lost_share)?,
        }
        fields.serialize_entry("evidence", &self.evidence)?;
        fields.serialize_entry("alternatives", &self.alternatives())?;
        fields.serialize_entry("doubts", &self.doubts)?;
        fields.end()
    }
}

/// Adds a value, if it is known.
fn some<M: SerializeMap>(
    to: &mut M,
    name: &'static str,
    value: Option<impl Serialize>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| to.serialize_entry(name, &value))
}

/// Leaves out what is not known.
impl Serialize for Op {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_map(None)?;
        let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        some(&mut fields, "number", self.number)?;
        some(&mut fields, "func", known(&self.func))?;
        some(&mut fields, "datatype", known(&self.datatype))?;
        some(&mut fields, "bytes", self.bytes)?;
        fields.end()
    }
}

/// Leaves out what is not known.
impl Serialize for SlowPart {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_map(None)?;
        some(&mut fields, "rank", self.rank)?;
        some(&mut fields, "dp_rank", self.dp_rank)?;
        some(&mut fields, "stage", self.stage)?;
        fields.end()
    }
}
