// SPDX-License-Identifier: Apache-2.0
/*!
State that is kept from one reading to the next, so that the ordinary course of a job raises no
flag.

An evaluation or a checkpoint makes ranks wait for seconds, and does so repeatedly: after a wait
that ended, only a wait three times as long is a stall. The remembered length halves each minute.
*/

use crate::reading::Reading;
use ncclscope_limits::slow;
use std::collections::BTreeMap;

/// A process: job, host, process id and rank.
type Process = (String, String, Option<u32>, Option<u32>);

/// The usual waits of a job.
#[derive(Clone, Debug)]
pub struct Patience {
    least_s: f64,
    most_s: f64,
    usual_s: f64,
    /// Age of the oldest operation in the last reading, by process and communicator.
    ages: BTreeMap<(Process, u64), f64>,
}

impl Patience {
    /// An operation in flight for less than `least_s` is never a stall, one for `most_s` or more
    /// always is.
    #[must_use]
    pub fn new(least_s: f64, most_s: f64) -> Patience {
        let most_s = most_s.max(least_s);
        Patience { least_s, most_s, usual_s: 0.0, ages: BTreeMap::new() }
    }

    /// Age from which an operation is a stall, s.
    #[must_use]
    pub fn limit_s(&self) -> f64 {
        (slow::STALLED_WAIT * self.usual_s).clamp(self.least_s, self.most_s)
    }

    /// Learns from the ages of the next reading, made `elapsed_s` after the last one.
    pub fn learn(&mut self, reading: &Reading, elapsed_s: f64) {
        self.usual_s *= (-elapsed_s / slow::USUAL_WAIT_S).exp2();
        let mut ages = BTreeMap::new();
        for rank in &reading.ranks {
            for flight in &rank.flights {
                let process = (rank.job.clone(), rank.host.clone(), rank.pid, rank.rank);
                ages.insert((process, flight.comm.hash), flight.age_s);
            }
        }
        // If the age fell, the earlier operation has ended and this is another one.
        let ended =
            self.ages.iter().filter(|(key, before)| ages.get(*key).is_none_or(|now| now < *before));
        let longest = ended.map(|(_, age)| *age).fold(0.0, f64::max);
        self.usual_s = self.usual_s.max(longest);
        self.ages = ages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{Flight, Rank};

    fn reading(ages: &[f64]) -> Reading {
        let flights = ages.iter().map(|&age_s| Flight { age_s, ..Flight::default() }).collect();
        Reading { ranks: vec![Rank { flights, ..Rank::default() }], ..Reading::default() }
    }

    #[test]
    fn a_wait_that_ended_is_usual_for_a_while() {
        let mut patience = Patience::new(1.0, 30.0);
        for age in [0.2, 1.2, 2.2] {
            patience.learn(&reading(&[age]), 1.0);
            assert_eq!(patience.limit_s(), 1.0, "it has not ended");
        }
        patience.learn(&reading(&[0.1]), 1.0);
        assert!((patience.limit_s() - 6.6).abs() < 1e-9, "{}", patience.limit_s());
        (0..120).for_each(|_| patience.learn(&reading(&[]), 1.0));
        assert!((1.0..2.0).contains(&patience.limit_s()), "{}", patience.limit_s());
        patience.learn(&reading(&[500.0]), 1.0);
        patience.learn(&reading(&[]), 1.0);
        assert_eq!(patience.limit_s(), 30.0, "there is an end to patience");
    }
}
