// SPDX-License-Identifier: Apache-2.0
//! Descriptors of API version 7 that lack the application's tag, and with it the last 8 bytes, as
//! RCCL passes them (`caller::is_rccl`).

use core::mem::MaybeUninit;
use ncclscope_abi::{Descr, EventView, Version, Viewer};
use ncclscope_runtime::caller;

/// The first API version with tags.
const TAGGED: u8 = 7;
/// Bytes of the tag that is missing at the end.
const TAG_BYTES: usize = 8;

/// As [`Version::show`], but reads no tag where there is none.
///
/// # Safety
/// As [`Version::show`]; where there is no tag, the last 8 bytes of `descr` need not be readable.
#[inline(always)]
pub(crate) unsafe fn show<V: Version, W: Viewer>(descr: *const V::Descr, viewer: W) -> W::Out {
    if V::NUMBER >= TAGGED && caller::is_rccl() {
        // SAFETY: the caller's promise is the same.
        return unsafe { show_untagged::<V, W>(descr, viewer) };
    }
    // SAFETY: the caller's promise is the same, and there is a tag.
    unsafe { V::show(descr, viewer) }
}

/// # Safety
/// As [`show`].
#[cold]
#[inline(never)]
unsafe fn show_untagged<V: Version, W: Viewer>(descr: *const V::Descr, viewer: W) -> W::Out {
    let mut whole = MaybeUninit::<V::Descr>::zeroed();
    let bytes = size_of::<V::Descr>() - TAG_BYTES;
    // SAFETY: the caller promises that this many bytes are readable, and `whole` has more.
    unsafe { whole.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(descr.cast(), bytes) };
    // SAFETY: it has the members that the caller promises, and zero for the last one.
    unsafe { V::show(whole.as_ptr(), Untagged(viewer)) }
}

/// Passes views on without the tag, which in shorter arms of the union is any bytes.
struct Untagged<W>(W);

impl<W: Viewer> Viewer for Untagged<W> {
    type Out = W::Out;

    #[inline(always)]
    fn see(self, mut view: EventView) -> W::Out {
        match &mut view.descr {
            Descr::Coll(d) => d.user_tag = None,
            Descr::P2p(d) => d.user_tag = None,
            Descr::CollApi(d) => d.user_tag = None,
            Descr::P2pApi(d) => d.user_tag = None,
            Descr::CeColl(d) => d.user_tag = None,
            _ => {}
        }
        self.0.see(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_abi::V7;

    struct Tag;

    impl Viewer for Tag {
        type Out = (u8, Option<u64>);

        fn see(self, view: EventView) -> Self::Out {
            let Descr::Coll(coll) = view.descr else { panic!("{view:?}") };
            (coll.n_channels, coll.user_tag.map(core::num::NonZeroU64::get))
        }
    }

    #[test]
    fn a_tag_is_read_only_where_there_is_one() {
        let mut descr = [0u64; 17];
        // Coll, with 9 channels, and a tag of 5.
        (descr[0], descr[10], descr[16]) = (2, 9, 5);
        let whole = descr.as_ptr().cast();
        // SAFETY: a Coll of version 7, of zeros but for what is set.
        assert_eq!(unsafe { show::<V7, _>(whole, Tag) }, (9, Some(5)));
        let shorter: Box<[u64]> = descr[..16].into();
        // SAFETY: as above, without its last 8 bytes.
        assert_eq!(unsafe { show_untagged::<V7, _>(shorter.as_ptr().cast(), Tag) }, (9, None));
    }
}
