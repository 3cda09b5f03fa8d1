// SPDX-License-Identifier: Apache-2.0
//! The plugin as an ELF file: its exports, dependencies and linking; and the C header, which must
//! declare the exports.

use fake_nccl::build::plugin;
use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Object, ObjectSymbol};
use std::collections::BTreeMap;

const HEADER: &str = include_str!("../../../include/ncclscope.h");
const API: &str = include_str!("../../../crates/plugin/src/api.rs");

/// The functions that the C header declares, with the number of their parameters.
fn declared() -> BTreeMap<String, usize> {
    let mut code = String::new();
    for part in HEADER.split("/*") {
        code += part.split_once("*/").map_or(part, |(_comment, code)| code);
    }
    let lines = code.split('\n').filter(|line| !line.trim_start().starts_with('#'));
    let code = lines.collect::<Vec<_>>().join(" ");
    let declarations = code.split(';').filter_map(|text| text.split_once("ncclscope_"));
    declarations.map(|(_result, text)| function(text)).collect()
}

/// The functions that the plugin's source exports, with the number of their parameters.
fn defined() -> BTreeMap<String, usize> {
    API.split("extern \"C\" fn ncclscope_").skip(1).map(function).collect()
}

/// Name and number of parameters of `NAME(PARAMETERS) …`.
fn function(text: &str) -> (String, usize) {
    let (name, rest) = text.split_once('(').unwrap();
    let mut parameters = vec![String::new()];
    let mut depth = 1;
    for character in rest.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match character {
            _ if depth == 0 => break,
            ',' if depth == 1 => parameters.push(String::new()),
            _ => parameters.last_mut().unwrap().push(character),
        }
    }
    assert_eq!(depth, 0, "{text}: no end of the parameters");
    parameters.retain(|parameter| !matches!(parameter.trim(), "" | "void"));
    (name.to_owned(), parameters.len())
}

#[test]
fn the_header_declares_what_the_plugin_defines() {
    assert_eq!(declared(), defined());
    let counts = ["version", "mark", "set_role", "on_hang", "ask_external_id"];
    assert_eq!(counts.map(|name| declared()[name]), [0, 1, 2, 2, 1]);
}

#[test]
fn exports_needs_and_flags() {
    let bytes = std::fs::read(plugin()).unwrap();
    let file: ElfFile64<'_> = ElfFile64::parse(bytes.as_slice()).unwrap();
    let mut exports: Vec<_> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition())
        .map(|s| s.name().unwrap().to_owned())
        .collect();
    exports.sort();
    let tables = fake_nccl::VERSIONS.map(|v| format!("ncclProfiler_v{v}"));
    let expected: Vec<_> =
        tables.chain(declared().into_keys().map(|call| format!("ncclscope_{call}"))).collect();
    assert_eq!(exports, expected);

    let endian = file.endian();
    let sections = file.elf_header().sections(endian, bytes.as_slice()).unwrap();
    let (dynamic, strings) = sections.dynamic(endian, bytes.as_slice()).unwrap().unwrap();
    let strings = sections.strings(endian, bytes.as_slice(), strings).unwrap();
    let mut needed = Vec::new();
    let mut flags = 0;
    for entry in dynamic {
        let value = entry.d_val(endian);
        match entry.d_tag(endian) {
            elf::DT_NEEDED => {
                let name = strings.get(u32::try_from(value).unwrap()).unwrap();
                needed.push(String::from_utf8_lossy(name).into_owned());
            }
            elf::DT_FLAGS_1 => flags = value,
            _ => {}
        }
    }
    let nodelete = elf::DF_1_NODELETE.0;
    let now = elf::DF_1_NOW.0;
    assert_eq!(flags & (nodelete | now), nodelete | now, "FLAGS_1 {flags:#x}");
    let allowed = ["libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libm.so.6"];
    for name in &needed {
        assert!(allowed.contains(&name.as_str()), "{name} must not be needed");
    }
}
