// SPDX-License-Identifier: Apache-2.0
/*!
Metrics as collectors read them: OTLP and the Prometheus text format.

[`names::METRICS`] is the one table of what is exported, and `docs/metrics.md` is made from it.
[`families`] turns a [`Metrics`](crate::Metrics) into points by that table,
[`Limiter`] bounds how many series those are, and [`otlp`] and [`prom`] only serialise. [`compat`]
gives other projects' names instead.

This module does **not** send, listen, read the environment or know the time.
*/

pub mod attributes;
pub mod compat;
pub mod docs;
pub mod limit;
pub mod names;
pub mod otlp;
pub mod point;
pub mod prom;
mod value;

pub use attributes::{Attribute, Attributes, Labels};
pub use limit::{Cap, Limiter};
pub use names::{METRICS, Metric};
pub use point::{Family, Point, families};
pub use value::{Kind, Value};
