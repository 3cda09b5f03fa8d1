// SPDX-License-Identifier: Apache-2.0
//! The memory that callbacks write to, lanes and slots, prepared ahead of need. It lies in a lanes
//! file if possible, so that it outlives a SIGKILL.

use crate::lanes::LanesFile;
use ncclscope_recorder::Recorder;
use ncclscope_recorder::lane::LaneHeader;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Number of lanes and slabs that `init` prepares itself; the drain thread prepares the rest. A
/// page costs `init` at least a microsecond. The threads of one communicator (API, proxy, host
/// callbacks, profiler) may come before the drain thread has run on a busy machine.
const FIRST_LANES: usize = 4;
/// Number of these lanes whose rings are committed in full.
const FIRST_WHOLE_LANES: usize = 2;
const FIRST_SLABS: usize = 2;
/// Free space that the lanes file system must have before lanes grow.
const HEADROOM: u64 = 4 << 20;

/// Memory of one recorder.
#[derive(Debug)]
pub(crate) struct Memory {
    recorder: &'static Recorder,
    lanes: Option<Arc<LanesFile>>,
    /// Why there is no lanes file although one was requested.
    why_private: Option<String>,
    /// Lanes whose rings are committed in full but whose pages are not present yet.
    absent: Vec<usize>,
}

impl Memory {
    /// Prepares the first lanes: in a lanes file in `folder` if possible, else private.
    ///
    /// # Errors
    /// The system's error, if there is no memory.
    pub(crate) fn reserve(
        recorder: &'static Recorder,
        folder: Option<&Path>,
        pid: u32,
        nonce: u32,
    ) -> io::Result<Memory> {
        let region = &recorder.region;
        let lanes = folder.map(|folder| LanesFile::create(folder, pid, nonce)).transpose();
        let why_private = lanes.as_ref().err().map(ToString::to_string);
        let lanes = lanes.unwrap_or_default().map(Arc::new);
        let mut memory = Memory { recorder, lanes, why_private, absent: Vec::new() };
        let reserved = match memory.room() {
            Some(file) => region.reserve(Some(file)).map_err(|error| error.to_string()),
            None => Err("it has no room for them".into()),
        };
        if let Err(why) = reserved {
            if let Some(lanes) = memory.lanes.take() {
                lanes.remove();
                memory.why_private = Some(why);
            }
            region.reserve(None)?;
        }
        memory.begin().inspect_err(|_| memory.lanes.iter().for_each(|lanes| lanes.remove()))?;
        Ok(memory)
    }

    fn begin(&mut self) -> io::Result<()> {
        let region = &self.recorder.region;
        region.grow(FIRST_LANES, FIRST_SLABS, self.room())?;
        for lane in 0..FIRST_WHOLE_LANES {
            region.complete(lane, self.room())?;
            self.absent.push(lane);
        }
        Ok(())
    }

    /// Why there is no lanes file, although one was requested.
    pub(crate) fn why_private(&self) -> Option<&str> {
        self.why_private.as_deref()
    }

    pub(crate) fn lanes(&self) -> Option<&Arc<LanesFile>> {
        self.lanes.as_ref()
    }

    /// Prepares one more piece for the threads and operations of `comms` communicators. False if
    /// there is enough already, or no room: events of further threads are then counted as lost.
    pub(crate) fn grow(&mut self, comms: u32) -> bool {
        let region = &self.recorder.region;
        // Lanes that wait for a thread are left out: their starter memory is already present.
        let is_used = |lane: &usize| region.lane_header(*lane).is_some_and(LaneHeader::in_use);
        if let Some(at) = self.absent.iter().position(is_used) {
            region.prefault(self.absent.swap_remove(at));
            return true;
        }
        let (lanes, slabs) = self.recorder.wanted(comms as usize);
        let (has_lanes, has_slabs) = (region.rings(), region.slabs());
        if lanes > has_lanes || slabs > has_slabs {
            let more = |wanted: usize, has: usize| wanted.min(has + 1);
            return region
                .grow(more(lanes, has_lanes), more(slabs, has_slabs), self.room())
                .is_ok();
        }
        let Some(lane) = self.recorder.worth_completing().next() else { return false };
        let completed = region.complete(lane, self.room()).is_ok();
        if completed {
            self.absent.push(lane);
        }
        completed
    }

    fn room(&self) -> Option<&File> {
        self.lanes.as_ref().and_then(|lanes| lanes.with_room(HEADROOM))
    }
}
