//! Operations of the server itself: health, readiness, metrics, version and API description.

use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderValue;
use bytes::Bytes;
use serde_json::json;

use crate::cache::ReadError;
use crate::http::request::RequestContext;
use crate::http::respond::{Entity, HandlerResult};
use crate::http::route::Operation;
use crate::output;
use crate::runtime::cpu_pool::Priority;
use crate::telemetry::metrics;

/// OpenAPI description of this server.
pub(crate) const OPENAPI: &str = include_str!("../../../openapi.yaml");

pub(crate) async fn handle(context: &RequestContext<'_>, operation: Operation) -> HandlerResult {
    let (media_type, body): (_, Bytes) = match operation {
        Operation::Health => ("text/plain; charset=utf-8", Bytes::from_static(b"ok\n")),
        Operation::Ready => ("application/json", context.app.check_readiness().await?.into()),
        Operation::Metrics => {
            context.app.resources.update_gauges();
            // Updates the readiness metrics even if no client requests /readyz.
            let _ = context.app.check_readiness().await;
            metrics::requests_in_flight(context.app.requests_in_flight());
            let loads: Vec<_> = context.app.mounts.iter().map(|mount| mount.container.store_pressure()).collect();
            metrics::store_calls(
                loads.iter().map(|load| load.running).sum(),
                loads.iter().map(|load| load.queued).sum(),
                loads.iter().filter(|load| load.is_stalled).count(),
            );
            // Rendering takes several milliseconds, so it runs on the CPU pool, where clients take turns.
            let process = Arc::clone(&context.app.process);
            let render = move || process.exposition.get_or_render(Instant::now(), &process.render_metrics);
            let text = context.app.resources.cpu().run(Priority::High, 0, render).await.map_err(ReadError::from)?;
            ("text/plain; version=0.0.4; charset=utf-8", text)
        }
        Operation::Version => {
            let compressions: Vec<_> = context.app.resources.codecs().names().collect();
            let formats: Vec<_> = output::FORMATS.iter().map(|format| format.name()).collect();
            let document = json!({
                "name": env!("CARGO_PKG_NAME"),
                "version": env!("CARGO_PKG_VERSION"),
                "n5": "4.0.0",
                "compressions": compressions,
                "formats": formats,
            });
            ("application/json", document.to_string().into())
        }
        Operation::OpenApi => ("application/yaml", Bytes::from_static(OPENAPI.as_bytes())),
    };
    Entity::new(media_type, HeaderValue::from_static("no-store")).respond(context.parts, body)
}
