// SPDX-License-Identifier: Apache-2.0
//! What the verbs read: the recordings of a run, the part of them that the user asks for, and
//! inputs that are not recordings.

pub(crate) mod input;
pub(crate) mod narrow;
pub(crate) mod other_inputs;
pub(crate) mod pass;
