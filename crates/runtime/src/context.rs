// SPDX-License-Identifier: Apache-2.0
/*!
Contexts: the numbers that `init` returns to NCCL for a communicator, and that NCCL passes with
every event.

```text
 63                32 31      17  16  15                  0
+--------------------+----------+---+---------------------+
| nonce of process   |    0     | 1 | communicator index  |
+--------------------+----------+---+---------------------+
```

A context is a number, not a pointer: with PXN, NCCL carries contexts into other processes, where
the nonce shows that they are foreign. It is never 0, because NCCL would not finalize such a
communicator.
*/

/// Maximum number of communicators that one process can distinguish over its life.
pub const COMMS: u16 = 0xfffe;
/// Index of communicators beyond [`COMMS`], and of inert contexts.
pub const NO_COMM: u16 = ncclscope_recorder::NO_COMM;

/// The context of a communicator.
#[must_use]
pub const fn context(nonce: u32, comm: u16) -> u64 {
    (nonce as u64) << 32 | 1 << 16 | comm as u64
}

/// The communicator index of a context; [`NO_COMM`] for a context of another process.
#[must_use]
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the index is in the low bits")]
pub const fn comm_of(nonce: u32, context: u64) -> u16 {
    if context >> 32 == nonce as u64 { context as u16 } else { NO_COMM }
}

/// The communicator index in another process's context (PXN); [`NO_COMM`] if it is not a context of
/// ncclscope.
#[must_use]
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the index is in the low bits")]
pub const fn comm_of_another(context: u64) -> u16 {
    if context as u32 >> 16 == 1 { context as u16 } else { NO_COMM }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_contexts_name_a_communicator() {
        assert_eq!(comm_of(77, context(77, 5)), 5);
        assert_eq!(comm_of(78, context(77, 5)), NO_COMM);
        assert_eq!(comm_of(77, 0), NO_COMM);
        assert_eq!(comm_of(0, 0x7f12_3456_7890), NO_COMM);
        assert_eq!(comm_of(77, context(77, NO_COMM)), NO_COMM);
        assert_ne!(context(0, 0), 0);
        assert_eq!(comm_of_another(context(78, 5)), 5);
        assert_eq!(comm_of_another(0x7f12_3456_7890), NO_COMM, "a pointer of another profiler");
    }
}
