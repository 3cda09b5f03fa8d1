// SPDX-License-Identifier: Apache-2.0
/*!
The report as text: problems first, then open operations, then the tables, and at the end what this
run does not show.
*/

mod events;
mod head;
mod operations;
mod page;
mod peers;

use ncclscope_report::Report;
use ncclscope_report::schema::Loss;
use page::Page;
use serde_json::Value;

/// The report. `run` is the content of `run.json`.
pub(crate) fn render(report: &Report, run: Option<&Value>, has_colour: bool) -> String {
    let mut page = Page::new(has_colour);
    head::write(&mut page, report, run);
    page.sentences("PROBLEMS", &report.problems);
    losses(&mut page, &report.lost.losses);
    operations::open(&mut page, &report.open_operations);
    operations::table(&mut page, report);
    peers::table(&mut page, &report.peers);
    events::table(&mut page, report);
    events::threads(&mut page, report);
    page.sentences("THE PLUGIN NOTED", &report.notes);
    page.sentences("WHAT THIS RUN CANNOT TELL", &report.unknowable);
    page.into_text()
}

/// The losses, each with its remedy.
fn losses(page: &mut Page, losses: &[Loss]) {
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
