// SPDX-License-Identifier: Apache-2.0
//! The plugin's few messages. Never called from a callback.

use crate::config::LogTo;

/// How a line is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// For those who ask for it.
    Info,
    /// Something is not as the user wanted it.
    Problem,
    /// The job does not go on.
    Hang,
}

/// Writes one line to NCCL's log; given by the plugin, which knows the C signature.
pub type Logger = Box<dyn Fn(Severity, &str) + Send>;

/// Sends a line where the user wants it.
pub(crate) fn log(to: LogTo, nccl: Option<&Logger>, severity: Severity, line: &str) {
    if to == LogTo::Off {
        return;
    }
    if let Some(nccl) = nccl {
        nccl(severity, &format!("ncclscope: {line}"));
    }
    if to == LogTo::Stderr && severity != Severity::Info {
        crate::sys::write_stderr(&format!("ncclscope: {line}\n"));
    }
}
