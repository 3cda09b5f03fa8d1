// SPDX-License-Identifier: Apache-2.0
//! A row of the table, and how rows are written.

/// Where a limit comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It follows from something else.
    Derived,
    /// A recording that the simulator did not make shows it.
    Measured,
    /// The design chose it before it was tried (`../shared/design/judgement.md`).
    Designed,
    /// It is plausible, and waits for a measurement.
    Assumed,
}

impl Origin {
    /// The origin in a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Derived => "derived",
            Origin::Measured => "measured",
            Origin::Designed => "designed",
            Origin::Assumed => "assumed",
        }
    }
}

/// A limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Its name.
    pub name: &'static str,
    /// Its value, with the unit.
    pub value: &'static str,
    /// The rules that use it, by name; empty if all do.
    pub rules: &'static [&'static str],
    /// Where it comes from.
    pub origin: Origin,
    /// Why it is so.
    pub why: &'static str,
}

/// Constants, and the table of them. A row: documentation, name, type, value, unit, rules, origin,
/// and why.
macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $type:tt = $value:literal $unit:ident,
        [$($rule:literal),*], $origin:ident $why:literal;)*) => {
        $($(#[$doc])* pub const $name: $type = in_unit!($type $value $unit);)*

        /// The limits of this part.
        pub const LIMITS: &[$crate::Limit] = &[$($crate::Limit {
            name: stringify!($name),
            value: concat!(stringify!($value), " ", stringify!($unit)),
            rules: &[$($rule),*],
            origin: $crate::Origin::$origin,
            why: $why,
        }),*];
    };
}

/// A value of a unit: times are in ns.
macro_rules! in_unit {
    ($type:tt $value:literal of_a_step) => {
        $value
    };
    ($type:tt $value:literal of_the_time) => {
        $value
    };
    ($type:tt $value:literal of_them) => {
        $value
    };
    ($type:tt $value:literal times) => {
        $value
    };
    ($type:tt $value:literal nats) => {
        $value
    };
    ($type:tt $value:literal bytes) => {
        $value
    };
    ($type:tt $value:literal GPU_hours) => {
        $value
    };
    (f64 $value:literal us) => {
        $value * 1e3
    };
    (f64 $value:literal ms) => {
        $value * 1e6
    };
    (f64 $value:literal s) => {
        $value * 1e9
    };
    (u64 $value:literal ms) => {
        $value * 1_000_000
    };
    (u64 $value:literal s) => {
        $value * 1_000_000_000
    };
    ($type:tt $value:literal $counted:ident) => {
        $value
    };
}
