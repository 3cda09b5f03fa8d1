// SPDX-License-Identifier: Apache-2.0
//! The interface through which the sending thread delivers requests.

use std::time::Duration;

/// Delivers requests to a collector. The sending thread owns it.
pub trait Transport: Send + 'static {
    /// Delivers a request. It may block, but not forever.
    fn post(&self, request: &[u8]) -> Answer;

    /// Called after [`Transport::post`] panicked: resets state that the panic may have left
    /// inconsistent.
    fn renew(&mut self) {}
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The collector accepted it; its response, or the relevant part.
    Taken(Vec<u8>),
    /// The collector accepted it with a message; the number of points that it rejected, and the
    /// message.
    Remarked(u64, String),
    /// The collector rejected it permanently, for this reason.
    Refused(String),
    /// The request is to be sent again, after the pause that the collector requests; the text is
    /// the reason.
    Later(Option<Duration>, String),
}
