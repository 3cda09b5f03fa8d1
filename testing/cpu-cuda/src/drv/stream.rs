// SPDX-License-Identifier: Apache-2.0
//! Kernel launches and memory operations of streams.

use crate::capture;
use crate::error::{Error, Result};
use crate::event::EVENTS;
use crate::nccl;
use crate::player::Launch;
use crate::stream;
use crate::types::{BatchMemOp, LaunchConfig};
use crate::util::poll_until;
use crate::work::{Kind, Work};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Markers of the `extra` array of a launch (`CU_LAUNCH_PARAM_*`).
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;
/// `CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT`.
const LAUNCH_COMPLETION_EVENT: i32 = 12;
/// Kernel arguments are at most this long (CUDA C++ Programming Guide).
const MAX_ARGUMENTS: usize = 4096;

/// The argument buffer that `extra` describes, copied.
///
/// # Safety
/// `extra` must be NULL or follow the contract of `cuLaunchKernel`.
unsafe fn arguments(extra: *const usize) -> Result<Vec<u8>> {
    if extra.is_null() {
        // Separate parameters: their sizes are in the fat binary, which is not read here.
        return Err(Error::NOT_SUPPORTED);
    }
    let (mut buffer, mut size, mut next) = (0, 0, extra);
    loop {
        // SAFETY: the array continues until its END.
        let key = unsafe { next.read() };
        if key == END {
            break;
        }
        // SAFETY: a value follows each key.
        let value = unsafe { next.wrapping_add(1).read() };
        match key {
            BUFFER_POINTER => buffer = value,
            BUFFER_SIZE => {
                // SAFETY: the value is the address of the size.
                size = unsafe { std::ptr::with_exposed_provenance::<usize>(value).read() };
            }
            _ => return Err(Error::INVALID_VALUE),
        }
        next = next.wrapping_add(2);
    }
    if buffer == 0 || size > MAX_ARGUMENTS {
        return Err(Error::INVALID_VALUE);
    }
    let buffer = std::ptr::with_exposed_provenance::<u8>(buffer);
    // SAFETY: the caller's buffer has the size given in `extra`.
    Ok(unsafe { std::slice::from_raw_parts(buffer, size) }.to_vec())
}

/// Queues a kernel; `started` are events to record when it starts.
fn launch(function: usize, launch: Launch, stream: usize, started: &[usize]) -> Result {
    let kernel = nccl::kernel_work(function, launch)?;
    let stream = stream::by_handle(stream)?;
    for &event in started {
        capture::record(&stream, &EVENTS.get(event)?, false)?;
    }
    capture::enqueue(&stream, kernel)
}

/// How a wait compares the word with its value (`CUstreamWaitValue_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    /// At least, in cyclic order.
    AtLeast,
    Equal,
    And,
    Nor,
}

impl Test {
    fn from_flags(flags: u32) -> Self {
        match flags & 3 {
            0 => Self::AtLeast,
            1 => Self::Equal,
            2 => Self::And,
            _ => Self::Nor,
        }
    }

    fn holds32(self, word: u32, value: u32) -> bool {
        match self {
            Self::AtLeast => word.wrapping_sub(value).cast_signed() >= 0,
            Self::Equal => word == value,
            Self::And => word & value != 0,
            Self::Nor => !(word | value) != 0,
        }
    }

    fn holds64(self, word: u64, value: u64) -> bool {
        match self {
            Self::AtLeast => word.wrapping_sub(value).cast_signed() >= 0,
            Self::Equal => word == value,
            Self::And => word & value != 0,
            Self::Nor => !(word | value) != 0,
        }
    }
}

/// One memory operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemOp {
    Wait32(usize, u32, Test),
    Wait64(usize, u64, Test),
    Write32(usize, u32),
    Write64(usize, u64),
    /// Barriers and flushes: every piece of work ends with a fence anyway.
    Fence,
}

/// The 32-bit word at `address`, which the client promised to be mapped during the operation.
fn word32<'a>(address: usize) -> &'a AtomicU32 {
    // SAFETY: mapped by contract; `checked` has verified the alignment.
    unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
}

/// The 64-bit word at `address`, as [`word32`].
fn word64<'a>(address: usize) -> &'a AtomicU64 {
    // SAFETY: mapped by contract; `checked` has verified the alignment.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
}

impl MemOp {
    fn from_params(params: &BatchMemOp) -> Result<Self> {
        let address = usize::try_from(params.address).map_err(|_| Error::INVALID_VALUE)?;
        let (test, value) = (Test::from_flags(params.flags), params.value);
        // The low half of a little-endian union.
        let low = u32::try_from(value & u64::from(u32::MAX)).map_err(|_| Error::INVALID_VALUE)?;
        Ok(match params.operation {
            1 => Self::Wait32(address, low, test),
            2 => Self::Write32(address, low),
            4 => Self::Wait64(address, value, test),
            5 => Self::Write64(address, value),
            3 | 6 => Self::Fence,
            _ => return Err(Error::INVALID_VALUE),
        })
    }

    /// Succeeds if the operation's address is aligned and not NULL.
    fn checked(self) -> Result<Self> {
        let good = match self {
            Self::Wait32(at, ..) | Self::Write32(at, _) => at != 0 && at.is_multiple_of(4),
            Self::Wait64(at, ..) | Self::Write64(at, _) => at != 0 && at.is_multiple_of(8),
            Self::Fence => true,
        };
        if good { Ok(self) } else { Err(Error::INVALID_VALUE) }
    }

    fn run(self) {
        match self {
            Self::Wait32(at, value, test) => {
                poll_until(|| test.holds32(word32(at).load(Ordering::Acquire), value));
            }
            Self::Wait64(at, value, test) => {
                poll_until(|| test.holds64(word64(at).load(Ordering::Acquire), value));
            }
            Self::Write32(at, value) => word32(at).store(value, Ordering::Release),
            Self::Write64(at, value) => word64(at).store(value, Ordering::Release),
            Self::Fence => {}
        }
    }
}

/// Queues memory operations as one piece of work.
fn queue(stream: usize, ops: impl IntoIterator<Item = Result<MemOp>>) -> Result {
    let ops = ops.into_iter().map(|op| op?.checked()).collect::<Result<Vec<_>>>()?;
    let run = move || ops.iter().for_each(|op| op.run());
    capture::enqueue(&stream::by_handle(stream)?, Work::new(Kind::MemOp, run))
}

crate::exports::driver! {
    /// Launches a kernel whose arguments are in one buffer.
    fn cuLaunchKernelEx(
        config: Option<&LaunchConfig>, function: usize, _params: usize, extra: *const usize,
    ) {
        let config = config.ok_or(Error::INVALID_VALUE)?;
        let attributes = if config.attributes.is_null() {
            &[][..]
        } else {
            let count = usize::try_from(config.count).map_err(|_| Error::INVALID_VALUE)?;
            // SAFETY: the caller passes `count` attributes.
            unsafe { std::slice::from_raw_parts(config.attributes, count) }
        };
        let started = attributes.iter().filter(|a| a.id == LAUNCH_COMPLETION_EVENT);
        let started = started.filter_map(|a| usize::try_from(a.value[0]).ok()).collect::<Vec<_>>();
        // SAFETY: the caller keeps the contract of `extra`.
        let args = unsafe { arguments(extra) }?;
        let kernel = Launch { args, grid: config.grid.x, block: config.block.x };
        launch(function, kernel, config.stream, &started)
    }

    /// Launches a kernel whose arguments are in one buffer.
    fn cuLaunchKernel(
        function: usize, grid: u32, _grid_y: u32, _grid_z: u32, block: u32, _block_y: u32,
        _block_z: u32, _shared: u32, stream: usize, _params: usize, extra: *const usize,
    ) {
        // SAFETY: the caller keeps the contract of `extra`.
        let args = unsafe { arguments(extra) }?;
        launch(function, Launch { args, grid, block }, stream, &[])
    }

    /// Waits for a 32-bit word.
    fn cuStreamWaitValue32(stream: usize, address: usize, value: u32, flags: u32) {
        queue(stream, [Ok(MemOp::Wait32(address, value, Test::from_flags(flags)))])
    }

    /// Waits for a 64-bit word.
    fn cuStreamWaitValue64(stream: usize, address: usize, value: u64, flags: u32) {
        queue(stream, [Ok(MemOp::Wait64(address, value, Test::from_flags(flags)))])
    }

    /// Writes a 32-bit word.
    fn cuStreamWriteValue32(stream: usize, address: usize, value: u32, _flags: u32) {
        queue(stream, [Ok(MemOp::Write32(address, value))])
    }

    /// Writes a 64-bit word.
    fn cuStreamWriteValue64(stream: usize, address: usize, value: u64, _flags: u32) {
        queue(stream, [Ok(MemOp::Write64(address, value))])
    }

    /// Executes memory operations in order.
    fn cuStreamBatchMemOp(stream: usize, count: u32, ops: *const BatchMemOp, _flags: u32) {
        let count = usize::try_from(count).map_err(|_| Error::INVALID_VALUE)?;
        if ops.is_null() || count == 0 {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: the caller passes `count` operations.
        let ops = unsafe { std::slice::from_raw_parts(ops, count) };
        queue(stream, ops.iter().map(MemOp::from_params))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{NON_BLOCKING, STREAMS, Stream};
    use std::sync::Arc;

    fn address<T>(word: &T) -> usize {
        std::ptr::from_ref(word).expose_provenance()
    }

    #[test]
    fn a_wait_holds_the_stream_until_its_word_fits() {
        let (word, answer) = (AtomicU32::new(0), AtomicU64::new(0));
        let stream = Arc::new(Stream::new(0, NON_BLOCKING, 0));
        let handle = STREAMS.add(stream.clone());
        let wait = MemOp::Wait32(address(&word), 5, Test::AtLeast);
        queue(handle, [Ok(wait), Ok(MemOp::Write64(address(&answer), 42))]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert_eq!(answer.load(Ordering::Acquire), 0);
        word.store(6, Ordering::Release);
        stream.synchronize();
        assert_eq!(answer.load(Ordering::Acquire), 42);
    }

    #[test]
    fn comparisons_follow_the_manual() {
        assert!(Test::AtLeast.holds32(2, u32::MAX), "cyclic order");
        assert!(!Test::AtLeast.holds32(u32::MAX, 2));
        assert!(Test::Equal.holds64(7, 7) && !Test::Equal.holds64(7, 8));
        assert!(Test::And.holds32(6, 2) && !Test::And.holds32(4, 2));
        assert!(!Test::Nor.holds32(u32::MAX, 0) && Test::Nor.holds32(1, 2));
    }

    #[test]
    fn batches_are_decoded_and_checked() {
        let op = |operation, address, value, flags| BatchMemOp {
            operation,
            address,
            value,
            flags,
            rest: [0; 2],
        };
        let wide = 0xffff_ffff_0000_0007;
        assert_eq!(MemOp::from_params(&op(2, 8, wide, 0)), Ok(MemOp::Write32(8, 7)));
        assert_eq!(MemOp::from_params(&op(5, 8, wide, 0)), Ok(MemOp::Write64(8, wide)));
        assert_eq!(MemOp::from_params(&op(1, 8, 7, 1)), Ok(MemOp::Wait32(8, 7, Test::Equal)));
        assert!(MemOp::from_params(&op(9, 8, 0, 0)).is_err());
        assert!(MemOp::Write64(4, 0).checked().is_err());
    }

    #[test]
    fn launch_arguments_are_copied_out_of_extra() {
        let (buffer, size) = ([1_u8, 2, 3, 4], 3_usize);
        let extra = [BUFFER_POINTER, address(&buffer), BUFFER_SIZE, address(&size), END];
        // SAFETY: the array is what the contract asks for.
        assert_eq!(unsafe { arguments(extra.as_ptr()) }, Ok(vec![1, 2, 3]));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { arguments(std::ptr::null()) }, Err(Error::NOT_SUPPORTED));
    }
}
