// SPDX-License-Identifier: Apache-2.0
//! The JSON of nccl-tests (option `-J`, `JSON_FILE_VERSION` 1 and 2 of `src/util.cu`).

use super::made::{Invocation, Made, Row, function, version};
use ncclscope_trace::open_to_read;
use serde::Deserialize;
use serde_json::Value;
use std::io::BufReader;
use std::path::Path;

/// Maximum size of a file, bytes: it has one row for each size.
const MAX: u64 = 256 << 20;

#[derive(Deserialize)]
struct Output {
    #[serde(default)]
    args: Vec<String>,
    nccl_version: Option<u64>,
    config: Option<Config>,
    #[serde(default)]
    results: Vec<Size>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    devices: Vec<Device>,
    iterations: Option<u64>,
    warmup_iters: Option<u64>,
}

#[derive(Deserialize)]
struct Device {
    rank: u32,
    hostname: Option<String>,
}

#[derive(Deserialize)]
struct Size {
    size: u64,
    #[serde(default, rename = "type")]
    datatype: String,
    #[serde(default)]
    redop: String,
    #[serde(default)]
    root: String,
    out_of_place: Option<Place>,
    in_place: Option<Place>,
}

#[derive(Deserialize)]
struct Place {
    /// Mean time of an iteration, us; text if it is not a number.
    #[serde(alias = "cpu_time", default)]
    time: Value,
    #[serde(default)]
    nwrong: Value,
}

/// Whether a file that begins with this text is such a file.
pub(super) fn starts_as(text: &str) -> bool {
    text.starts_with("{\"version\":") && text.contains("\"args\":[")
}

/// Reads the rows of a file.
pub(super) fn read(path: &Path, made: &mut Made) -> Result<(), String> {
    let file = open_to_read(path).map_err(|error| error.to_string())?;
    if file.metadata().map_err(|error| error.to_string())?.len() > MAX {
        return Err(format!("it is larger than {} MiB", MAX >> 20));
    }
    let output: Output = serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        if error.is_eof() { "it ends in the middle".to_owned() } else { error.to_string() }
    })?;
    let mut of = Invocation {
        func: output.args.first().and_then(|program| function(program.rsplit('/').next()?)),
        ..Invocation::default()
    };
    let code = output.nccl_version.and_then(|code| version(&code.to_string()));
    of.facts.extend(code.map(|version| ("nccl", version)));
    if let Some(config) = output.config {
        let count = |number: Option<u64>| number.map_or_else(|| "?".into(), |n| n.to_string());
        let (warmup, iterations) = (count(config.warmup_iters), count(config.iterations));
        let options = format!("warmup iters: {warmup} iters: {iterations}");
        of.facts.push(("nccl-tests iterations", options));
        for Device { rank, hostname } in config.devices {
            of.ranks = of.ranks.max(rank.saturating_add(1));
            *of.hosts.entry(hostname.unwrap_or_default()).or_default() += 1;
        }
    }
    for row in output.results {
        let root = row.root.trim();
        let places = [("out-of-place", row.out_of_place), ("in-place", row.in_place)];
        for (place, Place { time, nwrong }) in
            places.into_iter().filter_map(|(place, of)| Some((place, of?)))
        {
            let Some(us) = time.as_f64().filter(|us| *us >= 0.0) else { continue };
            let row = Row {
                bytes: row.size,
                datatype: row.datatype.clone(),
                redop: if row.redop == "none" { String::new() } else { row.redop.clone() },
                root: if ["", "-1"].contains(&root) {
                    String::new()
                } else {
                    format!("root {root}")
                },
                place,
                us,
                is_wrong: nwrong.as_f64().is_some_and(|wrong| wrong != 0.0),
            };
            made.add(&of, &row);
        }
    }
    Ok(())
}
