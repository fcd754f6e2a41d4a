//! Answers about the server itself.

use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use serde_json::json;
use std::sync::atomic::Ordering;

use super::problem::{self, Problem};
use super::target::Operation;
use super::{Answer, Ask, respond};
use crate::metrics;
use crate::{n5, output};

/// The description of this API.
pub(super) const OPENAPI: &str = include_str!("../../openapi.yaml");

pub(super) async fn answer(ask: &Ask<'_>, operation: Operation) -> Answer {
    let (media_type, body) = match operation {
        Operation::Health => ("text/plain; charset=utf-8", "ok\n".to_owned()),
        Operation::Ready => {
            if ask.app.draining.load(Ordering::Relaxed) {
                return Err(Problem::own(problem::OVERLOADED, "the server is shutting down", "draining"));
            }
            for mount in &ask.app.mounts {
                mount.container.probe().await?;
            }
            ("text/plain; charset=utf-8", "ready\n".to_owned())
        }
        Operation::Metrics => {
            ask.app.resources.measure();
            metrics::requests_in_flight(ask.app.running());
            ("text/plain; version=0.0.4; charset=utf-8", (ask.app.render_metrics)())
        }
        Operation::Version => {
            let compressions: Vec<_> = n5::CODECS.iter().map(|(name, _)| *name).collect();
            let formats: Vec<_> = output::FORMATS.iter().map(|format| format.name()).collect();
            let document = json!({
                "name": env!("CARGO_PKG_NAME"),
                "version": env!("CARGO_PKG_VERSION"),
                "n5": "4.0.0",
                "compressions": compressions,
                "formats": formats,
            });
            ("application/json", document.to_string())
        }
        Operation::OpenApi => ("application/yaml", OPENAPI.to_owned()),
    };
    let mut response = respond(StatusCode::OK, media_type, body);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
