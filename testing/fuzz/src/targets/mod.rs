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

pub(crate) static TARGETS: [Target; 17] = [
    recording::TARGET,
    vectors::TARGET,
    dumps::PICKLE,
    dumps::FLIGHT,
    dumps::RAS,
    dumps::MONITOR,
    dumps::ARCHIVE,
    dumps::ZIP,
    profiles::KINETO,
    profiles::ARCHIVE,
    profiles::ZIP,
    table::TARGET,
    others::INSPECTOR,
    others::NCCL_TESTS,
    control::TARGET,
    http::ANSWERS,
    http::REQUESTS,
];
