// SPDX-License-Identifier: Apache-2.0
//! Checks the Rust types and constants against the debugging information of the real libnccl.
//!
//! Each release is looked for in `$NCCLSCOPE_NCCL_DIR/cu12-RELEASE/libnccl.so.2`, or below
//! `$HOME/.cache/ncclscope/nccl` if that variable is not set. The tests skip a release that is not
//! there and print a line. If `NCCLSCOPE_REQUIRE_NCCL=1`, release 2.32.3, which has all API
//! versions, must be there.

mod layout;
#[path = "dwarf/reader.rs"]
mod reader;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt::Debug;
use std::io::Write as _;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use layout::{NET_TYPES, layouts};
use ncclscope_abi::common::{Finalize, Profiler, RecordEventState, StartEvent, StopEvent};
use ncclscope_abi::{
    DebugLogger, EventState, EventType, LogFlags, LogLevel, NcclResult, VERSIONS, codes,
    for_each_version,
};
use reader::find;

/// Path of the library of `release`, if this machine has it. Prints a line if it does not.
fn library(release: &str, needed: bool) -> Option<PathBuf> {
    let root = std::env::var_os("NCCLSCOPE_NCCL_DIR").map(PathBuf::from).or_else(|| {
        std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/ncclscope/nccl"))
    });
    let path = root.unwrap_or_default().join(format!("cu12-{release}/libnccl.so.2"));
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var_os("NCCLSCOPE_REQUIRE_NCCL").is_some_and(|v| v == "1");
    let hint = format!("no {}; get it by: cargo xtask nccl fetch {release}", path.display());
    assert!(!(needed && required), "{hint}");
    // Writes to stderr directly: the test harness hides what passing tests print with macros.
    let line = format!("\nskipped: {hint}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("stderr can be written");
    None
}

/// Every NCCL enumerator whose value this crate repeats. NCCL's algorithms and protocols are
/// macros, which are not in the debugging information.
fn enumerators() -> BTreeMap<String, i64> {
    let mut all = BTreeMap::from([("ncclSuccess".to_owned(), i64::from(NcclResult::SUCCESS.0))]);
    for ty in EventType::ALL {
        all.insert(format!("ncclProfile{}", ty.name()), ty.bit().cast_signed());
    }
    for state in (0..EventState::COUNT).map(EventState) {
        let suffix = match state {
            EventState::PROXY_OP_IN_PROGRESS | EventState::PROXY_STEP_SEND_PEER_WAIT => "_v4",
            _ => "",
        };
        let name = state.name().expect("a known state has a name");
        all.insert(format!("ncclProfiler{name}{suffix}"), i64::from(state.0));
    }
    for (prefix, names) in [("ncclFunc", &codes::FUNCS[..]), ("", &codes::DATATYPES)] {
        for (value, name) in (0..).zip(names) {
            all.insert(format!("{prefix}{}", name.to_string_lossy()), value);
        }
    }
    let levels = [
        ("NONE", LogLevel::NONE),
        ("VERSION", LogLevel::VERSION),
        ("WARN", LogLevel::WARN),
        ("INFO", LogLevel::INFO),
        ("ABORT", LogLevel::ABORT),
        ("TRACE", LogLevel::TRACE),
        ("ATTN", LogLevel::ATTN),
    ];
    all.extend(levels.map(|(name, level)| (format!("NCCL_LOG_{name}"), i64::from(level.0))));
    let flags = [
        ("INIT", LogFlags::INIT),
        ("COLL", LogFlags::COLL),
        ("P2P", LogFlags::P2P),
        ("SHM", LogFlags::SHM),
        ("NET", LogFlags::NET),
        ("GRAPH", LogFlags::GRAPH),
        ("TUNING", LogFlags::TUNING),
        ("ENV", LogFlags::ENV),
        ("ALLOC", LogFlags::ALLOC),
        ("CALL", LogFlags::CALL),
        ("PROXY", LogFlags::PROXY),
        ("NVLS", LogFlags::NVLS),
        ("BOOTSTRAP", LogFlags::BOOTSTRAP),
        ("REG", LogFlags::REG),
        ("PROFILE", LogFlags::PROFILE),
        ("RAS", LogFlags::RAS),
        ("DESTROY", LogFlags::DESTROY),
        ("ALLOC_HOST", LogFlags::ALLOC_HOST),
    ];
    all.extend(flags.map(|(name, flag)| (format!("NCCL_{name}"), flag.0.cast_signed())));
    all
}

/// Fails with the differences between two maps, if there are any.
fn assert_same<T: Debug + PartialEq>(
    what: &str,
    ours: &BTreeMap<String, T>,
    nccl: &BTreeMap<String, T>,
) {
    let keys = ours.keys().chain(nccl.keys());
    let differ: BTreeMap<_, _> = keys
        .map(|key| (key, (ours.get(key), nccl.get(key))))
        .filter(|(_, (a, b))| a != b)
        .collect();
    assert!(differ.is_empty(), "{what}, (ours, NCCL's): {differ:#?}");
}

/// How a value of a Rust type is passed, in the letters of `reader.rs`.
trait Kind {
    const KIND: char;
}

impl<T> Kind for *mut T {
    const KIND: char = 'p';
}
impl<T> Kind for *const T {
    const KIND: char = 'p';
}
impl Kind for Option<DebugLogger> {
    const KIND: char = 'p';
}
impl Kind for u64 {
    const KIND: char = 'l';
}
impl Kind for c_int {
    const KIND: char = 'i';
}
impl Kind for EventState {
    const KIND: char = 'i';
}

/// The kinds of a function pointer's parameters.
trait Parameters {
    fn kinds() -> String;
}

macro_rules! parameters {
    ($($($arg:ident)+;)*) => {$(
        impl<$($arg: Kind),+> Parameters for unsafe extern "C" fn($($arg),+) -> NcclResult {
            fn kinds() -> String {
                [$($arg::KIND),+].into_iter().collect()
            }
        }
    )*};
}

parameters! { A; A B; A B C; A B C D E F G H; }

/// The kinds of parameters of a function table's functions; `_table` only gives the type.
fn functions<I: Parameters, D, A>(
    _table: PhantomData<Profiler<I, D, A>>,
) -> BTreeMap<String, String> {
    let functions = [
        ("init", I::kinds()),
        ("startEvent", <StartEvent<D> as Parameters>::kinds()),
        ("stopEvent", <StopEvent as Parameters>::kinds()),
        ("recordEventState", <RecordEventState<A> as Parameters>::kinds()),
        ("finalize", <Finalize as Parameters>::kinds()),
    ];
    functions.map(|(name, kinds)| (name.to_owned(), kinds)).into()
}

/// [`functions`] of every version's table.
fn function_tables() -> Vec<BTreeMap<String, String>> {
    macro_rules! tables {
        ($(($v:ident = $number:literal, $module:ident, $table:ident, $($row:tt)*))*) => {
            vec![$(functions(PhantomData::<ncclscope_abi::$table>)),*]
        };
    }
    for_each_version!(tables)
}

/// Compares every type up to API version `newest` with the library's type, in both directions: a
/// field that only one side has is a failure, like a field at another offset.
fn compare_types(library: &Path, newest: u8) {
    let mut layouts = layouts();
    layouts.retain(|name, _| {
        let newer =
            (newest + 1..=*VERSIONS.end()).any(|version| name.ends_with(&format!("_v{version}_t")));
        !newer
    });
    let names: Vec<_> = layouts.keys().copied().collect();
    let mut found = find(library, &names, &[]);
    for (name, layout) in layouts {
        let Some(theirs) = found.types.remove(name) else {
            assert!(NET_TYPES.contains(&name), "{} lacks {name}", library.display());
            continue;
        };
        let fields = || layout.fields.iter();
        let pinned: BTreeMap<_, _> = fields().map(|f| (f.path.clone(), f.pinned)).collect();
        let ours: BTreeMap<_, _> = fields().map(|f| (f.path.clone(), f.rust)).collect();
        assert_eq!(layout.pinned_size, theirs.size, "size of {name} in the table");
        assert_eq!(layout.rust_size, theirs.size, "size of {name} in Rust");
        assert_same(&format!("{name} in the table"), &pinned, &theirs.fields);
        assert_same(&format!("{name} in Rust"), &ours, &theirs.fields);
    }
}

#[test]
fn release_2_32_3_has_versions_1_to_7_as_we_have_them() {
    if let Some(library) = library("2.32.3", true) {
        compare_types(&library, 7);
    }
}

#[test]
fn release_2_32_3_passes_parameters_in_the_order_we_take_them() {
    if let Some(library) = library("2.32.3", true) {
        let names: Vec<_> = VERSIONS.map(|version| format!("ncclProfiler_v{version}_t")).collect();
        let wanted: Vec<_> = names.iter().map(String::as_str).collect();
        let found = find(&library, &wanted, &[]);
        for (name, ours) in names.iter().zip(function_tables()) {
            assert_same(name, &ours, &found.types[name].functions);
        }
    }
}

#[test]
fn release_2_32_3_has_the_numbers_as_we_have_them() {
    if let Some(library) = library("2.32.3", true) {
        let ours = enumerators();
        let names: Vec<_> = ours.keys().map(String::as_str).collect();
        assert_same("numbers", &ours, &find(&library, &[], &names).enumerators);
    }
}

#[test]
fn release_2_30_7_has_versions_1_to_6_as_we_have_them() {
    if let Some(library) = library("2.30.7", false) {
        compare_types(&library, 6);
    }
}

#[test]
fn release_2_28_9_has_versions_1_to_5_as_we_have_them() {
    if let Some(library) = library("2.28.9", false) {
        compare_types(&library, 5);
    }
}
