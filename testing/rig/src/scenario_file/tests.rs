// SPDX-License-Identifier: Apache-2.0
//! Valid files, and the errors of invalid ones.

use super::*;

const WHOLE: &str = r#"
topology = "socket"
steps = ["allreduce:1000", "init", "repeat:2:comms:100"]
releases = ["2.28.9"]
seed = 7
timeout_s = 30
ends = "hang"

[env]
NCCL_PROTO = "LL"

[[rank]]
rank = 0
steps = ["allreduce:1000", "init"]
env = { NCCL_DEBUG = "INFO" }

[[fault]]
kind = "skip"
rank = 1
step = 1

[[fault]]
kind = "slow"
rank = 1
ms = 20
jitter_ms = 10

[[fault]]
kind = "kernel"
what = "delay:us=50"

[[fault]]
kind = "kernel"
what = "wrap"

[[fault]]
kind = "stopped-proxy"
rank = 1
step = 2

[[fault]]
kind = "slow-link"
rank = 1
step = 3
mbps = 4
delay_ms = 20

[[fault]]
kind = "stalled-link"
rank = 1
step = 3
bytes = 99
"#;

#[test]
fn a_file_says_all_there_is() {
    let file = ScenarioFile::parse("whole.toml", WHOLE).expect("the file is right");
    assert_eq!(file.topology, Topology::Socket);
    assert_eq!((file.releases.as_slice(), file.seed), (["2.28.9".to_owned()].as_slice(), 7));
    assert_eq!((file.timeout, file.ends), (Duration::from_secs(30), ExpectedEnd::Hang));
    assert_eq!(file.env["CPU_CUDA_FAULTS"], "seed:value=7;delay:us=50;wrap");
    assert_eq!(file.env["NCCL_PROTO"], "LL");
    assert_eq!(file.ranks[&0].steps, [Step::AllReduce(1000), Step::Init]);
    assert_eq!(file.ranks[&0].env["NCCL_DEBUG"], "INFO");
    let slow = &file.ranks[&1];
    assert_eq!((slow.pause_ms, slow.jitter_ms), (20, 10));
    assert_eq!(slow.steps[..2], [Step::Skip, Step::Init]);
    let options = "--stop-proxy 2 --slow-link 3:4:20 --stall-link 3:99";
    assert_eq!(slow.options.join(" "), options);
    assert_eq!(slow.env["NCCL_SET_THREAD_NAME"], "1");
    assert_eq!(Ok(file), ScenarioFile::parse("again.toml", WHOLE));
}

#[test]
fn an_error_names_file_and_line_and_what_to_write() {
    let head = "topology = \"socket\"\nsteps = [\"allreduce:1\"]\n";
    let cases = [
        ("topology = \"mesh\"\nsteps = []", "x.toml:1: no topology is called mesh; there are"),
        ("topology = \"tree\"\nsteps = [\n\"dance\"]", "x.toml:3: no such step: dance; write"),
        (&format!("{head}speed = 1"), "x.toml:3: unknown field `speed`"),
        (&format!("{head}\n[[fault]]\nkind = \"rust\""), "unknown variant `rust`, expected one of"),
        (&format!("{head}[[rank]]\nrank = 2"), "x.toml:4: there is no rank 2; write one from 0 to"),
        (
            &format!("{head}\n[[fault]]\nkind = \"skip\"\nrank = 0\nstep = 2"),
            "x.toml:4: rank 0 has no step 2; write one from 1 to 1",
        ),
        (
            &format!("{head}\n[[fault]]\nkind = \"slow-link\"\nrank = 0\nstep = 0\nmbps = 1"),
            "x.toml:4: rank 0 has no step 0; write one from 1 to 1",
        ),
        (
            "topology = \"threads\"\nsteps = []\n[[rank]]\nrank = 0",
            "x.toml:4: ranks in one process cannot differ; write another topology",
        ),
    ];
    for (text, says) in cases {
        let error = ScenarioFile::parse("x.toml", text).expect_err(text);
        assert!(error.contains(says), "{error:?} lacks {says:?}");
        assert!(error.starts_with("x.toml:"), "{error}");
    }
}
