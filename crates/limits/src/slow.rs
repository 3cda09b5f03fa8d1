// SPDX-License-Identifier: Apache-2.0
//! Ranks, GPUs, communicators and processes that are slow, and what that costs.

limits! {
    /// Minimum share of slow steps, or of operations that run in a new way, after the first one.
    STAYS: f64 = 0.5 of_them, [], Derived "from the onset on it is slow more often than not";
    /// A member that costs at most this many times as much as the usual one of its group is not
    /// slow on its own.
    MEMBER: f64 = 2.0 times, ["slow-rank"], Derived
        "nearer to what the group explains than to twice that";
    /// If hosts run ahead of their GPUs, kernels start at least this many times later than
    /// [`crate::clocks::ONE_GPU`].
    AHEAD: f64 = 5.0 times, ["slow-rank"], Assumed "100 us of queued work";
    /// A GPU is compared with others if its transfers show as much of what it did as this share of
    /// the transfers that show most.
    SHOWN: f64 = 0.5 of_them, ["slow-gpu"], Derived "a factor of two, as for members";
    /// The least share of a GPU's network traffic in which its part must be known.
    KNOWN: f64 = 0.1 of_them, ["slow-gpu"], Assumed "a slow GPU does not show in a rare collective";
    /// Fewer comparable communicators show nothing usual.
    COMMUNICATORS: usize = 3 communicators, ["slow-node-path"], Derived
        "with two, either may be the usual one";
    /// Minimum number of collectives of a class in a third of the run.
    COLLECTIVES: usize = 5 collectives, ["changed-algorithm"], Derived
        "four in five are the least majority that is not all";
    /// The usual way is that of at least this share of a third.
    USUAL_WAY: f64 = 0.8 of_them, ["changed-algorithm"], Assumed "a few run otherwise in any third";
    /// Minimum number of operations or transfers.
    SAMPLES: u64 = 20 samples, ["slow-link", "slow-gpu", "changed-algorithm"], Assumed
        "the first transfers of a connection are slow";
    /// The time for which a process is short of processor time.
    SHORT: f64 = 0.05 of_the_time, ["short-of-cpu"], Assumed "as long as a stall";
    /// Maximum share of the time that is used.
    SHORT_MOST: f64 = 0.99 of_the_time, ["short-of-cpu"], Assumed
        "a larger one cannot be measured better";
    /// The ratio of its odds to those of the others.
    SHORTER: f64 = 3.0 times, ["short-of-cpu"], Measured
        "the cluster in a box: healthy jobs up to 1.2 times, a quota of 15 % 9 times";
    /// Error of the weights of peers.
    REFERENCES: f64 = 0.01 of_a_step, [], Measured
        "all references = healthy twin within 1.2 % on 52 jobs";
    /// Minimum share of a cause's waiting that a rank passes on to be named.
    PASSED: f64 = 0.1 of_them, [], Assumed "fewer ranks are named";
    /// Minimum number of occurrences of a class of collectives that delimits steps.
    REPEATS: usize = 10 collectives, [], Assumed "fewer show no rhythm";
    /// Minimum ratio of the longest interval between two of them to the median of the rest.
    PAUSE: f64 = 1.5 times, [], Assumed "what ends a step comes after other work";
    /// Maximum share of the intervals' differences that a rhythm may leave unexplained.
    UNEXPLAINED: f64 = 0.4 of_them, [], Assumed "a rhythm explains more than half";
    /// A note is made if recordings end this much apart,
    APART: f64 = 1.0 s, [], Derived "a heartbeat";
    /// and this many steps.
    STEPS_APART: f64 = 2.0 steps, [], Derived "one step may be cut at either end";
    /// An unjudged link that is on the wire for a smaller part of the steps is not mentioned.
    BUSY: f64 = 0.25 of_the_time, ["slow-link"], Assumed
        "twice as slow, a link on the wire for less costs less than that";
    /// A wait counts as a stall in `top` from this many times its usual length on.
    STALLED_WAIT: f64 = 3.0 times, [], Assumed "steps differ by less";
    /// Half-life of the usual wait in `top`, s.
    USUAL_WAIT_S: f64 = 60.0 seconds, [], Assumed "some steps of any job";
    /// Number of blocks of a job that `top` keeps.
    KEPT: usize = 20 blocks, [], Designed "so many find 20 % of the time in 97 of 100 jobs";
    /// Fewer GPU-hours are not worth a line.
    HOURS: f64 = 0.05 GPU_hours, [], Assumed "three minutes of one GPU";
}
