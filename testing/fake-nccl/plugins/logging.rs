// SPDX-License-Identifier: Apache-2.0
//! Builds `logging.c` and compares its logs. Included by several tests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the plugin of an API version.
pub(crate) fn build(version: usize, folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fake-nccl/plugins/logging.c");
    let path = folder.join(format!("liblogging{version}.so"));
    let mut cc = Command::new("cc");
    cc.arg(format!("-DAPI={version}")).args(["-shared", "-fPIC", "-pthread", "-o"]);
    cc.arg(&path).arg(&source);
    assert!(cc.status().expect("there is a C compiler").success(), "{cc:?}");
    path
}

/// The log of the plugin of this version, if `CHAINED_LOG` was `path`.
pub(crate) fn read(path: &Path, version: usize) -> String {
    let path = path.with_extension(format!("v{version}"));
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Each event with its own callbacks in order, and its parent as its chain of ancestors. The result
/// is the same for two logs whose threads interleave differently.
pub(crate) fn events(log: &str) -> Vec<String> {
    let mut names: HashMap<&str, String> = HashMap::from([("-", "-".into()), ("?", "?".into())]);
    let mut events: HashMap<&str, String> = HashMap::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "start" {
            let mut name = words[2].to_owned();
            for word in &words[3..] {
                let text = match word.split_once('=') {
                    Some(("parent" | "group", id)) => format!(" ({})", names[id]),
                    _ => format!(" {word}"),
                };
                name.push_str(&text);
            }
            names.insert(words[1], name.clone());
            events.insert(words[1], name);
        } else if let Some(event) = words.get(1).and_then(|id| events.get_mut(id)) {
            event.push_str(&format!("; {} {}", words[0], words[2..].join(" ")));
        }
    }
    let mut events: Vec<String> = events.into_values().collect();
    events.sort();
    events
}
