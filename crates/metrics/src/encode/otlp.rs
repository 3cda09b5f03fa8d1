// SPDX-License-Identifier: Apache-2.0
/*!
Encodes OTLP's `ExportMetricsServiceRequest` as protobuf, and decodes the response.

Field numbers are those of `opentelemetry/proto/metrics/v1/metrics.proto` and of
`collector/metrics/v1/metrics_service.proto` (OpenTelemetry protocol 1.x).
*/

use super::attributes::Attribute;
use super::places::{DEVICE, PROCESS_RANK};
use super::point::{Family, Point};
use super::value::{Kind, Value};
use ncclscope_operations::Histogram;
use ncclscope_protobuf::Message;

/// `AggregationTemporality`.
const DELTA: u64 = 1;
const CUMULATIVE: u64 = 2;

/// The properties that all points of a request share.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// Attributes of the resource, `service.name` among them.
    pub resource: &'a [(String, String)],
    /// Our version.
    pub version: &'a str,
    /// Start of the time that the values cover, ns since 1970.
    pub start_ns: u64,
    /// End of that time, ns since 1970.
    pub now_ns: u64,
    /// Delta temporality: the next request starts at `now_ns`. Else cumulative: every request has
    /// the same start.
    pub delta: bool,
}

/// The bytes of a request.
#[must_use]
pub fn encode(families: &[Family], export: &Export<'_>) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |resource_metrics| {
        resource_metrics.message(1, |resource| {
            for (name, value) in export.resource {
                let is_number = matches!(name.as_str(), "process.pid" | PROCESS_RANK | DEVICE);
                let number = value.parse().ok().filter(|_| is_number).map(Attribute::Int);
                let value = number.unwrap_or_else(|| Attribute::from(value.as_str()));
                resource.message(1, |pair| attribute(pair, name, &value));
            }
        });
        resource_metrics.message(2, |scope_metrics| {
            scope_metrics.message(1, |scope| {
                scope.text(1, "ncclscope");
                scope.text(2, export.version);
            });
            for family in families {
                scope_metrics.message(2, |metric| write_family(metric, family, export));
            }
        });
    });
    request.bytes().to_vec()
}

fn write_family(message: &mut Message, family: &Family, export: &Export<'_>) {
    let metric = family.metric;
    message.text(1, metric.name);
    message.text(2, metric.description);
    message.text(3, metric.unit);
    let field = match metric.kind {
        Kind::Sum | Kind::Max => 5,
        Kind::Counter => 7,
        Kind::Histogram => 10,
    };
    message.message(field, |data| {
        for point in &family.points {
            data.message(1, |out| match &point.value {
                Value::Histogram(histogram) => write_histogram(out, point, histogram, export),
                Value::Count(_) | Value::Sum(_) => write_number(out, point, export),
            });
        }
        if matches!(metric.kind, Kind::Counter | Kind::Histogram) {
            data.uint(2, if export.delta { DELTA } else { CUMULATIVE });
        }
        if metric.kind == Kind::Counter {
            data.uint(3, 1);
        }
    });
}

/// A `NumberDataPoint`.
fn write_number(out: &mut Message, point: &Point, export: &Export<'_>) {
    out.fixed64(2, export.start_ns);
    out.fixed64(3, export.now_ns);
    match point.value {
        Value::Count(count) => out.fixed64(6, count.min(i64::MAX.cast_unsigned())),
        _ => out.double(4, point.value.number()),
    }
    attributes(out, 7, point);
}

/// An `ExponentialHistogramDataPoint`.
fn write_histogram(out: &mut Message, point: &Point, of: &Histogram, export: &Export<'_>) {
    attributes(out, 1, point);
    out.fixed64(2, export.start_ns);
    out.fixed64(3, export.now_ns);
    out.fixed64(4, of.count);
    out.double(5, of.sum);
    out.sint32(6, of.scale());
    out.fixed64(7, of.zero_count());
    out.message(8, |buckets| {
        buckets.sint32(1, of.offset());
        buckets.packed(2, of.buckets());
    });
    if let (Some(min), Some(max)) = (of.min(), of.max()) {
        out.double(12, min);
        out.double(13, max);
    }
}

fn attributes(out: &mut Message, field: u32, point: &Point) {
    for (name, value) in &point.attributes {
        out.message(field, |pair| attribute(pair, name, value));
    }
}

/// A `KeyValue`.
fn attribute(pair: &mut Message, name: &str, value: &Attribute) {
    pair.text(1, name);
    pair.message(2, |any| match value {
        Attribute::Text(text) => any.text(1, text),
        Attribute::Bool(yes) => any.uint(2, u64::from(*yes)),
        Attribute::Int(number) => any.int(3, *number),
    });
}

/// The response of a collector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// Number of points that it rejected.
    pub rejected: u64,
    /// The reason, or another message.
    pub message: String,
}

impl Response {
    /// A line for the log, which is the same for the same reason; `None` after a full success.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        match (self.rejected, self.message.as_str()) {
            (0, "") => None,
            (0, message) => Some(format!("it took everything, but warns: {message}")),
            (_, message) => Some(format!("points were rejected: {message}")),
        }
    }
}

/// Decodes an `ExportMetricsServiceResponse`; an empty one is a full success. `None` if the bytes
/// are invalid.
#[must_use]
pub fn parse_response(bytes: &[u8]) -> Option<Response> {
    let mut response = Response::default();
    let mut outer = Fields(bytes);
    while let Some((field, value)) = outer.next()? {
        let (1, Field::Bytes(partial)) = (field, value) else { continue };
        let mut inner = Fields(partial);
        while let Some((field, value)) = inner.next()? {
            match (field, value) {
                (1, Field::Number(number)) => {
                    response.rejected = u64::try_from(number.cast_signed()).unwrap_or(0);
                }
                (2, Field::Bytes(text)) => {
                    response.message = String::from_utf8_lossy(text).into_owned();
                }
                _ => {}
            }
        }
    }
    Some(response)
}

/// The unread fields of a message.
struct Fields<'a>(&'a [u8]);

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

impl<'a> Fields<'a> {
    /// The next field; `Some(None)` at the end, `None` if the bytes are invalid.
    #[expect(clippy::option_option, reason = "the end is no error")]
    fn next(&mut self) -> Option<Option<(u64, Field<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Fixed)?,
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => self.take(4).map(|_| Field::Fixed)?,
            _ => return None,
        };
        Some(Some((key >> 3, value)))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_success_is_understood() {
        assert_eq!(parse_response(&[]), Some(Response::default()));
        let mut message = Message::default();
        message.message(1, |partial| {
            partial.int(1, 300);
            partial.fixed64(9, 1);
            partial.text(2, "too old");
        });
        message.uint(7, 1);
        let bytes = message.bytes();
        let expected = Response { rejected: 300, message: "too old".into() };
        assert_eq!(expected.line().unwrap(), "points were rejected: too old");
        assert_eq!(parse_response(bytes), Some(expected));
        let whole = |length: &usize| parse_response(&bytes[..*length]).is_some();
        let lengths: Vec<usize> = (0..=bytes.len()).filter(whole).collect();
        assert_eq!(lengths, [0, bytes.len() - 2, bytes.len()], "cut between fields only");
        assert_eq!(parse_response(b"not found"), None);
        assert_eq!(parse_response(&[0xff; 12]), None);
    }
}
