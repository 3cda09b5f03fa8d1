// SPDX-License-Identifier: Apache-2.0
//! The finding classes and the documentation pages about them.

use ncclscope_findings::{FindingClass, PAGE, page};
use std::collections::HashSet;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn findings_md_is_up_to_date() {
    assert!(
        read(PAGE) == page(),
        "run: cargo run -p ncclscope-findings --example findings-docs > {PAGE}"
    );
}

#[test]
fn each_class_has_its_anchor() {
    let text = read(PAGE);
    let anchor = |line: &str| {
        let heading = line.strip_prefix("## ")?;
        Some(format!("{PAGE}#{}", heading.to_lowercase().replace(' ', "-")))
    };
    let anchors: Vec<String> = text.lines().filter_map(anchor).collect();
    let named: Vec<String> = FindingClass::ALL.iter().map(|class| class.documentation()).collect();
    assert_eq!(anchors, named);
}

#[test]
fn names_and_codes_are_unique_and_read_back() {
    let mut seen = HashSet::new();
    for class in FindingClass::ALL {
        for text in [class.name(), class.code()] {
            assert!(seen.insert(text), "{text} means two classes");
            assert_eq!(text.parse(), Ok(class));
        }
        let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(class.name().chars().all(is_of_a_name), "{class}");
    }
    let error = "H9".parse::<FindingClass>().unwrap_err();
    assert_eq!(error.to_string(), r#"no class of findings is called "H9""#);
}
