// SPDX-License-Identifier: Apache-2.0
//! The built plugin under scripts of callbacks: what it recorded is held against what was played,
//! callback by callback where the script is small, by count where it is not.

mod common;
mod faults;
mod loads;
mod operations;
mod recorded;
