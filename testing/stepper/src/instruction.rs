// SPDX-License-Identifier: Apache-2.0
//! The part of the x86-64 instruction format that the contract needs.

/// The kinds of instructions that a callback should not or rarely execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Nothing of interest.
    Plain,
    /// A system call: `syscall`, `sysenter`, `int 0x80`.
    System,
    /// Locks the bus: a `lock` prefix, or an exchange with memory.
    Locked,
    /// Reads the time: `rdtsc`, `rdtscp`.
    Clock,
    /// A string instruction with a repeat prefix: one instruction, however often it traps.
    Repeated,
}

/// Classifies the instruction at the start of `bytes`.
#[must_use]
pub fn classify(bytes: &[u8]) -> Class {
    let is_prefix =
        |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let prefixes = bytes.iter().take_while(|b| is_prefix(b)).count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    let rest = match rest {
        [0x40..=0x4f, rest @ ..] => rest,
        rest => rest,
    };
    match rest {
        _ if prefixes.contains(&0xf0) => Class::Locked,
        [0x86 | 0x87, modrm, ..] if modrm >> 6 != 3 => Class::Locked,
        [0x0f, 0x05 | 0x34, ..] | [0xcd, 0x80, ..] => Class::System,
        [0x0f, 0x31, ..] | [0x0f, 0x01, 0xf9, ..] => Class::Clock,
        [0xa4..=0xa7 | 0xaa..=0xaf, ..] if prefixes.iter().any(|p| matches!(p, 0xf2 | 0xf3)) => {
            Class::Repeated
        }
        _ => Class::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, classify};

    #[test]
    fn instructions_are_distinguished() {
        for (bytes, class) in [
            (&[0x0f, 0x05][..], Class::System),
            (&[0xcd, 0x80], Class::System),
            (&[0x0f, 0x34], Class::System),
            (&[0xf0, 0x48, 0x0f, 0xc1, 0x07], Class::Locked), // lock xadd [rdi], rax
            (&[0x66, 0xf0, 0x0f, 0xb1, 0x0f], Class::Locked), // lock cmpxchg [rdi], cx
            (&[0x48, 0x87, 0x07], Class::Locked),             // xchg [rdi], rax
            (&[0x48, 0x87, 0xc7], Class::Plain),              // xchg rdi, rax
            (&[0x0f, 0x31], Class::Clock),
            (&[0x0f, 0x01, 0xf9], Class::Clock),
            (&[0xf3, 0x48, 0xa5], Class::Repeated), // rep movsq
            (&[0xf3, 0x0f, 0x1e, 0xfa], Class::Plain), // endbr64
            (&[0x0f, 0x1f, 0x00], Class::Plain),
            (&[0xc3], Class::Plain),
            (&[], Class::Plain),
        ] {
            assert_eq!(classify(bytes), class, "{bytes:02x?}");
        }
    }
}
