// SPDX-License-Identifier: Apache-2.0
/*!
The inputs: the recordings of a run ([`recorded`]), a saved report ([`saved`]), NCCL Inspector's
files ([`inspector`]), or the output of nccl-tests ([`nccl_tests`]).

Times are compared only between inputs of one kind: the transfer time of an AllGather in a report
needs aligned clocks, the one computed here from recordings does not.
*/

mod blocks;
pub mod inspector;
pub mod nccl_tests;
pub mod recorded;
pub mod saved;

use crate::run::Shape;
use ncclscope_operations::human;

/// Name of an operation in the configuration.
fn operation(role: &str, func: &str, bytes: Option<u64>) -> String {
    let size = bytes.map_or_else(String::new, |bytes| format!(" of {}", human::bytes(bytes)));
    format!("{func}{size} on {role}")
}

/// How NCCL executed an operation, as text in the configuration.
fn how(shape: &Shape) -> String {
    let Shape { algo, proto, channels } = shape;
    let channels = match channels.as_str() {
        "" => "unknown channels".to_owned(),
        "1" => "1 channel".to_owned(),
        many => format!("{many} channels"),
    };
    format!("{algo} {proto}, {channels}").trim_start().to_owned()
}
