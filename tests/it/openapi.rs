//! `openapi.yaml` and the server describe the same routes, parameters, problems and headers.

use std::collections::BTreeSet;

use n5_server::http::problem::PROBLEM_TYPES;
use n5_server::http::route::endpoints;
use n5_server::output::FORMATS;
use serde_json::Value;

use crate::support::Client;
use crate::support::writer::N5;

fn document() -> Value {
    serde_saphyr::from_str(include_str!("../../openapi.yaml")).unwrap()
}

/// Resolves a `$ref`. Returns any other value unchanged.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference}")),
        None => value,
    }
}

/// Returns the first segment of every path, `""` for the root.
fn first_segments(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().unwrap();
    paths.keys().map(|path| path.split('/').nth(1).unwrap().to_owned()).collect()
}

#[test]
fn every_route_is_described_and_every_description_is_a_route() {
    let described = first_segments(&document());
    let built: BTreeSet<&str> = endpoints().map(|(name, _)| name).collect();
    for name in &built {
        assert!(described.contains(*name), "openapi.yaml lacks /{name}");
    }
    for segment in described.iter().filter(|segment| !segment.is_empty() && !segment.starts_with('{')) {
        assert!(built.contains(segment.as_str()), "openapi.yaml describes /{segment}, which is no route");
    }
}

#[test]
fn every_path_describes_get_and_only_safe_methods() {
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        assert!(item.get("get").is_some(), "{path}");
        for (method, operation) in item.as_object().unwrap() {
            assert!(!["put", "post", "delete", "patch"].contains(&method.as_str()), "{path} {method}");
            if ["get", "head"].contains(&method.as_str()) {
                let responses = operation["responses"].as_object().unwrap();
                assert!(!responses.is_empty() && operation["operationId"].is_string(), "{path} {method}");
            }
        }
    }
}

#[tokio::test]
async fn slice_takes_exactly_the_parameters_described() {
    let document = document();
    let item = &document["paths"]["/slice/{dataset}"];
    let described: BTreeSet<String> = item["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|parameter| resolved(&document, parameter))
        .filter(|parameter| parameter["in"] == "query")
        .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
        .collect();
    let n5 = N5::new();
    let refused = Client::of(n5.root()).get("/slice/a?nonsense=1").await.json();
    let mut known: BTreeSet<String> = serde_json::from_value(refused["known"].clone()).unwrap();
    known.remove("token");
    assert_eq!(described, known);
}

#[test]
fn every_format_and_its_media_type_are_described() {
    let document = document();
    let names: BTreeSet<&str> = FORMATS.iter().map(|format| format.name()).collect();
    let described = document["components"]["parameters"]["Format"]["schema"]["enum"].as_array().unwrap();
    assert_eq!(described.iter().filter_map(Value::as_str).collect::<BTreeSet<_>>(), names);
    let responses = document["components"]["responses"]["Slice"]["content"].as_object().unwrap();
    for format in FORMATS {
        assert!(responses.contains_key(format.media_type()), "openapi.yaml lacks {}", format.media_type());
    }
}

#[test]
fn every_kind_of_problem_is_described() {
    let document = document();
    let pattern = document["components"]["schemas"]["ProblemType"]["pattern"].as_str().unwrap();
    let described = pattern.trim_start_matches("#(").trim_end_matches(")$").split('|');
    assert_eq!(described.collect::<BTreeSet<_>>(), PROBLEM_TYPES.iter().map(|kind| kind.name).collect::<BTreeSet<_>>());
}

#[tokio::test]
async fn the_server_serves_its_description() {
    let n5 = N5::new();
    let reply = Client::of(n5.root()).get("/openapi.yaml").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body, include_bytes!("../../openapi.yaml").as_slice());
    let version = document()["info"]["version"].clone();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}
