// SPDX-License-Identifier: Apache-2.0
//! Copies and fills.
//!
//! Memory that the stand-in does not know is pageable host memory. CUDA's rules for it: a source
//! is read before the call returns, a destination is written before the call returns (CUDA Runtime
//! API manual, "API synchronization behavior").

use crate::capture;
use crate::capture::member::Status;
use crate::device;
use crate::error::{Error, Out, Result, put_if};
use crate::mem;
use crate::stream;
use crate::work::{Kind, Work};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Copies `size` bytes between possibly overlapping ranges. Words are copied whole, because peers
/// poll for them: NCCL's copy-engine collectives signal with 4-byte copies.
///
/// # Safety
/// Both ranges must be mapped; other threads and processes may access them.
pub(crate) unsafe fn copy_bytes(dst: usize, src: usize, size: usize) {
    let from = std::ptr::with_exposed_provenance::<u8>(src);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(dst);
    let aligned = (dst | src).is_multiple_of(size.max(1));
    match size {
        4 if aligned => {
            // SAFETY: mapped by contract and aligned.
            let from = unsafe { AtomicU32::from_ptr(from.cast_mut().cast()) };
            // SAFETY: as above.
            let to = unsafe { AtomicU32::from_ptr(to.cast()) };
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
        8 if aligned => {
            // SAFETY: mapped by contract and aligned.
            let from = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) };
            // SAFETY: as above.
            let to = unsafe { AtomicU64::from_ptr(to.cast()) };
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
        // SAFETY: mapped by contract; `copy` allows overlap.
        _ => unsafe { std::ptr::copy(from, to, size) },
    }
}

/// A copy of `rows` rows of `size` bytes, `pitch` bytes apart; a plain copy is one row.
#[derive(Clone, Copy, Debug)]
struct Copy {
    dst: usize,
    dst_pitch: usize,
    src: usize,
    src_pitch: usize,
    size: usize,
    rows: usize,
}

impl Copy {
    fn plain(dst: usize, src: usize, size: usize) -> Self {
        Self { dst, dst_pitch: 0, src, src_pitch: 0, size, rows: 1 }
    }

    fn is_empty(&self) -> bool {
        self.size == 0 || self.rows == 0
    }

    fn run(&self) {
        for row in 0..self.rows {
            let (dst, src) = (self.dst + row * self.dst_pitch, self.src + row * self.src_pitch);
            // SAFETY: the client promises mapped ranges that stay so until the copy is done.
            unsafe { copy_bytes(dst, src, self.size) };
        }
    }

    /// The source's rows, packed.
    fn stage(&self) -> Vec<u8> {
        let mut staged = Vec::with_capacity(self.rows * self.size);
        for row in 0..self.rows {
            let src = std::ptr::with_exposed_provenance(self.src + row * self.src_pitch);
            // SAFETY: the client promises a readable source that is not written during the call.
            staged.extend_from_slice(unsafe { std::slice::from_raw_parts(src, self.size) });
        }
        staged
    }

    /// Queues the copy by the rules for pageable memory.
    fn enqueue(self, stream: usize) -> Result {
        let stream = stream::by_handle(stream)?;
        if self.is_empty() {
            return Ok(());
        }
        let capturing = capture::status(&stream) != Status::None;
        let pageable = |address| mem::find(address).is_none();
        let run = if pageable(self.src) && !capturing {
            let staged = self.stage();
            Work::new(Kind::Memcpy, move || {
                let src = staged.as_ptr().expose_provenance();
                Self { src, src_pitch: self.size, ..self }.run();
            })
        } else {
            Work::new(Kind::Memcpy, move || self.run())
        };
        capture::enqueue(&stream, run)?;
        if pageable(self.dst) && !capturing {
            stream.synchronize();
        }
        Ok(())
    }

    /// Queues the copy on the legacy default stream and waits for it.
    fn run_now(self) -> Result {
        if self.is_empty() {
            return Ok(());
        }
        let stream = stream::legacy(device::current());
        stream.submit(Work::new(Kind::Memcpy, move || self.run()));
        stream.synchronize();
        Ok(())
    }
}

fn fill(address: usize, value: i32, size: usize) -> Work {
    let value = value.to_le_bytes()[0];
    Work::new(Kind::Memset, move || {
        let done = if value == 0 { mem::clear_pages(address, size) } else { 0..0 };
        // SAFETY: the client promises a mapped range that nothing else uses until the fill is done.
        let bytes = unsafe { super::memory::bytes(address, size) };
        bytes[..done.start].fill(std::mem::MaybeUninit::new(value));
        bytes[done.end..].fill(std::mem::MaybeUninit::new(value));
    })
}

/// `cudaMemcpyKind`: host to host, host to device, device to host, device to device, find out.
fn check_kind(kind: i32) -> Result {
    if (0..=4).contains(&kind) { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

fn batch(dsts: &[usize], srcs: &[usize], sizes: &[usize], stream: usize) -> Result {
    if stream <= 2 {
        // The manual forbids the default streams here.
        return Err(Error::INVALID_VALUE);
    }
    for ((&dst, &src), &size) in dsts.iter().zip(srcs).zip(sizes) {
        Copy::plain(dst, src, size).enqueue(stream)?;
    }
    Ok(())
}

/// The caller's array of `count` elements.
///
/// # Safety
/// `first` must point to `count` initialised elements that live for `'a`, or be NULL.
unsafe fn array<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    if first.is_null() || count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: the caller vouches for the array.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

crate::exports::runtime! {
    /// Copies and waits.
    fn cudaMemcpy(dst: usize, src: usize, size: usize, kind: i32) {
        check_kind(kind)?;
        Copy::plain(dst, src, size).run_now()
    }

    /// Copies in the order of a stream.
    fn cudaMemcpyAsync(dst: usize, src: usize, size: usize, kind: i32, stream: usize) {
        check_kind(kind)?;
        Copy::plain(dst, src, size).enqueue(stream)
    }

    /// Copies between devices and waits.
    fn cudaMemcpyPeer(dst: usize, _dst_device: i32, src: usize, _src_device: i32, size: usize) {
        Copy::plain(dst, src, size).run_now()
    }

    /// Copies between devices in the order of a stream.
    fn cudaMemcpyPeerAsync(
        dst: usize, _dst_device: i32, src: usize, _src_device: i32, size: usize, stream: usize,
    ) {
        Copy::plain(dst, src, size).enqueue(stream)
    }

    /// Copies rows and waits.
    fn cudaMemcpy2D(
        dst: usize, dst_pitch: usize, src: usize, src_pitch: usize, size: usize, rows: usize,
        kind: i32,
    ) {
        check_kind(kind)?;
        Copy { dst, dst_pitch, src, src_pitch, size, rows }.run_now()
    }

    /// Copies rows in the order of a stream.
    fn cudaMemcpy2DAsync(
        dst: usize, dst_pitch: usize, src: usize, src_pitch: usize, size: usize, rows: usize,
        kind: i32, stream: usize,
    ) {
        check_kind(kind)?;
        Copy { dst, dst_pitch, src, src_pitch, size, rows }.enqueue(stream)
    }

    /// Copies many ranges in the order of a stream, CUDA 12.8 form. Hints have no effect.
    fn cudaMemcpyBatchAsync(
        dsts: *const usize, srcs: *const usize, sizes: *const usize, count: usize,
        _attributes: usize, _indexes: usize, _attribute_count: usize,
        fail_index: Out<'_, usize>, stream: usize,
    ) {
        // SAFETY: the caller passes `count` destinations.
        let dsts = unsafe { array(dsts, count) }?;
        // SAFETY: the caller passes `count` sources.
        let srcs = unsafe { array(srcs, count) }?;
        // SAFETY: the caller passes `count` sizes.
        let sizes = unsafe { array(sizes, count) }?;
        let result = batch(dsts, srcs, sizes, stream);
        if result.is_err() {
            // "Not the fault of one copy", in the manual's words.
            put_if(fail_index, usize::MAX);
        }
        result
    }

    /// Copies many ranges in the order of a stream, CUDA 13 form. Hints have no effect.
    fn cudaMemcpyBatchAsync_v13(
        dsts: *const usize, srcs: *const usize, sizes: *const usize, count: usize,
        _attributes: usize, _indexes: usize, _attribute_count: usize, stream: usize,
    ) {
        // SAFETY: the caller passes `count` destinations.
        let dsts = unsafe { array(dsts, count) }?;
        // SAFETY: the caller passes `count` sources.
        let srcs = unsafe { array(srcs, count) }?;
        // SAFETY: the caller passes `count` sizes.
        let sizes = unsafe { array(sizes, count) }?;
        batch(dsts, srcs, sizes, stream)
    }

    /// Fills with a byte and waits.
    fn cudaMemset(address: usize, value: i32, size: usize) {
        let stream = stream::legacy(device::current());
        stream.submit(fill(address, value, size));
        stream.synchronize();
        Ok(())
    }

    /// Fills with a byte in the order of a stream.
    fn cudaMemsetAsync(address: usize, value: i32, size: usize, stream: usize) {
        capture::enqueue(&stream::by_handle(stream)?, fill(address, value, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{NON_BLOCKING, STREAMS, Stream};
    use std::sync::{Arc, mpsc};

    fn address(bytes: &[u8]) -> usize {
        bytes.as_ptr().expose_provenance()
    }

    /// A stream that does nothing until the sender is dropped.
    fn held() -> (usize, Arc<Stream>, mpsc::Sender<()>) {
        let stream = Arc::new(Stream::new(0, NON_BLOCKING, 0));
        let (open, closed) = mpsc::channel();
        let closed = std::sync::Mutex::new(closed);
        stream.submit(Work::new(Kind::Host, move || {
            crate::util::lock(&closed).recv().unwrap_err();
        }));
        (STREAMS.add(stream.clone()), stream, open)
    }

    #[test]
    fn a_pageable_source_is_read_before_the_call_returns() {
        let device = mem::alloc(8).unwrap();
        let (handle, stream, open) = held();
        let mut source = *b"original";
        Copy::plain(device, address(&source), 8).enqueue(handle).unwrap();
        source.copy_from_slice(b"changed!");
        drop(open);
        stream.synchronize();
        let mut back = [0_u8; 8];
        Copy::plain(back.as_mut_ptr().expose_provenance(), device, 8).run_now().unwrap();
        assert_eq!(back, *b"original");
        mem::free(device, &[mem::Origin::Malloc]).unwrap();
    }

    #[test]
    fn a_pageable_destination_is_written_before_the_call_returns() {
        let device = mem::alloc(4096).unwrap();
        let stream = STREAMS.add(Arc::new(Stream::new(0, NON_BLOCKING, 0)));
        let mut back = [0_u8; 4096];
        capture::enqueue(&STREAMS.get(stream).unwrap(), fill(device, 0x1_07, 4096)).unwrap();
        let dst = back.as_mut_ptr().expose_provenance();
        Copy::plain(dst, device, 4096).enqueue(stream).unwrap();
        assert!(back.iter().all(|&byte| byte == 7));
        mem::free(device, &[mem::Origin::Malloc]).unwrap();
    }

    #[test]
    fn rows_are_copied_with_their_pitches() {
        let source = *b"ab..cd..ef..";
        let device = mem::alloc(64).unwrap();
        let copy = Copy {
            dst: device,
            dst_pitch: 3,
            src: address(&source),
            src_pitch: 4,
            size: 2,
            rows: 3,
        };
        let (handle, stream, open) = held();
        copy.enqueue(handle).unwrap();
        drop(open);
        stream.synchronize();
        let mut back = [0_u8; 8];
        Copy::plain(back.as_mut_ptr().expose_provenance(), device, 8).run_now().unwrap();
        assert_eq!(back, *b"ab\0cd\0ef");
        mem::free(device, &[mem::Origin::Malloc]).unwrap();
    }

    #[test]
    fn pinned_copies_wait_for_their_turn() {
        let (pinned, device) = (mem::alloc_host(16).unwrap(), mem::alloc(16).unwrap());
        let (handle, stream, open) = held();
        Copy::plain(device, pinned, 16).enqueue(handle).unwrap();
        Copy::plain(pinned, device, 16).enqueue(handle).unwrap();
        assert!(!stream.is_idle());
        drop(open);
        stream.synchronize();
        mem::free(pinned, &[mem::Origin::HostAlloc]).unwrap();
        mem::free(device, &[mem::Origin::Malloc]).unwrap();
    }
}
