//! Who waits, in tests whose runtime has one thread.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// What counts them; to be made the recorder of the test's thread by `metrics::set_default_local_recorder`.
pub fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// Until so many wait for what another request loads.
pub async fn come(handle: &PrometheusHandle, count: usize) {
    wait(handle, "load", count).await;
}

/// Until so many wait in a queue, by its name in `n5_queue_waiting`.
pub async fn wait(handle: &PrometheusHandle, queue: &str, count: usize) {
    let line = format!("n5_queue_waiting{{queue=\"{queue}\"}} {count}");
    let come = async {
        while !handle.render().lines().any(|told| told == line) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let come = tokio::time::timeout(Duration::from_secs(20), come).await;
    assert!(come.is_ok(), "{count} do not wait: {}", handle.render());
}
