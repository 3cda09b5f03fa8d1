// SPDX-License-Identifier: Apache-2.0
//! The page about environment variables is what the table says.

#[test]
fn env_md_is_up_to_date() {
    let page = std::fs::read_to_string("../../docs/env.md").unwrap();
    assert_eq!(
        page,
        ncclscope_runtime::config::markdown(),
        "run: cargo run -p ncclscope-runtime --example env-docs > docs/env.md"
    );
}
