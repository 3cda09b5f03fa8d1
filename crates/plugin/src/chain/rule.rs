// SPDX-License-Identifier: Apache-2.0
//! NCCL's rules for which plugin gets which event (`src/misc/profiler.cc`@2.24,
//! `src/plugin/profiler.cc`@2.26, @2.27, @2.30.7 and @2.31.2), by the API version that the release
//! speaks natively.

use ncclscope_abi::{EventMask, EventType};

const fn mask(types: &[EventType]) -> u32 {
    let mut mask = EventMask::NONE;
    let mut i = 0;
    while i < types.len() {
        mask = mask.with(types[i]);
        i += 1;
    }
    mask.to_c_int().cast_unsigned()
}

const OP: u32 = mask(&[EventType::ProxyOp, EventType::ProxyStep]);
const NET: u32 = mask(&[EventType::NetPlugin]);
const KERNEL: u32 = mask(&[EventType::KernelCh]);
const COLL: u32 = mask(&[EventType::Coll]);
const P2P: u32 = mask(&[EventType::P2p]);
pub(super) const CE: u32 = mask(&[EventType::CeColl, EventType::CeSync, EventType::CeBatch]);
pub(super) const PHASE: u32 = mask(&[EventType::KernelPhase]);
pub(super) const CTRL: u32 = mask(&[EventType::ProxyCtrl]);

/// NCCL starts the event only if the mask has at least one of these bits.
pub(super) const fn needed(native: u8, event: EventType) -> u32 {
    let own = mask(&[event]);
    match (event, native) {
        (EventType::Group, ..=2) => COLL | P2P | OP,
        (EventType::Coll | EventType::P2p, ..=2) => COLL | OP,
        (EventType::ProxyOp, ..=2) => OP,
        (EventType::ProxyStep, ..=2) => own,
        (EventType::Group, _) => own | COLL | P2P | OP | KERNEL | NET,
        (EventType::P2p, 3 | 4) => own | OP | KERNEL,
        (EventType::Coll | EventType::P2p | EventType::P2pApi, _) => {
            let enqueued = if matches!(event, EventType::P2pApi) { P2P } else { 0 };
            own | enqueued | OP | KERNEL | NET
        }
        (EventType::CollApi, _) => own | COLL | OP | KERNEL | NET | CE,
        (EventType::GroupApi, _) => 0x7fff & !CTRL,
        (EventType::ProxyOp, _) => OP | NET,
        (EventType::ProxyStep, _) => own | NET,
        (EventType::CeColl, _) => CE,
        _ => own,
    }
}

/// True if NCCL starts the event only if the plugin gave a handle for the parent.
pub(super) const fn needs_parent(native: u8, event: EventType) -> bool {
    match event {
        EventType::Coll | EventType::P2p | EventType::ProxyStep => native <= 4,
        EventType::CeSync | EventType::CeBatch => true,
        _ => false,
    }
}

/// True if the event follows the mask at the start of its parent: an operation in flight keeps its
/// mask even if the mask is changed meanwhile.
pub(super) const fn inherits(event: EventType) -> bool {
    !matches!(
        event,
        EventType::Group
            | EventType::GroupApi
            | EventType::ProxyCtrl
            | EventType::CeColl
            | EventType::CeSync
            | EventType::CeBatch
    )
}

/// The mask that NCCL derives from what the `init` of a plugin of version `plugin` stored.
pub(super) const fn settled(native: u8, plugin: u8, mask: u32) -> u32 {
    let mut mask = mask;
    if plugin == 5 && native >= 6 {
        mask &= !CE;
    }
    if native >= 7 {
        if plugin == 5 || plugin == 6 {
            mask &= !PHASE;
        }
        if mask & PHASE != 0 {
            mask |= KERNEL;
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_imply_ancestors() {
        let takes = |native, event, mask| needed(native, event) & mask != 0;
        for event in [EventType::GroupApi, EventType::CollApi, EventType::Group, EventType::Coll] {
            assert!(takes(6, event, KERNEL), "{event:?}");
        }
        assert!(!takes(6, EventType::KernelLaunch, KERNEL), "siblings are not implied");
        assert!(takes(6, EventType::P2pApi, P2P) && !takes(6, EventType::P2pApi, COLL));
        assert!(takes(5, EventType::P2p, NET) && !takes(4, EventType::P2p, NET));
        assert!(!takes(1, EventType::P2p, P2P) && takes(1, EventType::Group, P2P));
        assert!(!takes(7, EventType::GroupApi, CTRL) && !takes(7, EventType::GroupApi, PHASE));
        assert!(takes(6, EventType::ProxyStep, NET) && !takes(2, EventType::ProxyStep, OP & !16));
    }

    #[test]
    fn older_plugins_lose_bits_that_they_cannot_have() {
        assert_eq!(settled(6, 5, 0xffff), 0x8fff);
        assert_eq!(settled(7, 6, PHASE), 0);
        assert_eq!(settled(7, 7, PHASE), PHASE | KERNEL);
        assert_eq!(settled(7, 4, CE), CE);
    }
}
