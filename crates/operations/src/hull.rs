// SPDX-License-Identifier: Apache-2.0
//! Convex hulls of pairs of times, and lines under them, in little memory whatever the number of
//! pairs: a line under all points touches only those of their hull.

use crate::stats::to_f64;

/// A GPU time stamp and a host time (`CLOCK_REALTIME`), both in ns.
pub(crate) type Pair = (u64, u64);

/// Over a shorter time the drift cannot be measured, and the line has slope 0.
const DRIFT_SPAN_NS: f64 = 10e9;
/// A steeper line is an artefact, because clocks drift by parts per million.
const DRIFT_MAX: f64 = 1e-4;
/// Points that are added between two computations of the hull.
const HULL_FILL: usize = 1024;

/// The lower or upper convex hull of points (pTimer, host − pTimer).
#[derive(Clone, Debug)]
pub(crate) struct Hull {
    is_lower: bool,
    points: Vec<Pair>,
    fill: usize,
    /// Number of points at the start of `points` that are the hull, sorted; the rest were added
    /// later.
    done: usize,
}

impl Hull {
    pub(crate) const LOWER: Hull = Hull::new(true);
    pub(crate) const UPPER: Hull = Hull::new(false);

    const fn new(is_lower: bool) -> Hull {
        Hull { is_lower, points: Vec::new(), fill: HULL_FILL, done: 0 }
    }

    pub(crate) fn add(&mut self, pair: Pair) {
        self.points.push(pair);
        if self.points.len() >= self.fill {
            self.points();
            self.fill = self.points.len() + HULL_FILL;
        }
    }

    pub(crate) fn add_all(&mut self, other: &Hull) {
        other.points.iter().for_each(|&pair| self.add(pair));
    }

    /// The points on the hull, sorted by pTimer.
    pub(crate) fn points(&mut self) -> &[Pair] {
        if self.done == self.points.len() {
            return &self.points;
        }
        let turn = if self.is_lower { 1 } else { -1 };
        let y = |(gpu, host): Pair| i128::from(difference(host, gpu)) * turn;
        self.points.sort_unstable_by_key(|&pair| (pair.0, y(pair)));
        self.points.dedup_by_key(|pair| pair.0);
        let mut kept = 0;
        for next in 0..self.points.len() {
            let p = self.points[next];
            while kept >= 2 {
                let (a, b) = (self.points[kept - 2], self.points[kept - 1]);
                let x = |from: Pair, to: Pair| i128::from(to.0 - from.0);
                // Saturates only for times that no real clock has.
                let (turn, straight) =
                    (x(a, b).saturating_mul(y(p) - y(a)), (y(b) - y(a)).saturating_mul(x(a, p)));
                if turn > straight {
                    break;
                }
                kept -= 1;
            }
            self.points[kept] = p;
            kept += 1;
        }
        self.points.truncate(kept);
        self.done = kept;
        &self.points
    }

    /// Computes the hull and frees the memory of the other points.
    pub(crate) fn shrink(&mut self) {
        self.points();
        self.points.shrink_to_fit();
    }
}

/// Host time minus GPU time, as a linear function of GPU time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    base: u64,
    offset: i64,
    at_base: f64,
    pub(crate) slope: f64,
}

impl Line {
    /// The line under all points of a lower hull that is nearest to them on average: the edge of
    /// the hull at their mean pTimer.
    pub(crate) fn under(hull: &[Pair], mean: u64) -> Option<Line> {
        let &(base, host) = hull.first()?;
        let mut line = Line { base, offset: difference(host, base), at_base: 0.0, slope: 0.0 };
        let points: Vec<(f64, f64)> = hull.iter().map(|&pair| line.relative(pair)).collect();
        let mean = to_f64(mean.saturating_sub(base));
        (line.at_base, line.slope) = edge_at(&points, mean);
        Some(line)
    }

    fn x(&self, gpu: u64) -> f64 {
        to_f64(gpu.saturating_sub(self.base)) - to_f64(self.base.saturating_sub(gpu))
    }

    fn relative(&self, (gpu, host): Pair) -> (f64, f64) {
        let y = difference(host, gpu).saturating_sub(self.offset);
        (self.x(gpu), to_f64(y.unsigned_abs()) * if y < 0 { -1.0 } else { 1.0 })
    }

    /// Host time minus GPU time at that GPU time, ns.
    pub(crate) fn at(&self, gpu: u64) -> i64 {
        let more = crate::stats::to_i64(self.at_base + self.slope * self.x(gpu));
        self.offset.saturating_add(more)
    }
}

pub(crate) fn difference(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b).cast_signed()
}

/// The edge (value at 0, slope) at the mean x of a lower hull that is sorted by x.
fn edge_at(hull: &[(f64, f64)], mean: f64) -> (f64, f64) {
    let lowest = hull.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let span = hull.last().map_or(0.0, |last| last.0);
    if span < DRIFT_SPAN_NS {
        return (lowest, 0.0);
    }
    let edge = hull.windows(2).find(|edge| edge[1].0 >= mean);
    match edge {
        Some(&[(x0, y0), (x1, y1)]) if x1 > x0 && ((y1 - y0) / (x1 - x0)).abs() <= DRIFT_MAX => {
            let slope = (y1 - y0) / (x1 - x0);
            (y0 - slope * x0, slope)
        }
        _ => (lowest, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hull_of_many_points_is_that_of_all() {
        const GPU: u64 = 5_000_000_000_000;
        const HOST: u64 = 1_700_000_000_000_000_000;
        let pairs = |seed: u64| {
            (0..5_000u64).map(move |i| {
                let delay = (i * seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
                (GPU + i * 3_000_000, HOST + i * 3_000_060 + delay)
            })
        };
        let mut hull = Hull::LOWER;
        // The later half comes first.
        pairs(1).skip(2_500).chain(pairs(1).take(2_500)).for_each(|pair| hull.add(pair));
        let mean = GPU + 2_500 * 3_000_000;
        let line = Line::under(hull.points(), mean).unwrap();
        assert!(hull.points.len() < 100, "{}", hull.points.len());
        let above = |(gpu, host)| line.at(gpu) <= difference(host, gpu) + 2;
        let touches = |(gpu, host)| line.at(gpu) + 2 >= difference(host, gpu);
        assert!(pairs(1).all(above) && pairs(1).any(touches));
        assert!((line.slope - 20e-6).abs() < 1e-6, "{line:?}");
    }
}
