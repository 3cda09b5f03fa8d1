// SPDX-License-Identifier: Apache-2.0
/*!
What happens in the job: programs, the network, and when everything takes place.

All times follow from others by maxima and sums, so that no queue of events is needed: a rank's
operations are worked out as soon as what they wait for is known. What a fault stops takes place
[`crate::time::NEVER`], and so does what waits for it. Nothing here knows what a verdict is.
*/

pub(crate) mod collective;
pub(crate) mod conditions;
pub(crate) mod flow;
pub(crate) mod program;
pub(crate) mod solve;
