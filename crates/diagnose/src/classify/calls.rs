// SPDX-License-Identifier: Apache-2.0
//! The calls of a mismatch (H2, H2b) as the end of the verdict's title.

use crate::desync::Desync;
use crate::job::Call;

/// Text such as `call 38 is AllGather of 6667 against AllReduce of 20001`; `None` if a call is not
/// known.
pub(super) fn differing(desync: &Desync) -> Option<String> {
    let (_, one) = desync.groups.first().filter(|_| desync.is_exact)?;
    let (_, other) = desync.groups.last()?;
    let (one, other) = (one.as_ref()?, other.as_ref()?);
    let text = |call: &Call| {
        let size = Some(call.size_text()).filter(|size| !size.is_empty());
        let size = size.map_or_else(String::new, |size| format!(" of {size}"));
        let root = call.root.filter(|_| one.root != other.root);
        let root = root.map_or_else(String::new, |root| format!(" with root {root}"));
        let is_other_type = one.datatype != other.datatype && !call.datatype.is_empty();
        let datatype = if is_other_type { format!(" {}", call.datatype) } else { String::new() };
        format!("{}{size}{datatype}{root}", call.func)
    };
    Some(format!("call {} is {} against {}", desync.index, text(one), text(other)))
}
