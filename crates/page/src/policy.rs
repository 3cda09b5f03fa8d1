// SPDX-License-Identifier: Apache-2.0
//! What the page may do: run its own script, use its own style sheet, and nothing else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

/// The value of `Content-Security-Policy`. Script and style sheet are allowed by their hashes, so
/// that text that was turned into markup by mistake could neither run nor load anything.
pub(crate) fn policy(script: &str, style: &str) -> String {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(script),
        hash(style)
    )
}

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_standard() {
        // The example of the specification: `alert('Hello, world.');`.
        let expected = "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=";
        assert_eq!(hash("alert('Hello, world.');"), expected);
    }
}
