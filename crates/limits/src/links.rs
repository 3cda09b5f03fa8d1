// SPDX-License-Identifier: Apache-2.0
//! Links and network interfaces.

limits! {
    /// A transfer of fewer bytes takes the network's latency.
    SMALL: f64 = 65_536.0 bytes, ["slow-link"], Assumed "at 10 GB/s they take 7 us";
    /// Minimum excess of such a transfer,
    LATENCY: f64 = 1.0 ms, ["slow-link"], Measured
        "links of a healthy tree over sockets take 20 to 200 us";
    /// or this many times the usual time.
    LATENCIES: f64 = 10.0 times, ["slow-link"], Measured
        "links of a healthy tree over sockets take 20 to 200 us";
    /// Natural spread of comparable links, as a part of their time.
    SPREAD: f64 = 0.05 of_them, ["slow-link"], Designed "chosen before the first run";
    /// With fewer comparable links their spread is not known.
    MANY: usize = 8 links, ["slow-link"], Assumed "half of the units of the one test";
    /// Slower by less is not looked for.
    FACTOR: f64 = 1.25 times, ["slow-link"], Derived
        "five natural spreads, beyond which healthy links do not lie";
    /// The usual link where most are slow: one in so many comparable ones is quicker.
    QUICK: usize = 4 links, ["slow-link"], Derived
        "one card slows half of the links of a small mesh, and two of the three of a ring";
    /// Most that one link can say for a unit: one that is very slow does not outvote many.
    BOUND: f64 = 50.0 nats, ["slow-link"], Designed "chosen before the first run";
    /// A unit must explain so much more than it takes to name it.
    ENOUGH: f64 = 6.0 nats, ["slow-link"], Designed "a chance of 1 in 400";
    /// One in so many of its bytes may be of pieces that do not show whether a unit is slow.
    UNKNOWN: f64 = 4.0 times, ["slow-link"], Assumed "three quarters are known";
    /// A paced link's transfers are in flight for at most this many times as long as those of other
    /// links.
    PACED: f64 = 1.1 times, ["slow-link"], Derived "two natural spreads";
    /// One in this many transfers of a link, the longest, is left out.
    LONGEST_OF: usize = 50 transfers, ["slow-link"], Assumed
        "a pause of either process is not a property of the link";
    /// A send that begins this long after its communicator's latest transfer is not compared.
    IDLE: f64 = 1.0 ms, ["slow-link"], Measured
        "1 KiB every 10 ms over sockets: 150 to 190 us instead of 20 to 40";
}
