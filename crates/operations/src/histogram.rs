// SPDX-License-Identifier: Apache-2.0
/*!
Distributions: OpenTelemetry's base-2 exponential histogram.

At scale `s`, `base` is `2^(2^-s)`. Bucket `i` counts the values with
`base^i < value <= base^(i + 1)` (OpenTelemetry's data model, "ExponentialHistogram"). The scale is
the greatest, up to [`MAX_SCALE`], at which the least and the greatest value are less than
[`MAX_BUCKETS`] buckets apart. It depends only on the values, so a histogram is the same for any
order of values and merges. An empty histogram owns no memory.
*/

use crate::stats::to_f64;

/// The finest scale: a bucket is 0.27 % wide.
pub const MAX_SCALE: i8 = 8;
/// The most buckets, as OpenTelemetry's SDKs have it by default.
pub const MAX_BUCKETS: usize = 160;

const MAX_SPAN: i32 = 160;
const _: () = assert!(MAX_BUCKETS == MAX_SPAN.unsigned_abs() as usize);

/// Buckets in a doubling at [`MAX_SCALE`].
const PARTS: usize = 1 << MAX_SCALE;
const MANTISSA_BITS: u32 = 52;
/// The mantissa of `2^(i / PARTS)` as a double, truncated.
const BOUNDS: [u64; PARTS] = bounds();
/// For the upper eight bits of a mantissa, a lower bound of the bucket's index.
const GUESSES: [u8; PARTS] = guesses();

/// A distribution of non-negative numbers. Negative numbers and subnormal ones count as zero;
/// infinities and NaN are not counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// How many numbers were counted.
    pub count: u64,
    /// The sum of the numbers.
    pub sum: f64,
    zero_count: u64,
    min: f64,
    max: f64,
    scale: i8,
    offset: i32,
    buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            count: 0,
            sum: 0.0,
            zero_count: 0,
            min: f64::INFINITY,
            max: 0.0,
            scale: MAX_SCALE,
            offset: 0,
            buckets: Vec::new(),
        }
    }
}

impl Histogram {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        let value = if value < f64::MIN_POSITIVE { 0.0 } else { value };
        self.count += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        if value == 0.0 {
            self.zero_count += 1;
            return;
        }
        let index = index_of(value);
        self.cover(index, index);
        let at = (index >> self.coarser()).wrapping_sub(self.offset);
        if let Some(bucket) = usize::try_from(at).ok().and_then(|at| self.buckets.get_mut(at)) {
            *bucket += 1;
        }
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        self.count += other.count;
        self.sum += other.sum;
        self.zero_count += other.zero_count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        if other.buckets.is_empty() {
            return;
        }
        self.coarsen(other.scale);
        // The first and the last bucket are never empty, so the range is that of values in them.
        let (low, high) = (other.offset, other.offset + length(&other.buckets) - 1);
        self.cover(low << other.coarser(), high << other.coarser());
        let coarser = i32::from(other.scale - self.scale);
        for (index, &count) in (low..).zip(&other.buckets) {
            let at = usize::try_from((index >> coarser) - self.offset).ok();
            if let Some(bucket) = at.and_then(|at| self.buckets.get_mut(at)) {
                *bucket += count;
            }
        }
    }

    /// The scale: a bucket is `2^(2^-scale)` times as wide as the one before.
    #[must_use]
    pub fn scale(&self) -> i32 {
        i32::from(self.scale)
    }

    /// The index of the first of [`Histogram::buckets`].
    #[must_use]
    pub fn offset(&self) -> i32 {
        self.offset
    }

    /// Values in each bucket, from [`Histogram::offset`] up; at most [`MAX_BUCKETS`].
    #[must_use]
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// Values that are zero.
    #[must_use]
    pub fn zero_count(&self) -> u64 {
        self.zero_count
    }

    /// The least value; `None` if the histogram is empty.
    #[must_use]
    pub fn min(&self) -> Option<f64> {
        (self.count > 0).then_some(self.min)
    }

    /// The greatest value; `None` if the histogram is empty.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }

    /// The mean; `None` if the histogram is empty.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / to_f64(self.count))
    }

    /// An estimate of the `q`-quantile (0 to 1) by nearest rank: the geometric middle of its
    /// bucket, within `min` and `max`. `None` if the histogram is empty.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let (min, max) = (self.min()?, self.max()?);
        let wanted = (q.clamp(0.0, 1.0) * to_f64(self.count)).max(1.0);
        let mut passed = self.zero_count;
        if to_f64(passed) >= wanted {
            return Some(0.0);
        }
        for (index, &count) in (self.offset..).zip(&self.buckets) {
            passed += count;
            if to_f64(passed) >= wanted {
                let middle = f64::from(index) + 0.5;
                return Some((middle * width(self.scale)).exp2().clamp(min, max));
            }
        }
        Some(max)
    }

    /// How many times the number of buckets was halved since [`MAX_SCALE`].
    fn coarser(&self) -> i32 {
        i32::from(MAX_SCALE - self.scale)
    }

    /// Extends the buckets to the indices `low` to `high` of [`MAX_SCALE`].
    fn cover(&mut self, low: i32, high: i32) {
        let shift = self.coarser();
        let (mut low, mut high) = (low >> shift, high >> shift);
        let has_some = !self.buckets.is_empty();
        let last = self.offset + length(&self.buckets) - 1;
        if has_some && low >= self.offset && high <= last {
            return;
        }
        if has_some {
            (low, high) = (low.min(self.offset), high.max(last));
        }
        let mut coarser = 0;
        while (high >> coarser) - (low >> coarser) >= MAX_SPAN {
            coarser += 1;
        }
        self.coarsen(self.scale - coarser);
        (low, high) = (low >> coarser, high >> coarser);
        let front = if has_some { self.offset - low } else { 0 };
        let zeros = std::iter::repeat_n(0, usize::try_from(front).unwrap_or(0));
        self.buckets.splice(0..0, zeros);
        self.offset = low;
        self.buckets.resize(usize::try_from(high - low + 1).unwrap_or(0), 0);
    }

    /// Lowers the scale to `scale`, if it is higher.
    fn coarsen(&mut self, scale: i8) {
        if scale >= self.scale {
            return;
        }
        let coarser = i32::from(self.scale - scale);
        self.scale = scale;
        let Some(last) = self.buckets.len().checked_sub(1) else { return };
        let offset = self.offset >> coarser;
        for from in 0..=last {
            let index = (self.offset + i32::try_from(from).unwrap_or(0)) >> coarser;
            let to = usize::try_from(index - offset).unwrap_or(0);
            let count = std::mem::take(&mut self.buckets[from]);
            self.buckets[to] += count;
        }
        let end = (self.offset + length(&self.buckets) - 1) >> coarser;
        self.buckets.truncate(usize::try_from(end - offset + 1).unwrap_or(0));
        self.offset = offset;
    }
}

/// The binary logarithm of the ratio of a bucket's bounds.
fn width(scale: i8) -> f64 {
    f64::from(-scale).exp2()
}

fn length(buckets: &[u64]) -> i32 {
    i32::try_from(buckets.len()).unwrap_or(i32::MAX)
}

/// The bucket at [`MAX_SCALE`] of a positive, normal number.
fn index_of(value: f64) -> i32 {
    let bits = value.to_bits();
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1);
    let exponent = (bits >> MANTISSA_BITS) as i32 - 1023;
    let mut part = GUESSES[(mantissa >> (MANTISSA_BITS - 8)) as usize];
    while part < u8::MAX && mantissa > BOUNDS[usize::from(part) + 1] {
        part += 1;
    }
    // Only bounds that are powers of two can equal a number; the others are irrational.
    (exponent << MAX_SCALE) + i32::from(part) - i32::from(mantissa == 0)
}

/// Computes [`BOUNDS`] in fixed point with 62 fractional bits, from roots of two.
#[expect(clippy::cast_possible_truncation, reason = "a bound is below 2: 52 bits")]
const fn bounds() -> [u64; PARTS] {
    const ONE: u128 = 1 << 62;
    let mut bounds = [0; PARTS];
    let mut i = 1;
    while i < PARTS {
        let (mut product, mut root, mut bit) = (ONE, 2 * ONE, PARTS / 2);
        while bit > 0 {
            root = (root << 62).isqrt();
            if i & bit != 0 {
                product = (product * root) >> 62;
            }
            bit /= 2;
        }
        bounds[i] = ((product - ONE) >> (62 - MANTISSA_BITS)) as u64;
        i += 1;
    }
    bounds
}

const fn guesses() -> [u8; PARTS] {
    let mut guesses = [0; PARTS];
    let (mut cell, mut part) = (0, 0u8);
    while cell < PARTS {
        let from = (cell as u64) << (MANTISSA_BITS - 8);
        while part < u8::MAX && BOUNDS[part as usize + 1] < from {
            part += 1;
        }
        guesses[cell] = part;
        cell += 1;
    }
    guesses
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[f64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|&value| histogram.add(value));
        histogram
    }

    /// The logarithm of bound `index`, to the base of two.
    fn log_bound(histogram: &Histogram, index: i32) -> f64 {
        f64::from(index) * width(histogram.scale)
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            4 => (0u32..1 << 20).prop_map(f64::from),
            4 => 1e-9..1e3f64,
            1 => (-1022i32..1024).prop_map(|e| f64::from(e).exp2()),
            1 => (0u64..0x7ff0_0000_0000_0000).prop_map(f64::from_bits),
        ]
    }

    proptest! {
        #[test]
        fn each_value_is_in_its_bucket(value in f64::MIN_POSITIVE..f64::MAX, coarser in 0i8..8) {
            let mut histogram = Histogram::default();
            histogram.coarsen(MAX_SCALE - coarser);
            histogram.add(value);
            let (offset, log) = (histogram.offset(), value.log2());
            prop_assert_eq!(histogram.buckets(), &[1]);
            // The logarithms are rounded, the index is not.
            prop_assert!(log_bound(&histogram, offset) <= log + 1e-12);
            prop_assert!(log <= log_bound(&histogram, offset + 1) + 1e-12);
        }

        #[test]
        fn powers_of_two_close_their_bucket(exponent in -1022i32..1024, scale in -3i8..=MAX_SCALE) {
            let mut histogram = Histogram::default();
            histogram.coarsen(scale);
            histogram.add(f64::from(exponent).exp2());
            let index = ((exponent << MAX_SCALE) - 1) >> (MAX_SCALE - scale);
            prop_assert_eq!(histogram.offset(), index);
        }

        #[test]
        fn parts_make_the_whole_in_any_order(
            values in proptest::collection::vec(value(), 0..200), cut: usize, rotate: usize
        ) {
            // Integers are summed without rounding.
            let values: Vec<f64> = values.iter().map(|v| v.min(1e9).ceil()).collect();
            let whole = of(&values);
            let cut = if values.is_empty() { 0 } else { cut % values.len() };
            let (left, right) = values.split_at(cut);
            let (mut forth, mut back) = (of(left), of(right));
            forth.merge(&of(right));
            back.merge(&of(left));
            prop_assert_eq!(&forth, &whole);
            prop_assert_eq!(&back, &whole);
            let mut turned = values.clone();
            turned.rotate_left(if values.is_empty() { 0 } else { rotate % values.len() });
            prop_assert_eq!(&of(&turned), &whole);
            prop_assert_eq!(whole.count, values.len() as u64);
            prop_assert_eq!(whole.sum, values.iter().sum::<f64>());
        }

        #[test]
        fn buckets_are_bounded_and_complete(values in proptest::collection::vec(value(), 1..300)) {
            let histogram = of(&values);
            prop_assert!(histogram.buckets().len() <= MAX_BUCKETS);
            let inside: u64 = histogram.buckets().iter().sum();
            prop_assert_eq!(inside + histogram.zero_count(), histogram.count);
            prop_assert_eq!(histogram.count, values.len() as u64);
            let (min, max) = (histogram.min().unwrap(), histogram.max().unwrap());
            for q in [0.0, 0.3, 0.5, 0.99, 1.0] {
                let at = histogram.quantile(q).unwrap();
                prop_assert!((min..=max).contains(&at));
            }
        }

        #[test]
        fn a_quantile_is_off_by_less_than_a_bucket(
            mut values in proptest::collection::vec(1e-6..1e-3f64, 1..300), q in 0.0..1.0f64
        ) {
            let histogram = of(&values);
            values.sort_by(f64::total_cmp);
            let rank = (q * to_f64(values.len() as u64)).ceil().max(1.0);
            let exact = values[usize::try_from(crate::stats::to_u64(rank)).unwrap() - 1];
            let off = (histogram.quantile(q).unwrap() / exact).log2().abs();
            prop_assert!(off <= width(histogram.scale), "{off}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_zero_or_nothing() {
        let histogram = of(&[-1.0, 0.0, 1e-320, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        assert_eq!((histogram.count, histogram.zero_count(), histogram.sum), (3, 3, 0.0));
        assert_eq!((histogram.min(), histogram.quantile(0.5)), (Some(0.0), Some(0.0)));
        let empty = Histogram::default();
        assert_eq!((empty.min(), empty.max(), empty.mean()), (None, None, None));
        assert_eq!((empty.quantile(0.5), empty.buckets.capacity()), (None, 0));
    }
}
