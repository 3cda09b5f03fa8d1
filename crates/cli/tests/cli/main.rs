// SPDX-License-Identifier: Apache-2.0
//! Tests of the tool from outside: its output and its exit codes.

mod agent;
mod answer;
mod common;
mod compare;
mod control;
mod crashed;
mod damaged_header;
mod devtools;
mod diagnose;
mod diagnose_input;
mod doctor;
mod export;
mod few_files;
mod filters;
mod fleet;
mod formats;
#[path = "../h100/mod.rs"]
mod h100;
mod hidden;
#[path = "../../../inspector/tests/common/job.rs"]
mod job;
mod missing;
#[path = "../../../diagnose/tests/common/others.rs"]
mod others;
mod overload;
mod pages;
mod partial_input;
mod program;
mod pty;
mod ras;
mod rccl;
mod report;
mod report_html;
mod run;
mod runs;
mod schema;
mod shell;
mod simulate;
mod stragglers;
mod stragglers_missing;
mod tables;
mod terminal;
mod top;
mod trace_size;
mod usage;
mod view;
mod view_browser;
mod vocabulary;
