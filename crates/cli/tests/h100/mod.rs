// SPDX-License-Identifier: Apache-2.0
//! Recordings of two ranks that shared an H100, from jobs of `gpu-kit`.
//!
//! - `merge`: part 11, NCCL 2.28.9, PyTorch 2.11 with CUDA 13, with PyTorch's profiles.
//! - `late`: part 13, the same releases; rank 1 works longer in each step. The ranks take turns on
//!   the GPU.

use std::fs;
use std::path::Path;

/// Unpacks the files of a job, a folder here, into a directory.
pub(crate) fn unpack(job: &str, dir: &Path) {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/h100").join(job);
    for file in fs::read_dir(files).unwrap() {
        let path = file.unwrap().path();
        let mut packed = flate2::read::GzDecoder::new(fs::File::open(&path).unwrap());
        let mut plain = fs::File::create(dir.join(path.file_stem().unwrap())).unwrap();
        std::io::copy(&mut packed, &mut plain).unwrap();
    }
}
