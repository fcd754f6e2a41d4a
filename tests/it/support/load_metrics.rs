//! Waiting until requests wait, in tests whose runtime has one thread.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

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
    let waited = async {
        while !handle.render().lines().any(|found| found == line) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waited).await;
    assert!(waited.is_ok(), "no {count} requests wait in the queue: {}", handle.render());
}
