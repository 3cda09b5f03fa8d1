// SPDX-License-Identifier: Apache-2.0
//! Names the shared library after NVML, so that NCCL's `dlopen("libnvidia-ml.so.1")` finds the
//! image that is already loaded instead of searching the machine for a driver.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
