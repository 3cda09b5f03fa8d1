// SPDX-License-Identifier: Apache-2.0
//! What a script is given, and the size of its ordinary operations.

use crate::{Player, Plugin};

/// Channels of an ordinary operation.
pub const CHANNELS: u8 = 2;
/// Steps of an ordinary ProxyOp.
pub const STEPS: i32 = 4;

/// The environment of a script.
#[derive(Debug)]
pub struct ScriptSetup<'a> {
    /// The plugin.
    pub plugin: &'a Plugin,
    /// Context of the first communicator.
    pub context: u64,
    /// The number of repetitions.
    pub ops: usize,
    /// The number of threads at a time, if a script has several of a kind.
    pub threads: usize,
}

impl<'a> ScriptSetup<'a> {
    /// A player of the first communicator.
    #[must_use]
    pub const fn player(&self) -> Player<'a> {
        Player::new(self.plugin, self.context, 0)
    }

    /// Runs `play` on a new thread and waits for it: NCCL's proxy, host callback, or destroying
    /// thread.
    pub fn apart<T: Send>(&self, play: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(play).join().expect("the thread ends in order"))
    }

    /// Runs `play` on all threads at once and joins them. The end of a scope waits only for their
    /// closures, which neither tells ThreadSanitizer that they have exited nor releases their
    /// lanes.
    pub fn crowd(&self, play: impl Fn(usize) + Sync) {
        let play = &play;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.threads).map(|thread| scope.spawn(move || play(thread))).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("the thread ends in order"));
        });
    }
}
