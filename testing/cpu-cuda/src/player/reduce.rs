// SPDX-License-Identifier: Apache-2.0
//! Reductions on bytes: what NCCL's kernels compute, element by element, in the element's type.

/// Element types by NCCL's names for its device functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say all")]
pub enum DataType {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    F8E4M3,
    F8E5M2,
}

impl DataType {
    /// Parses the type's part of a device function's name (`f32`, `bf16`, `f8e4m3`, …).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "i8" => Self::I8,
            "u8" => Self::U8,
            "i32" => Self::I32,
            "u32" => Self::U32,
            "i64" => Self::I64,
            "u64" => Self::U64,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "f8e4m3" => Self::F8E4M3,
            "f8e5m2" => Self::F8E5M2,
            _ => return None,
        })
    }

    /// Size of an element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// Reductions by NCCL's names for its device functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedOp {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Minimum or maximum, as the scalar says.
    MinMax,
    /// Every rank's input times the scalar, then the sum.
    PreMulSum,
    /// The sum divided by the scalar, for averages of integers.
    SumPostDiv,
}

impl RedOp {
    /// Parses the reduction's part of a device function's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "Sum" => Self::Sum,
            "Prod" => Self::Prod,
            "MinMax" => Self::MinMax,
            "PreMulSum" => Self::PreMulSum,
            "SumPostDiv" => Self::SumPostDiv,
            _ => return None,
        })
    }
}

/// A reduction, its element type and its scalar (`redOpArg`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    /// The operation.
    pub op: RedOp,
    /// The element type.
    pub ty: DataType,
    /// MinMax of floats: bit 0 set means maximum; of integers: the mask which, applied to both
    /// sides, turns the wanted order into that of unsigned minima. PreMulSum: the factor's bits
    /// in the element's type. SumPostDiv: divisor * 2 + 1 if signed.
    pub arg: u64,
}

impl Reduction {
    /// Applies the operation's first step to one rank's own input.
    pub fn pre(&self, input: &mut [u8]) {
        if self.op == RedOp::PreMulSum {
            self.apply(RedOp::Prod, input, None);
        }
    }

    /// Combines `peer` into `acc`; both hold the same number of whole elements.
    pub fn combine(&self, acc: &mut [u8], peer: &[u8]) {
        self.apply(self.op, acc, Some(peer));
    }

    /// Applies the operation's last step to a finished result.
    pub fn post(&self, acc: &mut [u8]) {
        if self.op != RedOp::SumPostDiv {
            return;
        }
        let (divisor, signed) = (self.arg >> 1, self.arg & 1 == 1);
        let width = self.ty.size();
        for element in acc.chunks_exact_mut(width) {
            let mut word = [0; 8];
            word[..width].copy_from_slice(element);
            let unused = 64 - 8 * u32::try_from(width).expect("at most 8");
            let value = u64::from_le_bytes(word);
            let quotient = if signed {
                let value = (value << unused).cast_signed() >> unused;
                (value / divisor.cast_signed()).cast_unsigned()
            } else {
                value / divisor
            };
            element.copy_from_slice(&quotient.to_le_bytes()[..width]);
        }
    }

    /// Combines each element with the peer's, or with the scalar if there is no peer.
    fn apply(&self, op: RedOp, acc: &mut [u8], peer: Option<&[u8]>) {
        use DataType as T;
        match self.ty {
            T::I8 | T::U8 => self.ints::<1>(op, acc, peer),
            T::I32 | T::U32 => self.ints::<4>(op, acc, peer),
            T::I64 | T::U64 => self.ints::<8>(op, acc, peer),
            T::F32 => self.zip(acc, peer, |a, b| {
                self.float(op, f32::from_le_bytes(a), f32::from_le_bytes(b)).to_le_bytes()
            }),
            T::F64 => self.zip(acc, peer, |a, b| {
                self.double(op, f64::from_le_bytes(a), f64::from_le_bytes(b)).to_le_bytes()
            }),
            T::F16 => self.half(F16, op, acc, peer),
            T::Bf16 => self.half(BF16, op, acc, peer),
            T::F8E4M3 => self.quarter(F8E4M3, op, acc, peer),
            T::F8E5M2 => self.quarter(F8E5M2, op, acc, peer),
        }
    }

    /// Applies `f` to each element of `N` bytes and its partner.
    fn zip<const N: usize>(
        &self,
        acc: &mut [u8],
        peer: Option<&[u8]>,
        f: impl Fn([u8; N], [u8; N]) -> [u8; N],
    ) {
        debug_assert_eq!(N, self.ty.size(), "element size");
        let (elements, _) = acc.as_chunks_mut::<N>();
        if let Some(peer) = peer {
            let (others, _) = peer.as_chunks::<N>();
            for (a, b) in elements.iter_mut().zip(others) {
                *a = f(*a, *b);
            }
        } else {
            let scalar = *self.arg.to_le_bytes().first_chunk().expect("N <= 8");
            for a in elements {
                *a = f(*a, scalar);
            }
        }
    }

    /// Integers of `N` bytes. Two's complement makes sums and products of signed numbers those
    /// of unsigned ones, and MinMax carries the sign in its mask.
    fn ints<const N: usize>(&self, op: RedOp, acc: &mut [u8], peer: Option<&[u8]>) {
        let word = |bytes: [u8; N]| {
            let mut word = [0; 8];
            word[..N].copy_from_slice(&bytes);
            u64::from_le_bytes(word)
        };
        let mask = self.arg & (u64::MAX >> (64 - 8 * N));
        self.zip(acc, peer, |a, b| {
            let (a, b) = (word(a), word(b));
            let result = match op {
                RedOp::Sum | RedOp::PreMulSum | RedOp::SumPostDiv => a.wrapping_add(b),
                RedOp::Prod => a.wrapping_mul(b),
                RedOp::MinMax => (a ^ mask).min(b ^ mask) ^ mask,
            };
            *result.to_le_bytes().first_chunk().expect("N <= 8")
        });
    }

    fn float(&self, op: RedOp, a: f32, b: f32) -> f32 {
        match op {
            RedOp::Sum | RedOp::PreMulSum | RedOp::SumPostDiv => a + b,
            RedOp::Prod => a * b,
            RedOp::MinMax if self.arg & 1 == 1 => a.max(b),
            RedOp::MinMax => a.min(b),
        }
    }

    fn double(&self, op: RedOp, a: f64, b: f64) -> f64 {
        match op {
            RedOp::Sum | RedOp::PreMulSum | RedOp::SumPostDiv => a + b,
            RedOp::Prod => a * b,
            RedOp::MinMax if self.arg & 1 == 1 => a.max(b),
            RedOp::MinMax => a.min(b),
        }
    }

    fn half(&self, format: Format, op: RedOp, acc: &mut [u8], peer: Option<&[u8]>) {
        self.zip(acc, peer, |a, b| {
            let (a, b) = (u16::from_le_bytes(a), u16::from_le_bytes(b));
            format.encode(self.float(op, format.decode(a), format.decode(b))).to_le_bytes()
        });
    }

    fn quarter(&self, format: Format, op: RedOp, acc: &mut [u8], peer: Option<&[u8]>) {
        self.zip(acc, peer, |[a], [b]| {
            let (a, b) = (format.decode(a.into()), format.decode(b.into()));
            [format.encode(self.float(op, a, b)).to_le_bytes()[0]]
        });
    }
}

/// A floating-point format of at most 16 bits.
#[derive(Debug, Clone, Copy)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Has infinities; otherwise only an all-ones magnitude is NaN and overflow saturates.
    infinite: bool,
}

const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10, infinite: true };
const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7, infinite: true };
const F8E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, infinite: false };
const F8E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, infinite: true };

impl Format {
    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    const fn magnitude_mask(self) -> u16 {
        (1 << (self.exponent_bits + self.mantissa_bits)) - 1
    }

    /// The magnitude of infinity, or of NaN in a format without infinities.
    const fn infinity(self) -> u16 {
        let all = self.magnitude_mask();
        if self.infinite { all & !((1 << self.mantissa_bits) - 1) } else { all }
    }

    fn decode(self, bits: u16) -> f32 {
        let magnitude = bits & self.magnitude_mask();
        let sign = if bits & !self.magnitude_mask() == 0 { 1.0 } else { -1.0 };
        if magnitude >= self.infinity() {
            let nan = magnitude > self.infinity() || !self.infinite;
            return sign * if nan { f32::NAN } else { f32::INFINITY };
        }
        let fraction = magnitude & ((1 << self.mantissa_bits) - 1);
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let (leading, exponent) =
            if exponent == 0 { (0, 1) } else { (1 << self.mantissa_bits, exponent) };
        let shift = exponent - self.bias() - self.mantissa_bits.cast_signed();
        sign * f32::from(fraction + leading) * exp2(shift)
    }

    /// Rounds to nearest, ties to even.
    fn encode(self, value: f32) -> u16 {
        let sign = if value.is_sign_negative() { self.magnitude_mask() + 1 } else { 0 };
        if value.is_nan() {
            return sign | self.magnitude_mask();
        }
        let magnitude = f64::from(value.abs());
        let exponent = exponent(magnitude).max(1 - self.bias());
        let quantum = f64::from(self.mantissa_bits.cast_signed() - exponent).exp2();
        let steps = (magnitude * quantum).round_ties_even();
        let unit = 1 << self.mantissa_bits;
        let biased = exponent + self.bias() - 1;
        // A mantissa that rounds up to the next power of two carries into the exponent.
        #[expect(clippy::cast_possible_truncation, reason = "`as` saturates, the limit follows")]
        let code = (biased * unit).saturating_add(steps as i32);
        let limit = if self.infinite { self.infinity() } else { self.infinity() - 1 };
        sign | u16::try_from(code).unwrap_or(u16::MAX).min(limit)
    }
}

/// 2 to a power that `f32` may only hold as a subnormal number.
fn exp2(power: i32) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "a power of two in range is exact")]
    let exact = f64::from(power).exp2() as f32;
    exact
}

/// The power of two at or below a positive number; far below every format's range for zero.
fn exponent(value: f64) -> i32 {
    // A number that was an f32 is never subnormal as f64, so the exponent field is enough.
    let field = (value.to_bits() >> 52) & 0x7ff;
    i32::try_from(field).expect("11 bits") - 1023
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduction(op: RedOp, ty: DataType, arg: u64) -> Reduction {
        Reduction { op, ty, arg }
    }

    /// Combines two numbers given as bytes.
    fn combine<const N: usize>(reduction: Reduction, a: [u8; N], b: [u8; N]) -> [u8; N] {
        let mut acc = a;
        reduction.combine(&mut acc, &b);
        acc
    }

    #[test]
    fn floats_combine() {
        let f32s = |op, arg, a: f32, b: f32| {
            let reduction = reduction(op, DataType::F32, arg);
            f32::from_le_bytes(combine(reduction, a.to_le_bytes(), b.to_le_bytes()))
        };
        assert_eq!(f32s(RedOp::Sum, 0, 1.5, -4.0).to_bits(), (-2.5_f32).to_bits());
        assert_eq!(f32s(RedOp::Prod, 0, 1.5, -4.0).to_bits(), (-6.0_f32).to_bits());
        assert_eq!(f32s(RedOp::MinMax, 0, 1.5, -4.0).to_bits(), (-4.0_f32).to_bits());
        assert_eq!(f32s(RedOp::MinMax, 1, 1.5, -4.0).to_bits(), 1.5_f32.to_bits());
        let sum = reduction(RedOp::Sum, DataType::F64, 0);
        let sum = combine(sum, 0.25_f64.to_le_bytes(), 1e300_f64.to_le_bytes());
        assert_eq!(f64::from_le_bytes(sum).to_bits(), 1e300_f64.to_bits());
    }

    #[test]
    fn integers_combine_modulo_their_width() {
        let sum = reduction(RedOp::Sum, DataType::U8, 0);
        assert_eq!(combine(sum, [200, 1], [100, 2]), [44, 3]);
        let product = reduction(RedOp::Prod, DataType::I32, 0);
        let product = combine(product, (-3_i32).to_le_bytes(), 7_i32.to_le_bytes());
        assert_eq!(i32::from_le_bytes(product), -21);
        let sum = reduction(RedOp::Sum, DataType::I64, 0);
        let sum = combine(sum, i64::MAX.to_le_bytes(), 1_i64.to_le_bytes());
        assert_eq!(i64::from_le_bytes(sum), i64::MIN);
    }

    /// NCCL passes signed numbers to the unsigned function; the mask corrects the order.
    #[test]
    fn integer_extremes_follow_the_mask() {
        let sign = 1 << 31;
        for (mask, a, b, expected) in [
            (sign, -5, 3, -5),
            (sign ^ u64::from(u32::MAX), -5, 3, 3),
            (0, -5, 3, 3),
            (u64::from(u32::MAX), -5, 3, -5),
        ] {
            let op = reduction(RedOp::MinMax, DataType::U32, mask);
            let result = combine(op, i32::to_le_bytes(a), i32::to_le_bytes(b));
            assert_eq!(i32::from_le_bytes(result), expected, "mask {mask:#x}");
        }
    }

    #[test]
    fn averages_scale_before_or_divide_after() {
        let third = reduction(RedOp::PreMulSum, DataType::F32, u64::from(0.5_f32.to_bits()));
        let mut input = [3.0_f32.to_le_bytes(), 8.0_f32.to_le_bytes()].concat();
        third.pre(&mut input);
        assert_eq!(input, [1.5_f32.to_le_bytes(), 4.0_f32.to_le_bytes()].concat());
        let signed = reduction(RedOp::SumPostDiv, DataType::U32, 3 << 1 | 1);
        let mut result = (-10_i32).to_le_bytes();
        signed.post(&mut result);
        assert_eq!(i32::from_le_bytes(result), -3);
        let unsigned = reduction(RedOp::SumPostDiv, DataType::U8, 2 << 1);
        let mut result = [251, 8];
        unsigned.post(&mut result);
        assert_eq!(result, [125, 4]);
    }

    #[test]
    fn small_floats_survive_a_round_trip() {
        for format in [F16, BF16, F8E4M3, F8E5M2] {
            let codes = 2 * u32::from(format.magnitude_mask()) + 1;
            for code in 0..=u16::try_from(codes).expect("at most 16 bits") {
                let value = format.decode(code);
                if !value.is_nan() {
                    assert_eq!(format.encode(value), code, "{format:?} {code:#x} {value}");
                }
            }
        }
    }

    #[test]
    fn small_floats_round_to_even_and_saturate() {
        assert_eq!(F16.encode(1.0), 0x3c00);
        assert_eq!(F16.encode(65_520.0), 0x7c00, "half a unit above the largest is infinity");
        assert_eq!(F16.encode(1.0 + 1.0 / 2048.0), 0x3c00, "a tie goes to the even mantissa");
        assert_eq!(F16.encode(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(F16.encode(-1e-8), 0x8000);
        assert_eq!(BF16.encode(3.0), 0x4040);
        assert_eq!(F8E4M3.encode(1e9), 0x7e, "no infinity: the largest is 448");
        assert_eq!(F8E4M3.decode(0x7e).to_bits(), 448_f32.to_bits());
        assert!(F8E4M3.decode(F8E4M3.encode(f32::NAN)).is_nan());
        assert_eq!(F8E5M2.encode(f32::INFINITY), 0x7c);
        let sum = reduction(RedOp::Sum, DataType::Bf16, 0);
        let sum = combine(sum, 0x4040_u16.to_le_bytes(), 0x3f80_u16.to_le_bytes());
        assert_eq!(u16::from_le_bytes(sum), 0x4080, "3 + 1 = 4");
    }
}
