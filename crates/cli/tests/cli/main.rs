// SPDX-License-Identifier: Apache-2.0
//! The tool as its users meet it: what it prints, and how it ends.

mod agent;
mod common;
mod doctor;
mod export;
mod overload;
mod report;
mod run;
