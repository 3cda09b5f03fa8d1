// SPDX-License-Identifier: Apache-2.0
//! The pages that the agent serves: the latest Prometheus text and the latest vectors.

use hyper::body::Bytes;
use ncclscope_trace::vectors::Table;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The served content, shared by all clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page(Arc<Mutex<Latest>>);

/// The content; `None` until the recordings have been read once.
#[derive(Debug, Default)]
struct Latest {
    text: Option<Bytes>,
    vectors: Option<Arc<Table>>,
}

impl Page {
    pub(crate) fn set(&self, text: &str) {
        self.lock().text = Some(Bytes::copy_from_slice(text.as_bytes()));
    }

    /// Sets the text if there is none yet.
    pub(crate) fn begin(&self, text: impl FnOnce() -> String) {
        self.lock().text.get_or_insert_with(|| text().into());
    }

    pub(crate) fn set_vectors(&self, table: Table) {
        self.lock().vectors = Some(Arc::new(table));
    }

    /// The text; `None` until there is one.
    pub(crate) fn text(&self) -> Option<Bytes> {
        self.lock().text.clone()
    }

    /// The table of vectors, limited to `job` if given; `None` until there is one.
    pub(crate) fn vectors(&self, job: Option<String>) -> Option<Bytes> {
        let table = self.lock().vectors.clone()?;
        let Some(job) = job else { return Some(table.bytes().into()) };
        let named = table.jobs.iter().filter(|(_, name)| **name == job);
        let numbers: BTreeSet<u64> = named.map(|(number, _)| *number).collect();
        Some(table.of_jobs(|number| numbers.contains(&number)).bytes().into())
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::vectors::{OpenTransfer, ProcessFacts, Vector, read_table};
    use std::collections::BTreeMap;

    #[test]
    fn vectors_of_one_job_are_given_on_request() {
        let page = Page::default();
        assert_eq!(page.vectors(None), None);
        let of = |job| Vector { job, ..Vector::default() };
        let facts = |job| ProcessFacts { job, ..ProcessFacts::default() };
        let transfer = |vector, peer| OpenTransfer { vector, peer, ..OpenTransfer::default() };
        let jobs = BTreeMap::from([(1, "a".to_owned()), (2, "b".to_owned()), (3, "a".to_owned())]);
        let table = Table {
            vectors: vec![of(1), of(2), of(3), of(0)],
            transfers: vec![transfer(0, 7), transfer(1, 8), transfer(2, 9)],
            processes: vec![facts(1), facts(2), facts(3)],
            jobs,
            ..Table::default()
        };
        page.set_vectors(table.clone());
        let read =
            |job: Option<&str>| read_table(&page.vectors(job.map(str::to_owned)).unwrap()).unwrap();
        assert_eq!(read(None), table);
        assert_eq!(read(Some("a")).vectors, [of(1), of(3)]);
        assert_eq!(read(Some("a")).transfers, [transfer(0, 7), transfer(1, 9)]);
        assert_eq!(read(Some("a")).processes, [facts(1), facts(3)]);
        assert_eq!(read(Some("b")).jobs, BTreeMap::from([(2, "b".to_owned())]));
        assert_eq!(read(Some("none")), Table::default());
    }
}
