// SPDX-License-Identifier: Apache-2.0
//! CRC-32 (IEEE 802.3, reflected), eight bytes at a time.

const TABLES: [[u32; 256]; 8] = tables();

#[expect(clippy::cast_possible_truncation, reason = "the index is below 256")]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut t = 1;
    while t < 8 {
        let mut i = 0;
        while i < 256 {
            let previous = tables[t - 1][i];
            tables[t][i] = previous >> 8 ^ tables[0][(previous & 0xff) as usize];
            i += 1;
        }
        t += 1;
    }
    tables
}

/// The checksum of `bytes`.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let at = |table: usize, byte: u8| TABLES[table][usize::from(byte)];
    let mut crc = !0u32;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let &[b0, b1, b2, b3, b4, b5, b6, b7] = chunk else { continue };
        let [c0, c1, c2, c3] = (crc ^ u32::from_le_bytes([b0, b1, b2, b3])).to_le_bytes();
        crc = at(7, c0)
            ^ at(6, c1)
            ^ at(5, c2)
            ^ at(4, c3)
            ^ at(3, b4)
            ^ at(2, b5)
            ^ at(1, b6)
            ^ at(0, b7);
    }
    for &byte in chunks.remainder() {
        crc = crc >> 8 ^ at(0, crc.to_le_bytes()[0] ^ byte);
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::crc32;

    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
