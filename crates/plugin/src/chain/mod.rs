// SPDX-License-Identifier: Apache-2.0
/*!
Further profiler plugins behind ours (`NCCLSCOPE_CHAIN`): NCCL loads only one plugin, which is ours.

If the variable is unset, none of this code runs and no instruction of a callback differs: the
exported tables ([`crate::vtables`]) are changed when the library is loaded, before NCCL looks at
them. NCCL 2.23 to 2.32 keep the address of the table of their own version and call through it; the
conversions of `src/plugin/profiler/profiler_v*.cc`, which copy function pointers, are for plugins
that lack that version.

Modules: `member` a plugin and its table, `comms` contexts, `slab` handles, `rule` which plugin gets
which event, `union` NCCL's mask, `shim` older versions, `fan` the callbacks. See `docs/chain.md`.
*/

mod comms;
mod fan;
mod member;
mod rule;
mod shim;
mod slab;
mod union;

use crate::callbacks as ours;
use crate::{guard, init};
use comms::Comms;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};
use core::time::Duration;
use fan::Fan;
use member::Member;
use ncclscope_abi::older::Parents;
use ncclscope_abi::{CommInfo, EventState, InitArgs, NcclResult, Version};
use ncclscope_control::table::{CHAIN, LOG};
use ncclscope_control::value::LogTo;
use ncclscope_control::variable::environment;
use ncclscope_runtime::{Severity, sys};
use slab::{Slab, Touched};
use std::sync::OnceLock;
use union::Union;

/// Maximum number of chained plugins.
const MOST: usize = slab::PLUGINS - 1;
/// Maximum delay until NCCL gets a change that a plugin makes to its mask after `init`.
const PERIOD: Duration = Duration::from_millis(10);
/// The period while there is no communicator.
const IDLE: Duration = Duration::from_millis(250);

/// The inner `None` means that there was no memory for the chain.
static FAN: OnceLock<Option<Fan>> = OnceLock::new();

/// True if `NCCLSCOPE_CHAIN` names plugins.
pub(crate) fn is_wanted() -> bool {
    !CHAIN.value(&environment).is_empty()
}

fn get() -> Option<&'static Fan> {
    FAN.get().and_then(Option::as_ref)
}

/// `init` of version `V`, for all plugins.
///
/// # Safety
/// As for [`init::init`].
pub(crate) unsafe fn init<V: Version>(args: &InitArgs) -> NcclResult {
    let comm = args.comm.as_ref();
    let _ = guard::guard(|| {
        FAN.get_or_init(|| load(V::NUMBER, comm));
    });
    let Some(fan) = get() else {
        // SAFETY: the caller's promise is the same.
        return unsafe { init::init(u32::from(V::NUMBER), args, args.e_activation_mask) };
    };
    let (place, outer) = fan.comms.add();
    let mut ours = core::ptr::null_mut();
    let own =
        InitArgs { context: &raw mut ours, e_activation_mask: fan.mask.as_ptr(), comm: args.comm };
    // SAFETY: the name is as the caller promised; the pointers are valid, and the mask is never
    // freed.
    let _ = unsafe { init::init(u32::from(V::NUMBER), &own, args.e_activation_mask) };
    if !args.context.is_null() {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { args.context.write(core::ptr::without_provenance_mut(address(outer))) };
    }
    guard::guard(|| {
        settle_ours::<V>(fan);
        if let Some(place) = place {
            place.set(0, ours.addr() as u64);
            for (number, member) in (1..).zip(&fan.members) {
                match member.init(V::NUMBER, comm) {
                    Some(Ok(context)) => place.set(number, context.expose_provenance() as u64),
                    Some(Err(why)) => leave_out(comm, &member.path, &why),
                    None => {}
                }
            }
        }
        if !args.e_activation_mask.is_null() {
            // SAFETY: not null, so valid by the caller's promise until its last `finalize`.
            unsafe { fan.union.join(args.e_activation_mask, fan.wanted()) };
        }
    })
}

/// Changes our mask to the one that NCCL would derive from it.
fn settle_ours<V: Version>(fan: &Fan) {
    let mask = fan.mask.load(Ordering::Relaxed).cast_unsigned();
    let more = rule::settled(V::NUMBER, V::NUMBER, mask) & !mask;
    fan.mask.fetch_or(more.cast_signed(), Ordering::Relaxed);
}

/// Loads the plugins that `NCCLSCOPE_CHAIN` names, for an NCCL whose API version is `native`.
fn load(native: u8, comm: Option<&CommInfo>) -> Option<Fan> {
    let paths = CHAIN.value(&environment);
    let nonce = sys::nonce() | 1;
    let slab = match Slab::new(nonce) {
        Ok(slab) => slab,
        Err(error) => {
            tell(comm, true, &format!("no plugin is chained: {error}"));
            return None;
        }
    };
    let mut members = Vec::new();
    for path in &paths {
        let loaded = if members.len() < MOST {
            Member::load(path, native, &members)
        } else {
            Err(format!("{MOST} are chained already"))
        };
        match loaded {
            Ok(member) => {
                tell(comm, false, &format!("{path} (v{}) is chained", member.version));
                members.push(member);
            }
            Err(why) => leave_out(comm, path, &why),
        }
    }
    if sys::spawn_quiet("ncclscope/chain", watch).is_err() {
        let line = "no thread could be started: masks that change are not passed on";
        tell(comm, true, line);
    }
    let (mask, union) = (AtomicI32::new(0), Union::default());
    Some(Fan { mask, union, members, comms: Comms::new(nonce), slab })
}

/// Body of the thread that passes changes of the plugins' masks to NCCL after `init`, and touches
/// memory before callbacks need it.
fn watch() {
    let mut touched = Touched::default();
    let mut period = PERIOD;
    loop {
        std::thread::sleep(period);
        let Some(fan) = get() else { continue };
        fan.slab.touch(&mut touched);
        period = if fan.union.update(fan.wanted()) { PERIOD } else { IDLE };
    }
}

fn leave_out(comm: Option<&CommInfo>, path: &str, why: &str) {
    tell(comm, true, &format!("{path} is left out: {why}"));
}

/// Writes one line to the log that `NCCLSCOPE_LOG` selects. Problems also go to standard error if
/// selected, or if there is no logger (API v1 to v3).
fn tell(comm: Option<&CommInfo>, is_problem: bool, line: &str) {
    let log = LOG.value(&environment);
    if log == LogTo::Off {
        return;
    }
    // Messages of the dynamic linker may have several lines.
    let line = format!("ncclscope: {}: {}", CHAIN.name, line.replace('\n', "; "));
    let logger = comm.and_then(|comm| comm.logfn).map(init::logger);
    if let Some(logger) = &logger {
        let severity = if is_problem { Severity::Problem } else { Severity::Info };
        logger.say(severity, &line);
    }
    if is_problem && (log == LogTo::Stderr || logger.is_none()) {
        sys::write_stderr(&format!("{line}\n"));
    }
}

/// `startEvent` of version `V`, for all plugins.
///
/// # Safety
/// As for [`ours::start`].
pub(crate) unsafe fn start<V: Version<Descr: Parents>>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descr: *mut V::Descr,
) -> NcclResult {
    match get() {
        // SAFETY: the caller's promise; NCCL's strings are literals.
        Some(fan) => unsafe { fan::start::<V>(fan, context, handle, descr) },
        // SAFETY: the caller's promise is the same.
        None => unsafe { ours::start::<V>(context, handle, descr) },
    }
}

/// `stopEvent`, for all plugins.
pub(crate) fn stop(handle: *mut c_void) -> NcclResult {
    match get() {
        Some(fan) => fan::stop(fan, handle),
        // SAFETY: any handle is safe.
        None => unsafe { ours::stop(handle) },
    }
}

/// `recordEventState` of version `V`, for all plugins.
///
/// # Safety
/// As for [`ours::record`].
pub(crate) unsafe fn record<V: Version>(
    handle: *mut c_void,
    state: EventState,
    args: *mut V::StateArgs,
) -> NcclResult {
    match get() {
        // SAFETY: the caller's promise is the same.
        Some(fan) => unsafe { fan::record::<V>(fan, handle, state, args) },
        // SAFETY: the caller's promise is the same.
        None => unsafe { ours::record::<V>(handle, state, args) },
    }
}

/// `finalize` of version `V`, for all plugins.
pub(crate) fn finalize<V: Version>(context: *mut c_void) -> NcclResult {
    match get() {
        Some(fan) => fan::finalize(fan, V::NUMBER, context),
        // SAFETY: any context is safe.
        None => unsafe { ours::finalize(context) },
    }
}

#[expect(clippy::cast_possible_truncation, reason = "`abi` compiles for 64-bit machines only")]
fn address(context: u64) -> usize {
    context as usize
}
