// SPDX-License-Identifier: Apache-2.0
//! How the plugin's shared object is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for arg in [
        // NCCL unloads the plugin with its last communicator; our thread and handlers must survive.
        "-Wl,-z,nodelete",
        // No symbol is looked up for the first time inside a callback.
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,--as-needed",
        "-Wl,-soname,libnccl-profiler-ncclscope.so",
    ] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}
