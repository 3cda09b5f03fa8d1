// SPDX-License-Identifier: Apache-2.0
//! Counters over time: bytes on the network, and bandwidths of operations.

use crate::scene::Scene;
use crate::view::Group;
use ncclscope_operations::bandwidth::bus_factor;
use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_operations::steps::StepExt;
use ncclscope_trace::record::step_flags;

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
}

/// A counter: each value is valid until the next one.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Its name.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// Times (`CLOCK_REALTIME`, ns) and values, in order of time; the last value is 0.
    pub values: Vec<(u64, u64)>,
}

/// The counters of a rank in a communicator, without those that have no values.
#[must_use]
pub fn counters(scene: &Scene<'_, '_>, group: &Group) -> Vec<Counter> {
    let both = [
        ("Bytes in flight", Unit::Bytes, in_flight(scene, group)),
        ("Bus bandwidth", Unit::BytesPerSecond, bus_bandwidth(scene, group)),
    ];
    let shown = |(name, unit, mut parts): (_, _, Vec<Part>)| {
        parts.retain(|&(start, end, _)| scene.is_in_window(start, end));
        (!parts.is_empty()).then(|| Counter { name, unit, values: sum(parts) })
    };
    both.into_iter().filter_map(shown).collect()
}

/// A value that is added from one time to another: start, end, value.
type Part = (u64, u64, u64);

/// Bytes that were given to the network and are not acknowledged: those of sends in SendWait.
fn in_flight(scene: &Scene<'_, '_>, group: &Group) -> Vec<Part> {
    let timeline = scene.timeline();
    let whole = step_flags::IS_SEND | step_flags::SIZED | step_flags::STOPPED;
    if !scene.shows_steps() {
        return Vec::new();
    }
    let events = scene.of_comm(group.comm).events.iter();
    let steps = events.flat_map(|&op| scene.steps_of(op));
    let parts = steps.filter_map(|&index| {
        let (_, step) = timeline.steps().get(index as usize)?;
        let start = step.state_ticks()[2].filter(|_| step.flags & whole == whole)?;
        Some((scene.ns(start), scene.ns(step.end_ticks()), u64::from(step.size)))
    });
    parts.collect()
}

/// The bus bandwidth of the operations in progress.
fn bus_bandwidth(scene: &Scene<'_, '_>, group: &Group) -> Vec<Part> {
    let timeline = scene.timeline();
    let Some(comm) = group.comm else { return Vec::new() };
    let nranks = Some(timeline.comm(comm).ranks).filter(|&ranks| ranks != 0);
    let operations = scene.of_comm(group.comm).operations.iter();
    let parts = operations.filter_map(|&index| {
        let operation = scene.operation(index);
        let ns = operation.duration_ns.filter(|&ns| ns > 0.0)?;
        if !operation.timing.is_whole() {
            return None;
        }
        let factor = bus_factor(timeline.string(operation.func), nranks)?;
        let rate = to_f64(operation.bytes?) * factor * 1e9 / ns;
        let slice = scene.operation_slice(index);
        Some((slice.start, slice.end, to_u64(rate)))
    });
    parts.collect()
}

/// The sum of the parts, at each time at which it changes.
fn sum(parts: Vec<Part>) -> Vec<(u64, u64)> {
    // Wrapping is right, because each added value is subtracted again.
    let ends = |(start, end, value): Part| [(start, value), (end.max(start), value.wrapping_neg())];
    let mut changes: Vec<(u64, u64)> = parts.into_iter().flat_map(ends).collect();
    changes.sort_unstable_by_key(|(time, _)| *time);
    let mut values: Vec<(u64, u64)> = Vec::with_capacity(changes.len());
    let mut value = 0u64;
    for (time, change) in changes {
        value = value.wrapping_add(change);
        match values.last_mut() {
            Some(last) if last.0 == time => last.1 = value,
            _ => values.push((time, value)),
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_end_at_zero() {
        let parts = vec![(10, 30, 5), (20, 40, 7), (30, 50, 1), (60, 60, 9)];
        let expected = [(10, 5), (20, 12), (30, 8), (40, 1), (50, 0), (60, 0)];
        assert_eq!(sum(parts), expected);
    }
}
