// SPDX-License-Identifier: Apache-2.0
//! The plugin as an ELF file: what it exports, needs, and how it is linked.

use fake_nccl::build::plugin;
use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Object, ObjectSymbol};

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
    let tables = (1..=7).map(|v| format!("ncclProfiler_v{v}"));
    let calls = [
        "ask_external_id",
        "dump",
        "error",
        "is_started",
        "mark",
        "on_hang",
        "pop_external_id",
        "push_external_id",
        "set_role",
        "set_step",
        "simulate_hang",
        "start",
        "stop",
        "version",
    ];
    let expected: Vec<_> = tables.chain(calls.map(|call| format!("ncclscope_{call}"))).collect();
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
