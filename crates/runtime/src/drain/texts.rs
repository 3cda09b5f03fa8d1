// SPDX-License-Identifier: Apache-2.0
//! Texts that do not come from NCCL: of marks, and of wait places in the kernel. Each has a string
//! number.

pub(crate) use ncclscope_control::text::beginning;
use ncclscope_trace::StrId;

/// First string number of these texts, above those of NCCL's strings.
const FIRST: u16 = 0x1000;
/// Maximum number of different texts. `BYTES` is the maximum length that is kept of each.
const MOST: usize = 4096;
pub(super) const BYTES: usize = 120;

#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: Vec<String>,
    lost: u64,
}

impl Texts {
    /// The number of a text, and the text itself if it is new. Beyond [`MOST`] texts the result is
    /// [`StrId::NONE`], which is counted.
    pub(super) fn number(&mut self, text: &str) -> (StrId, Option<&str>) {
        let text = beginning(text, BYTES);
        let known = self.texts.iter().position(|known| known == text);
        if known.is_none() && self.texts.len() >= MOST {
            self.lost += 1;
            return (StrId::NONE, None);
        }
        let id = id(known.unwrap_or(self.texts.len()));
        if known.is_some() {
            return (id, None);
        }
        self.texts.push(text.to_owned());
        (id, self.texts.last().map(String::as_str))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (StrId, &str)> {
        self.texts.iter().enumerate().map(|(index, text)| (id(index), text.as_str()))
    }

    /// Number of texts that got no string number because there was no room.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

fn id(index: usize) -> StrId {
    StrId(FIRST + u16::try_from(index).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_number_and_there_is_an_end_of_them() {
        let mut texts = Texts::default();
        assert_eq!(texts.number("a"), (StrId(FIRST), Some("a")));
        assert_eq!(texts.number("a"), (StrId(FIRST), None));
        let long = "ä".repeat(200);
        assert_eq!(texts.number(&long).1, Some(&*"ä".repeat(60)));
        for n in 2..MOST {
            assert!(texts.number(&n.to_string()).1.is_some());
        }
        assert_eq!(texts.number("one more"), (StrId::NONE, None));
        assert_eq!(texts.lost(), 1);
        assert_eq!(texts.all().count(), MOST);
    }
}
