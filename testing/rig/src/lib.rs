// SPDX-License-Identifier: Apache-2.0
//! Runs real NCCL ranks on the CPU stand-in, or on a GPU if there is one.
//!
//! A rank is a process (`rank`) that loads CUDA and NCCL at run time ([`cuda`], [`nccl`]) and runs
//! the [`step`]s of a [`scenario`]. A [`job`] is several of them on simulated hosts in a
//! [`topology`], with a library from [`wheel`] and the files of [`build`]; a [`scenario_file`]
//! describes one with its faults. This crate does **not** link the stand-in or the profiler: they
//! are files.

pub mod build;
pub mod control;
pub mod cuda;
pub mod failure;
pub mod job;
pub mod meeting;
pub mod nccl;
pub mod python;
pub mod ras;
pub mod scenario;
pub mod scenario_file;
pub mod step;
pub mod team;
pub mod topology;
pub mod wheel;
