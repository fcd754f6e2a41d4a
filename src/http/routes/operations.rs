//! Operations of the server itself: health, readiness, metrics, version and API description.

use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderValue;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::cache::ReadError;
use crate::http::app::App;
use crate::http::request::RequestContext;
use crate::http::respond::{Entity, HandlerResult};
use crate::http::route::Operation;
use crate::output;
use crate::runtime::cpu_pool::Priority;
use crate::store::record_upstream_metrics;
use crate::telemetry::metrics;

/// OpenAPI description of this server.
pub(crate) const OPENAPI: &str = include_str!("../../../openapi.yaml");

pub(crate) async fn handle(context: &RequestContext<'_>, operation: Operation) -> HandlerResult {
    let (media_type, body): (_, Bytes) = match operation {
        Operation::Health => ("text/plain; charset=utf-8", Bytes::from_static(b"ok\n")),
        Operation::Ready => ("application/json", context.app.check_readiness().await?.into()),
        Operation::Metrics => ("text/plain; version=0.0.4; charset=utf-8", metrics_text(context.app).await?),
        Operation::Version => ("application/json", version_document(context.app).to_string().into()),
        Operation::OpenApi => ("application/yaml", Bytes::from_static(OPENAPI.as_bytes())),
    };
    Entity::new(media_type, HeaderValue::from_static("no-store")).respond(context.parts, body)
}

/// Updates the gauges and returns the text of all metrics.
async fn metrics_text(app: &App) -> Result<Bytes, ReadError> {
    app.resources.update_gauges();
    // Updates the readiness metrics even if no client requests /readyz.
    let _ = app.check_readiness().await;
    metrics::requests_in_flight(app.requests_in_flight());
    let loads: Vec<_> = app.mounts.iter().map(|mount| mount.container.store_pressure()).collect();
    metrics::store_calls(
        loads.iter().map(|load| load.running).sum(),
        loads.iter().map(|load| load.queued).sum(),
        loads.iter().filter(|load| load.is_stalled).count(),
    );
    record_upstream_metrics();
    // Rendering takes several milliseconds, so it runs on the CPU pool, where clients take turns.
    let process = Arc::clone(&app.process);
    let render = move || process.exposition.get_or_render(Instant::now(), &process.render_metrics);
    Ok(app.resources.cpu().run(Priority::High, 0, render).await?)
}

/// Returns the versions of the server and of the N5 specification, and the supported codecs and formats.
fn version_document(app: &App) -> Value {
    let compressions: Vec<_> = app.resources.codecs().names().collect();
    let formats: Vec<_> = output::FORMATS.iter().map(|format| format.name()).collect();
    json!({
        "name": env!("CARGO_PKG_NAME"),
        "version": env!("CARGO_PKG_VERSION"),
        "n5": "4.0.0",
        "compressions": compressions,
        "formats": formats,
    })
}
