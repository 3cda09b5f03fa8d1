// SPDX-License-Identifier: Apache-2.0
//! The CUDA Runtime API for NCCL, after the redirect, and for clients, in place of libcudart.
//!
//! Every function here is exported under its own name with the signature of CUDA 12. If CUDA 13
//! gave a plain name a newer signature, [`functions`] selects the right function. Addresses of
//! device and host memory and all handles are `usize` here, as they are in a register; pointers to
//! small results and structures are references that may be absent.

pub mod copy;
pub mod device;
pub mod event;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod stream;

/// Names whose CUDA 13 signature is that of another function here.
const CUDA_13: &[(&str, &str)] = &[
    ("cudaGetDeviceProperties", "cudaGetDeviceProperties_v13"),
    ("cudaGraphAddDependencies", "cudaGraphAddDependencies_v2"),
    ("cudaMemcpyBatchAsync", "cudaMemcpyBatchAsync_v13"),
    ("cudaStreamGetCaptureInfo", "cudaStreamGetCaptureInfo_v3"),
    ("cudaStreamUpdateCaptureDependencies", "cudaStreamUpdateCaptureDependencies_v2"),
];

/// All runtime functions by their names in a library built with CUDA `major`.
pub fn functions(major: u32) -> Vec<(&'static str, *const ())> {
    let mut all = [
        device::plain().to_vec(),
        copy::table(),
        device::table(),
        event::table(),
        graph::table(),
        launch::table(),
        memory::table(),
        stream::table(),
    ]
    .concat();
    if major >= 13 {
        for &(name, newer) in CUDA_13 {
            let address = all.iter().find(|f| f.0 == newer).map(|f| f.1);
            let address = address.expect("the newer form is defined");
            all.retain(|f| f.0 != name);
            all.push((name, address));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(major: u32, name: &str) -> Option<*const ()> {
        functions(major).iter().find(|f| f.0 == name).map(|f| f.1)
    }

    #[test]
    fn cuda_13_takes_the_newer_signatures() {
        for &(name, newer) in CUDA_13 {
            assert_eq!(address(13, name), address(12, newer), "{name}");
            assert_ne!(address(12, name), address(12, newer), "{name}");
        }
        assert_eq!(address(13, "cudaMalloc"), address(12, "cudaMalloc"));
    }
}
