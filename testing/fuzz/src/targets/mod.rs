// SPDX-License-Identifier: Apache-2.0
//! All targets.

mod control;
mod dumps;
mod http;
mod others;
mod profiles;
mod recording;
mod table;
mod vectors;

use crate::target::Target;

pub(crate) static TARGETS: [Target; 13] = [
    recording::TARGET,
    vectors::TARGET,
    dumps::PICKLE,
    dumps::FLIGHT,
    dumps::RAS,
    profiles::KINETO,
    profiles::ARCHIVE,
    table::TARGET,
    others::INSPECTOR,
    others::NCCL_TESTS,
    control::TARGET,
    http::ANSWERS,
    http::REQUESTS,
];
