// SPDX-License-Identifier: Apache-2.0
//! Hangs: for how long something stands still, and which end came first.

limits! {
    /// An operation in flight for less than this is not stuck: `--hang-sec`.
    HANG_NS: u64 = 30 s, [], Assumed "users choose it (--hang-sec)";
    /// Each process writes a heartbeat, and compares its clocks, in this time.
    HEARTBEAT_NS: u64 = 1 s, [], Derived "the plugin's period";
    /// A process without a record for this time counts as gone.
    SILENCE_NS: u64 = 3_500 ms, ["wait-graph"], Derived "three heartbeats, and half of one";
    /// A live process writes a heartbeat in this time.
    ALIVE_NS: u64 = 2 s, ["wait-graph"], Derived "two heartbeats";
    /// In a killed job, operations in flight for this time count as stuck.
    KILLED_NS: u64 = 2 s, ["wait-graph"], Derived "two heartbeats";
    /// The same if some processes ended in order before the rest was killed.
    ENDED_NS: u64 = 100 ms, ["wait-graph"], Derived "their ends, not heartbeats, show the time";
    /// Shorter pauses are normal in a running job.
    SHORTEST_NS: u64 = 100 ms, ["wait-graph"], Assumed "pauses of a busy machine are shorter";
    /// A job stands still if nothing moves for this many times its longest pause.
    LONGER: f64 = 1.5 times, ["wait-graph"], Derived
        "one in 100 exponential pauses is as long, if the longest was one of 20";
    /// The last records of a killed process may not be in its recording: those of this time.
    LOST_NS: u64 = 250 ms, ["first-end"], Derived "the drain thread sleeps no longer";
    /// Maximum of an extended limit, unless the limit itself is longer.
    MOST_NS: u64 = 540 s, ["wait-graph"], Derived
        "PyTorch's watchdog ends the process after 600 s, and the report must come before";
    /// Maximum factor of the limit while other operations end, or if similar ones take long.
    EXCUSED: u64 = 4 times, ["wait-graph"], Assumed "operations that differ more are rare";
    /// The shortest time over which a thread that never ran counts as starved.
    STARVED_NS: u64 = 1 s, ["wait-graph"], Derived "a heartbeat";
    /// A transfer that the proxy thread has not begun after this time counts as stalled.
    UNSEEN_NS: u64 = 1 s, ["wait-graph"], Derived "a heartbeat";
}
