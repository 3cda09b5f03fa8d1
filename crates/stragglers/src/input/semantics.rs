// SPDX-License-Identifier: Apache-2.0
/*!
Who waits in an operation of a training step, by the operation's name.

The names are those that traces of Megatron-LM's timers use. What a name means follows from how the
trainer works, not from any trace: which workers take part, and whether they can only end together.
*/

use crate::model::Ends;

/// With whom a worker does an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum With {
    /// No other worker: it is own work.
    Nobody,
    /// All data-parallel ranks of its stage.
    Stage(Ends),
    /// All stages of its data-parallel rank that have the operation.
    Replica(Ends),
    /// All workers.
    All(Ends),
    /// The worker one stage further, to which it sends.
    Send(Direction),
    /// The worker one stage before, from which it receives.
    Receive(Direction),
}

/// Which way through the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// Activations, to the next stage; from the last one to the first, where stages hold several
    /// chunks of the model.
    Forward,
    /// Gradients, to the stage before.
    Backward,
}

/// The table. `docs/stragglers.md` has it for people.
const TABLE: &[(&str, With)] = &[
    ("forward-compute", With::Nobody),
    ("backward-compute", With::Nobody),
    ("optimizer", With::Nobody),
    ("gc", With::Nobody),
    // Among the tensor-parallel ranks, which are one worker here.
    ("layernorm-grads-all-reduce", With::Nobody),
    ("params-all-gather", With::Stage(Ends::Together)),
    ("grads-reduce-scatter", With::Stage(Ends::Together)),
    ("grads-all-reduce", With::Stage(Ends::Together)),
    // First and last stage share the embedding's weights.
    ("embedding-grads-all-reduce", With::Replica(Ends::Together)),
    // An AllReduce of the norm, and then each scales its own gradients.
    ("optimizer-clip-main-grad", With::All(Ends::Apart)),
    ("forward-send", With::Send(Direction::Forward)),
    ("forward-recv", With::Receive(Direction::Forward)),
    ("backward-send", With::Send(Direction::Backward)),
    ("backward-recv", With::Receive(Direction::Backward)),
];

/// What an operation means; `None` for a name that the table lacks.
#[must_use]
pub fn of(name: &str) -> Option<With> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, with)| *with)
}
