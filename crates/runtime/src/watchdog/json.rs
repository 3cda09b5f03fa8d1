// SPDX-License-Identifier: Apache-2.0
//! JSON in one line, for the report of a hang. Written by hand, because the plugin links no JSON
//! library.

use std::fmt::Write as _;

/// An object or an array that is being written.
#[derive(Debug)]
pub(super) struct Json {
    text: String,
    close: char,
    is_empty: bool,
}

impl Json {
    pub(super) fn object() -> Json {
        Json { text: "{".into(), close: '}', is_empty: true }
    }

    pub(super) fn array() -> Json {
        Json { text: "[".into(), close: ']', is_empty: true }
    }

    /// Adds a value that is valid JSON: a number, `true`, an object.
    pub(super) fn raw(mut self, name: &str, value: impl std::fmt::Display) -> Json {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.text.push(',');
        }
        if self.close == '}' {
            escape(name, &mut self.text);
            self.text.push(':');
        }
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
        self
    }

    pub(super) fn text(self, name: &str, value: &str) -> Json {
        self.raw(name, string(value))
    }

    /// Adds a text or null.
    pub(super) fn maybe(self, name: &str, value: Option<&str>) -> Json {
        match value {
            Some(value) => self.text(name, value),
            None => self.raw(name, "null"),
        }
    }

    /// Adds a value that is valid JSON, or null.
    pub(super) fn maybe_raw(self, name: &str, value: Option<impl std::fmt::Display>) -> Json {
        match value {
            Some(value) => self.raw(name, value),
            None => self.raw(name, "null"),
        }
    }

    /// Adds an element to an array.
    pub(super) fn element(self, value: impl std::fmt::Display) -> Json {
        self.raw("", value)
    }

    pub(super) fn end(mut self) -> String {
        self.text.push(self.close);
        self.text
    }
}

/// A text as a JSON string.
pub(super) fn string(text: &str) -> String {
    let mut out = String::new();
    escape(text, &mut out);
    out
}

fn escape(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if u32::from(c) < 0x20 => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_nothing_breaks_the_line() {
        let list = Json::array().element(1).element("null").end();
        let object = Json::object().text("a\"", "x\ty\n\\ü").maybe("b", None).raw("c", list);
        assert_eq!(object.end(), r#"{"a\"":"x\u0009y\n\\ü","b":null,"c":[1,null]}"#);
        assert_eq!(Json::object().end(), "{}");
    }
}
