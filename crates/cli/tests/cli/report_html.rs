// SPDX-License-Identifier: Apache-2.0
//! `ncclscope report --html` and `compare --html`: the files that they write, and the pages in a
//! real browser.

use crate::common::{Run, ncclscope};
use crate::devtools::Devtools;
use crate::schema::follows;
use crate::view_browser::browser;
use scripts::Call;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The HTML page about a run, and the JSON about it.
struct Written {
    dir: tempfile::TempDir,
    report: Value,
}

impl Written {
    fn file(&self) -> PathBuf {
        self.dir.path().join("report.html")
    }

    /// A simulated job.
    fn simulated(args: &[&str]) -> Written {
        let dir = tempfile::tempdir().unwrap();
        let job = dir.path().join("job");
        let job = job.to_str().unwrap();
        ncclscope(&[&["simulate", "-o", job, "--seed", "1"], args].concat()).ends_with(0);
        let file = dir.path().join("report.html");
        let args = ["report", job, "--format", "json", "--html", file.to_str().unwrap()];
        let outcome = ncclscope(&args).ends_with(0);
        assert!(outcome.stderr.contains("report.html; open it in a browser"), "{outcome:#?}");
        Written { report: serde_json::from_str(&outcome.stdout).unwrap(), dir }
    }
}

const SLOW: [&str; 8] = ["--ranks", "16", "--steps", "12", "--fault", "slow-gpu", "--rank", "8"];
const HUNG: [&str; 8] = ["--ranks", "16", "--steps", "12", "--fault", "host-stuck", "--rank", "10"];

#[test]
fn the_file_is_there_whole_or_not_at_all_and_no_recording_is_replaced() {
    let run = Run::new(|process| process.collective(Call::ALL_REDUCE));
    let recording = run.file("node-0-1000.nscope");
    let before = std::fs::read(&recording).unwrap();
    let args = ["report", run.text(), "--html", recording.to_str().unwrap()];
    let refused = ncclscope(&args).ends_with(2);
    assert!(refused.stderr.contains("is a recording: name another file"), "{refused:#?}");
    assert_eq!(refused.stdout, "", "it refuses before it reads");
    assert_eq!(std::fs::read(&recording).unwrap(), before);
    let missing = run.file("no-such-directory/a.html");
    ncclscope(&["report", run.text(), "--html", missing.to_str().unwrap()]).ends_with(4);

    let file = run.file("a.html");
    let text = ncclscope(&["report", run.text(), "--html", file.to_str().unwrap()]).ends_with(0);
    assert!(text.stdout.starts_with("CANNOT TELL"), "{text:#?}");
    let page = std::fs::read_to_string(&file).unwrap();
    let piped = ncclscope(&["report", run.text(), "--html", "-"]).ends_with(0).stdout;
    assert!(piped == page && piped.starts_with("<!DOCTYPE html>"), "{piped:.200}");
    let left = std::fs::read_dir(run.path()).unwrap().count();
    assert_eq!(left, 3, "two recordings, the page, and no temporary file");
}

/// Standard output has one result; a page in a file is a second one.
#[test]
fn a_page_on_standard_output_has_no_other_format_beside_it() {
    let run = Run::new(|p| p.collective(Call::ALL_REDUCE));
    let file = run.file("page.html");
    for verb in [&["report", run.text()][..], &["compare", run.text(), run.text()]] {
        for format in ["json", "csv", "md"] {
            let options = ["--format", format, "--html"];
            let both = ncclscope(&[verb, &options, &["-"]].concat()).ends_with(2);
            let why = "--html - writes the page to standard output, and --format something else";
            assert!(both.stdout.is_empty() && both.stderr.contains(why), "{both:#?}");
            let beside = [verb, &options, &[file.to_str().unwrap()]].concat();
            let printed = ncclscope(&beside).ends_with(0).stdout;
            assert_eq!(printed, ncclscope(&[verb, &options[..2]].concat()).stdout, "{format}");
            assert!(std::fs::read_to_string(&file).unwrap().starts_with("<!DOCTYPE html>"));
        }
    }
}

/// Opens the page, which must report no errors and request nothing. Returns its figures.
fn opened(page: &mut Devtools, file: &Path) -> Value {
    let url = page.open(file);
    assert_eq!(page.evaluate("document.documentElement.dataset.ready"), "true");
    assert_eq!(page.complaints(), Vec::<&Value>::new());
    assert_eq!(page.requests(), [url.as_str()]);
    page.evaluate("JSON.parse(document.getElementById('data').textContent)")
}

#[test]
fn a_browser_shows_the_figures_of_the_report_and_asks_for_nothing() {
    let Some(program) = browser() else { return };
    let written = Written::simulated(&SLOW);
    let mut page = Devtools::start(&program);
    let data = opened(&mut page, &written.file());
    for key in ["answer", "roles", "sizes", "latencies", "lost", "problems", "unknowable"] {
        assert_eq!(data[key], written.report[key], "{key}");
    }
    follows(&data["stragglers"], "stragglers");
    follows(&data["diagnosis"], "diagnosis");
    let state = page.evaluate("document.querySelector('#answer .state').textContent");
    assert_eq!(state, "SLOW");
    let latencies = written.report["latencies"].as_array().unwrap();
    let histograms: Vec<&Value> = latencies
        .iter()
        .take(30)
        .flat_map(|row| [&row["with_waiting_ns"], &row["transfer_ns"]])
        .filter(|of| !of.is_null())
        .collect();
    let drawn = page.evaluate(
        "[...document.querySelectorAll('#latency .spread title')].map((one) =>
           Number(one.textContent.match(/: ([0-9]+) duration/)[1]))",
    );
    let counts: Vec<&Value> = histograms.iter().map(|of| &of["count"]).collect();
    assert!(histograms.len() > 5 && drawn == json!(counts), "{drawn} {counts:?}");
    // A table shows the rows of the text report: sorted by size, busbw of the first.
    let rows = page.evaluate(
        "[...document.querySelectorAll('#table-sizes tbody tr')].map((row) =>
           [...row.cells].map((cell) => cell.textContent))",
    );
    let sizes = written.report["sizes"].as_array().unwrap();
    assert_eq!(rows.as_array().unwrap().len(), sizes.len().min(25));
    let text = ncclscope(&["report", written.dir.path().join("job").to_str().unwrap()]).stdout;
    for row in rows.as_array().unwrap().iter().take(5) {
        let [size, busbw] = [&row[0], &row[7]].map(|cell| cell.as_str().unwrap());
        let is_line = |line: &str| line.contains(size) && line.contains(busbw);
        assert!(text.lines().any(is_line), "{row} is not in\n{text}");
    }
}

#[test]
fn tables_sort_search_and_filter_and_the_heat_map_is_read_by_keys() {
    let Some(program) = browser() else { return };
    let written = Written::simulated(&SLOW);
    let mut page = Devtools::start(&program);
    opened(&mut page, &written.file());
    let cells = "[...document.querySelectorAll('#table-ranks tbody tr')].map((row) =>
                 Number(row.cells[0].textContent))";
    assert_eq!(page.evaluate(cells)[0], 8, "the rank that the others wait for comes first");
    let sort = "document.querySelector('#table-ranks thead button').click()";
    let sorted = page.evaluate(&format!("{sort}; {cells}"));
    assert_eq!(sorted, json!((0..16).collect::<Vec<u32>>()));
    let turned = page.evaluate(&format!("{sort}; {cells}"));
    assert_eq!(turned, json!((0..16).rev().collect::<Vec<u32>>()));
    let head = "document.querySelector('#table-ranks th').getAttribute('aria-sort')";
    assert_eq!(page.evaluate(head), "descending");
    let filtered = page.evaluate(&format!(
        "const ranks = document.getElementById('ranks'); ranks.value = '3, 9-11';
         ranks.dispatchEvent(new Event('input')); {cells}"
    ));
    assert_eq!(filtered, json!([11, 10, 9, 3]));
    let wrong = page.evaluate(
        "ranks.value = '9-x'; ranks.dispatchEvent(new Event('input'));
         document.getElementById('filter-say').textContent",
    );
    assert_eq!(wrong, "Ranks are numbers and ranges: 8, 12-15");
    let role = "document.getElementById('reset').click();
        const role = document.getElementById('role'); role.value = 'tp';
        role.dispatchEvent(new Event('change'));
        [...document.querySelectorAll('.series')].filter((line) =>
          line.getClientRects().length > 0).map((line) => line.dataset.role)";
    let shown = page.evaluate(role);
    assert!(shown.as_array().unwrap().iter().all(|role| role == "tp"), "{shown}");
    assert!(!shown.as_array().unwrap().is_empty());
    let found = page.evaluate(
        "const search = document.querySelector('#table-ranks input');
         document.getElementById('reset').click(); search.value = 'node-0002';
         search.dispatchEvent(new Event('input'));
         document.querySelector('#table-ranks [role=status]').textContent",
    );
    assert_eq!(found, "1 to 4 of 4");
    // The filter selects rank 3.
    page.evaluate("document.getElementById('heat-box').focus()");
    (0..5).for_each(|_| page.press("ArrowDown"));
    let say = page.evaluate("document.getElementById('heat-say').textContent");
    assert!(say.as_str().unwrap().starts_with("rank 8, step "), "{say}");
}

/// Script: the ids of elements that are wider than the sheet, or scroll.
const CUT: &str = "[...document.querySelectorAll('main *')].filter((one) =>
    one.getClientRects().length > 0 && !one.closest('svg *') &&
    (one.getBoundingClientRect().right > innerWidth + 1 || one.matches('figure, .scroll') &&
     getComputedStyle(one).overflowX !== 'visible')).map((one) => one.outerHTML.slice(0, 80))";

#[test]
fn paper_is_light_has_no_controls_and_cuts_nothing_off() {
    let Some(program) = browser() else { return };
    for args in [&SLOW, &HUNG] {
        let written = Written::simulated(args);
        let mut page = Devtools::start(&program);
        opened(&mut page, &written.file());
        page.evaluate("document.documentElement.dataset.theme = 'dark'");
        // Width of A4 landscape between margins of 12 mm; letter is 18 mm narrower.
        for width in [1032, 964] {
            page.print_on(width);
            assert_eq!(page.evaluate("matchMedia('print').matches && innerWidth"), width);
            let ground = page.evaluate("getComputedStyle(document.body).backgroundColor");
            assert_eq!(ground, "rgb(255, 255, 255)");
            let controls = page.evaluate(
                "[...document.querySelectorAll('nav, form, input, select, button')].filter(
                   (one) => one.getClientRects().length > 0).map((one) => one.outerHTML)",
            );
            assert_eq!(controls, json!([]), "at {width}");
            assert_eq!(page.evaluate(CUT), json!([]), "{args:?} at {width}");
            let rows = page.evaluate(
                "[...document.querySelectorAll('tr, thead, figure')].every((one) =>
                   getComputedStyle(one).breakInside === 'avoid')",
            );
            assert_eq!(rows, true);
            let said = page.evaluate(
                "document.querySelector('#table-ranks [role=status]').getClientRects().length",
            );
            assert_eq!(said, 1, "how many rows there are");
        }
    }
}

/// A healthy job, and a job with a fault and another seed.
fn two_runs(dir: &Path) -> [String; 2] {
    let faults = [("before", "healthy", "1"), ("now", "slow-link", "2")];
    faults.map(|(name, fault, seed)| {
        let run = dir.join(name).to_str().unwrap().to_owned();
        let args = ["simulate", "-o", &run, "--ranks", "16", "--fault", fault, "--seed", seed];
        ncclscope(&args).ends_with(0);
        run
    })
}

/// Script: the lines of the bandwidth charts, of this run and of the run beside it.
const LINES: &str = "['.series:not(.beside-line)', '.beside-line'].map((lines) =>
    document.querySelectorAll('#bandwidth ' + lines).length)";

#[test]
fn a_browser_shows_a_comparison_and_asks_for_nothing() {
    let Some(program) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    let [before, now] = two_runs(dir.path());
    let file = dir.path().join("compare.html");
    let args = ["compare", &before, &now, "--format", "json", "--html", file.to_str().unwrap()];
    let printed: Value = serde_json::from_str(&ncclscope(&args).ends_with(0).stdout).unwrap();
    let mut page = Devtools::start(&program);
    for scheme in ["light", "dark"] {
        page.prefer(scheme);
        let data = opened(&mut page, &file);
        for key in ["state", "what", "cost", "slower", "faster"] {
            assert_eq!(data["comparison"]["answer"][key], printed["answer"][key], "{key}");
        }
        let rows = [&data["comparison"], &printed].map(|one| one["rows"].as_array().unwrap().len());
        assert_eq!(rows[0], rows[1]);
        if let Some(axe) = axe() {
            assert_eq!(violations(&mut page, &axe), json!([]), "{scheme}");
        }
        page.events.clear();
    }
    assert_eq!(page.evaluate("document.querySelector('.state').textContent"), "SLOWER");
    let slower = page.evaluate("document.querySelectorAll('.effect.slower').length");
    assert_eq!(slower, printed["answer"]["slower"]);
    let lines = page.evaluate(LINES);
    assert!(lines[0].as_u64() > Some(0) && lines[0] == lines[1], "{lines}");
}

/// Each directory is read once, so that each problem is reported once.
#[test]
fn a_page_of_two_runs_says_once_what_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let [before, now] = two_runs(dir.path());
    std::fs::write(Path::new(&before).join("node-9-1.nscope"), "ruins").unwrap();
    let file = dir.path().join("report.html");
    let args = ["report", &before, &now, "--run", "simulated-2", "--html", file.to_str().unwrap()];
    let stderr = ncclscope(&args).ends_with(3).stderr;
    assert_eq!(stderr.matches("node-9-1.nscope").count(), 1, "{stderr}");
    let page = std::fs::read_to_string(file).unwrap();
    assert!(page.matches("beside-line").count() > 3, "both runs are drawn");
}

#[test]
fn a_report_of_two_runs_has_the_bandwidths_of_both() {
    let Some(program) = browser() else { return };
    let dir = tempfile::tempdir().unwrap();
    let [before, now] = two_runs(dir.path());
    let file = dir.path().join("report.html");
    let args = ["report", &before, &now, "--run", "simulated-2", "--html", file.to_str().unwrap()];
    ncclscope(&args).ends_with(0);
    let mut page = Devtools::start(&program);
    opened(&mut page, &file);
    let lines = page.evaluate(LINES);
    assert!(lines[0].as_u64() > Some(0) && lines[0] == lines[1], "{lines}");
    let legend = page.evaluate("document.querySelector('#bandwidth').textContent");
    assert!(legend.as_str().unwrap().contains(&before), "{legend}");
}

/// The violations that axe-core rates serious or critical.
fn violations(page: &mut Devtools, axe: &str) -> Value {
    page.evaluate(axe);
    page.evaluate(
        "axe.run(document).then((found) => found.violations.filter((one) =>
           ['serious', 'critical'].includes(one.impact)).map((one) =>
           [one.id, one.nodes.map((node) => node.html.slice(0, 200) + node.failureSummary)]))",
    )
}

#[test]
fn axe_core_has_no_serious_finding_in_light_and_dark() {
    let Some(program) = browser() else { return };
    let Some(axe) = axe() else { return };
    for args in [&SLOW, &HUNG] {
        let written = Written::simulated(args);
        let mut page = Devtools::start(&program);
        for scheme in ["light", "dark"] {
            page.prefer(scheme);
            opened(&mut page, &written.file());
            page.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)");
            assert_eq!(violations(&mut page, &axe), json!([]), "{scheme}");
            page.events.clear();
        }
    }
}

/// The script of axe-core; `None` (and a line that the test is skipped) without it.
fn axe() -> Option<String> {
    match std::env::var_os("XTASK_AXE") {
        Some(file) => Some(std::fs::read_to_string(file).unwrap()),
        None => crate::view_browser::skip(
            "XTASK_AXE is not set: name axe.min.js of the npm package axe-core",
        ),
    }
}

#[test]
fn a_browser_runs_nothing_that_a_name_in_a_recording_says() {
    let Some(program) = browser() else { return };
    let run = Run::new(|process| {
        process.comm.name = Some("<script>document.title='owned'</script>".into());
        process.header.host = "<img src=x onerror=\"document.title='owned'\">".into();
        process.collective(Call::ALL_REDUCE);
    });
    let file = run.file("a.html");
    ncclscope(&["report", run.text(), "--html", file.to_str().unwrap()]).ends_with(0);
    let mut page = Devtools::start(&program);
    opened(&mut page, &file);
    assert_ne!(page.evaluate("document.title"), "owned");
    let roles = page.evaluate("document.querySelector('#time tbody th').textContent");
    assert_eq!(roles, "<script>document.title='owned'</script>");
}
