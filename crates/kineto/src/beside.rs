// SPDX-License-Identifier: Apache-2.0
/*!
Kernels of communication beside NCCL, by a part of their name.

Sources: DeepEP `csrc/kernels` (`deep_ep`; in DeepSeek's published profiles `dpsk::ep`), NVSHMEM's
device library, ROCm/rccl `src/device/msccl_kernel_impl.h` (`mscclKernel`), MSCCL++ (`mscclpp`),
vLLM and SGLang `csrc/custom_all_reduce.cuh` (`cross_device_reduce`), and PyTorch's symmetric
memory, `CUDASymmetricMemoryOps.cu`.
*/

use memchr::memmem::Finder;

/// Parts of names of kernels, and whose they are.
const NAMES: [(&str, &str); 9] = [
    ("deep_ep", "DeepEP"),
    ("dpsk::ep", "DeepEP"),
    ("nvshmem", "NVSHMEM"),
    ("mscclpp", "MSCCL++"),
    ("mscclKernel", "MSCCL"),
    ("cross_device_reduce", "a custom all-reduce"),
    ("one_shot_all_reduce_kernel", "PyTorch's symmetric memory"),
    ("two_shot_all_reduce_kernel", "PyTorch's symmetric memory"),
    ("multimem_all_reduce_kernel", "PyTorch's symmetric memory"),
];

/// Whose communication a kernel of this name is; `None` if it is none, or NCCL's.
#[must_use]
pub fn library(kernel: &str) -> Option<&'static str> {
    NAMES.iter().find(|(part, _)| kernel.contains(part)).map(|(_, of)| *of)
}

/// Searches for events that may be such kernels.
#[derive(Debug)]
pub(crate) struct Needles {
    kernel: Finder<'static>,
    names: [Finder<'static>; NAMES.len()],
}

impl Default for Needles {
    fn default() -> Needles {
        // The category is `kernel`, in older traces `Kernel`.
        Needles { kernel: Finder::new("ernel\""), names: NAMES.map(|(part, _)| Finder::new(part)) }
    }
}

impl Needles {
    pub(crate) fn is_of_interest(&self, bytes: &[u8]) -> bool {
        let is_in = |it: &Finder<'_>| it.find(bytes).is_some();
        is_in(&self.kernel) && self.names.iter().any(is_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_beside_nccl_have_a_library() {
        for (name, of) in [
            ("void deep_ep::internode::dispatch<false, 7168>(int4*)", Some("DeepEP")),
            ("dpsk::ep::internode::dispatch", Some("DeepEP")),
            ("void vllm::cross_device_reduce_2stage<__half, 8>", Some("a custom all-reduce")),
            ("mscclKernel_Sum_half_Simple", Some("MSCCL")),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", None),
            ("void at::native::reduce_kernel<512, 1>", None),
        ] {
            assert_eq!(library(name), of, "{name}");
            let event = format!(r#"{{"ph": "X", "cat": "kernel", "name": "{name}"}}"#);
            assert_eq!(Needles::default().is_of_interest(event.as_bytes()), of.is_some());
        }
    }
}
