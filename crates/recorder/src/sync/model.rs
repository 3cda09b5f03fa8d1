// SPDX-License-Identifier: Apache-2.0
/*!
Shadow memory: the crate's atomics as loom sees them, for `tests/loom`.

Loom's own atomics are neither `const` nor valid when zero, so that mapped memory, statics and
memory with a fixed layout could not be modelled with them. Here an atomic keeps its layout, and
while a model runs, its address leads to one of loom's atomics. Real memory is not written during
that time: each execution begins with what the test stored before.

- Loom refuses an atomic that one thread made and another one finds. All must exist before the first
  thread starts: a model that meets an unknown address starts again, and then knows it.
- Loom 0.7 compares an access only with the last one to the same atomic. If a thread loads what it
  then stores, as producers do here, its load hides another thread's load from its store, and a
  model passes that explored one order only (`loads_do_not_hide_each_other` shows it). Each load
  therefore first makes a relaxed exchange beside the atomic: exchanges are never hidden.
- In loom no load sees what is stored later, so that it cannot find a missing *release* after loads.
  Memory that a model calls plain is instead checked for races as if it were not atomic.
*/

use super::real::{self, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::atomic as shadow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

std::thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// A predicate on addresses.
type Is = Rc<dyn Fn(usize) -> bool>;

/// The settings of a model run.
#[expect(missing_debug_implementations, reason = "closures")]
#[derive(Clone)]
pub struct Model {
    preemptions: usize,
    plain: Is,
    weak: Is,
}

impl Default for Model {
    fn default() -> Model {
        Model { preemptions: 4, plain: Rc::new(|_| false), weak: Rc::new(|_| false) }
    }
}

impl Model {
    /// Explores orders with at most this many preemptions; the default is 4.
    #[must_use]
    pub fn preemptions(self, preemptions: usize) -> Model {
        Model { preemptions, ..self }
    }

    /// Checks the memory at these addresses for data races, as if it were not atomic.
    #[must_use]
    pub fn plain(self, plain: impl Fn(usize) -> bool + 'static) -> Model {
        Model { plain: Rc::new(plain), ..self }
    }

    /// Makes all accesses to these addresses relaxed, whatever the code says. A model must fail
    /// with such a mutant, or it proves nothing.
    #[must_use]
    pub fn weak(self, weak: impl Fn(usize) -> bool + 'static) -> Model {
        Model { weak: Rc::new(weak), ..self }
    }

    /// Runs `body` in every order and returns their number. The memory that `body` uses must be
    /// static.
    ///
    /// # Panics
    /// If `body` panics, or on a data race in plain memory.
    pub fn check(self, body: impl Fn() + Send + Sync + 'static) -> usize {
        // The builder needs a `'static` body; a test runs a model only a few times.
        let body: &'static _ = Box::leak(Box::new(body));
        let mut known = BTreeMap::new();
        loop {
            let before = known.len();
            RUN.set(Some(Run {
                model: self.clone(),
                known,
                stands: HashMap::new(),
                executions: 0,
            }));
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(self.preemptions);
            builder.max_branches = 10_000;
            let result = catch_unwind(AssertUnwindSafe(|| {
                builder.check(move || {
                    with_run(Run::begin);
                    body();
                    let now = with_run(|run| run.known.len());
                    assert!(now == Some(before), "begins again, with what was learned");
                });
            }));
            let Some(run) = RUN.take() else { return 0 };
            match result {
                // An address was found that loom did not know, so that this run proves nothing:
                // start again.
                _ if run.known.len() != before => known = run.known,
                Ok(()) => return run.executions,
                Err(panic) => resume_unwind(panic),
            }
        }
    }
}

struct Run {
    model: Model,
    /// The atomics that the model accesses, with their initial values.
    known: BTreeMap<usize, u64>,
    stands: HashMap<usize, Rc<Stand>>,
    executions: usize,
}

fn with_run<T>(f: impl FnOnce(&mut Run) -> T) -> Option<T> {
    RUN.with_borrow_mut(|run| run.as_mut().map(f))
}

impl Run {
    fn begin(&mut self) {
        self.executions += 1;
        let stand =
            |(&at, &initial): (&usize, &u64)| (at, Rc::new(Stand::new(&self.model, at, initial)));
        self.stands = self.known.iter().map(stand).collect();
    }

    fn stand(&mut self, at: usize, initial: impl FnOnce() -> u64) -> Rc<Stand> {
        let stand = self.stands.entry(at).or_insert_with(|| {
            let initial = initial();
            self.known.insert(at, initial);
            Rc::new(Stand { kind: Kind::Unknown, is_weak: false, latest: Cell::new(initial) })
        });
        Rc::clone(stand)
    }
}

/// The stand-in for an atomic during one execution.
struct Stand {
    kind: Kind,
    is_weak: bool,
    /// The value stored last; not used for [`Kind::Atomic`].
    latest: Cell<u64>,
}

enum Kind {
    Atomic { value: shadow::AtomicU64, turn: shadow::AtomicU64 },
    Plain(UnsafeCell<()>),
    Unknown,
}

/// A read-modify-write operation.
#[derive(Clone, Copy)]
enum Change {
    Add(u64),
    Max(u64),
    Swap(u64),
    Exchange(u64, u64),
}

impl Stand {
    fn new(model: &Model, at: usize, initial: u64) -> Stand {
        let kind = if (model.plain)(at) {
            Kind::Plain(UnsafeCell::new(()))
        } else {
            let (value, turn) = (shadow::AtomicU64::new(initial), shadow::AtomicU64::new(0));
            Kind::Atomic { value, turn }
        };
        Stand { kind, is_weak: (model.weak)(at), latest: Cell::new(initial) }
    }

    fn order(&self, order: Ordering) -> Ordering {
        if self.is_weak { Ordering::Relaxed } else { order }
    }

    fn load(&self, order: Ordering) -> u64 {
        match &self.kind {
            Kind::Atomic { value, turn } => {
                turn.swap(0, Ordering::Relaxed);
                value.load(self.order(order))
            }
            Kind::Plain(race) => race.with(|_| self.latest.get()),
            Kind::Unknown => self.latest.get(),
        }
    }

    fn store(&self, new: u64, order: Ordering) {
        match &self.kind {
            Kind::Atomic { value, .. } => value.store(new, self.order(order)),
            Kind::Plain(race) => race.with_mut(|_| self.latest.set(new)),
            Kind::Unknown => self.latest.set(new),
        }
    }

    fn change(&self, change: Change, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        if let Kind::Atomic { value, .. } = &self.kind {
            let (success, failure) = (self.order(success), self.order(failure));
            // Not loom's general update function, because that loads first.
            return match change {
                Change::Add(add) => Ok(value.fetch_add(add, success)),
                Change::Max(other) => Ok(value.fetch_max(other, success)),
                Change::Swap(new) => Ok(value.swap(new, success)),
                Change::Exchange(old, new) => value.compare_exchange(old, new, success, failure),
            };
        }
        let before = self.load(success);
        let after = match change {
            Change::Add(add) => before.wrapping_add(add),
            Change::Max(other) => before.max(other),
            Change::Swap(new) => new,
            Change::Exchange(old, new) if old == before => new,
            Change::Exchange(..) => return Err(before),
        };
        self.store(after, success);
        Ok(before)
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// The real one's layout; see the module page.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(real::$name);

        #[expect(clippy::allow_attributes, reason = "not every cast is the same for every type")]
        #[allow(trivial_numeric_casts, clippy::unnecessary_cast, clippy::cast_possible_truncation)]
        #[allow(dead_code, reason = "all have the same methods")]
        impl $name {
            /// An atomic of this value.
            #[must_use]
            pub const fn new(value: $value) -> $name {
                $name(real::$name::new(value))
            }

            fn stand(&self) -> Option<Rc<Stand>> {
                let initial = || self.0.load(Ordering::Relaxed) as u64;
                with_run(|run| run.stand(core::ptr::from_ref(self).addr(), initial))
            }

            /// The view of the thread.
            pub fn load(&self, order: Ordering) -> $value {
                match self.stand() {
                    Some(stand) => stand.load(order) as $value,
                    None => self.0.load(order),
                }
            }

            /// Stores a value.
            pub fn store(&self, value: $value, order: Ordering) {
                match self.stand() {
                    Some(stand) => stand.store(value as u64, order),
                    None => self.0.store(value, order),
                }
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                let Some(stand) = self.stand() else { return self.0.swap(value, order) };
                let before = stand.change(Change::Swap(value as u64), order, order);
                before.unwrap_or_else(|before| before) as $value
            }

            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                let Some(stand) = self.stand() else { return self.0.fetch_add(value, order) };
                let before = stand.change(Change::Add(value as u64), order, order);
                before.unwrap_or_else(|before| before) as $value
            }

            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                let Some(stand) = self.stand() else { return self.0.fetch_max(value, order) };
                let before = stand.change(Change::Max(value as u64), order, order);
                before.unwrap_or_else(|before| before) as $value
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let Some(stand) = self.stand() else {
                    return self.0.compare_exchange(old, new, success, failure);
                };
                let change = Change::Exchange(old as u64, new as u64);
                let before = stand.change(change, success, failure);
                before.map(|value| value as $value).map_err(|value| value as $value)
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

/// Thread-local cells: loom's threads share one thread of the system. Only inside a model.
macro_rules! per_thread {
    ($(static $name:ident: $type:ty = const $init:block;)+) => {
        use crate::sync::model::LocalCell as _;
        $(loom::thread_local! { static $name: $type = $init })+
    };
}
pub(crate) use per_thread;

/// The methods of the standard library's thread-local cells, for loom's cells.
pub(crate) trait LocalCell<T> {
    /// A copy of the thread's value.
    fn get(&'static self) -> T;
    /// Replaces the thread's value.
    fn set(&'static self, value: T);
}

impl<T: Copy + 'static> LocalCell<T> for loom::thread::LocalKey<Cell<T>> {
    fn get(&'static self) -> T {
        self.with(Cell::get)
    }

    fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }
}

/// The identity of the calling thread in a model. Not 0.
pub(crate) fn thread() -> u64 {
    let mut hasher = DefaultHasher::new();
    loom::thread::current().id().hash(&mut hasher);
    hasher.finish() | 1
}

/// Counts as a write to plain memory, like a system call that maps it: uses must come after.
pub fn touch(address: usize) {
    if let Some(stand) = with_run(|run| run.stand(address, || 0)) {
        stand.store(0, Ordering::Relaxed);
    }
}
