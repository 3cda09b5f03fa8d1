// SPDX-License-Identifier: Apache-2.0
//! Runs the real, unmodified `libnccl.so.2` on a machine without a GPU. For tests only.
//!
//! libnccl contains the CUDA runtime statically. [`redirect`] turns each of its documented
//! functions (symbols `cuda*`) into a jump to the function of the same name in [`rt`], which works
//! on host memory ([`mem`]) and on worker threads, which run pieces of [`work`] ([`stream`],
//! [`event`], [`capture`], [`graph`]). Driver functions reach NCCL only through the runtime's
//! look-up ([`drv`]), NVML through the SONAME of this library ([`nvml`]). NCCL's kernels ([`nccl`])
//! are played from their launch arguments ([`player`], with struct layouts that [`layout`] reads
//! from libnccl's debug information). Its idle threads sleep instead of spinning ([`idle`]).
//!
//! As a shared library it is also a client's libcudart: it exports `cudaMalloc` and so on.
//! [`attach::cpucuda_open_nccl`] loads a libnccl and attaches to it; under `LD_PRELOAD` an already
//! linked libnccl is attached at start.
//!
//! Each module documents what it imitates and what it does not. Known gaps: functions not in [`rt`]
//! log their name once and return "not supported"; kernels are launched with arguments in a buffer
//! only, as NCCL does; a libnccl that is loaded by `dlopen` under `LD_PRELOAD` is not seen.
//!
//! This crate owns the stand-in and its semantics. It does **not** start processes, choose
//! topologies or know what a profiler is; that is the rig's business. It does not imitate a
//! driver's internal interfaces, answer its self-tests or change any file.

pub mod attach;
pub mod capture;
pub mod counts;
pub mod device;
pub mod drv;
pub mod elf;
pub mod error;
pub mod event;
mod exports;
pub mod graph;
pub mod idle;
pub mod layout;
pub mod mem;
pub mod nccl;
pub mod nvml;
pub mod player;
pub mod redirect;
pub mod rt;
pub mod stream;
pub mod types;
pub mod util;
pub mod work;
