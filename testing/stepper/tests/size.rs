// SPDX-License-Identifier: Apache-2.0
//! The size of the plugin as it ships.

use object::{Object, ObjectSegment};
use std::path::Path;
use stepper::product;

/// Maximum size of the plugin in a rank's address space (SPECIFICATION.md), in bytes. A client for
/// TLS or HTTP/2 alone would exceed what is left.
const MOST: u64 = 3_600_000;

#[test]
fn the_plugin_is_small() {
    let stepper = Path::new(env!("CARGO_BIN_EXE_stepper"));
    let plugin = std::fs::read(product::plugin(stepper).expect("it builds")).expect("it is there");
    let plugin = object::File::parse(plugin.as_slice()).expect("it is an ELF file");
    // The rest of the file are symbols and line tables for debuggers, which no rank maps.
    let mapped: u64 = plugin.segments().map(|segment| segment.size()).sum();
    assert!(mapped <= MOST, "{mapped} bytes are mapped");
}
