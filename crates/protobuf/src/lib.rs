// SPDX-License-Identifier: Apache-2.0
/*!
Writes protobuf: varints, 64-bit numbers, bytes, packed and nested messages, and nothing else.

The wire format is documented at protobuf.dev ("Encoding"): each field is a key, `number << 3 |
type`, and its value; type 0 is a varint, 1 eight bytes, 2 a length and that many bytes. Metrics
(OTLP) and traces (Perfetto) are written with it. A rank uses it too, so it allocates only the
message and does not panic.

This crate does **not** read protobuf, know a schema, or check that a field is written once.
*/
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::todo))]

/// An encoded message, to which fields are appended.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// The bytes so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Empties the message and keeps its memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Appends a varint: any of protobuf's unsigned types, an enumeration or a boolean.
    pub fn uint(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3);
        self.varint(value);
    }

    /// Appends an `int32` or `int64`; negative numbers take ten bytes.
    pub fn int(&mut self, field: u32, value: i64) {
        self.uint(field, value.cast_unsigned());
    }

    /// Appends a `fixed64`.
    pub fn fixed64(&mut self, field: u32, value: u64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    /// Appends a `double`.
    pub fn double(&mut self, field: u32, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    /// Appends a `sint32`, in which small negative numbers take few bytes too.
    pub fn sint32(&mut self, field: u32, value: i32) {
        self.uint(field, u64::from(((value << 1) ^ (value >> 31)).cast_unsigned()));
    }

    /// Appends a packed `repeated uint64`.
    pub fn packed(&mut self, field: u32, values: &[u64]) {
        let mut inner = Message::default();
        values.iter().for_each(|&value| inner.varint(value));
        self.block(field, &inner.0);
    }

    /// Appends a `string`.
    pub fn text(&mut self, field: u32, value: &str) {
        self.block(field, value.as_bytes());
    }

    /// Appends a nested message, whose fields `fill` appends; `fill` must not clear its argument.
    pub fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        // Most messages need one byte for the length. Longer ones get room for more afterwards.
        let at = self.short_message(field, fill);
        let length = self.0.len() - at - 1;
        if length >= 0x80 {
            let mut bytes = Message::default();
            bytes.varint(length as u64);
            self.0.splice(at..=at, bytes.0);
        }
    }

    /// Appends a nested message of less than 128 bytes, whose fields `fill` appends; `fill` must
    /// not clear its argument. Returns the index of the length byte, which is wrong for a longer
    /// message.
    #[inline]
    pub fn short_message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) -> usize {
        self.varint(u64::from(field) << 3 | 2);
        let at = self.0.len();
        self.0.push(0);
        fill(self);
        let [length, ..] = (self.0.len() - at - 1).to_le_bytes();
        self.0[at] = length;
        at
    }

    /// Appends the fields of another message.
    pub fn append(&mut self, other: &Message) {
        self.0.extend_from_slice(&other.0);
    }

    /// Appends a nested message that is already encoded.
    pub fn raw(&mut self, field: u32, message: &Message) {
        self.block(field, &message.0);
    }

    fn block(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    #[inline]
    fn varint(&mut self, value: u64) {
        match value.to_le_bytes() {
            [low @ ..0x80, 0, 0, 0, 0, 0, 0, 0] => self.0.push(low),
            _ => self.long_varint(value),
        }
    }

    fn long_varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut length = 0;
        for byte in &mut bytes {
            let [low, ..] = (value & 0x7f).to_le_bytes();
            value >>= 7;
            length += 1;
            if value == 0 {
                *byte = low;
                break;
            }
            *byte = low | 0x80;
        }
        self.0.extend_from_slice(&bytes[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_have_long_lengths() {
        for length in [0usize, 1, 0x7f - 2, 0x7e, 0x80, 0x3fff, 0x4000] {
            let text = "x".repeat(length);
            let mut message = Message::default();
            message.message(1, |outer| outer.message(2, |inner| inner.text(3, &text)));
            let (mut inner, mut outer, mut expected) = Default::default();
            Message::text(&mut inner, 3, &text);
            Message::raw(&mut outer, 2, &inner);
            Message::raw(&mut expected, 1, &outer);
            assert_eq!(message.bytes(), expected.bytes(), "{length}");
        }
    }

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
