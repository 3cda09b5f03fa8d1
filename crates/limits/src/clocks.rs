// SPDX-License-Identifier: Apache-2.0
//! Errors of clocks and times.

limits! {
    /// Two times of a GPU, each of which is known to 1 us at worst.
    RESOLUTION: f64 = 2.0 us, [], Derived "twice the step of the GPU's timer";
    /// How much two times of one GPU may be off, if they are of different communicators; a kernel
    /// that starts within it after its enqueueing found an idle GPU.
    ONE_GPU: f64 = 20.0 us, [], Measured
        "each communicator converts GPU times in its own way, and proxies look late";
    /// Or this part of the operation.
    ONE_GPU_PART: f64 = 0.01 of_them, [], Measured
        "a send of 50 ms seemed to end 27 us after the next kernel began";
    /// Minimum error of comparing workers of one host.
    ON_HOST: f64 = 10.0 us, [], Assumed "half of the error of one GPU";
    /// Maximum error of placing GPU times on the host's clock.
    ON_HOST_AT_MOST: f64 = 50.0 us, [], Assumed "a larger difference means a rank that is late";
    /// The assumed error of a median of fewer than [`FEW`] operations of two hosts.
    OF_FEW: f64 = 1.0 ms, [], Assumed "the spread of single operations over sockets";
    /// Minimum number of samples for a median absolute deviation.
    FEW: usize = 5 samples, [], Derived "fewer have one or two distinct deviations";
    /// Minimum time covered by a pair's operations for fitting a rate.
    RATE_SPAN: f64 = 2.0 s, [], Derived "at 1e-4 a shorter time moves clocks by less than 0.2 ms";
    /// Minimum number of a pair's operations for fitting a rate.
    RATE_SAMPLES: usize = 32 samples, [], Assumed "two medians of 16";
    /// A rate is used if it moves the clocks by this many of its errors.
    RATE_ERRORS: f64 = 4.0 times, [], Assumed "chance gives one in 16,000";
    /// Maximum rate at which two clocks drift apart.
    MOST_RATE: f64 = 0.001 times, [], Derived
        "crystals differ by 0.0001, and the system corrects a clock by at most 0.0005";
    /// Share of kernels that run at the same time in one communicator of a capture.
    TOGETHER: f64 = 0.9 of_them, [], Assumed "those at the ends of a capture may lack others";
    /// Clocks of different hosts may differ by this.
    HOSTS_NS: u64 = 2 s, [], Assumed "hosts without NTP are rare, and seconds off";
    /// The clocks of a file server and of hosts may differ by this.
    FILES_NS: u64 = 60 s, [], Assumed "what a file server writes is not synchronized";
}
