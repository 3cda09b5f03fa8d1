// SPDX-License-Identifier: Apache-2.0
/*!
Inside a crate, modules use one another one way: types below, what works on them above.

A module uses another where a path in its code (tests apart) leads there: `crate::`, `super::` or
`self::`, or the name of a module in it. What a module only re-exports from modules in it does not
count. A path to an item that the root re-exports leads to the module that has the item.
*/

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, is_test_file};
use super::violation::Violation;
use crate::outcome::Outcome;

/// Modules by name (`a::b`; that of the root is empty), each with the modules that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The re-exports of a crate's root: the module of each name.
type Face = BTreeMap<String, String>;

pub(super) fn check(paths: &BTreeSet<String>) -> Outcome<Vec<Violation>> {
    let mut crates: BTreeMap<&str, BTreeMap<String, &str>> = BTreeMap::new();
    for path in paths.iter().filter(|path| path.ends_with(".rs") && !is_test_file(path)) {
        let Some((folder, file)) = path.split_once("/src/") else { continue };
        if !file.starts_with("bin/") {
            // `lib.rs` comes before `main.rs`.
            crates.entry(folder).or_default().entry(module(file)).or_insert(path);
        }
    }
    let mut found = Vec::new();
    for (folder, modules) in &crates {
        let names: BTreeSet<&str> = modules.keys().map(String::as_str).collect();
        let read = |path: &str| std::fs::read_to_string(path).map(|text| Source::new(path, text));
        let face = match modules.get("") {
            Some(root) => face(&read(root)?, &names),
            None => Face::new(),
        };
        let mut uses = Uses::new();
        for (name, path) in modules {
            uses.insert(name.clone(), used(name, &read(path)?, &names, &face));
        }
        for circle in circles(&uses) {
            let message = format!(
                "modules that use each other: {}; move what both need below them",
                circle.join(", ")
            );
            let first = circle.first().and_then(|name| modules.get(*name));
            found.push(Violation::new(first.unwrap_or(folder), 1, message));
        }
    }
    Ok(found)
}

/// The module that a file under `src` holds.
fn module(file: &str) -> String {
    let path = file.trim_end_matches(".rs");
    let path = ["mod", "lib", "main"].iter().find_map(|root| path.strip_suffix(root)).map_or(
        path,
        // `a/lib` and `a/grammod` are modules of their own.
        |rest| {
            if rest.is_empty() || rest.ends_with('/') { rest.trim_end_matches('/') } else { path }
        },
    );
    path.replace('/', "::")
}

/// The re-exports of a root with this code from its modules.
fn face(root: &Source, modules: &BTreeSet<&str>) -> Face {
    let mut face = Face::new();
    for at in root.words("use").filter(|&at| is_re_export(&root.code[..at + "use".len()])) {
        let code = root.code[at + "use".len()..].trim_start();
        for path in expand(code) {
            let module = resolve(&[], &path, modules);
            if let Some(item) = path.last().filter(|_| !module.is_empty()) {
                face.insert((*item).to_owned(), module);
            }
        }
    }
    face
}

/// The modules that module `name` with the code `source` uses.
fn used(name: &str, source: &Source, modules: &BTreeSet<&str>, face: &Face) -> BTreeSet<String> {
    let here: Vec<&str> = name.split("::").filter(|part| !part.is_empty()).collect();
    let children = modules.iter().filter_map(|module| match module.rsplit_once("::") {
        Some((parent, child)) => (parent == name).then_some(child),
        None => (name.is_empty() && !module.is_empty()).then_some(*module),
    });
    let mut found = BTreeSet::new();
    for first in ["crate", "super", "self"].into_iter().chain(children) {
        for at in source.words(first).filter(|&at| !source.in_test(at)) {
            let before = source.code[..at].trim_end();
            if before.ends_with("::") || !source.code[at + first.len()..].starts_with("::") {
                continue;
            }
            for path in expand(&source.code[at..]) {
                let mut to = resolve(&here, &path, modules);
                let item = path.iter().find(|part| !matches!(**part, "crate" | "super" | "self"));
                if to.is_empty()
                    && let Some(module) = item.and_then(|item| face.get(*item))
                {
                    to.clone_from(module);
                }
                let is_within = name.is_empty() || to.starts_with(&format!("{name}::"));
                if to != name && !(is_within && is_re_export(before)) {
                    found.insert(to);
                }
            }
        }
    }
    found
}

/// True if the text before a path makes it a `pub use`.
fn is_re_export(before: &str) -> bool {
    let visibility = before.strip_suffix("use").map(str::trim_end);
    visibility.is_some_and(|text| text.ends_with("pub") || text.ends_with(')'))
}

/// The paths at the start of `code`: several if it is a group.
fn expand(code: &str) -> Vec<Vec<&str>> {
    let end = code.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(code.len());
    let (word, rest) = code.split_at(end);
    let Some(rest) = rest.strip_prefix("::") else { return vec![vec![word]] };
    let tails = match rest.strip_prefix('{') {
        Some(group) => items(group).into_iter().flat_map(expand).collect(),
        None => expand(rest),
    };
    let with_word = |tail: Vec<_>| std::iter::once(word).chain(tail).collect();
    tails.into_iter().map(with_word).collect()
}

/// The items of a group, up to its closing bracket.
fn items(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0_u32, 0, Vec::new());
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => {
                items.push(group[start..at].trim());
                start = at + 1;
                if byte == b'}' {
                    break;
                }
            }
            _ => {}
        }
    }
    items.retain(|item| !item.is_empty());
    items
}

/// The module that a path leads to, resolved from `here`.
fn resolve(here: &[&str], path: &[&str], modules: &BTreeSet<&str>) -> String {
    let mut at = here.to_vec();
    let mut rest = path;
    match path.first() {
        Some(&"crate") => {
            at.clear();
            rest = &path[1..];
        }
        Some(&"self") => rest = &path[1..],
        _ => {}
    }
    for part in rest {
        if *part == "super" {
            at.pop();
        } else if *part != "self" {
            at.push(part);
            if !modules.contains(at.join("::").as_str()) {
                at.pop();
                break;
            }
        }
    }
    at.join("::")
}

/// Groups of modules in which each module uses all others, directly or indirectly.
fn circles(uses: &Uses) -> Vec<Vec<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|module| (module.as_str(), reach(module, uses))).collect();
    let mut found: Vec<Vec<&str>> = Vec::new();
    for (module, reaches) in &reached {
        if found.iter().any(|circle| circle.contains(module)) {
            continue;
        }
        let is_back = |other: &&&str| reached[**other].contains(module);
        let circle: Vec<&str> = reaches
            .iter()
            .filter(|other| reached.contains_key(**other))
            .filter(is_back)
            .copied()
            .collect();
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

fn reach<'a>(from: &str, uses: &'a Uses) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = uses.get(from).into_iter().flatten().map(String::as_str).collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(uses.get(module).into_iter().flatten().map(String::as_str));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(name: &str, code: &str) -> Vec<String> {
        let modules = BTreeSet::from(["", "a", "a::b", "a::c", "d"]);
        let face = Face::from([("T".into(), "d".into())]);
        used(name, &Source::new("x/src/x.rs", code.into()), &modules, &face).into_iter().collect()
    }

    #[test]
    fn paths_lead_to_modules() {
        assert_eq!(uses("a::b", "use crate::d::T; fn f() { super::c::g() }"), ["a::c", "d"]);
        assert_eq!(uses("a::b", "use crate::{a::{c::T, X}, d, Y};"), ["", "a", "a::c", "d"]);
        assert_eq!(uses("a::b", "use super::super::d::{self, T};"), ["d"]);
        assert_eq!(uses("a", "mod b; use b::T; pub use c::U;"), ["a::b"]);
        assert_eq!(uses("a", "pub(crate) use self::c::U; fn f() { c::f() }"), ["a::c"]);
        assert_eq!(
            uses("d", "pub use crate::a::T; #[cfg(test)] mod tests { use super::a::b; }"),
            ["a"]
        );
        assert_eq!(uses("a", "use crate::{T, U}; use super::V;"), ["", "d"]);
        assert_eq!(uses("d", "// crate::a\nfn f() { std::a::b() }"), [""; 0]);
    }

    #[test]
    fn a_root_shows_what_its_modules_have() {
        let modules = BTreeSet::from(["", "a", "a::b", "d"]);
        let code = "pub use a::{T, b::U}; use d::V; pub use std::W; pub(crate) use d::X;";
        let face = face(&Source::new("x/src/lib.rs", code.into()), &modules);
        let found: Vec<_> = face.iter().map(|(item, at)| (item.as_str(), at.as_str())).collect();
        assert_eq!(found, [("T", "a"), ("U", "a::b"), ("X", "d")]);
    }

    #[test]
    fn modules_of_files() {
        let names = ["lib.rs", "main.rs", "a.rs", "a/mod.rs", "a/b.rs", "gram_mod.rs"].map(module);
        assert_eq!(names, ["", "", "a", "a", "a::b", "gram_mod"]);
    }

    #[test]
    fn what_leads_back_is_a_circle() {
        let pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")];
        let mut uses: Uses =
            ["a", "b", "c", "d", "e"].map(|m| (m.to_owned(), BTreeSet::new())).into();
        for (from, to) in pairs {
            uses.get_mut(from).expect("it is there").insert(to.to_owned());
        }
        assert_eq!(circles(&uses), [["a", "b", "c"]]);
        uses.remove("b");
        assert!(circles(&uses).is_empty());
    }
}
