// SPDX-License-Identifier: Apache-2.0
//! Many tests at once (Y. Benjamini, Y. Hochberg, "Controlling the false discovery rate", 1995).

use ncclscope_operations::stats::count;

/// The adjusted p values: each is the expected share of false ones if it and all smaller ones are
/// accepted.
#[must_use]
pub fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&x, &y| p[y].total_cmp(&p[x]));
    let (all, mut least, mut adjusted) = (count(p.len()), 1.0, vec![1.0; p.len()]);
    for (place, at) in (1..=p.len()).rev().zip(order) {
        least = f64::min(least, p[at] * all / count(place));
        adjusted[at] = least;
    }
    adjusted
}
