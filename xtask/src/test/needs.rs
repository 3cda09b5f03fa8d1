// SPDX-License-Identifier: Apache-2.0
//! Requirements of some tests that a machine may lack. Without them, these tests print that they
//! are skipped and pass, and such lines are easily missed among a thousand others. `cargo xtask
//! test` therefore ends with a list of them. With `--with` it installs what is missing first, and
//! the tests fail without it.

use clap::ValueEnum;

use crate::outcome::Outcome;
use crate::{process, python};

/// What `--with` installs.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum With {
    /// PyTorch releases (14 GB)
    Torch,
    /// Debian's chromium and npm, for axe-core
    Browser,
    /// Debian's Prometheus and node exporter
    Prometheus,
    /// Debian's tmux
    Tmux,
}

/// A requirement of tests besides what `cargo xtask test` fetches itself.
struct Need {
    what: &'static str,
    with: Option<With>,
    /// Commands that must succeed.
    probes: &'static [&'static [&'static str]],
    /// The Debian packages that provide it.
    packages: &'static [&'static str],
    /// The command with which a person adds it.
    add: &'static str,
}

const NEEDS: &[Need] = &[
    Need {
        what: "a browser",
        with: Some(With::Browser),
        probes: &[&["chromium", "--version"]],
        packages: &["chromium"],
        add: "cargo xtask test --with browser",
    },
    Need {
        what: "npm",
        with: Some(With::Browser),
        probes: &[&["npm", "--version"]],
        packages: &["npm"],
        add: "cargo xtask test --with browser",
    },
    Need {
        what: "Prometheus",
        with: Some(With::Prometheus),
        probes: &[
            &["prometheus", "--version"],
            &["promtool", "--version"],
            &["prometheus-node-exporter", "--version"],
        ],
        packages: &["prometheus", "prometheus-node-exporter"],
        add: "cargo xtask test --with prometheus",
    },
    Need {
        what: "tmux",
        with: Some(With::Tmux),
        probes: &[&["tmux", "-V"]],
        packages: &["tmux"],
        add: "cargo xtask test --with tmux",
    },
    Need {
        what: "recordings of real GPU jobs",
        with: None,
        probes: &[&["test", "-d", "../shared/data"]],
        packages: &[],
        add: "put the project's shared/data beside the clone",
    },
    Need {
        what: "the right to mount in a namespace",
        with: None,
        probes: &[&[
            "unshare",
            "--map-root-user",
            "--mount",
            "mount",
            "-t",
            "tmpfs",
            "none",
            "/tmp",
        ]],
        packages: &[],
        add: "sysctl kernel.unprivileged_userns_clone=1 (in a container: --cap-add SYS_ADMIN)",
    },
];

impl With {
    /// Installs it if it is missing. Returns the variable without which tests may be skipped.
    pub(super) fn install(self) -> Outcome<&'static str> {
        for need in NEEDS.iter().filter(|need| need.with == Some(self) && !need.is_met()) {
            need.install()?;
        }
        Ok(match self {
            Self::Torch => {
                python::torch()?;
                "NCCLSCOPE_REQUIRE_TORCH"
            }
            Self::Browser => "NCCLSCOPE_REQUIRE_BROWSER",
            Self::Prometheus => "NCCLSCOPE_REQUIRE_PROM",
            Self::Tmux => "NCCLSCOPE_REQUIRE_TMUX",
        })
    }
}

impl Need {
    fn is_met(&self) -> bool {
        self.probes.iter().all(|words| runs(words))
    }

    /// Installs the packages; updates apt's package list if apt does not know them.
    fn install(&self) -> Outcome<()> {
        let apt = |words: &[&str]| {
            let mut apt = process::command(&["apt-get", "--quiet", "--yes"]);
            process::check(apt.args(words).env("DEBIAN_FRONTEND", "noninteractive"))
        };
        let install = [&["install", "--no-install-recommends"], self.packages].concat();
        apt(&install).or_else(|_| {
            apt(&["update"])?;
            apt(&install)
        })?;
        if self.is_met() { Ok(()) } else { Err(format!("{} does not run", self.what).into()) }
    }
}

/// The lines to print: one for each missing requirement. `torches` are the missing environments of
/// PyTorch.
pub(super) fn lines(torches: &[&str]) -> Vec<String> {
    let torch = (!torches.is_empty()).then(|| {
        line(&format!("PyTorch ({})", torches.join(", ")), "cargo xtask test --with torch")
    });
    let needs = NEEDS.iter().filter(|need| !need.is_met());
    let mut lines: Vec<String> =
        torch.into_iter().chain(needs.map(|need| line(need.what, need.add))).collect();
    if !lines.is_empty() {
        lines.insert(0, "left out: tests that need what is not on this machine".into());
    }
    lines
}

fn line(what: &str, add: &str) -> String {
    format!("  {what}; to add it: {add}")
}

fn runs(words: &[&str]) -> bool {
    process::stdout(&mut process::command(words)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_torch_is_named_with_its_command() {
        let lines = lines(&["torch-venv", "torch28-venv"]);
        assert!(lines[0].starts_with("left out"), "{lines:?}");
        let torch =
            "  PyTorch (torch-venv, torch28-venv); to add it: cargo xtask test --with torch";
        assert_eq!(lines[1], torch);
    }

    #[test]
    fn a_program_that_is_not_there_or_fails_is_missing() {
        assert!(runs(&["true"]));
        assert!(!runs(&["false"]) && !runs(&["/nonexistent/tool"]));
    }
}
