//! Work that several clients want is done in the turn of whichever of them is first.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::Client;

tokio::task_local! {
    static JOINT: Joint;
}

/// Those for whom the running task works, where they may become more.
pub(super) fn clients() -> Option<watch::Receiver<Vec<Client>>> {
    JOINT.try_with(|joint| joint.0.subscribe()).ok()
}

/// Those for whom one piece of work is done. They may become more until it is: whoever comes later shall not wait until it is
/// the turn of who came first. Cheap to clone; clones share them.
#[derive(Debug, Clone)]
struct Joint(Arc<watch::Sender<Vec<Client>>>);

/// Work that several may want, by what comes of it. Cheap to clone; clones share it.
#[derive(Debug)]
pub struct Joints<K>(Arc<Mutex<HashMap<K, (Joint, usize)>>>);

/// The current client among those who want a piece of work, until dropped.
#[derive(Debug)]
pub struct Joined<K: Eq + Hash> {
    joints: Joints<K>,
    key: K,
    joint: Joint,
    is_first: bool,
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

impl<K: Clone + Eq + Hash> Joints<K> {
    /// The current client wants that, too, and those who want what it is needed for.
    pub fn join(&self, key: K) -> Joined<K> {
        let wanting = JOINT.try_with(|joint| joint.0.borrow().clone()).unwrap_or_else(|_| vec![Client::current()]);
        let mut joints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || (Joint(Arc::new(watch::Sender::new(Vec::new()))), 0);
        let (joint, count) = joints.entry(key.clone()).or_insert_with(new);
        let is_first = *count == 0;
        *count += 1;
        joint.0.send_if_modified(|clients| {
            let before = clients.len();
            let new: Vec<Client> = wanting.into_iter().filter(|client| !clients.contains(client)).collect();
            clients.extend(new);
            clients.len() > before
        });
        Joined { joints: self.clone(), key, joint: joint.clone(), is_first }
    }
}

impl<K: Eq + Hash> Joined<K> {
    /// Whether nobody wanted it then.
    pub const fn is_first(&self) -> bool {
        self.is_first
    }

    /// Does `work`, which waits for the turn of whichever of them is first.
    pub async fn works<F: Future>(self, work: F) -> F::Output {
        JOINT.scope(self.joint.clone(), work).await
    }
}

impl<K: Eq + Hash> Drop for Joined<K> {
    fn drop(&mut self) {
        let mut joints = self.joints.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, count)) = joints.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                joints.remove(&self.key);
            }
        }
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
        let joined = Client::new(1).works(async { joints.join("block") }).await;
        let mut shared = joined.works(take(1)).boxed();
        assert!((&mut shared).now_or_never().is_none());
        let wanted = Client::new(2).works(async { joints.join("block") }).await;
        assert!((&mut shared).now_or_never().is_none());
        drop(held);
        drop(first.remove(0).now_or_never().expect("it came first"));
        drop((&mut shared).now_or_never().expect("it is the other one's turn"));
        drop((first, wanted, shared));
        assert_eq!(shares.free(), 1);
        assert!(!shares.is_wanted() && joints.0.lock().unwrap().is_empty());
    }
}
