// SPDX-License-Identifier: Apache-2.0
//! Graphs: nodes with dependencies, user objects that live with them, and replay.
//!
//! An executable graph is a snapshot. A launch fixes which event points its wait nodes mean and
//! gives new points to the events its record nodes record; then the nodes run on the launching
//! stream's worker, independent branches on threads of their own.

use crate::counts;
use crate::device;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::util::{Table, lock};
use crate::work::{Kind, Work};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Scope;

/// The action of a node.
#[derive(Clone, Debug)]
pub enum Action {
    /// Work that is the same in every replay.
    Work(Work),
    /// Records an event.
    Record(Arc<Event>),
    /// Waits for the point an event has when the graph is launched.
    Wait(Arc<Event>),
}

impl Action {
    /// Its type (`cudaGraphNodeGetType`).
    pub fn kind(&self) -> Kind {
        match self {
            Self::Work(work) => work.kind,
            Self::Record(_) => Kind::RecordEvent,
            Self::Wait(_) => Kind::WaitEvent,
        }
    }
}

/// A node: its action and its dependencies, by index.
#[derive(Clone, Debug)]
struct Node {
    action: Action,
    after: Vec<usize>,
}

/// A caller's resource with references; `destroy` is called when the last one is dropped.
pub struct UserObject {
    id: u64,
    destroy: Box<dyn Fn() + Send + Sync>,
}

impl UserObject {
    /// An object that calls `destroy` when its last reference is dropped.
    pub fn new(destroy: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, destroy: Box::new(destroy) })
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        (self.destroy)();
    }
}

impl fmt::Debug for UserObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserObject").field("id", &self.id).finish_non_exhaustive()
    }
}

/// References to a user object that the client holds.
#[derive(Debug)]
pub struct ClientReferences {
    object: Arc<UserObject>,
    count: Mutex<u32>,
}

/// The user objects that the client holds references to.
static USER_OBJECTS: Table<ClientReferences> = Table::new(5);

/// Creates a user object with `count` references of the client.
pub fn create_user_object(object: Arc<UserObject>, count: u32) -> usize {
    USER_OBJECTS.add(Arc::new(ClientReferences { object, count: Mutex::new(count) }))
}

/// Adds `change` references of the client to the object of `handle`; at 0 the handle becomes
/// invalid.
///
/// # Errors
/// [`Error::INVALID_RESOURCE_HANDLE`] for an unknown handle, [`Error::INVALID_VALUE`] if the
/// client has fewer references than it drops.
pub fn change_user_references(handle: usize, change: i64) -> Result<Arc<UserObject>> {
    let references = USER_OBJECTS.get(handle)?;
    let mut count = lock(&references.count);
    let left = i64::from(*count) + change;
    *count = u32::try_from(left).map_err(|_| Error::INVALID_VALUE)?;
    if *count == 0 {
        USER_OBJECTS.remove(handle)?;
    }
    Ok(references.object.clone())
}

#[derive(Debug, Default)]
struct Contents {
    nodes: Vec<Node>,
    objects: Vec<Arc<UserObject>>,
}

/// A graph.
#[derive(Debug)]
pub struct Graph {
    /// Its `cudaGraph_t`.
    pub handle: usize,
    contents: Mutex<Contents>,
}

/// All graphs of the client and of running captures.
pub static GRAPHS: Table<Graph> = Table::new(3);
/// All executable graphs.
pub static EXECS: Table<Exec> = Table::new(4);

/// A node handle is its graph's handle shifted by this much, plus the node's index, plus one.
const NODE_BITS: u32 = 20;

/// The graph of a node handle, and the node's index in it.
///
/// # Errors
/// [`Error::INVALID_VALUE`] if there is no such node.
pub fn node_by_handle(node: usize) -> Result<(Arc<Graph>, usize)> {
    let graph = GRAPHS.get(node >> NODE_BITS).map_err(|_| Error::INVALID_VALUE)?;
    let index = graph.index_of(node)?;
    Ok((graph, index))
}

impl Graph {
    /// An empty graph, already in [`GRAPHS`].
    pub fn create() -> Arc<Self> {
        let handle = GRAPHS.fresh();
        let graph = Arc::new(Self { handle, contents: Mutex::default() });
        GRAPHS.insert(handle, graph.clone());
        graph
    }

    /// Destroys the graph (`cudaGraphDestroy`). A call may still hold it, so its contents are
    /// dropped now; executable graphs made from it stay valid.
    ///
    /// # Errors
    /// [`Error::INVALID_RESOURCE_HANDLE`] if it is already destroyed.
    pub fn destroy(&self) -> Result {
        GRAPHS.remove(self.handle)?;
        // The lock is released before the user objects are dropped.
        let contents = std::mem::take(&mut *lock(&self.contents));
        drop(contents);
        Ok(())
    }

    fn index_of(&self, node: usize) -> Result<usize> {
        let index = (node & ((1 << NODE_BITS) - 1)).wrapping_sub(1);
        let known = node >> NODE_BITS == self.handle && index < lock(&self.contents).nodes.len();
        if known { Ok(index) } else { Err(Error::INVALID_VALUE) }
    }

    /// Adds a node after `dependencies` and returns its handle.
    ///
    /// # Errors
    /// [`Error::INVALID_VALUE`] if a dependency is not a node of this graph.
    pub fn add(&self, action: Action, dependencies: &[usize]) -> Result<usize> {
        let after = dependencies.iter().map(|&n| self.index_of(n)).collect::<Result<Vec<_>>>()?;
        counts::node(action.kind());
        let mut contents = lock(&self.contents);
        contents.nodes.push(Node { action, after });
        Ok((self.handle << NODE_BITS) + contents.nodes.len())
    }

    /// Adds the dependency of node `to` on node `from`.
    ///
    /// # Errors
    /// [`Error::INVALID_VALUE`] if either is not a node of this graph or they are the same.
    pub fn connect(&self, from: usize, to: usize) -> Result {
        let (from, to) = (self.index_of(from)?, self.index_of(to)?);
        if from == to {
            return Err(Error::INVALID_VALUE);
        }
        lock(&self.contents).nodes[to].after.push(from);
        Ok(())
    }

    /// Handles of all nodes in the order they were added.
    pub fn nodes(&self) -> Vec<usize> {
        let count = lock(&self.contents).nodes.len();
        (1..=count).map(|n| (self.handle << NODE_BITS) + n).collect()
    }

    /// The type of the node at `index`.
    pub fn kind(&self, index: usize) -> Option<Kind> {
        lock(&self.contents).nodes.get(index).map(|node| node.action.kind())
    }

    /// Lets `object` live as long as the graph and everything made from it.
    pub fn retain(&self, object: Arc<UserObject>) {
        lock(&self.contents).objects.push(object);
    }

    /// Drops one reference of the graph to `object`.
    pub fn release(&self, object: &UserObject) {
        let mut contents = lock(&self.contents);
        if let Some(at) = contents.objects.iter().position(|o| o.id == object.id) {
            contents.objects.remove(at);
        }
    }

    /// An executable snapshot.
    ///
    /// # Errors
    /// [`Error::INVALID_VALUE`] if the dependencies form a cycle.
    pub fn instantiate(&self) -> Result<Exec> {
        let contents = lock(&self.contents);
        let exec = Exec { nodes: contents.nodes.clone(), objects: contents.objects.clone() };
        let mut left: Vec<usize> = exec.nodes.iter().map(|n| n.after.len()).collect();
        let followers = exec.followers();
        let mut ready: Vec<usize> = (0..left.len()).filter(|&i| left[i] == 0).collect();
        let mut reached = 0;
        while let Some(node) = ready.pop() {
            reached += 1;
            for &next in followers.get(&node).into_iter().flatten() {
                left[next] -= 1;
                if left[next] == 0 {
                    ready.push(next);
                }
            }
        }
        if reached == exec.nodes.len() { Ok(exec) } else { Err(Error::INVALID_VALUE) }
    }
}

/// An executable graph.
#[derive(Debug)]
pub struct Exec {
    nodes: Vec<Node>,
    /// Held, not used: they live as long as the executable graph and its running launches.
    #[expect(dead_code, reason = "ownership is the point")]
    objects: Vec<Arc<UserObject>>,
}

impl Exec {
    /// The successors of each node.
    fn followers(&self) -> HashMap<usize, Vec<usize>> {
        let mut followers: HashMap<usize, Vec<usize>> = HashMap::new();
        for (to, node) in self.nodes.iter().enumerate() {
            for &from in &node.after {
                followers.entry(from).or_default().push(to);
            }
        }
        followers
    }

    /// One launch as work for a stream. Waits refer to the event points of now; recorded events
    /// get their new points now, all waits before any record.
    ///
    /// # Errors
    /// [`Error::CAPTURED_EVENT`] if a wait node's event was last recorded in a capture.
    pub fn launch(self: &Arc<Self>) -> Result<Work> {
        let waits = self.nodes.iter().map(|node| match &node.action {
            Action::Wait(event) => event.wait(),
            Action::Work(_) | Action::Record(_) => Ok(None),
        });
        let waits = waits.collect::<Result<Vec<_>>>()?;
        let work = self.nodes.iter().zip(waits).map(|(node, wait)| match &node.action {
            Action::Work(work) => Some(work.clone()),
            Action::Record(event) => Some(event.record()),
            Action::Wait(_) => wait,
        });
        let work = work.collect();
        let (exec, followers) = (self.clone(), self.followers());
        Ok(Work::new(Kind::Graph, move || Replay::new(&exec, &work, &followers).run()))
    }
}

struct Replay<'a> {
    work: &'a Vec<Option<Work>>,
    followers: &'a HashMap<usize, Vec<usize>>,
    /// How many nodes each node still waits for.
    left: Vec<AtomicUsize>,
    device: i32,
}

impl<'a> Replay<'a> {
    fn new(
        exec: &Exec,
        work: &'a Vec<Option<Work>>,
        followers: &'a HashMap<usize, Vec<usize>>,
    ) -> Self {
        let left = exec.nodes.iter().map(|node| AtomicUsize::new(node.after.len())).collect();
        Self { work, followers, left, device: device::current() }
    }

    fn run(&self) {
        let is_root = |&node: &usize| self.left[node].load(Ordering::Relaxed) == 0;
        // All roots are known before the first node runs and makes others ready.
        let roots = (0..self.left.len()).filter(is_root).collect();
        std::thread::scope(|scope| self.follow(scope, roots));
    }

    /// Runs one of the `ready` nodes and the nodes that it makes ready on this thread, the others
    /// on one thread each.
    fn follow<'s>(&'s self, scope: &'s Scope<'s, '_>, mut ready: Vec<usize>) {
        while let Some(node) = ready.pop() {
            for other in ready.drain(..) {
                scope.spawn(move || {
                    device::set_current(self.device).expect("the launching stream's device");
                    self.follow(scope, vec![other]);
                });
            }
            if let Some(work) = &self.work[node] {
                work.run();
            }
            let followers = self.followers.get(&node).into_iter().flatten().copied();
            ready.extend(followers.filter(|&n| self.left[n].fetch_sub(1, Ordering::AcqRel) == 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Marker;
    use crate::stream::{NON_BLOCKING, Stream};
    use std::sync::Barrier;

    fn note(log: &Arc<Mutex<Vec<u32>>>, value: u32) -> Action {
        let log = log.clone();
        Action::Work(Work::new(Kind::Host, move || lock(&log).push(value)))
    }

    #[test]
    fn a_replay_respects_dependencies_added_in_any_order() {
        let (graph, log) = (Graph::create(), Arc::new(Mutex::new(Vec::new())));
        let last = graph.add(note(&log, 3), &[]).unwrap();
        let first = graph.add(note(&log, 1), &[]).unwrap();
        let middle = graph.add(note(&log, 2), &[first]).unwrap();
        graph.connect(middle, last).unwrap();
        let exec = Arc::new(graph.instantiate().unwrap());
        for _ in 0..3 {
            exec.launch().unwrap().run();
        }
        assert_eq!(*lock(&log), [1, 2, 3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(graph.nodes(), [last, first, middle]);
        assert_eq!(node_by_handle(middle).unwrap().1, 2);
        assert_eq!(node_by_handle(middle + 1).map(|n| n.1), Err(Error::INVALID_VALUE));
    }

    #[test]
    fn independent_branches_run_at_the_same_time() {
        let graph = Graph::create();
        let meet = Arc::new(Barrier::new(3));
        for _ in 0..3 {
            let meet = meet.clone();
            let wait = Work::new(Kind::Kernel, move || {
                meet.wait();
            });
            graph.add(Action::Work(wait), &[]).unwrap();
        }
        Arc::new(graph.instantiate().unwrap()).launch().unwrap().run();
    }

    #[test]
    fn circles_and_foreign_nodes_are_refused() {
        let (graph, log) = (Graph::create(), Arc::default());
        let a = graph.add(note(&log, 1), &[]).unwrap();
        let b = graph.add(note(&log, 2), &[a]).unwrap();
        let foreign = Graph::create().add(note(&log, 1), &[]).unwrap();
        assert_eq!(graph.connect(foreign, a), Err(Error::INVALID_VALUE));
        assert_eq!(graph.connect(a, a), Err(Error::INVALID_VALUE));
        graph.connect(b, a).unwrap();
        assert!(graph.instantiate().is_err());
    }

    #[test]
    fn every_launch_waits_for_the_points_of_its_moment_and_stamps_anew() {
        let (graph, event) = (Graph::create(), Arc::new(Event::new(false)));
        let wait = graph.add(Action::Wait(event.clone()), &[]).unwrap();
        graph.add(Action::Record(event.clone()), &[wait]).unwrap();
        let exec = Arc::new(graph.instantiate().unwrap());
        // The event is not recorded yet: the first launch has nothing to wait for.
        let first = exec.launch().unwrap();
        assert_eq!(event.is_done(), Ok(false));
        // The second launch waits for the first one's record.
        let stream = Arc::new(Stream::new(0, NON_BLOCKING, 0));
        stream.submit(exec.launch().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(10));
        assert!(!stream.is_idle());
        first.run();
        stream.synchronize();
        assert_eq!(event.is_done(), Ok(true));
    }

    #[test]
    fn a_user_object_ends_with_its_last_holder() {
        let gone = Arc::new(Marker::default());
        let signal = gone.clone();
        let handle = create_user_object(UserObject::new(move || signal.signal()), 1);
        let graph = Graph::create();
        // Moves the client's only reference into the graph.
        graph.retain(change_user_references(handle, -1).unwrap());
        assert_eq!(
            change_user_references(handle, 1).map(|o| o.id),
            Err(Error::INVALID_RESOURCE_HANDLE)
        );
        let exec = graph.instantiate().unwrap();
        graph.destroy().unwrap();
        assert!(gone.reached().is_none());
        drop(exec);
        assert!(gone.reached().is_some());
    }
}
