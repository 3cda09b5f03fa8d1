// SPDX-License-Identifier: Apache-2.0
/*!
Which workers take part in an operation of a training step, by its name.

The names are those of Megatron-LM's timers. Their meaning follows from how the trainer works: which
workers take part, and whether they end together.
*/

use crate::model::EndSync;

/// The workers that take part in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Participants {
    /// Only the worker itself.
    OnlySelf,
    /// All data-parallel ranks of the worker's stage.
    Stage(EndSync),
    /// All stages of the worker's data-parallel rank that have the operation.
    Replica(EndSync),
    /// All workers.
    All(EndSync),
    /// The worker one stage further, to which this one sends.
    Send(Direction),
    /// The worker one stage before, from which this one receives.
    Receive(Direction),
}

/// Direction through the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// Activations, to the next stage. If stages hold several chunks of the model, also from the
    /// last stage to the first.
    Forward,
    /// Gradients, to the previous stage.
    Backward,
}

/// The table that `docs/stragglers.md` documents.
const TABLE: &[(&str, Participants)] = &[
    ("forward-compute", Participants::OnlySelf),
    ("backward-compute", Participants::OnlySelf),
    ("optimizer", Participants::OnlySelf),
    ("gc", Participants::OnlySelf),
    // Between tensor-parallel ranks, which are a single worker here.
    ("layernorm-grads-all-reduce", Participants::OnlySelf),
    ("params-all-gather", Participants::Stage(EndSync::Together)),
    ("grads-reduce-scatter", Participants::Stage(EndSync::Together)),
    ("grads-all-reduce", Participants::Stage(EndSync::Together)),
    // First and last stage share the embedding's weights.
    ("embedding-grads-all-reduce", Participants::Replica(EndSync::Together)),
    // An AllReduce of the norm, after which each worker scales its own gradients.
    ("optimizer-clip-main-grad", Participants::All(EndSync::Apart)),
    ("forward-send", Participants::Send(Direction::Forward)),
    ("forward-recv", Participants::Receive(Direction::Forward)),
    ("backward-send", Participants::Send(Direction::Backward)),
    ("backward-recv", Participants::Receive(Direction::Backward)),
];

/// The workers of an operation; `None` for an unknown name.
#[must_use]
pub fn of(name: &str) -> Option<Participants> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, with)| *with)
}
