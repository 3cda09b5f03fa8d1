// SPDX-License-Identifier: Apache-2.0
/*!
Encodes metrics for collectors: OTLP and the Prometheus text format.

[`names::METRICS`] is the table of all exported metrics; `docs/metrics.md` is generated from it.
[`families`] turns a [`Metrics`](crate::Metrics) into points by that table, [`Limiter`] limits the
number of their series, and [`otlp`] and [`prom`] only serialise. [`compat`] uses the names of other
projects instead.

This module does **not** send, listen, or read the environment or a clock.
*/

pub mod attributes;
pub mod compat;
pub mod docs;
pub mod limit;
pub mod names;
pub mod otlp;
pub mod places;
pub mod point;
pub mod prom;
mod value;

pub use attributes::{Attribute, Attributes, Labels};
pub use limit::{Cap, Limiter};
pub use names::{METRICS, Metric};
pub use places::{ProcessAttributes, families_of};
pub use point::{Family, Point, families};
pub use value::{Kind, Value};
