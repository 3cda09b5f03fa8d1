// SPDX-License-Identifier: Apache-2.0
//! The lines of a text file, in bounded memory.

use std::io::{self, BufRead, Read};

/// Maximum length of a line, bytes; a verbose one of Inspector with 64 channels has 25 KiB.
const LINE_MAX: u64 = 1 << 20;

/// Appends the next line without its end; of one that is longer than 1 MiB, the beginning. Returns
/// whether the line has an end.
///
/// # Errors
/// The file cannot be read.
pub fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    lines.by_ref().take(LINE_MAX).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(true);
    }
    if (line.len() as u64) < LINE_MAX {
        return Ok(false);
    }
    loop {
        let part = lines.fill_buf()?;
        let end = part.iter().position(|&byte| byte == b'\n');
        let used = end.map_or(part.len(), |end| end + 1);
        lines.consume(used);
        if end.is_some() || used == 0 {
            return Ok(end.is_some());
        }
    }
}
