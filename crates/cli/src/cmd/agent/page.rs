// SPDX-License-Identifier: Apache-2.0
//! The pages that the agent serves: the latest Prometheus text and the latest vectors.

use hyper::body::Bytes;
use ncclscope_trace::vectors::{self, Table};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The served content, shared by all clones.
#[derive(Clone, Debug, Default)]
pub(super) struct Page(Arc<Mutex<Latest>>);

/// The content; `None` until the recordings have been read once.
#[derive(Debug, Default)]
struct Latest {
    text: Option<Bytes>,
    vectors: Option<Arc<Table>>,
}

impl Page {
    pub(super) fn set(&self, text: &str) {
        self.lock().text = Some(Bytes::copy_from_slice(text.as_bytes()));
    }

    /// Sets the text if there is none yet.
    pub(super) fn begin(&self, text: impl FnOnce() -> String) {
        self.lock().text.get_or_insert_with(|| text().into());
    }

    pub(super) fn set_vectors(&self, table: Table) {
        self.lock().vectors = Some(Arc::new(table));
    }

    /// The text; `None` until there is one.
    pub(super) fn text(&self) -> Option<Bytes> {
        self.lock().text.clone()
    }

    /// The table of vectors, limited to `job` if given; `None` until there is one.
    pub(super) fn vectors(&self, job: Option<String>) -> Option<Bytes> {
        let table = self.lock().vectors.clone()?;
        let Some(job) = job else {
            return Some(vectors::table(&table.vectors, &table.jobs).into());
        };
        let is_it = |name: &str| name == job;
        let jobs: BTreeMap<u64, String> = table
            .jobs
            .iter()
            .filter(|(_, name)| is_it(name))
            .map(|(a, b)| (*a, b.clone()))
            .collect();
        let of: Vec<_> =
            table.vectors.iter().filter(|v| jobs.contains_key(&v.job)).copied().collect();
        Some(vectors::table(&of, &jobs).into())
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_trace::vectors::Vector;

    #[test]
    fn vectors_of_one_job_are_given_on_request() {
        let page = Page::default();
        assert_eq!(page.vectors(None), None);
        let of = |job| Vector { job, ..Vector::default() };
        let jobs = BTreeMap::from([(1, "a".to_owned()), (2, "b".to_owned()), (3, "a".to_owned())]);
        let table = Table { vectors: vec![of(1), of(2), of(3), of(0)], jobs, ..Table::default() };
        page.set_vectors(table.clone());
        let read = |job: Option<&str>| {
            vectors::read_table(&page.vectors(job.map(str::to_owned)).unwrap()).unwrap()
        };
        assert_eq!(read(None), table);
        assert_eq!(read(Some("a")).vectors, [of(1), of(3)]);
        assert_eq!(read(Some("b")).jobs, BTreeMap::from([(2, "b".to_owned())]));
        assert_eq!(read(Some("none")), Table::default());
    }
}
