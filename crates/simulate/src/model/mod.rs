// SPDX-License-Identifier: Apache-2.0
/*!
The model of a job: programs, the network, and the times of all operations.

All times follow from other times by maxima and sums, so no event queue is needed: [`solve`]
explains how. An operation that a fault stops has the time [`crate::time::NEVER`], and so have all
that wait for it. Nothing here knows what a verdict is.
*/

pub(crate) mod collective;
pub(crate) mod conditions;
pub(crate) mod flow;
pub(crate) mod program;
pub(crate) mod solve;
