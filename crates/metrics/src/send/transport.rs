// SPDX-License-Identifier: Apache-2.0
//! The interface of a way to a collector, for the sending thread.

use std::time::Duration;

/// The way to a collector. The sending thread owns it.
pub trait Transport: Send + 'static {
    /// Brings a request there. May take its time, but not for ever.
    fn post(&self, request: &[u8]) -> Answer;

    /// [`Transport::post`] panicked: starts anew whatever that may have left half done.
    fn renew(&mut self) {}
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The collector has it; what it answers, or what of that is worth reading.
    Taken(Vec<u8>),
    /// The collector has it, and says something about it: the text. It did not take so many points.
    Remarked(u64, String),
    /// It will never take it; the text says why.
    Refused(String),
    /// The request is sent again, after the pause that the collector requests; the text gives the
    /// reason.
    Later(Option<Duration>, String),
}
