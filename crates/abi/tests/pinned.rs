// SPDX-License-Identifier: Apache-2.0
//! Checks the Rust types against the table of `layout/mod.rs`; needs no libnccl.

mod layout;

use layout::layouts;

/// Number of types: three of each version, and two of network plugins.
const TYPES: usize = *ncclscope_abi::VERSIONS.end() as usize * 3 + 2;

#[test]
fn every_field_lies_where_the_table_says() {
    let layouts = layouts();
    assert_eq!(layouts.len(), TYPES);
    for (name, layout) in layouts {
        assert_eq!(layout.rust_size, layout.pinned_size, "size of {name}");
        assert!(!layout.fields.is_empty(), "{name} has no field in the table");
        for field in layout.fields {
            assert_eq!(field.rust, field.pinned, "{name}.{}", field.path);
        }
    }
}

#[test]
fn no_field_is_listed_twice() {
    for (name, layout) in layouts() {
        let mut paths: Vec<_> = layout.fields.iter().map(|f| &f.path).collect();
        paths.sort_unstable();
        let all = paths.len();
        paths.dedup();
        assert_eq!(paths.len(), all, "{name}");
    }
}

#[test]
fn fields_of_one_arm_do_not_overlap() {
    for (name, layout) in layouts() {
        for arm in layout.fields.iter().filter(|f| !f.path.contains('.')) {
            let prefix = format!("{}.", arm.path);
            let mut fields: Vec<_> =
                layout.fields.iter().filter(|f| f.path.starts_with(&prefix)).collect();
            fields.sort_unstable_by_key(|f| f.pinned.offset);
            let mut end = arm.pinned.offset;
            for field in fields {
                assert!(field.pinned.offset >= end, "{name}.{} overlaps", field.path);
                end = field.pinned.offset + field.pinned.size;
            }
            assert!(end <= arm.pinned.offset + arm.pinned.size, "{name}.{} is short", arm.path);
        }
    }
}
