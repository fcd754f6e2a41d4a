//! Work that several clients want is done in the turn of whichever of them is first.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use super::Client;

tokio::task_local! {
    static JOINT: Joint;
}

/// Those for whom the running task works, where they may become more.
pub(super) fn clients() -> Option<watch::Receiver<Vec<Client>>> {
    JOINT.try_with(|joint| joint.0.clients.subscribe()).ok()
}

/// What keeps the running task going although nobody wants its work any more.
pub fn keeper() -> Keeper {
    Keeper(JOINT.try_with(Joint::clone).ok())
}

/// Keeps a task of [`Joined::spawn`] going, once it does what cannot be stopped half-way.
#[derive(Debug)]
pub struct Keeper(Option<Joint>);

impl Keeper {
    /// From now on it goes on to its end.
    pub fn keep(&self) {
        if let Some(joint) = &self.0 {
            joint.0.is_kept.store(true, Ordering::Relaxed);
        }
    }
}

/// Those for whom one piece of work is done. They may become more until it is: whoever comes later shall not wait until it is
/// the turn of who came first. Cheap to clone; clones share them.
#[derive(Debug, Clone)]
struct Joint(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clients: watch::Sender<Vec<Client>>,
    is_kept: AtomicBool,
}

/// Work that several may want, by what comes of it. Cheap to clone; clones share it.
#[derive(Debug)]
pub struct Joints<K>(Arc<Mutex<HashMap<K, Wanted>>>);

#[derive(Debug)]
struct Wanted {
    joint: Joint,
    /// How many want it.
    count: usize,
    /// What does it for the others, of the one who came first and has gone.
    left: Option<AbortHandle>,
}

/// The current client among those who want a piece of work, until dropped; with the last of them ends what was begun.
#[derive(Debug)]
pub struct Joined<K: Eq + Hash> {
    joints: Joints<K>,
    key: K,
    joint: Joint,
    is_first: bool,
    task: Option<AbortHandle>,
}

impl<K> Clone for Joints<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Joints<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K> Joints<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Wanted>> {
        // Nothing that runs under the lock leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> Joints<K> {
    /// The current client wants that, too, and those who want what it is needed for.
    pub fn join(&self, key: K) -> Joined<K> {
        let wanting =
            JOINT.try_with(|joint| joint.0.clients.borrow().clone()).unwrap_or_else(|_| vec![Client::current()]);
        let mut joints = self.lock();
        let new = || {
            let shared = Shared { clients: watch::Sender::new(Vec::new()), is_kept: AtomicBool::new(false) };
            Wanted { joint: Joint(Arc::new(shared)), count: 0, left: None }
        };
        let wanted = joints.entry(key.clone()).or_insert_with(new);
        let is_first = wanted.count == 0;
        wanted.count += 1;
        wanted.joint.0.clients.send_if_modified(|clients| {
            let before = clients.len();
            let new: Vec<Client> = wanting.into_iter().filter(|client| !clients.contains(client)).collect();
            clients.extend(new);
            clients.len() > before
        });
        Joined { joints: self.clone(), key, joint: wanted.joint.clone(), is_first, task: None }
    }
}

impl<K: Eq + Hash> Joined<K> {
    /// Whether nobody wanted it then.
    pub const fn is_first(&self) -> bool {
        self.is_first
    }

    /// Does `work` in a task of its own, which waits for the turn of whichever of them is first. That of who came first goes on
    /// when this one has gone, and ends when nobody is left who wants it; that of another ends with this one: it waits for the
    /// first, or others begin anew what it does.
    pub fn spawn<F>(&mut self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let task = tokio::spawn(JOINT.scope(self.joint.clone(), work));
        self.task = Some(task.abort_handle());
        task
    }
}

impl<K: Eq + Hash> Drop for Joined<K> {
    fn drop(&mut self) {
        let mut joints = self.joints.lock();
        let Some(wanted) = joints.get_mut(&self.key) else { return };
        wanted.count -= 1;
        if wanted.count > 0 && self.is_first {
            wanted.left = self.task.take();
            return;
        }
        let ended = if wanted.count == 0 { joints.remove(&self.key) } else { None };
        drop(joints);
        if ended.is_some() && self.joint.0.is_kept.load(Ordering::Relaxed) {
            return;
        }
        // Not under the lock: what they hold may have joined others.
        let left = ended.and_then(|wanted| wanted.left);
        self.task.iter().chain(&left).for_each(AbortHandle::abort);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::{Cost, Shares};
    use super::*;

    #[tokio::test]
    async fn work_gets_its_share_in_the_turn_of_whoever_comes_first_and_nobody_else_loses_any() {
        let (shares, joints) = (Shares::new(1, 1, Cost::Units), Joints::default());
        let take = |client: u64| shares.take((Client::new(client), 0), 1).boxed();
        let held = take(9).await;
        // One client has much to do, and at the end something that another one wants as well.
        let mut first: Vec<_> = (0..5).map(|_| take(1)).collect();
        assert!(first.iter_mut().all(|take| take.now_or_never().is_none()));
        let mut joined = Client::new(1).works(async { joints.join("block") }).await;
        let ours = shares.clone();
        let shared = joined.spawn(async move { ours.take((Client::new(1), 0), 1).await });
        tokio::task::yield_now().await;
        let wanted = Client::new(2).works(async { joints.join("block") }).await;
        tokio::task::yield_now().await;
        assert!(!shared.is_finished());
        drop(held);
        drop(first.remove(0).now_or_never().expect("it came first"));
        drop(shared.await.expect("it is the other one's turn"));
        drop((first, wanted, joined));
        assert_eq!(shares.free(), 1);
        assert!(!shares.is_wanted() && joints.lock().is_empty());
    }

    #[tokio::test]
    async fn what_was_begun_ends_with_the_last_who_wants_it_and_not_before() {
        let (joints, begun) = (Joints::default(), Arc::new(()));
        let work = || {
            let begun = Arc::clone(&begun);
            async move {
                std::future::pending::<()>().await;
                drop(begun);
            }
        };
        let (mut first, mut second, mut other) = (joints.join("block"), joints.join("block"), joints.join("another"));
        let (task, of_second) = (first.spawn(work()), second.spawn(async {}));
        let apart = other.spawn(work());
        of_second.await.unwrap();
        drop(first);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&begun), 3);
        drop(second);
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(Arc::strong_count(&begun), 2);
        assert!(!apart.is_finished());
        drop(other);
        assert!(apart.await.unwrap_err().is_cancelled());
        assert!(joints.lock().is_empty());
    }

    #[tokio::test]
    async fn who_hangs_up_while_others_wait_leaves_nothing_behind() {
        let (joints, begun) = (Joints::default(), Arc::new(()));
        let waits = || {
            let begun = Arc::clone(&begun);
            async move {
                std::future::pending::<()>().await;
                drop(begun);
            }
        };
        let mut first = joints.join("block");
        let task = first.spawn(waits());
        let patient = joints.join("block");
        for _ in 0..100 {
            drop(joints.join("block").spawn(waits()));
        }
        while Arc::strong_count(&begun) > 2 {
            tokio::task::yield_now().await;
        }
        drop(first);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(patient);
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn what_cannot_be_stopped_goes_on_to_its_end() {
        let (joints, (tell, told)) = (Joints::default(), tokio::sync::oneshot::channel::<()>());
        let mut only = joints.join("block");
        let task = only.spawn(async {
            keeper().keep();
            told.await.unwrap();
            5
        });
        tokio::task::yield_now().await;
        drop(only);
        tokio::task::yield_now().await;
        tell.send(()).unwrap();
        assert_eq!(task.await.unwrap(), 5);
        assert!(joints.lock().is_empty());
    }
}
