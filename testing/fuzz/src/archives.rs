// SPDX-License-Identifier: Apache-2.0
//! Archives, and what damages them.

use crate::mutate;
use crate::random::Random;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;

/// A tar archive of these files; it is compressed after the mutation.
pub(crate) fn tar(files: &[(String, String)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o600);
        header.set_cksum();
        if archive.append_data(&mut header, name, data.as_bytes()).is_err() {
            return Vec::new();
        }
    }
    archive.into_inner().unwrap_or_default()
}

/// A zip archive of these files.
pub(crate) fn zip(files: &[(String, String)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in files {
        let begun = archive.start_file(name.as_str(), SimpleFileOptions::default());
        if begun.is_err() || archive.write_all(data.as_bytes()).is_err() {
            return Vec::new();
        }
    }
    archive.finish().map(Cursor::into_inner).unwrap_or_default()
}

/// Changes a header of a tar archive and corrects its checksum, or changes anything.
pub(crate) fn mutate_tar(random: &mut Random, data: &mut Vec<u8>) {
    if random.below(3) == 0 || data.len() < 512 {
        return mutate::any(random, data);
    }
    mutate::bytes(random, data, 0..512);
    let mut header = tar::Header::new_old();
    header.as_mut_bytes().copy_from_slice(&data[..512]);
    header.set_cksum();
    data[..512].copy_from_slice(header.as_bytes());
}

/// Changes the directory at a zip archive's end, or anything.
pub(crate) fn mutate_zip(random: &mut Random, data: &mut Vec<u8>) {
    let all = data.len();
    match random.below(2) {
        0 => mutate::any(random, data),
        _ => mutate::bytes(random, data, all.saturating_sub(160)..all),
    }
}

/// The data, compressed.
pub(crate) fn packed(data: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(data).and_then(|()| out.finish()).unwrap_or_default()
}
