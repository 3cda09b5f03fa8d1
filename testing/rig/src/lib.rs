// SPDX-License-Identifier: Apache-2.0
//! Runs real NCCL ranks on the CPU stand-in, or on a GPU where there is one.
//!
//! A rank is a process (`rank`) that looks CUDA and NCCL up at run time ([`cuda`], [`nccl`]) and
//! does a [`scenario`]. A [`job`] is several of them on simulated hosts, with a library that
//! [`wheel`] finds and files that [`build`] makes. This crate does **not** link the stand-in or
//! the profiler: they are files.

pub mod build;
pub mod cuda;
pub mod job;
pub mod nccl;
pub mod scenario;
pub mod wheel;
