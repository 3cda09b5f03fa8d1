// SPDX-License-Identifier: Apache-2.0
//! `ncclscope compare`: its answer, its rows, its exit codes and its JSON Schema.

use crate::common::{Outcome, ncclscope, tool};
use crate::schema::follows;
use serde_json::{Value, json};
use std::path::Path;

/// Simulated jobs, each in its own directory.
struct Jobs(tempfile::TempDir);

impl Jobs {
    fn new() -> Jobs {
        Jobs(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Simulates a job of 16 ranks.
    fn add(&self, name: &str, seed: u32, scenario: &str) -> String {
        let file = self.path("scenario.toml");
        std::fs::write(&file, scenario).unwrap();
        let path = self.path(name);
        let seed = seed.to_string();
        let args = ["simulate", &file, "-o", &path, "--ranks", "16", "--seed", &seed];
        ncclscope(&args).ends_with(0);
        path
    }

    /// Saves the report of `run`.
    fn save(&self, run: &str, name: &str) -> String {
        let report = ncclscope(&["report", "--format", "json", run]).ends_with(0).stdout;
        let path = self.path(name);
        std::fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        std::fs::write(&path, report).unwrap();
        path
    }
}

fn fault(name: &str, more: &str) -> String {
    format!("[[fault]]\nname = \"{name}\"\n{more}\n")
}

fn compared(a: &str, b: &str) -> Value {
    let outcome = ncclscope(&["compare", "--format", "json", a, b]).ends_with(0);
    serde_json::from_str(&outcome.stdout).unwrap()
}

fn rows<'a>(comparison: &'a Value, verdict: &'a str) -> Vec<&'a Value> {
    let rows = comparison["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["verdict"] == verdict).collect()
}

#[test]
fn equal_runs_are_the_same() {
    let jobs = Jobs::new();
    let (a, b) = (jobs.add("a", 1, ""), jobs.add("b", 2, ""));
    let found = compared(&a, &b);
    assert_eq!(found["schema"], "ncclscope.compare/2");
    assert_eq!(found["answer"]["state"], "SAME", "{found:#}");
    assert_eq!(rows(&found, "slower").len() + rows(&found, "faster").len(), 0, "{found:#}");
    // The rows have the roles, functions and links of the job.
    let same = rows(&found, "same");
    let has = |kind: &str, role: Value, func: Value| {
        same.iter().any(|row| {
            let key = &row["key"];
            (&key["kind"], &key["role"], &key["func"]) == (&json!(kind), &role, &func)
        })
    };
    assert!(has("step", Value::Null, Value::Null), "{found:#}");
    assert!(has("transfer", json!("tp"), json!("AllReduce")), "{found:#}");
    assert!(has("transfer", json!("dp"), json!("ReduceScatter")), "{found:#}");
    assert!(has("transfer", json!("pp"), json!("Recv")), "{found:#}");
    assert!(has("waiting", json!("tp"), json!("AllReduce")), "{found:#}");
    assert!(found["same_links"].as_u64().unwrap() > 4, "{found:#}");
    let text = ncclscope(&["compare", &a, &b, "--fail-above", "1"]).ends_with(0).stdout;
    assert!(text.starts_with("SAME    no difference of 2.0 % or more in "), "{text}");
    assert!(text.lines().count() <= 60, "{text}");
}

#[test]
fn a_function_that_is_five_percent_slower_is_named_and_fails_a_pipeline() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let slow = fault("slow-function", "func = \"AllReduce\"\nfactor = 1.05");
    let b = jobs.add("b c", 2, &slow);
    let found = compared(&a, &b);
    assert_eq!(found["answer"]["state"], "SLOWER", "{found:#}");
    let slower = rows(&found, "slower");
    let key = &slower[0]["key"];
    assert_eq!((&key["role"], &key["func"]), (&json!("tp"), &json!("AllReduce")), "{found:#}");
    assert_eq!((&key["bytes"], &key["algorithm"]), (&json!(16 << 20), &json!("RING")), "{found:#}");
    let change = slower[0]["change"].as_f64().unwrap();
    assert!((0.03..0.06).contains(&change), "{change}");
    let others = slower.iter().filter(|row| row["key"]["kind"] == "transfer");
    assert!(others.clone().all(|row| row["key"]["func"] == "AllReduce"), "{found:#}");

    let text = ncclscope(&["compare", &a, &b, "--fail-above", "3"]).ends_with(1).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("SLOWER  AllReduce of 16 MiB on tp takes "), "{text}");
    assert!(lines[1].starts_with("cost    ") && lines[1].contains("in each step"), "{text}");
    assert_eq!(lines[2], "config  no recorded setting differs");
    let next = lines[3].strip_prefix("next    ncclscope stragglers '").unwrap();
    assert!(next.ends_with("/b c'"), "a name that a shell must not split: {next}");
    ncclscope(&["compare", &a, &b, "--fail-above", "30"]).ends_with(0);
    // In the other direction the operation is faster, which is no failure.
    let text = ncclscope(&["compare", &b, &a, "--fail-above", "3"]).ends_with(0).stdout;
    assert!(text.starts_with("FASTER  AllReduce of 16 MiB on tp takes "), "{text}");
    // A difference below the minimum that the user asks for is not reported.
    let text = ncclscope(&["compare", &a, &b, "--min-effect", "20"]).ends_with(0).stdout;
    assert!(text.starts_with("SAME"), "{text}");
}

/// For a tree, NCCL reports the end of one thread of the kernel, which is not the end of the
/// operation.
#[test]
fn times_without_an_end_are_not_compared() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let slow = fault("slow-function", "func = \"AllReduce\"\nfactor = 3.0");
    let b = jobs.add("b", 2, &slow);
    let found = compared(&a, &b);
    follows(&found, "compare");
    let is_transfer = |row: &&Value| row["key"]["kind"] == "transfer";
    let all: Vec<&Value> = found["rows"].as_array().unwrap().iter().filter(is_transfer).collect();
    let small = |row: &&&Value| row["key"]["role"] == "tp" && row["key"]["bytes"] == 4;
    let small = all.iter().find(small).unwrap();
    assert_eq!((&small["a_is_least"], &small["b_is_least"]), (&json!(true), &json!(true)));
    assert_eq!((&small["verdict"], &small["change"]), (&json!("unknown"), &Value::Null), "{small}");
    let reason = small["reason"].as_str().unwrap();
    assert!(reason.contains("both times are the least that it took"), "{reason}");
    let judged = all.iter().filter(|row| row["verdict"] != "unknown");
    assert!(judged.clone().count() > 3, "{found:#}");
    assert!(judged.clone().all(|row| row["a_is_least"] == false && row["b_is_least"] == false));
    assert!(judged.clone().any(|row| row["verdict"] == "slower"), "{found:#}");

    let page = jobs.path("page.html");
    let text = ncclscope(&["compare", &a, &b, "--full", "--html", &page]).ends_with(0).stdout;
    let line = text.lines().find(|line| line.contains("AllReduce of 4 B on tp")).unwrap();
    assert!(line.contains(">=") && line.contains(&format!("unknown: {reason}")), "{line}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("us at least") && page.contains(reason));
}

#[test]
fn a_slow_link_is_named_with_both_ends_and_a_slow_rank_as_waiting() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let link = jobs.add("link", 2, &fault("slow-link", "rank = 4\nfactor = 1.2"));
    let found = compared(&a, &link);
    let slower = rows(&found, "slower");
    let links: Vec<&&Value> = slower.iter().filter(|row| row["key"]["kind"] == "link").collect();
    assert!(!links.is_empty() && links.iter().all(|row| row["key"]["src"] == 4), "{found:#}");
    let change = links[0]["change"].as_f64().unwrap();
    assert!((0.15..0.25).contains(&change), "{change}");
    // JSON has ns per byte; text and page have GB/s.
    assert!(links[0]["a"].as_f64().unwrap() < links[0]["b"].as_f64().unwrap(), "{found:#}");
    let page = jobs.path("link.html");
    let text = ncclscope(&["compare", &a, &link, "--full", "--html", &page]).ends_with(0).stdout;
    let line = text.lines().find(|line| line.trim().starts_with("link from rank 4")).unwrap();
    let mut words = line.split_whitespace();
    let mut gbs = || words.by_ref().take_while(|word| *word != "GB/s").last().unwrap();
    let [before, after] = [gbs(), gbs()].map(|word| word.parse::<f64>().unwrap());
    assert!(before > 1.1 * after, "{line}");
    assert!(text.contains("link: the change is that of the time for a byte"), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("\"GB/s\"") && !page.contains("ns/B") && !text.contains("ns/B"));
    let slow = jobs.add("slow", 3, &fault("slow-gpu", "rank = 8"));
    let found = compared(&a, &slow);
    let kinds: Vec<&Value> =
        rows(&found, "slower").into_iter().map(|row| &row["key"]["kind"]).collect();
    assert!(kinds.contains(&&json!("step")) && kinds.contains(&&json!("waiting")), "{found:#}");
    assert!(found["answer"]["cost"].as_str().unwrap().contains("GPU-hours a day lost"));
}

/// If the recordings of a host were not copied, its GPUs still wait.
#[test]
fn the_cost_counts_ranks_without_a_recording() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let b = jobs.add("b", 2, &fault("slow-gpu", "rank = 8"));
    let hours = || {
        let found = compared(&a, &b);
        let cost = found["answer"]["cost"].as_str().unwrap();
        let (before, _) = cost.split_once(" GPU-hours a day lost").unwrap();
        before.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let all = hours();
    let files = std::fs::read_dir(&b).unwrap().map(|file| file.unwrap().path());
    let mut recordings: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|end| end == "nscope")).collect();
    recordings.sort();
    assert_eq!(recordings.len(), 16);
    recordings[..8].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let half = hours();
    assert!(half > 0.9 * all, "{half} of {all}");
}

#[test]
fn a_changed_algorithm_stands_in_the_row_and_in_the_configuration() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let b = jobs.add("b", 2, &fault("algo-change", ""));
    let found = compared(&a, &b);
    let all = found["rows"].as_array().unwrap();
    let row = all.iter().find(|row| {
        row["key"]["kind"] == "transfer"
            && row["key"]["bytes"] == 16 << 20
            && row["key"]["role"] == "tp"
    });
    assert_eq!(row.unwrap()["key"]["algorithm"], "RING -> RING+TREE", "{found:#}");
    let differences = found["config_differences"].as_array().unwrap();
    assert_eq!(differences.len(), 1, "{differences:#?}");
    assert_eq!(differences[0]["what"], "AllReduce of 16 MiB on tp");
    assert_eq!(differences[0]["a"], "RING SIMPLE, 2 channels");
}

#[test]
fn several_runs_of_a_side_must_agree() {
    let jobs = Jobs::new();
    for (name, seed) in [("a/1", 1), ("a/2", 2), ("b/1", 3), ("b/2", 4)] {
        std::fs::create_dir_all(jobs.path(&name[..1])).unwrap();
        // One run on each side has a slow network.
        let slow = fault("slow-function", "func = \"ReduceScatter\"\nfactor = 1.3");
        jobs.add(name, seed, if seed % 2 == 0 { &slow } else { "" });
    }
    let found = compared(&jobs.path("a"), &jobs.path("b"));
    assert_eq!(found["a"]["runs"].as_array().unwrap().len(), 2, "{found:#}");
    assert_eq!(rows(&found, "slower").len() + rows(&found, "faster").len(), 0, "{found:#}");
    let found = compared(&jobs.path("a/1"), &jobs.path("b/2"));
    assert_eq!(rows(&found, "slower")[0]["key"]["func"], "ReduceScatter", "{found:#}");
}

#[test]
fn saved_reports_tell_only_with_several_runs() {
    let jobs = Jobs::new();
    let slow = fault("slow-function", "func = \"AllReduce\"\nfactor = 1.1");
    let a = jobs.add("a", 1, "");
    let b = jobs.add("b", 2, &slow);
    let (one, other) = (jobs.save(&a, "one.json"), jobs.save(&b, "other.json"));
    // A report is compared with a report, and with recordings.
    for (a, b) in [(&one, &other), (&one, &b), (&a, &other)] {
        let found = compared(a, b);
        assert_eq!(found["answer"]["state"], "UNKNOWN", "{found:#}");
        assert!(found["rows"].as_array().unwrap().iter().all(|row| row["verdict"] == "unknown"));
        let what = found["answer"]["what"].as_str().unwrap();
        assert!(what.contains("give several runs, or recordings"), "{what}");
    }
    let text = ncclscope(&["compare", &one, &other]).ends_with(0).stdout;
    assert!(text.starts_with("CANNOT TELL  one value does not show how times vary"), "{text}");
    for run in 0..5 {
        let (a, b) = (run * 2 + 10, run * 2 + 11);
        jobs.save(&jobs.add(&format!("x{a}"), a, ""), &format!("saved-a/{run}.json"));
        jobs.save(&jobs.add(&format!("x{b}"), b, &slow), &format!("saved-b/{run}.json"));
    }
    let found = compared(&jobs.path("saved-a"), &jobs.path("saved-b"));
    let slower = rows(&found, "slower");
    assert!(slower.iter().any(|row| row["key"]["func"] == "AllReduce"), "{found:#}");
    assert!(slower.iter().all(|row| row["units"]["of"] == "run"), "{found:#}");
    assert!(rows(&found, "faster").is_empty(), "{found:#}");
}

#[test]
fn a_saved_report_that_is_compared_is_not_replaced_by_the_page() {
    let jobs = Jobs::new();
    let [a, b] = ["a.json", "saved/b.json"].map(|name| jobs.path(name));
    let saved = jobs.path("saved");
    std::fs::create_dir(&saved).unwrap();
    [&a, &b].into_iter().for_each(|file| std::fs::write(file, "{}").unwrap());
    for file in [&a, &b] {
        let refused = ncclscope(&["compare", &a, &saved, "--html", file]).ends_with(2);
        let why = "is one of the inputs: name another file\n";
        assert!(refused.stderr.ends_with(why) && refused.stdout.is_empty(), "{refused:#?}");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "{}");
    }
}

#[test]
fn the_filter_of_a_saved_report_is_shown() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let whole = jobs.save(&a, "whole.json");
    let report = ["report", "--format", "json", "--rank", "0-7", &a];
    let part = jobs.path("part.json");
    std::fs::write(&part, ncclscope(&report).ends_with(0).stdout).unwrap();
    let found = compared(&whole, &part);
    follows(&found, "compare");
    let filter = found["b"]["filters"][0].as_str().unwrap();
    assert!(filter.contains("0-7"), "{filter}");
    assert_eq!(found["a"]["filters"], json!([]));
    let config = found["answer"]["config"].as_str().unwrap();
    let text = ncclscope(&["compare", &whole, &part]).ends_with(0).stdout;
    assert!(text.contains(&format!("filter: {filter}")) && text.contains(config), "{text}");
    assert!(text.contains("part.json is the report of a part of its run"), "{text}");
}

#[test]
fn few_steps_cannot_tell() {
    let jobs = Jobs::new();
    let (a, b) = (jobs.add("a", 1, "[job]\nsteps = 4"), jobs.add("b", 2, "[job]\nsteps = 4"));
    let text = ncclscope(&["compare", &a, &b]).ends_with(0).stdout;
    assert!(text.starts_with("CANNOT TELL  too few blocks: give longer recordings"), "{text}");
    let gate = ncclscope(&["compare", &a, &b, "--fail-above", "5"]).ends_with(3).stderr;
    assert!(gate.contains("no row can be judged, so that --fail-above passes nothing"), "{gate}");
}

#[test]
fn mistakes_get_one_line_each() {
    let jobs = Jobs::new();
    let (empty, text) = (jobs.path("empty"), jobs.path("x.json"));
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(&text, "{\"schema\": \"other/1\"}").unwrap();
    let says = |a: &str, b: &str, what: &str| {
        let Outcome { stderr, .. } = ncclscope(&["compare", a, b]).ends_with(3);
        assert!(stderr.contains(what) && stderr.lines().count() == 1, "{stderr}");
    };
    says("/nowhere", &text, "/nowhere");
    says(&text, &text, "it is not the output of `ncclscope report --format json`");
    says(&empty, &text, "no recordings (*.nscope) below");
    std::fs::write(&text, "not a recording").unwrap();
    says(&text, &text, "cannot read");
    ncclscope(&["compare", &empty]).ends_with(2);
    ncclscope(&["compare", "a", "b", "--fail-above", "no"]).ends_with(2);
}

#[test]
fn the_output_follows_its_json_schema() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let b = jobs.add("b", 2, &fault("slow-nic", "rank = 4"));
    let saved = jobs.save(&b, "b.json");
    for b in [&b, &saved] {
        let found = compared(&a, b);
        assert!(!found["rows"].as_array().unwrap().is_empty());
        follows(&found, "compare");
    }
    // The schema check itself rejects values that are missing, of a wrong type, or undeclared.
    let mut wrong = compared(&a, &b);
    wrong["rows"][0]["p"] = json!("low");
    let refused = std::panic::catch_unwind(|| follows(&wrong, "compare"));
    assert!(refused.is_err());
}

/// In a run that hangs, nothing is reported as slower.
#[test]
fn a_run_that_hangs_is_named_and_fails() {
    let jobs = Jobs::new();
    let fine = jobs.add("fine", 1, "");
    let hung = jobs.add("hung", 2, &fault("host-stuck", "rank = 4\nstep = 10"));
    let saved = [jobs.save(&fine, "fine.json"), jobs.save(&hung, "hung.json")];
    // Nothing is judged in a single pair of saved reports.
    for ([fine, hung], mended) in [([&fine, &hung], 0), ([&saved[0], &saved[1]], 3)] {
        let found = compared(fine, hung);
        assert_eq!(found["answer"]["state"], "UNKNOWN", "{found:#}");
        let names =
            [&found["a"]["hung"], &found["b"]["hung"]].map(|it| it.as_array().unwrap().len());
        assert_eq!(names, [0, 1]);
        follows(&found, "compare");
        let text = ncclscope(&["compare", fine, hung, "--fail-above", "5"]).ends_with(1).stdout;
        assert!(text.starts_with("CANNOT TELL  ") && text.contains(" (B) hangs; "), "{text}");
        ncclscope(&["compare", hung, fine, "--fail-above", "5"]).ends_with(mended);
    }
    let text = ncclscope(&["compare", &fine, &hung]).ends_with(0).stdout;
    assert!(text.contains("next    ncclscope diagnose "), "{text}");
}

#[test]
fn names_of_runs_cannot_act_on_a_terminal() {
    let jobs = Jobs::new();
    let a = jobs.add("a", 1, "");
    let hostile = jobs.save(&a, "x\u{1b}[2J.json");
    let outcome = Outcome::of(tool().args(["compare", &hostile, &hostile])).ends_with(0);
    assert!(!outcome.stdout.contains('\u{1b}') && outcome.stdout.contains("\\u001b[2J"));
}
