// SPDX-License-Identifier: Apache-2.0
/*!
The built plugin in hosts written in C, whose habits differ from those of Rust programs: their
effects on the plugin, and the plugin's effects on them.

Each host is a file beside this one, compiled by `cc` when its test runs.
*/

mod common;
mod descriptors;
mod directories;
mod example;
mod hangs;
mod life;
mod limits;
mod lines;
mod outages;
mod stalls;
mod windows;

/// Threads of the plugin start with the part of their stack that static thread-local storage
/// leaves.
mod threads {
    use crate::common::{compile, plain};

    #[test]
    fn our_threads_have_room_where_the_program_has_much_static_tls() {
        for bytes in [240 << 10, 4 << 20] {
            let host = compile("plain", &[&format!("-DSTATIC_TLS={bytes}")]);
            let played = plain(&host, 1000, &[("NCCLSCOPE_OTLP", "http://127.0.0.1:9")]);
            played.survived();
            assert_eq!(played.operations(), 1000, "{bytes} bytes");
        }
    }
}
