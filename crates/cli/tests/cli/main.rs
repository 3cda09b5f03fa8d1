// SPDX-License-Identifier: Apache-2.0
//! The tool as its users meet it: what it prints, and how it ends.

mod agent;
mod agent_otlp;
mod agent_tls;
mod common;
mod diagnose;
mod doctor;
mod export;
mod overload;
mod report;
mod run;
mod simulate;
mod stragglers;
mod view;
mod view_browser;
