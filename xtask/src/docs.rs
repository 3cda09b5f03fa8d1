// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask docs`: builds the site from `docs/` with mkdocs-material (`mkdocs.yml`).
//!
//! A warning of mkdocs is an error: a dead link or anchor, or a page that is missing in the
//! navigation. So is anything that a page would load from another host, because the site must be
//! readable offline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::outcome::Outcome;
use crate::{process, python};

/// The site's folder, as set in `mkdocs.yml`.
const SITE: &str = "target/site";

pub(crate) fn run() -> Outcome {
    let python = python::site()?;
    let mut mkdocs = Command::new(&python);
    // `--quiet` would drop warnings before `--strict` counts them.
    mkdocs.args(["-m", "mkdocs", "build", "--strict", "--clean"]);
    // Without this, mkdocs-material prints an advertisement for a successor as a warning.
    process::check(mkdocs.env("NO_MKDOCS_2_WARNING", "1"))?;
    let mut pages = Vec::new();
    find(Path::new(SITE), &mut pages)?;
    let mut loads = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page)?;
        loads.extend(foreign(&text).into_iter().map(|url| format!("{}: {url}", page.display())));
    }
    if !loads.is_empty() {
        return Err(format!("the site loads from other hosts:\n{}", loads.join("\n")).into());
    }
    println!("{SITE}/index.html: {} pages and styles, nothing from other hosts", pages.len());
    Ok(ExitCode::SUCCESS)
}

/// All pages and style sheets below `folder`.
fn find(folder: &Path, pages: &mut Vec<PathBuf>) -> Outcome<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html" || end == "css") {
            pages.push(path);
        }
    }
    Ok(())
}

/// The addresses on other hosts that a browser loads on its own for a page or a style sheet, which
/// links are not.
fn foreign(text: &str) -> Vec<&str> {
    let is_foreign = |url: &str| {
        let url = url.trim_start_matches(['"', '\'']);
        ["http://", "https://", "//"].iter().any(|start| url.starts_with(start))
    };
    let mut found = Vec::new();
    for start in [" src=", "url(", "@import ", " srcset=", " poster="] {
        found.extend(text.split(start).skip(1).filter(|rest| is_foreign(rest)).map(address));
    }
    for link in text.split("<link ").skip(1).filter_map(|rest| rest.split('>').next()) {
        found.extend(link.split("href=").skip(1).filter(|rest| is_foreign(rest)).map(address));
    }
    found
}

/// The address at the beginning of `rest`, without its quotes.
fn address(rest: &str) -> &str {
    let rest = rest.trim_start_matches(['"', '\'']);
    rest.split(['"', '\'', ' ', '>', ')']).next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_loads_from_other_hosts_is_found() {
        for (text, url) in [
            (r#"<script src="https://a.example/x.js"></script>"#, "https://a.example/x.js"),
            ("<img alt=x src=//a.example/x.png>", "//a.example/x.png"),
            (r#"<link rel="stylesheet" href="http://a.example/x.css">"#, "http://a.example/x.css"),
            ("@font-face{src:url(https://a.example/f.woff2)}", "https://a.example/f.woff2"),
            ("@import 'https://a.example/x.css';", "https://a.example/x.css"),
        ] {
            assert_eq!(foreign(text), [url], "{text}");
        }
    }

    #[test]
    fn links_and_files_of_the_site_are_not() {
        for text in [
            r#"<a href="https://a.example/">a</a>"#,
            r#"<link href="../x.css"><script src="x.js"></script>"#,
            r#"<img src="data:image/png;base64,">"#,
            "a{background:url(x.svg)}",
        ] {
            assert!(foreign(text).is_empty(), "{text}");
        }
    }
}
