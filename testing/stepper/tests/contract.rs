// SPDX-License-Identifier: Apache-2.0
//! The contract of the callbacks: no system call, no lock, no allocation, a bound on instructions;
//! for every kind, in every version of the API, in every state of the plugin.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use stepper::trace::{Call, Error};
use stepper::{Phase, PhaseSet, Stepped, contract, product, trace};

const STEPPER: &str = env!("CARGO_BIN_EXE_stepper");

static PLUGIN: LazyLock<PathBuf> =
    LazyLock::new(|| product::plugin(Path::new(STEPPER)).expect("the plugin builds"));

#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn skip() {
    println!("skipped: {}", Error::Forbidden);
}

/// The callbacks of a plugin; `None`, with a message, if ptrace is not allowed.
fn stepped(plugin: &Path, version: usize, phases: PhaseSet) -> Option<Vec<Stepped>> {
    match trace(Path::new(STEPPER), plugin, version, phases) {
        Ok(stepped) => Some(stepped),
        Err(Error::Forbidden) => {
            let required = std::env::var_os("NCCLSCOPE_REQUIRE_PTRACE").is_some();
            assert!(!required, "{}", Error::Forbidden);
            skip();
            None
        }
        Err(error) => panic!("v{version}: {error}"),
    }
}

fn holds(version: usize) {
    let Some(on) = stepped(&PLUGIN, version, PhaseSet::On) else { return };
    let (known, broken): (Vec<_>, Vec<_>) =
        contract::violations(&on).into_iter().partition(|violation| contract::is_known(violation));
    assert_eq!(broken, Vec::<String>::new(), "v{version}");
    assert_ne!(known, Vec::<String>::new(), "v{version}: is_known() can go");
    let is_refused = |one: &&Stepped| one.phase == Phase::Crowd && one.kind.event == "null";
    assert!(on.iter().any(|one| is_refused(&one)), "v{version}: there was a lane for everyone");
    let phases: BTreeSet<Phase> = on.iter().map(|one| one.phase).collect();
    assert_eq!(phases.len(), Phase::ALL.len() - 1, "v{version}: {phases:?}");
    // Each type of the version was started, and none was refused in the normal state.
    let hot = on.iter().filter(|one| one.phase == Phase::Hot);
    let started = hot.filter(|one| one.kind.call == Call::Start).map(|one| one.kind.event);
    let types = [6, 6, 8, 8, 12, 15, 16][version - 1];
    let started: BTreeSet<_> = started.collect();
    assert_eq!(started.len(), types, "v{version}: {started:?}");
}

#[test]
fn v1_v2_and_v3() {
    (1..=3).for_each(holds);
}

#[test]
fn v4_and_v5() {
    (4..=5).for_each(holds);
}

#[test]
fn v6_and_v7() {
    (6..=7).for_each(holds);
}

#[test]
fn what_is_switched_off_does_nothing() {
    for version in fake_nccl::VERSIONS {
        let Some(off) = stepped(&PLUGIN, version, PhaseSet::Off) else { return };
        assert_eq!(contract::violations(&off), Vec::<String>::new(), "v{version}");
        assert!(off.iter().all(|one| one.phase == Phase::Off && one.clocks == 0));
        assert!(!off.is_empty());
    }
}

#[test]
fn each_planted_violation_is_caught() {
    let plugin = product::planted(Path::new(STEPPER)).expect("the example builds");
    let Some(stepped) = stepped(&plugin, 6, PhaseSet::Off) else { return };
    let violations = contract::violations(&stepped);
    for planted in [
        "Group start calls the system, number 39",
        "Coll start enters malloc, called by libplanted.so",
        "Coll start enters free, called by libplanted.so",
        "KernelCh start does not end within 20000 instructions",
        "GroupApi start locks the bus",
        "CollApi start enters pthread_mutex_lock, called by libplanted.so",
    ] {
        let expected = format!("off: {planted}");
        assert!(violations.contains(&expected), "{expected}: {violations:#?}");
    }
    // A callback without a violation is not reported.
    let innocent = violations.iter().filter(|v| v.contains(" stop ") || v.contains("ProxyStep"));
    let innocent: Vec<_> = innocent.filter(|v| !v.contains("instructions")).collect();
    assert_eq!(innocent, Vec::<&String>::new());
}
