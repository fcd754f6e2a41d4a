//! Helpers that wait until requests are in a queue, for tests whose runtime has one thread.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::wait_until;

/// Returns a recorder that counts waiting requests. The test must pass it to `metrics::set_default_local_recorder`.
pub fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// Waits until `count` requests wait for a load that another request leads.
pub async fn wait_for_load(handle: &PrometheusHandle, count: usize) {
    wait_for_queue(handle, "load", count).await;
}

/// Waits until `count` requests wait in `queue`, a label of `n5_queue_waiting`.
pub async fn wait_for_queue(handle: &PrometheusHandle, queue: &str, count: usize) {
    let line = format!("n5_queue_waiting{{queue=\"{queue}\"}} {count}");
    let is_waiting = wait_until(async || handle.render().lines().any(|found| found == line)).await;
    assert!(is_waiting, "no {count} requests wait in the queue: {}", handle.render());
}
