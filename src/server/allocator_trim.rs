//! Returns freed memory to the system at an interval.

use std::sync::Weak;
use std::time::Duration;

use crate::allocator;
use crate::container::Resources;
use crate::cpu_pool::{CpuPool, Priority};

/// Interval at which memory that the allocator retains is returned to the system.
const TRIM_INTERVAL: Duration = Duration::from_millis(250);

/// Periodically gives freed memory back to the system, on `cpu`, while `resources` exist.
pub(super) async fn trim_periodically(resources: Weak<Resources>, cpu: CpuPool) {
    loop {
        tokio::time::sleep(TRIM_INTERVAL).await;
        let Some(resources) = resources.upgrade() else { return };
        resources.release_unused();
        drop(resources);
        if cpu.run(Priority::High, 0, allocator::trim).await.is_err() {
            return;
        }
    }
}
