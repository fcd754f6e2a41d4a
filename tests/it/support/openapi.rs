//! Checks for every response in a test that `openapi.yaml` describes it.

use std::sync::OnceLock;

use axum::http::StatusCode;
use serde_json::Value;

/// A path of the document.
struct Path {
    /// The segments as written, and what each stands for: itself, any segment, or one or more segments.
    segments: Vec<(String, Stands)>,
    item: Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    Several,
    One,
    Itself,
}

/// Fails if the document does not list `status` as a response to `method` and `target`.
///
/// Only GET, HEAD and OPTIONS are checked: the server refuses other methods for every path. Paths with a token are not
/// checked because they stand for other paths.
pub fn check(method: &str, target: &str, status: StatusCode) {
    let path = target.split('?').next().unwrap_or_default();
    if !["GET", "HEAD", "OPTIONS"].contains(&method) || path.starts_with("/token/") {
        return;
    }
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let best = paths().iter().filter(|documented| stands_for(&documented.segments, &segments));
    // The most specific description.
    let Some(best) = best.max_by_key(|documented| {
        let own = documented.segments.iter().filter(|(_, stands)| *stands == Stands::Itself);
        (own.count(), documented.segments.len())
    }) else {
        assert!(status.is_client_error(), "openapi.yaml has no path for {method} {target}, answered with {status}");
        return;
    };
    let Some(operation) = best.item.get(method.to_ascii_lowercase()) else {
        assert_ne!(method, "GET", "openapi.yaml has no GET for {target}");
        return;
    };
    let known = operation["responses"].get(status.as_str()).is_some();
    assert!(known, "openapi.yaml does not say that {method} {target} may be {status}");
}

fn paths() -> &'static [Path] {
    static PATHS: OnceLock<Vec<Path>> = OnceLock::new();
    PATHS.get_or_init(|| {
        let document: Value = serde_saphyr::from_str(include_str!("../../../openapi.yaml")).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let read = |(path, item): (&String, &Value)| {
            let parameters = item["parameters"].as_array().cloned().unwrap_or_default();
            let parameters: Vec<Value> = parameters
                .iter()
                .map(|parameter| match parameter["$ref"].as_str() {
                    Some(at) => document.pointer(at.trim_start_matches('#')).unwrap().clone(),
                    None => parameter.clone(),
                })
                .collect();
            let stands = |segment: &str| {
                let name = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'));
                let Some(name) = name else { return Stands::Itself };
                let spans = |parameter: &&Value| parameter["name"] == name && parameter["x-spans-segments"] == true;
                if parameters.iter().find(spans).is_some() { Stands::Several } else { Stands::One }
            };
            let segments = path.split('/').skip(1).map(|segment| (segment.to_owned(), stands(segment))).collect();
            Path { segments, item: item.clone() }
        };
        paths.map(read).collect()
    })
}

fn stands_for(documented: &[(String, Stands)], path: &[&str]) -> bool {
    match (documented.split_first(), path.split_first()) {
        (None, None) => true,
        (Some(((own, stands), others)), Some((first, rest))) => match stands {
            Stands::Itself => own == first && stands_for(others, rest),
            Stands::One => !first.is_empty() && stands_for(others, rest),
            Stands::Several => (1..=path.len()).any(|taken| stands_for(others, &path[taken..])),
        },
        _ => false,
    }
}
