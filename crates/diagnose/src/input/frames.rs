// SPDX-License-Identifier: Apache-2.0
/*!
The line of the user's script in a stack of Python, which is all that is kept of a stack: the stacks
are most of a Flight Recorder dump.

That is the innermost frame outside of installed packages and of Python itself; without one, the
innermost frame outside of PyTorch.
*/

/// Key of the stack in an entry of a dump.
pub(super) const KEY: &str = "frames";

/// Whose code a frame is in; the user's counts most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    PyTorch,
    Package,
    User,
}

/// Picks the user's line of a stack, whose frames are added from the innermost on.
#[derive(Debug, Default)]
pub(super) struct UsersLine(Option<(Whose, String)>);

impl UsersLine {
    /// Whether the next frame counts, which is in this file.
    pub(super) fn wants(&self, whose: Whose, file: &str) -> bool {
        !file.is_empty() && self.0.as_ref().is_none_or(|(known, _)| whose > *known)
    }

    /// Adds the next frame.
    pub(super) fn add(&mut self, whose: Whose, function: &str, file: &str, line: u64) {
        if self.wants(whose, file) {
            self.0 = Some((whose, format!("{file}:{line} in {function}")));
        }
    }

    /// `FILE:LINE in FUNCTION`; `None` for an empty stack.
    pub(super) fn text(self) -> Option<String> {
        self.0.map(|(_, text)| text)
    }
}

/// Whose code a file is, by its path.
pub(super) fn whose(file: &str) -> Whose {
    // PyTorch shortens the paths of its own files.
    if file.starts_with("torch/") || file.contains("/torch/") {
        return Whose::PyTorch;
    }
    let packages = ["site-packages/", "dist-packages/", "lib/python"];
    match file.starts_with('<') || packages.iter().any(|part| file.contains(part)) {
        true => Whose::Package,
        false => Whose::User,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_line_of_the_user_is_kept() {
        let line = |frames: &[(&str, &str, u64)]| {
            let mut line = UsersLine::default();
            frames
                .iter()
                .for_each(|&(function, file, at)| line.add(whose(file), function, file, at));
            line.text()
        };
        let torch = ("all_reduce", "torch/distributed/distributed_c10d.py", 4174);
        let megatron = ("forward", "/opt/lib/python3.12/site-packages/megatron/core/p2p.py", 88);
        let user = ("step", "/home/u/train.py", 31);
        let outer = ("<module>", "/home/u/train.py", 90);
        let said = "/home/u/train.py:31 in step".to_owned();
        assert_eq!(line(&[torch, megatron, user, outer]), Some(said));
        let said = format!("{}:88 in forward", megatron.1);
        assert_eq!(line(&[torch, megatron]), Some(said));
        let said = "torch/distributed/distributed_c10d.py:4174 in all_reduce".to_owned();
        assert_eq!(line(&[torch]), Some(said));
        assert_eq!(line(&[]), None);
    }
}
