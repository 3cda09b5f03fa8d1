// SPDX-License-Identifier: Apache-2.0
//! What was not recorded.

use super::page::Page;
use ncclscope_report::schema::Loss;

/// The losses, each with its remedy.
pub(super) fn write(page: &mut Page, losses: &[Loss]) {
    if !losses.is_empty() {
        page.heading("NOT RECORDED");
    }
    for Loss { what, advice } in losses {
        page.wrapped("  - ", what);
        if let Some(advice) = advice {
            page.wrapped("    -> ", advice);
        }
    }
}
