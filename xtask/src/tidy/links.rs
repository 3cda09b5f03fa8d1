// SPDX-License-Identifier: Apache-2.0
//! Relative links of Markdown pages, whose file and heading must exist, and the files that pages of
//! docs/howto name without a link.

use std::collections::BTreeSet;

use super::violation::Violation;

/// Checks the links of the page at `path`; `paths` are all files of the repository.
pub(super) fn check(path: &str, text: &str, paths: &BTreeSet<String>) -> Vec<Violation> {
    let read = |target: &str| std::fs::read_to_string(target).unwrap_or_default();
    check_with(path, text, paths, read)
}

fn check_with(
    path: &str,
    text: &str,
    paths: &BTreeSet<String>,
    read: impl Fn(&str) -> String,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for (line, link) in links(text) {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = resolve(path, file);
        let problem = if file.is_empty() || paths.contains(&target) {
            let page = if file.is_empty() { text.into() } else { read(&target) };
            let missing = target.ends_with(".md") && !heading.is_empty() && !has(&page, heading);
            missing.then(|| format!("link to `{link}`: no heading `#{heading}` there"))
        } else {
            let folder = format!("{}/", target.trim_end_matches('/'));
            let exists = target.is_empty() || paths.iter().any(|path| path.starts_with(&folder));
            (!exists).then(|| format!("link to `{link}`: no such file in the repository"))
        };
        found.extend(problem.map(|problem| Violation::new(path, line, problem)));
    }
    if path.starts_with("docs/howto/") {
        found.extend(unknown_files(path, text, paths));
    }
    found
}

/// The files that a page names as code and that do not exist in the repository. A name without a
/// folder matches any file, because a link before it may name the folder.
fn unknown_files(path: &str, text: &str, paths: &BTreeSet<String>) -> Vec<Violation> {
    let top = |word: &str| {
        let folder = word.split_once('/').map(|(folder, _)| format!("{folder}/"));
        folder.is_some_and(|folder| paths.iter().any(|path| path.starts_with(&folder)))
    };
    let exists = |word: &str| {
        let folder = format!("{}/", word.trim_end_matches('/'));
        let end = format!("/{word}");
        paths.contains(word)
            || paths.iter().any(|path| path.starts_with(&folder))
            || !top(word) && paths.iter().any(|path| path.ends_with(&end))
    };
    let mut found = Vec::new();
    for (line, text) in prose(text) {
        let code = text.split('`').skip(1).step_by(2);
        for word in code.flat_map(|code| code.split(' ')).filter(|word| top(word) || is_file(word))
        {
            if !exists(word) {
                let message = format!("`{word}`: no such file in the repository");
                found.push(Violation::new(path, line, message));
            }
        }
    }
    found
}

/// True if a word of code looks like a file of a kind that the repository has.
fn is_file(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let ending = word.rsplit_once('.').map_or("", |(_, ending)| ending);
    word.chars().all(plain)
        && ["c", "h", "json", "md", "prom", "py", "rs", "toml"].contains(&ending)
}

/// The relative links of a page with line numbers: `[text](link)` and `[name]: link`.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Text between backquotes is code, in which brackets are no links.
        for part in line.split('`').step_by(2) {
            let inline = part.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
            let reference = part
                .strip_prefix('[')
                .and_then(|rest| rest.split_once("]: "))
                .and_then(|(_, link)| link.split_whitespace().next());
            found.extend(inline.chain(reference).map(|link| (number, link)));
        }
        // A link whose text is code is split from its target above.
        let code_text = line.split("`](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        found.extend(code_text.map(|link| (number, link)));
    }
    found.retain(|(_, link)| !link.contains("://") && !link.starts_with("mailto:"));
    found.sort_unstable();
    found.dedup();
    found
}

/// The lines outside of fenced code, with line numbers.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((index + 1, line))
    })
}

/// `link` as a path from the repository root, resolved from the page at `from`.
fn resolve(from: &str, link: &str) -> String {
    if link.is_empty() {
        return from.into();
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if link.starts_with('/') {
        parts.clear();
    }
    for part in link.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." && parts.last().is_some_and(|last| *last != "..") {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// True if the page has the heading, by the anchor that forges derive from it, or an `id` of that
/// name.
fn has(page: &str, anchor: &str) -> bool {
    let slug = |heading: &str| -> String {
        let kept = heading.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    page.contains(&format!("id=\"{anchor}\""))
        || prose(page)
            .any(|(_, line)| line.starts_with('#') && slug(line.trim_start_matches('#')) == anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Vec<usize> {
        let paths = ["README.md", "docs/a.md", "docs/deep/b.md", "LICENSE"];
        let paths = paths.map(String::from).into_iter().collect();
        let read = |_: &str| "# Top\n```\n# not one\n```\n## The `x`: a, b\n".to_owned();
        let found = check_with("docs/a.md", text, &paths, read);
        found.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn links_that_resolve() {
        for text in [
            "[a](a.md) [b](deep/b.md) [r](../README.md \"title\") ![i](../LICENSE)",
            "[folder](deep) [folder](deep/) [root](/README.md) [up](..)",
            "[h](deep/b.md#the-x-a-b) [own](#here)\n# Here",
            "[ref]: ../README.md",
            "[web](https://example.org/x.md) [mail](mailto:a@example.org)",
            "`[code](x.md)`\n```\n[code](x.md)\n```",
        ] {
            assert!(broken(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn files_that_how_to_pages_name() {
        let paths = ["crates/a/src/lib.rs", "docs/a.md"].map(String::from).into_iter().collect();
        let lines = |text: &str| -> Vec<usize> {
            let found = check_with("docs/howto/x.md", text, &paths, |_| String::new());
            found.iter().map(|violation| violation.line).collect()
        };
        let text = "`crates/a/src/lib.rs`, `lib.rs`, `src/`, `crates/a`, `make > docs/a.md`, `a/b`";
        assert!(lines(text).is_empty());
        assert_eq!(lines("`crates/b`\n`src/lib.py`\n`run > docs/b.md`\nb.rs"), [1, 2, 3]);
        assert!(broken("`docs/b.md`").is_empty(), "of other pages only links are looked at");
    }

    #[test]
    fn links_that_do_not() {
        assert_eq!(broken("x\n[a](b.md)"), [2]);
        assert_eq!(broken("[a](a.md) and [r](README.md)"), [1]);
        assert_eq!(broken("[`code`](x.md)"), [1]);
        assert_eq!(broken("[ref]: x.md"), [1]);
        assert_eq!(broken("[out](../../README.md)"), [1]);
        assert_eq!(broken("[h](deep/b.md#not-one)\n[own](#gone)"), [1, 2]);
    }
}
