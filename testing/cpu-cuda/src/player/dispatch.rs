// SPDX-License-Identifier: Apache-2.0
//! Plays a primitive with the protocol of its connections.

use super::block::Stop;
use super::conn::Proto;
use super::ll;
use super::prims::{Op, Prims};

impl Prims<'_> {
    pub(crate) fn play(&mut self, op: Op, n: usize) -> Result<(), Stop> {
        match self.setup.proto {
            Proto::Simple => self.play_simple(op, n),
            Proto::Ll => self.play_lines(&ll::LL, op, n),
            Proto::Ll128 => self.play_lines(&ll::LL128, op, n),
        }
    }
}
