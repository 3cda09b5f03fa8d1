// SPDX-License-Identifier: Apache-2.0
//! Requests to processes, and their replies.

use crate::mutate;
use crate::target::Target;
use ncclscope_control::message::{Reply, Request};

pub(super) const TARGET: Target =
    Target { name: "control", samples, mutate: mutate::any, read, inputs: 5000, found: &[] };

fn samples() -> Vec<Vec<u8>> {
    [
        "start\tfor=10s sample=3 at=1700000000.5",
        "mark\ta b",
        "role\t0x1f\ttp",
        "ok\trecorded=yes\tjob=7\tstep=4\trecording=/x/h-1.nscope\tcomms=0x1f:3/8,0x2:1/2",
        "ok\trecorded=no\tmore=1",
        "ok\tin_flight=2\thangs=[{\"event\":\"hung\"}]\tblind=[]\tmore=18446744073709551615",
        "ok\tfile=/x/y.nscope",
        "error\tit is off",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn read(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let request = Request::decode(&text);
    let requests = [Request::Status, Request::Stop, Request::Dump(None), Request::Why];
    let mut is_read = request.is_ok();
    for asked in &requests {
        if let Ok(reply) = Reply::decode(asked, &text) {
            let _ = reply.encode();
            is_read = true;
        }
    }
    is_read
}
