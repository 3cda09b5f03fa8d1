// SPDX-License-Identifier: Apache-2.0
//! Exports `send` from the program `rank`, so that libnccl calls it instead of libc's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bin=rank=-Wl,--export-dynamic-symbol=send");
}
