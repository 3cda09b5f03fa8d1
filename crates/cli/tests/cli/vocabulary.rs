// SPDX-License-Identifier: Apache-2.0
//! All outputs use one name and one unit for each quantity: docs/glossary.md, "Names in outputs".

use crate::common::ncclscope;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)
}

/// The names that the glossary's table lists as not used. `*` stands for any beginning.
struct Retired(Vec<String>);

impl Retired {
    fn read() -> Retired {
        let text = fs::read_to_string(docs("glossary.md")).unwrap();
        let (_, section) = text.split_once("\n## Names in outputs\n").unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let last = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
        let names = last.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned));
        let names: Vec<String> = names.collect();
        for known in ["algo", "proto", "size", "index", "*_ms", "*_s"] {
            assert!(names.iter().any(|name| name == known), "{known}: {names:?}");
        }
        Retired(names)
    }

    /// The retired names among `keys`. A key that ends with `per_s` is a rate, not a duration in
    /// seconds.
    fn among<'a>(&self, keys: &'a BTreeSet<String>) -> Vec<&'a String> {
        let is_old = |key: &str, name: &str| match name.strip_prefix('*') {
            Some(end) => key.ends_with(end) && !key.ends_with("per_s"),
            None => key == name,
        };
        let has_name = |key: &&String| self.0.iter().any(|name| is_old(key, name));
        keys.iter().filter(has_name).collect()
    }
}

/// Adds the keys of all objects in a document, and the column names of a page.
fn add_keys(value: &Value, keys: &mut BTreeSet<String>) {
    for (key, inner) in value.as_object().into_iter().flatten() {
        keys.insert(key.clone());
        if let ("key", Some(path)) = (key.as_str(), inner.as_str()) {
            keys.extend(path.split('.').map(str::to_owned));
        }
        add_keys(inner, keys);
    }
    value.as_array().into_iter().flatten().for_each(|inner| add_keys(inner, keys));
}

fn keys_of(value: &Value) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    add_keys(value, &mut keys);
    keys
}

/// A verb's standard output, whatever its exit code.
fn printed(args: &[&str]) -> String {
    let outcome = ncclscope(args);
    assert!(matches!(outcome.code, Some(0 | 1)), "{args:?}: {outcome:#?}");
    outcome.stdout
}

fn parsed(name: &str, text: &str) -> (String, BTreeSet<String>) {
    let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    (name.to_owned(), keys_of(&value))
}

/// The column heads of a CSV table; `duration_ns_p50` counts as a field of `duration_ns`.
fn heads(args: &[&str]) -> (String, BTreeSet<String>) {
    let text = printed(&[args, &["--format", "csv"]].concat());
    let first = text.lines().next().unwrap_or_default();
    (format!("{args:?} as CSV"), first.split(',').map(str::to_owned).collect())
}

/// The figures of an HTML page.
fn figures_of(file: &Path) -> (String, BTreeSet<String>) {
    let page = fs::read_to_string(file).unwrap();
    let (_, rest) = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    parsed(&file.display().to_string(), json)
}

#[test]
fn no_output_has_a_retired_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (hung, slow) = (path("hung"), path("slow"));
    let simulate = |out: &str, fault: &str| {
        let args = ["simulate", "--ranks", "8", "--fault", fault, "--seed", "2", "-o", out];
        ncclscope(&args).ends_with(0);
    };
    simulate(&hung, "link-down");
    simulate(&slow, "slow-gpu");
    let (trace, html, compared) = (path("trace.json"), path("report.html"), path("compare.html"));
    printed(&["export", &hung, "-o", &trace]);
    printed(&["report", &slow, "--html", &html]);
    printed(&["compare", &slow, &slow, "--html", &compared]);
    let json = |args: &[&str]| {
        let text = printed(&[args, &["--format", "json"]].concat());
        parsed(&format!("{args:?}"), &text)
    };
    let mut documents = vec![
        json(&["report", &hung]),
        json(&["report", &slow]),
        json(&["report", &slow, "--by", "comm,size,func"]),
        json(&["report", &slow, "--by", "channel"]),
        json(&["diagnose", &hung]),
        json(&["stragglers", &slow]),
        json(&["compare", &slow, &slow]),
        json(&["top", &hung, "--once", "--interval", "0.2"]),
        heads(&["report", &slow]),
        heads(&["report", &slow, "--by", "comm,size"]),
        heads(&["diagnose", &hung]),
        heads(&["stragglers", &slow]),
        heads(&["compare", &slow, &slow]),
        figures_of(Path::new(&html)),
        figures_of(Path::new(&compared)),
    ];
    for file in [trace, format!("{hung}/truth.json")] {
        documents.push(parsed(&file, &fs::read_to_string(&file).unwrap()));
    }
    let retired = Retired::read();
    for (name, keys) in &documents {
        assert!(keys.len() > 3, "{name}: {keys:?}");
        assert_eq!(retired.among(keys), Vec::<&String>::new(), "{name}");
    }
}

/// The schemas also cover output that no simulated run prints, such as that of `ls`.
#[test]
fn no_schema_has_a_retired_name() {
    let retired = Retired::read();
    let files: Vec<PathBuf> =
        fs::read_dir(docs("schemas")).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let schema: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let mut keys = BTreeSet::new();
        add_properties(&schema, &mut keys);
        assert!(keys.len() > 10, "{}: {keys:?}", file.display());
        assert_eq!(retired.among(&keys), Vec::<&String>::new(), "{}", file.display());
    }
}

fn add_properties(schema: &Value, keys: &mut BTreeSet<String>) {
    keys.extend(schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone()));
    match schema {
        Value::Object(fields) => fields.values().for_each(|inner| add_properties(inner, keys)),
        Value::Array(values) => values.iter().for_each(|inner| add_properties(inner, keys)),
        _ => {}
    }
}

/// All verbs that report a slow link have the bandwidth of a transfer under one name.
#[test]
fn the_bandwidth_of_a_transfer_has_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").to_str().unwrap().to_owned();
    let job = ["simulate", "--ranks", "16", "--fault", "slow-link", "--seed", "1", "-o", &run];
    ncclscope(&job).ends_with(0);
    let json = |verb: &str| -> Value {
        serde_json::from_str(&printed(&[verb, &run, "--format", "json"])).unwrap()
    };
    let (report, slow) = (json("report"), json("stragglers"));
    let finding = &slow["findings"][0];
    let figures = &finding["evidence"][0]["figures"];
    let [of, others] = ["transfer_gbs", "others_transfer_gbs"].map(|key| figures[key].as_f64());
    assert!(of.unwrap() * 3.0 < others.unwrap(), "{finding}");
    let peers = report["peers"].as_array().unwrap();
    let is_it = |row: &&Value| [&row["src"], &row["dst"]] == [0, 1].map(|at| &finding["edge"][at]);
    let rate = peers.iter().filter(is_it).find_map(|row| row["transfer_gbs"].as_f64()).unwrap();
    assert!((rate / of.unwrap() - 1.0).abs() < 0.2, "{rate} {finding}");
    let page = dir.path().join("page.html");
    printed(&["report", &run, "--html", page.to_str().unwrap()]);
    let (_, keys) = figures_of(&page);
    assert!(keys.contains("transfer_gbs") && !keys.contains("gbs"), "{keys:?}");
}

/// Column heads for people are the words that the glossary lists for these quantities, and no
/// others.
#[test]
fn heads_of_tables_are_those_of_the_glossary() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").to_str().unwrap().to_owned();
    ncclscope(&["simulate", "--ranks", "16", "--fault", "healthy", "-o", &run]).ends_with(0);
    let text = fs::read_to_string(docs("glossary.md")).unwrap();
    let (_, table) = text.split_once("| head | name |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let heads = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split(','));
    let heads: BTreeSet<&str> = heads.map(str::trim).collect();
    let full = printed(&["report", &run, "--full", "--wide"]);
    let by = printed(&["report", &run, "--by", "func,size"]);
    for (text, head) in [(&full, "src"), (&full, "dst"), (&full, "function"), (&by, "function")] {
        assert!(heads.contains(head), "{head}: {heads:?}");
        let has = |line: &str| line.split_whitespace().any(|word| word == head);
        assert!(text.lines().any(has), "{head}: {text}");
    }
    let is_old = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.starts_with(&["comm", "role", "from"]) || words.starts_with(&["func"])
    };
    assert!(!full.lines().chain(by.lines()).any(|line| is_old(&line)), "{full}{by}");
}

#[test]
fn a_retired_name_is_found() {
    let retired = Retired::read();
    let keys = ["algorithm", "algo", "age_s", "age_ns", "operations_per_s", "per_s", "late_ms"];
    let keys: BTreeSet<String> = keys.map(str::to_owned).into();
    assert_eq!(retired.among(&keys), ["age_s", "algo", "late_ms"]);
    let nested = serde_json::json!({"rows": [{"op": {"size": "64 KiB"}}], "key": "a.proto"});
    assert_eq!(retired.among(&keys_of(&nested)), ["proto", "size"]);
}
