// SPDX-License-Identifier: Apache-2.0
/*!
The moments of a job, and what each of them waits for.

A rank *arrives* at an operation (its kernel starts), the operation is *ready* for a rank when all
whom it waits for have arrived, and it *ends* there. Each moment has the moments before it that it
must wait for. Its *weight* is its time minus the latest of these: the part that it caused itself.
Replaying the weights gives the times of the run again. Replaying them with some weights replaced by
those of peers gives the times that the run would have had, and the difference is what these weights
cost: no other formula for a cost is needed.

```text
 A   end ---own work---> arrival ----\
                                      ready ---transfer---> end
 B   end ---own work---> arrival ----/
```

[`Graph`] has the moments, [`Peers`] which of them are comparable. [`Graph::walk`] follows a wait
back along the moments that were the latest, and charges each with the part of the wait that its
weight fills; what it weighs more than its peers is *excess*. This crate does **not** decide who is
slow.
*/
#![forbid(unsafe_code)]

mod graph;
mod peers;
mod walk;
mod work;

pub use graph::{Graph, Operation, Part, StepEnds};
pub use peers::{Peers, Quicker, Replaced, Unit};
pub use walk::{Charge, Source, Wait};
pub use work::Work;
