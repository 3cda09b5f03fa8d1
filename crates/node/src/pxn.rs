// SPDX-License-Identifier: Apache-2.0
//! Assigns what proxy threads did for other processes of the node (PXN) to those processes.

use crate::process::Process;
use ncclscope_metrics::Foreign;
use ncclscope_trace::Detail;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The followed processes by the paths of their recordings.
type Processes = BTreeMap<PathBuf, Process>;

/// Assigns what was read since the last call to the processes to which it belongs. Work for
/// processes that are not followed stays with the process that did it.
pub(crate) fn join(processes: &mut Processes) {
    let paths: Vec<PathBuf> = processes.keys().cloned().collect();
    for path in paths {
        let foreign = processes.get_mut(&path).map(Process::take_foreign).unwrap_or_default();
        let source = number(&path);
        let mut owners: BTreeMap<(u32, u64), Option<PathBuf>> = BTreeMap::new();
        for one in foreign {
            let Some(of) = named(&one) else { continue };
            let owner = owners.entry(of).or_insert_with(|| owner(processes, &path, of));
            if let Some(owner) = owner.as_ref().and_then(|owner| processes.get_mut(owner)) {
                owner.adopt(source, &one);
            } else if let Some(process) = processes.get_mut(&path) {
                process.keep(&one);
            }
        }
    }
}

/// How a ProxyOp names its process: by process id and by the process bits of its handles.
fn named(foreign: &Foreign) -> Option<(u32, u64)> {
    let Detail::ProxyOp(op) = foreign.start.detail else { return None };
    Some((op.pid, foreign.start.parent.process()))
}

/// The only process on the same machine with this id and these bits that is not over; `None` if
/// ambiguous.
fn owner(processes: &Processes, from: &Path, (pid, bits): (u32, u64)) -> Option<PathBuf> {
    let (machine, clock, _) = processes.get(from)?.place();
    let mut fits = processes.iter().filter(|(path, process)| {
        process.place() == (machine, clock, pid)
            && (bits == 0 || bits == process.process_bits())
            && process.over().is_none()
            && path.as_path() != from
    });
    let (owner, _) = fits.next()?;
    fits.next().is_none().then(|| owner.clone())
}

/// A number that identifies a recording.
fn number(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}
