// SPDX-License-Identifier: Apache-2.0
/*!
Whether a link is slow, or a GPU at one of its ends only sends or receives slowly.

Several transfers of a link are in flight at once, so the time from one completion to the next is
the network's only while the network is what they wait for. If a GPU fills its buffers slowly, or
frees the receiver's slowly, transfers complete as rarely as they are sent. They then stay on the
network no longer than those of other links. On a slow link they stay longer, as they queue there.
*/

use crate::model::LinkTraffic;
use ncclscope_limits::links;
use ncclscope_operations::stats::to_f64;
use ncclscope_statistics::median_of_others;

/// The paces of comparable links, per byte, sorted.
pub(crate) struct Paces {
    held: Vec<f64>,
    flight: Vec<f64>,
}

impl Paces {
    pub(crate) fn of<'e>(edges: impl Iterator<Item = &'e LinkTraffic>) -> Paces {
        let (mut held, mut flight): (Vec<f64>, Vec<f64>) = edges.map(per_byte).unzip();
        held.sort_unstable_by(f64::total_cmp);
        flight.sort_unstable_by(f64::total_cmp);
        Paces { held, flight }
    }

    /// Whether the GPUs explain why a link of these takes longer per byte than `usual`.
    pub(crate) fn explain(&self, edge: &LinkTraffic, usual: f64) -> bool {
        let (held, flight) = per_byte(edge);
        held - median_of_others(&self.held, held) >= edge.cost() - usual
            && flight <= links::PACED * median_of_others(&self.flight, flight)
    }
}

fn per_byte(edge: &LinkTraffic) -> (f64, f64) {
    let bytes = to_f64(edge.bytes.max(1));
    (edge.pace.held_ns / bytes, edge.pace.flight_ns / bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pace;
    use crate::time_blocks::TimeBlocks;

    /// A link whose transfers of 1 MiB take so many us, of which so many were kept back, and which
    /// are in flight for so many.
    fn edge(wire: f64, held: f64, flight: f64) -> LinkTraffic {
        LinkTraffic {
            comm: "c".into(),
            src: 0,
            dst: 1,
            channel: 0,
            transfers: 100,
            bytes: 100 << 20,
            wire_ns: 1e5 * wire,
            pace: Pace { held_ns: 1e5 * held, flight_ns: 1e5 * flight },
            blocks: TimeBlocks::default(),
            sample: Vec::new(),
            is_first: false,
        }
    }

    fn paces(edges: &[LinkTraffic]) -> Paces {
        Paces::of(edges.iter())
    }

    #[test]
    fn a_gpu_that_fills_its_buffers_slowly_explains_a_slow_link() {
        let explained = |one: LinkTraffic| {
            let edges = [vec![one], vec![edge(80.0, 20.0, 600.0); 8]].concat();
            paces(&edges).explain(&edges[0], edges[1].cost())
        };
        assert!(explained(edge(110.0, 110.0, 300.0)));
        assert!(!explained(edge(110.0, 20.0, 900.0)), "the transfers queue");
        assert!(!explained(edge(110.0, 110.0, 900.0)), "it is kept back and slow");
        assert!(!explained(edge(110.0, 40.0, 600.0)), "less was kept back than it takes longer");
        let unknown = vec![edge(110.0, 0.0, 0.0), edge(80.0, 0.0, 0.0)];
        assert!(!paces(&unknown).explain(&unknown[0], unknown[1].cost()));
    }
}
