// SPDX-License-Identifier: Apache-2.0
//! The files of a job together: what was read, and what is missing, in sentences.

use crate::find::Found;
use crate::read::{Collective, FileFacts, Member, MemberFacts, VERBOSE, read};
use ncclscope_operations::human::{self, count};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Maximum number of files or communicators that are named for one reason.
const NAMED: usize = 8;

/// What the files of a job hold and lack.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The files that could be read.
    pub facts: Vec<FileFacts>,
    /// Why files could not be read or are left out, one line each.
    pub unreadable: Vec<String>,
    /// Files that are copies of others, one line each.
    pub copies: Vec<String>,
}

/// Inclusive ranges of ranks, and the number of ranks of their communicator.
pub type Missing = (Vec<(u32, u32)>, u32);

impl Files {
    /// Reads all files, one after the other, and passes their collectives on, each with the number
    /// of its file in [`Files::facts`] and the position of its rank in that file.
    ///
    /// # Errors
    /// Why the first file cannot be read, if none can.
    pub fn read(
        found: &Found,
        mut take: impl FnMut((usize, usize), &Member, Collective<'_>),
    ) -> Result<Files, String> {
        let mut files = Files::default();
        let cannot = |path: &Path, why: &str| format!("cannot read {}: {why}", path.display());
        for path in &found.files {
            let file = files.facts.len();
            match read(path, &mut |at, member, one| take((file, at), member, one)) {
                Ok(facts) => files.facts.push(facts),
                Err(why) => files.unreadable.push(cannot(path, &why)),
            }
        }
        if let (true, Some(first)) = (files.facts.is_empty(), files.unreadable.first()) {
            return Err(first.clone());
        }
        files.unreadable.extend(found.empty.iter().map(|path| cannot(path, "it is empty")));
        files.copies.extend(found.copies.iter().map(|(copy, of)| {
            format!("{} is left out: it is a copy of {}", copy.display(), of.display())
        }));
        Ok(files)
    }

    /// All ranks of communicators, each with its file.
    pub fn members(&self) -> impl Iterator<Item = (&FileFacts, &MemberFacts)> {
        self.facts.iter().flat_map(|file| file.members.iter().map(move |member| (file, member)))
    }

    /// Damaged files: lines that are cut off, unreadable or without their header.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for file in &self.facts {
            let mut add = |what: String| lines.push(format!("{}: {what}", file.path.display()));
            if file.is_torn {
                add("its last line is cut off, and left out".into());
            }
            if file.unreadable > 0 {
                let first = file.first_unreadable;
                let are = human::are(file.unreadable, "line");
                add(format!("{are} not JSON of Inspector, the first is line {first}"));
            }
            if file.headless > 0 {
                let are = human::are(file.headless, "operation");
                add(format!("{are} left out: the line with their communicator is missing"));
            }
        }
        first_of(lines, "lines on damaged files")
    }

    /// The ranks of each communicator without a file, as inclusive ranges, with the number of its
    /// ranks. Communicators of which all ranks have one are left out.
    #[must_use]
    pub fn missing(&self) -> BTreeMap<&str, Missing> {
        let mut comms: BTreeMap<&str, (u32, BTreeSet<u32>)> = BTreeMap::new();
        for (_, MemberFacts { member, .. }) in self.members() {
            let (size, ranks) = comms.entry(&member.comm).or_default();
            *size = member.nranks.max(*size);
            ranks.extend(u32::try_from(member.rank));
        }
        let lacking = comms.into_iter().filter_map(|(comm, (size, ranks))| {
            let mut gaps = Vec::new();
            let mut next = 0;
            for rank in ranks.into_iter().filter(|rank| *rank < size).chain([size]) {
                if rank > next {
                    gaps.push((next, rank - 1));
                }
                next = rank + 1;
            }
            (!gaps.is_empty()).then_some((comm, (gaps, size)))
        });
        lacking.collect()
    }

    /// What is missing, in sentences: ranks without a file, files of several jobs, other formats.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let lacks = self.missing().into_iter().map(|(comm, (gaps, size))| {
            let ranks = human::list_of_ranges(&gaps, NAMED);
            format!("communicator {comm} of {}: no file of {ranks}", count(size, "rank"))
        });
        let mut lines = first_of(lacks.collect(), "communicators without all of their ranks");
        let jobs = self.groups();
        if jobs > 1 {
            lines.push(format!(
                "the files are of {jobs} groups of processes that share no communicator: they may \
                 be of several jobs"
            ));
        }
        lines
    }

    /// The sentence on what Inspector's full rings overwrote, and the variable that prevents it.
    #[must_use]
    pub fn dropped(&self) -> Option<(u64, String, &'static str)> {
        let (collectives, p2p) = (self.sum(|of| of.dropped), self.sum(|of| of.p2p_dropped));
        let advice = match p2p {
            0 => "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE, or dump more often",
            _ => {
                "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE and NCCL_INSPECTOR_DUMP_P2P_RING_SIZE, or dump \
                 more often"
            }
        };
        let what = format!(
            "{} and {} of all ranks were overwritten in Inspector's rings before it wrote them",
            count(collectives, "collective"),
            count(p2p, "point-to-point operation")
        );
        let all = collectives.saturating_add(p2p);
        (all > 0).then_some((all, what, advice))
    }

    /// What such files cannot tell, one sentence each.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        let (all, host_timed) = (self.sum(|of| of.collectives), self.sum(|of| of.host_timed));
        let mut lines = vec![
            "Inspector writes operations that ended: a hang, and what a rank does outside NCCL, \
             are not in its files; nor are channels, links and datatypes"
                .to_owned(),
            "its times are those of the longest kernel channel in whole microseconds; small \
             operations (below 8 KiB, unless NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES was set) are left \
             out"
            .into(),
        ];
        if self.members().any(|(_, of)| of.started < of.collectives) {
            lines.push(format!("when ranks called is not in the files: set {VERBOSE}"));
        }
        lines.extend(self.unnamed().map(str::to_owned));
        if self.facts.iter().any(|file| file.versions.iter().any(|version| version == "v4.0")) {
            lines.push("format v4.0 does not tell what Inspector dropped".into());
        }
        if host_timed > 0 {
            lines.push(format!(
                "{host_timed} of {} have no time by the GPU's timer: their times are not used",
                count(all, "collective")
            ));
        }
        let p2p: u64 = self.facts.iter().map(|file| file.p2p).sum();
        if p2p > 0 {
            let are = human::are(p2p, "point-to-point operation");
            lines.push(format!("{are} left out: their two sides cannot be joined"));
        }
        lines
    }

    /// The sentence on algorithms that are not named, if some are not.
    #[must_use]
    pub fn unnamed(&self) -> Option<&'static str> {
        let is_old = |version: &String| ["v4.0", "v4.1"].contains(&version.as_str());
        let mut versions = self.facts.iter().flat_map(|file| &file.versions);
        versions.any(is_old).then_some(
            "formats before v4.2 do not name algorithms: of trees and NVLS a time is the least \
             that it took",
        )
    }

    fn sum(&self, of: fn(&MemberFacts) -> u64) -> u64 {
        self.members().fold(0, |sum, (_, member)| sum.saturating_add(of(member)))
    }

    /// Number of groups of files that share communicators.
    fn groups(&self) -> usize {
        let mut groups: Vec<BTreeSet<&str>> = Vec::new();
        for file in self.facts.iter().filter(|file| !file.members.is_empty()) {
            let mut comms: BTreeSet<&str> =
                file.members.iter().map(|of| of.member.comm.as_str()).collect();
            groups.retain(|group| {
                let is_same = !group.is_disjoint(&comms);
                if is_same {
                    comms.extend(group);
                }
                !is_same
            });
            groups.push(comms);
        }
        groups.len()
    }
}

/// The first lines, and one on how many more `things` there are.
fn first_of(mut lines: Vec<String>, things: &str) -> Vec<String> {
    let more = lines.len().saturating_sub(NAMED);
    lines.truncate(NAMED);
    if more > 0 {
        lines.push(format!("and {more} more {things}"));
    }
    lines
}
