// SPDX-License-Identifier: Apache-2.0
//! The page about environment variables, and the help that it shows, match the table.

use ncclscope_control::page::markdown;
use ncclscope_control::table::VARIABLES;

#[test]
fn env_md_is_up_to_date() {
    let page = std::fs::read_to_string("../../docs/env.md").unwrap();
    assert_eq!(
        page,
        markdown(),
        "run: cargo run -p ncclscope-control --example env-docs > docs/env.md"
    );
}

/// Values and defaults that the page shows are accepted by the parser.
#[test]
fn values_of_the_page_can_be_used() {
    for variable in VARIABLES {
        let [values, unset, meaning] = variable.row();
        assert!(!values.is_empty() && !unset.is_empty() && !meaning.is_empty(), "{variable:?}");
        let whole = unset.strip_prefix('`').and_then(|text| text.strip_suffix('`'));
        let texts = values.split('`').skip(1).step_by(2).chain(whole);
        // Words in capitals are placeholders.
        for text in texts.filter(|text| !text.contains(|c: char| c == '%' || c.is_uppercase())) {
            assert_eq!(variable.check(text), Ok(()), "{variable:?} {text}");
        }
    }
}
