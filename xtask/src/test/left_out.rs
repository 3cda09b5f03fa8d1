// SPDX-License-Identifier: Apache-2.0
//! What some tests need and this machine does not have: those tests say that they are skipped and
//! pass, and their lines are lost among a thousand others. `cargo xtask test` ends with the list.

use crate::process;

/// What tests need besides what `cargo xtask test` fetches itself.
struct Need {
    what: &'static str,
    /// Programs that must run.
    probes: &'static [&'static [&'static str]],
    /// What a person types to add it.
    add: &'static str,
}

const NEEDS: &[Need] = &[
    Need {
        what: "a browser",
        probes: &[&["chromium", "--version"]],
        add: "apt-get install chromium",
    },
    Need {
        what: "Prometheus",
        probes: &[
            &["prometheus", "--version"],
            &["promtool", "--version"],
            &["prometheus-node-exporter", "--version"],
        ],
        add: "apt-get install prometheus prometheus-node-exporter",
    },
    Need {
        what: "the right to mount in a namespace",
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
        add: "sysctl kernel.unprivileged_userns_clone=1 (in a container: --cap-add SYS_ADMIN)",
    },
];

/// The lines to print: one for each thing that is not here, with `torches`, the environments of
/// PyTorch that are not here.
pub(super) fn lines(torches: &[&str]) -> Vec<String> {
    let torch = (!torches.is_empty())
        .then(|| line(&format!("PyTorch ({})", torches.join(", ")), "cargo xtask torch"));
    let needs = NEEDS.iter().filter(|need| !need.probes.iter().all(|words| runs(words)));
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
        let torch = "  PyTorch (torch-venv, torch28-venv); to add it: cargo xtask torch";
        assert_eq!(lines[1], torch);
    }

    #[test]
    fn a_program_that_is_not_there_or_fails_is_missing() {
        assert!(runs(&["true"]));
        assert!(!runs(&["false"]) && !runs(&["/nonexistent/tool"]));
    }
}
