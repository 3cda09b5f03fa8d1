// SPDX-License-Identifier: Apache-2.0
//! Reads the first page of a recording, also while its process writes it.

use crate::error::Error;
use crate::files::read_up_to;
use crate::layout::{HEADER_BYTES, Header};
use std::fs::File;
use std::time::Duration;

/// How often a page whose checksum is wrong is read again (`ATTEMPTS`), and the time between two
/// reads.
const ATTEMPTS: usize = 5;
const BETWEEN: Duration = Duration::from_millis(1);

/// Reads the header of a recording, and its bytes. The process overwrites the page in place, so a
/// reader may see it half written; it then reads it again.
///
/// # Errors
/// [`Error`], if the file cannot be read or has no usable header.
pub fn read_header(file: &File) -> Result<(Header, Vec<u8>), Error> {
    read_until_sound(|| read_up_to(file, 0, HEADER_BYTES))
}

fn read_until_sound(
    mut read: impl FnMut() -> Result<Vec<u8>, Error>,
) -> Result<(Header, Vec<u8>), Error> {
    let mut attempt = 1;
    loop {
        let page = read()?;
        match Header::decode(&page) {
            Err(Error::HeaderChecksum) if attempt < ATTEMPTS => {}
            header => return Ok((header?, page)),
        }
        attempt += 1;
        std::thread::sleep(BETWEEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_being_written_is_read_again() {
        let page = |pid| Header { segments: 4, pid, ..Header::default() }.encode();
        let mut torn = page(1);
        torn[..128].copy_from_slice(&page(2)[..128]);
        let mut pages = vec![page(2), torn, torn];
        let (header, bytes) = read_until_sound(|| Ok(pages.pop().unwrap().to_vec())).unwrap();
        assert_eq!((header.pid, bytes), (2, page(2).to_vec()));
        let mut reads = 0;
        let read = || {
            reads += 1;
            Ok(torn.to_vec())
        };
        assert!(matches!(read_until_sound(read), Err(Error::HeaderChecksum)));
        assert_eq!(reads, ATTEMPTS);
    }
}
