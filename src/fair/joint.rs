//! Work that several clients want is done in the turn of whichever of them is first.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{FutureExt, future};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use super::Client;

tokio::task_local! {
    static JOINT: Joint;
    static STATE: Arc<TaskState>;
}

/// Those for whom the running task works, where they may become more.
pub(super) fn clients() -> Option<watch::Receiver<Vec<Client>>> {
    JOINT.try_with(|joint| joint.clients.subscribe()).ok()
}

/// Does `work` for all clients that want the result of the running task: it goes on as long as one of them does.
///
/// # Errors
/// Those of `work`; then what it left to do is another's again.
pub fn leading<T, E>(work: impl Future<Output = Result<T, E>>) -> impl Future<Output = Result<T, E>> {
    fn set(set: impl FnOnce(&TaskState)) {
        // Outside of such a task, no other client waits.
        let _ = STATE.try_with(|state| set(state));
    }
    // On the heap: a cache that awaits it has room for it several times.
    let work = Box::pin(work);
    let begun = future::lazy(|_| {
        set(|state| state.does_lead.store(true, Ordering::Relaxed));
        // What an earlier run left may be what this one waits for the memory of.
        leave(None);
    });
    begun.then(|()| work).inspect(|done| {
        if done.is_err() {
            set(|state| {
                state.does_lead.store(false, Ordering::Relaxed);
                state.is_kept.store(false, Ordering::Relaxed);
            });
        }
    })
}

/// Keeps `value` for those who want what the running task is for: until the last of them has gone, or the work is begun anew.
pub fn hold<T: Send + Sync + 'static>(value: &Arc<T>) {
    leave(Some(Arc::<T>::clone(value)));
}

fn leave(value: Option<Held>) {
    let before = JOINT.try_with(|joint| {
        let mut held = joint.held.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *held, value)
    });
    // Not under the lock.
    drop(before);
}

/// What keeps the running task going although nobody wants its work any more.
pub fn keeper() -> Keeper {
    Keeper(STATE.try_with(Arc::clone).ok())
}

/// Keeps a task of [`Joined::spawn`] going, once it does what cannot be stopped half-way. By default there is none.
#[derive(Debug, Clone, Default)]
pub struct Keeper(Option<Arc<TaskState>>);

impl Keeper {
    /// From now on it goes on to its end.
    pub fn keep(&self) {
        if let Some(state) = &self.0 {
            state.is_kept.store(true, Ordering::Relaxed);
        }
    }
}

/// What is known of a task of [`Joined::spawn`].
#[derive(Debug, Default)]
struct TaskState {
    /// It does the work; the others wait for it.
    does_lead: AtomicBool,
    is_kept: AtomicBool,
}

#[derive(Debug)]
struct Task {
    handle: AbortHandle,
    state: Arc<TaskState>,
}

impl Task {
    /// Ends it, unless it cannot be stopped.
    fn end(&self) {
        if !self.state.is_kept.load(Ordering::Relaxed) {
            self.handle.abort();
        }
    }
}

/// Those for whom one piece of work is done. They may become more until it is: whoever comes later shall not wait until it is
/// the turn of who came first. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
struct Joint(Arc<Party>);

type Held = Arc<dyn Any + Send + Sync>;

#[derive(Debug, Default)]
struct Party {
    clients: watch::Sender<Vec<Client>>,
    /// What is kept for them.
    held: Mutex<Option<Held>>,
}

impl std::ops::Deref for Joint {
    type Target = Party;

    fn deref(&self) -> &Party {
        &self.0
    }
}

impl Joint {
    fn add(&self, wanting: Vec<Client>) {
        self.clients.send_if_modified(|clients| {
            let before = clients.len();
            let new: Vec<Client> = wanting.into_iter().filter(|client| !clients.contains(client)).collect();
            clients.extend(new);
            clients.len() > before
        });
    }
}

/// Work that several may want, by what comes of it. Cheap to clone; clones share it.
#[derive(Debug)]
pub struct Joints<K>(Arc<Mutex<HashMap<K, Wanted>>>);

#[derive(Debug, Default)]
struct Wanted {
    joint: Joint,
    /// How many want it.
    count: usize,
    /// What does it for them, of those who have gone: one, and what has just done it.
    left: Vec<Task>,
}

/// The current client among those who want a piece of work, until dropped; with the last of them ends what was begun.
#[derive(Debug)]
pub struct Joined<K: Eq + Hash> {
    joints: Joints<K>,
    key: K,
    joint: Joint,
    is_first: bool,
    task: Option<Task>,
    /// Those for whom the task works that wants it, where they may become more.
    outer: Option<watch::Receiver<Vec<Client>>>,
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
        let mut outer = clients();
        let wanting = outer.as_mut().map_or_else(|| vec![Client::current()], |outer| outer.borrow_and_update().clone());
        let mut joints = self.lock();
        let wanted = joints.entry(key.clone()).or_default();
        let is_first = wanted.count == 0;
        wanted.count += 1;
        wanted.joint.add(wanting);
        Joined { joints: self.clone(), key, joint: wanted.joint.clone(), is_first, task: None, outer }
    }
}

impl<K: Eq + Hash> Joints<K> {
    /// Whether anybody wants it now.
    pub fn is_wanted(&self, key: &K) -> bool {
        self.lock().contains_key(key)
    }
}

impl<K: Eq + Hash> Joined<K> {
    /// Whether nobody wanted it then.
    pub const fn is_first(&self) -> bool {
        self.is_first
    }

    /// Does `work` in a task of its own, which waits for the turn of whichever of them is first. When this one has gone, it ends,
    /// unless it is [`leading`] for others: then it ends when nobody is left who wants it.
    pub fn spawn<F>(&mut self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let state = Arc::<TaskState>::default();
        let task = tokio::spawn(STATE.scope(Arc::clone(&state), JOINT.scope(self.joint.clone(), work)));
        self.task = Some(Task { handle: task.abort_handle(), state });
        task
    }

    /// What comes of `task`, which [`spawn`](Self::spawn) gave. Who comes to want what it is needed for wants it, too.
    ///
    /// # Errors
    /// When the task dies.
    pub async fn outcome<T>(&mut self, mut task: JoinHandle<T>) -> Result<T, JoinError> {
        let Some(outer) = &mut self.outer else { return task.await };
        loop {
            tokio::select! {
                done = &mut task => return done,
                // It does not end before this task does.
                Ok(()) = outer.changed() => {
                    let wanting = outer.borrow_and_update().clone();
                    self.joint.add(wanting);
                }
            }
        }
    }
}

impl<K: Eq + Hash> Drop for Joined<K> {
    fn drop(&mut self) {
        let mut joints = self.joints.lock();
        let Some(wanted) = joints.get_mut(&self.key) else { return };
        wanted.count -= 1;
        let mut ended: Vec<Task> = self.task.take().into_iter().collect();
        if wanted.count == 0 {
            ended.append(&mut wanted.left);
            joints.remove(&self.key);
        } else if ended.iter().any(|task| task.state.does_lead.load(Ordering::Relaxed)) {
            wanted.left.retain(|task| !task.handle.is_finished());
            wanted.left.append(&mut ended);
        }
        drop(joints);
        // Not under the lock: what they hold may have joined others.
        ended.iter().for_each(Task::end);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Cost, Most, Shares};
    use super::*;

    #[tokio::test]
    async fn work_gets_its_share_in_the_turn_of_whoever_comes_first_and_nobody_else_loses_any() {
        let (shares, joints) = (Shares::new(1, Most::ANY, Cost::Units), Joints::default());
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
    async fn a_client_is_not_charged_for_a_place_whose_work_is_done_in_the_turn_of_another() {
        // With so many units in use, there is enough for one of its places, or for both.
        for in_use in [100, 0] {
            let (shares, joints) = (Shares::new(640, Most::ANY, Cost::Units), Joints::default());
            let take = |client: u64, units| shares.take((Client::new(client), 0), units).boxed();
            let (held, _in_use) = (take(9, 400).await, take(8, in_use).await);
            let mut joined = Client::new(1).works(async { joints.join("block") }).await;
            let ours = shares.clone();
            let shared = joined.spawn(async move { ours.take((Client::new(1), 0), 300).await });
            tokio::task::yield_now().await;
            // It has more to do, and stops another client.
            let (mut more, mut other) = (take(1, 600), take(3, 300));
            assert!((&mut more).now_or_never().is_none() && (&mut other).now_or_never().is_none());
            let wanted = Client::new(2).works(async { joints.join("block") }).await;
            tokio::task::yield_now().await;
            // It is the second one's turn.
            shares.state().line((Client::new(1), 0)).spent = 100;
            drop((other, held));
            let share = shared.await.unwrap();
            assert_eq!(share.party.0, Client::new(2));
            assert_eq!(shares.state().line((Client::new(1), 0)).spent, 100, "{in_use}");
            assert_eq!(shares.free(), 340 - in_use);
            drop((share, more, wanted, joined));
        }
    }

    #[tokio::test]
    async fn who_comes_later_wants_what_was_begun_for_it_already_too() {
        let (shares, joints) = (Shares::new(1, Most::ANY, Cost::Units), Joints::default());
        let take = |client: u64| shares.take((Client::new(client), 0), 1).boxed();
        let held = take(9).await;
        let mut first: Vec<_> = (0..5).map(|_| take(1)).collect();
        assert!(first.iter_mut().all(|take| take.now_or_never().is_none()));
        // A chunk in another codec, for which a block is needed.
        let mut joined = Client::new(1).works(async { joints.join("chunk") }).await;
        let (ours, blocks) = (shares.clone(), joints.clone());
        let chunk = joined.spawn(async move {
            let mut joined = blocks.join("block");
            let block = joined.spawn(async move { ours.take((Client::new(1), 0), 1).await });
            joined.outcome(block).await
        });
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        let wanted = Client::new(2).works(async { joints.join("chunk") }).await;
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        assert!(!chunk.is_finished());
        drop(held);
        drop(first.remove(0).now_or_never().expect("it came first"));
        let chunk = tokio::time::timeout(Duration::from_secs(20), chunk).await.expect("it is the other one's turn");
        drop(chunk.unwrap().unwrap());
        drop((first, wanted, joined));
        assert!(joints.lock().is_empty());
    }

    #[tokio::test]
    async fn what_was_begun_ends_with_the_last_who_wants_it_and_not_before() {
        let (joints, begun) = (Joints::default(), Arc::new(()));
        let work = || {
            let begun = Arc::clone(&begun);
            leading(async move {
                std::future::pending::<()>().await;
                drop(begun);
                Ok::<_, ()>(())
            })
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
                Ok::<_, ()>(())
            }
        };
        let mut first = joints.join("block");
        let task = first.spawn(leading(waits()));
        let patient = joints.join("block");
        tokio::task::yield_now().await;
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
    async fn what_is_left_is_there_for_all_who_want_it_and_no_longer() {
        let joints = Joints::default();
        let run = |value: Arc<u8>| {
            leading(async move {
                hold(&value);
                Err::<(), _>(Arc::downgrade(&value))
            })
        };
        let (mut first, mut second) = (joints.join("chunk"), joints.join("chunk"));
        let weak = first.spawn(run(Arc::new(1))).await.unwrap().unwrap_err();
        drop(first);
        assert_eq!(weak.upgrade().as_deref(), Some(&1));
        // Whoever begins anew waits for no memory of that.
        let (tell, told) = tokio::sync::oneshot::channel();
        let task = second.spawn(leading(async move {
            told.await.unwrap();
            run(Arc::new(2)).await
        }));
        tokio::task::yield_now().await;
        assert!(weak.upgrade().is_none());
        tell.send(()).unwrap();
        let weak = task.await.unwrap().unwrap_err();
        assert_eq!(weak.upgrade().as_deref(), Some(&2));
        drop(second);
        assert!(weak.upgrade().is_none() && joints.lock().is_empty());
    }

    #[tokio::test]
    async fn whoever_leads_does_so_for_the_others_also_where_it_came_later() {
        let (joints, (tell, told)) = (Joints::default(), tokio::sync::oneshot::channel::<()>());
        let (first, mut second) = (joints.join("block"), joints.join("block"));
        let task = second.spawn(leading(told));
        tokio::task::yield_now().await;
        drop(second);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        // Who leads after it goes, too.
        drop(tell);
        assert!(task.await.unwrap().is_err());
        let mut third = joints.join("block");
        let task = third.spawn(leading(std::future::pending::<Result<(), ()>>()));
        tokio::task::yield_now().await;
        drop(third);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(first);
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(joints.lock().is_empty());
    }

    #[tokio::test]
    async fn who_has_done_it_takes_nothing_from_who_does_it_anew() {
        let joints = Joints::default();
        let (mut first, mut second, third) = (joints.join("block"), joints.join("block"), joints.join("block"));
        assert!(first.spawn(leading(async { Ok::<_, ()>(()) })).await.unwrap().is_ok());
        let task = second.spawn(leading(std::future::pending::<Result<(), ()>>()));
        tokio::task::yield_now().await;
        drop(second);
        drop(first);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(third);
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn what_fails_leads_and_is_kept_no_more() {
        let joints = Joints::default();
        let (first, mut second) = (joints.join("block"), joints.join("block"));
        let task = second.spawn(async {
            let failed = leading(async {
                keeper().keep();
                Err::<(), ()>(())
            });
            assert!(failed.await.is_err());
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        drop(second);
        assert!(task.await.unwrap_err().is_cancelled());
        drop(first);
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
