// SPDX-License-Identifier: Apache-2.0
/*!
The network steps that two recordings share: the sender's and the receiver's. An arrow leads from
one to the other ([`crate::flows`]). The module `matching` defines how a ProxyOp is identified on
both sides.
*/

use crate::ident::Map;
use crate::parallel::fold;
use crate::scene::Scene;
use crate::timelines::Timelines;
use ncclscope_trace::Detail;
use ncclscope_trace::record::step_flags;

/// The network steps that were recorded on both sides.
#[derive(Debug, Default)]
pub(crate) struct StepIndex {
    sides: Map<u64, [Option<Side>; 2]>,
    both: Map<u64, Vec<u32>>,
}

#[derive(Debug)]
enum Side {
    Steps(Vec<u32>),
    /// Two processes, or two steps with the same number, match, so the right one is unknown.
    Ambiguous,
}

impl StepIndex {
    /// Indexes the steps of all recordings; with a single recording the index is empty.
    pub(crate) fn new(timelines: &Timelines<'_>) -> StepIndex {
        let mut index = StepIndex::default();
        if timelines.len() > 1 {
            let add = |part: &mut StepIndex, at| {
                timelines.show(at, |timeline| part.add(&Scene::new(timeline)));
            };
            fold(timelines.len(), add).into_iter().for_each(|part| index.join(part));
        }
        index.finish();
        index
    }

    /// Adds the steps of a process.
    fn add(&mut self, scene: &Scene<'_, '_>) {
        let timeline = scene.timeline();
        for (id, event) in timeline.events() {
            let (Detail::ProxyOp(op), Some(name)) = (event.start.detail, scene.proxy_name(id))
            else {
                continue;
            };
            let mut steps: Vec<u32> = scene
                .steps_of(id)
                .iter()
                .map(|&index| timeline.steps()[index as usize].1)
                .filter(|step| step.has(step_flags::IS_SEND) == op.is_send)
                .map(|step| step.step)
                .collect();
            steps.sort_unstable();
            let all = steps.len();
            steps.dedup();
            let is_clear = steps.len() == all;
            let side = if is_clear { Side::Steps(steps) } else { Side::Ambiguous };
            self.claim(name, usize::from(op.is_send), side);
        }
    }

    fn claim(&mut self, name: u64, way: usize, side: Side) {
        let place = &mut self.sides.entry(name).or_default()[way];
        *place = Some(if place.is_none() { side } else { Side::Ambiguous });
    }

    fn join(&mut self, part: StepIndex) {
        for (name, sides) in part.sides {
            for (way, side) in sides.into_iter().enumerate() {
                if let Some(side) = side {
                    self.claim(name, way, side);
                }
            }
        }
    }

    /// Keeps the steps that both sides recorded.
    fn finish(&mut self) {
        for (name, sides) in std::mem::take(&mut self.sides) {
            if let [Some(Side::Steps(mut received)), Some(Side::Steps(sent))] = sides {
                received.retain(|step| sent.binary_search(step).is_ok());
                received.shrink_to_fit();
                self.both.insert(name, received);
            }
        }
    }

    /// The numbers of a ProxyOp's steps that both sides recorded, in order.
    pub(crate) fn steps(&self, name: u64) -> &[u32] {
        self.both.get(&name).map_or(&[], Vec::as_slice)
    }
}
