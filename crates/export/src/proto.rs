// SPDX-License-Identifier: Apache-2.0
/*!
Writes protobuf: varints, 64-bit numbers, bytes, packed and nested messages, and nothing else.

The wire format is documented at protobuf.dev ("Encoding"): each field is a key, `number << 3 |
type`, and its value; type 0 is a varint, 1 eight bytes, 2 a length and that many bytes.
*/

/// A message that is being written.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// The bytes so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A number (any of protobuf's unsigned types, enumerations and booleans).
    pub fn uint(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    /// A signed number (`int32`, `int64`): ten bytes where it is negative.
    pub fn int(&mut self, field: u32, value: i64) {
        self.uint(field, value.cast_unsigned());
    }

    /// A `fixed64`.
    pub fn fixed64(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    /// A `double`.
    pub fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    /// A `sint32`: a small number takes few bytes also where it is negative.
    pub fn sint32(&mut self, field: u32, value: i32) {
        self.uint(field, u64::from(((value << 1) ^ (value >> 31)).cast_unsigned()));
    }

    /// A `repeated uint64`, packed.
    pub fn packed(&mut self, field: u32, values: &[u64]) {
        let mut inner = Message::default();
        values.iter().for_each(|&value| inner.varint(value));
        self.block(field, &inner.0);
    }

    /// A `string` or `bytes`.
    pub fn text(&mut self, field: u32, value: &str) {
        self.block(field, value.as_bytes());
    }

    /// A message, written by `fill`.
    pub fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.block(field, &inner.0);
    }

    /// A message that is already written.
    pub fn raw(&mut self, field: u32, message: &Message) {
        self.block(field, &message.0);
    }

    fn block(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        loop {
            let [low, ..] = (value & 0x7f).to_le_bytes();
            value >>= 7;
            if value == 0 {
                self.0.push(low);
                return;
            }
            self.0.push(low | 0x80);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_specification() {
        let mut message = Message::default();
        message.uint(1, 150);
        message.text(2, "testing");
        message.message(3, |inner| inner.uint(1, 150));
        message.fixed64(4, 1);
        let expected = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 0x07],
            b"testing",
            &[0x1a, 0x03, 0x08, 0x96, 0x01],
            &[0x21, 1, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(message.bytes(), expected);
        message.clear();
        message.int(1, -1);
        assert_eq!(message.bytes().len(), 11);
        message.clear();
        message.uint(16, 0);
        assert_eq!(message.bytes(), [0x80, 0x01, 0]);
        message.clear();
        for value in [0, -1, 1, i32::MIN] {
            message.sint32(1, value);
        }
        message.packed(2, &[1, 150]);
        let zigzag = [8, 0, 8, 1, 8, 2, 8, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(message.bytes(), [&zigzag[..], &[0x12, 3, 1, 0x96, 1]].concat());
    }
}
