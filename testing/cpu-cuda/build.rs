// SPDX-License-Identifier: Apache-2.0
//! Sets the SONAME of the shared library to NVML's, so that NCCL's `dlopen("libnvidia-ml.so.1")`
//! finds the image that is already loaded instead of searching the machine for a driver.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
