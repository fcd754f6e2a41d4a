//! Settings of tracing, from `[tracing]` and from the environment variables of the OpenTelemetry specification.

use std::time::Duration;

use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// Time limit for sending a batch, unless `OTEL_EXPORTER_OTLP_TIMEOUT` sets it.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum of `OTEL_EXPORTER_OTLP_TIMEOUT`. A longer time limit would not help, because the queue of traces would be
/// full long before.
const MAX_SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of tracing: where traces are sent, how they are described, and which requests are traced.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSettings {
    /// URL that receives traces, with its path.
    pub(super) url: String,
    /// Header fields of every message.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes that describe this program, such as `service.name`.
    pub(super) resource_attributes: Vec<(String, String)>,
    /// Time limit for sending a batch.
    pub(super) timeout: Duration,
    /// Sampling interval: of this many requests, one is traced. 0 means that none is.
    pub(super) one_in: u64,
    /// True if the `traceparent` of a trusted caller decides whether its request is traced.
    pub(super) follows_caller: bool,
}

impl TraceSettings {
    /// Combines `[tracing]` with the variables that `variable` returns. A nonempty `endpoint` takes precedence over the
    /// variables, and `OTEL_TRACES_SAMPLER` takes precedence over `one_in`. Returns `None` if no traces are to be sent.
    /// An invalid variable is logged and ignored, as the specification demands.
    pub fn new(endpoint: &str, one_in: u64, variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let variable = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let exporter = variable("OTEL_TRACES_EXPORTER").unwrap_or_else(|| "otlp".to_owned());
        if exporter == "none" || variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return None;
        }
        let url = if endpoint.is_empty() { collector_url(&variable)? } else { traces_url(endpoint) };
        if exporter != "otlp" {
            ignored("OTEL_TRACES_EXPORTER", "traces are only sent as OTLP");
        }
        if of_exporter(&variable, "PROTOCOL").is_some_and(|(_, protocol)| protocol == "grpc") {
            ignored("OTEL_EXPORTER_OTLP_PROTOCOL", "traces are sent over HTTP as JSON, usually to port 4318");
        }
        let (one_in, follows_caller) = sampler(&variable).unwrap_or((one_in, true));
        if one_in == 0 && !follows_caller {
            return None;
        }
        // The header fields may contain a secret for the collector in the variables. Another collector must not get
        // this secret.
        let names_another = !endpoint.is_empty() && collector_url(&variable).is_some_and(|other| other != url);
        let headers = if names_another { Vec::new() } else { header_fields(&variable) };
        if names_another && of_exporter(&variable, "HEADERS").is_some() {
            ignored("OTEL_EXPORTER_OTLP_HEADERS", "tracing.otlp_endpoint names another collector than the variables");
        }
        let resource_attributes = resource_attributes(&variable);
        Some(Self { url, headers, resource_attributes, timeout: send_timeout(&variable), one_in, follows_caller })
    }
}

/// Returns the URL for traces below a collector's base URL.
fn traces_url(endpoint: &str) -> String {
    format!("{}/v1/traces", endpoint.trim_end_matches('/'))
}

fn ignored(variable: &str, why: &str) {
    tracing::warn!(variable, why, "environment variable ignored");
}

/// Returns the name and value of the exporter's variable for traces or, if that is not set, of its variable for all
/// signals.
fn of_exporter(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<(String, String)> {
    let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")];
    names.into_iter().find_map(|name| variable(&name).map(|text| (name, text)))
}

fn collector_url(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let (name, endpoint) = of_exporter(variable, "ENDPOINT")?;
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        ignored(&name, "it is not a URL such as http://collector:4318");
        return None;
    }
    Some(if name.contains("TRACES") { endpoint } else { traces_url(&endpoint) })
}

fn header_fields(variable: &dyn Fn(&str) -> Option<String>) -> Vec<(HeaderName, HeaderValue)> {
    let Some((name, text)) = of_exporter(variable, "HEADERS") else { return Vec::new() };
    let to_header = |(key, value): (String, String)| {
        let name: HeaderName = key.parse().ok()?;
        let mut value: HeaderValue = value.parse().ok()?;
        value.set_sensitive(true);
        // The exporter sets these two header fields itself.
        (name != CONTENT_TYPE && name != CONTENT_LENGTH).then_some((name, value))
    };
    let headers = parse_pairs(&text).and_then(|pairs| pairs.into_iter().map(to_header).collect());
    headers.unwrap_or_else(|| {
        // The value of the variable may be a secret, so it is not logged.
        ignored(&name, "it is not a list of header fields: name=value,name=value");
        Vec::new()
    })
}

fn resource_attributes(variable: &dyn Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let text = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut attributes = parse_pairs(&text).unwrap_or_else(|| {
        ignored("OTEL_RESOURCE_ATTRIBUTES", "it is not a list of attributes: key=value,key=value");
        Vec::new()
    });
    attributes.extend(variable("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
    attributes
}

fn send_timeout(variable: &dyn Fn(&str) -> Option<String>) -> Duration {
    let Some((name, text)) = of_exporter(variable, "TIMEOUT") else { return SEND_TIMEOUT };
    match text.parse() {
        Ok(millis) if millis > 0 => Duration::from_millis(millis).min(MAX_SEND_TIMEOUT),
        _ => {
            ignored(&name, "it is not a number of milliseconds");
            SEND_TIMEOUT
        }
    }
}

/// Returns the values for [`TraceSettings::one_in`] and [`TraceSettings::follows_caller`] if a sampler is set.
fn sampler(variable: &dyn Fn(&str) -> Option<String>) -> Option<(u64, bool)> {
    let sampler = variable("OTEL_TRACES_SAMPLER")?;
    let (kind, follows_caller) = match sampler.strip_prefix("parentbased_") {
        Some(kind) => (kind, true),
        None => (sampler.as_str(), false),
    };
    let one_in = match kind {
        "always_on" => 1,
        "always_off" => 0,
        "traceidratio" => one_in_of_ratio(variable("OTEL_TRACES_SAMPLER_ARG").as_deref()),
        _ => {
            ignored(
                "OTEL_TRACES_SAMPLER",
                "it is not always_on, always_off or traceidratio, or parentbased_ with these",
            );
            return None;
        }
    };
    Some((one_in, follows_caller))
}

/// Converts the share of requests that is traced, from 0 to 1, to [`TraceSettings::one_in`]. The default is 1.
fn one_in_of_ratio(ratio: Option<&str>) -> u64 {
    let ratio = ratio.map_or(Some(1.0), |text| text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio)));
    let ratio: f64 = ratio.unwrap_or_else(|| {
        ignored("OTEL_TRACES_SAMPLER_ARG", "it is not a number from 0 to 1");
        1.0
    });
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not negative")]
    let one_in = (1.0 / ratio).round() as u64;
    if ratio == 0.0 { 0 } else { one_in }
}

/// Parses `key=value,key=value`, where values may be percent-encoded. Returns `None` if an item has another form.
fn parse_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let parse_pair = |item: &str| {
        let (key, value) = item.split_once('=').filter(|(key, _)| !key.trim().is_empty())?;
        Some((key.trim().to_owned(), percent_decode_str(value.trim()).decode_utf8().ok()?.into_owned()))
    };
    items.map(parse_pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoint: &str, variables: &[(&str, &str)]) -> Option<TraceSettings> {
        TraceSettings::new(endpoint, 100, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn sampling(sampler: &str, argument: &str) -> Option<(u64, bool)> {
        let variables = [("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)];
        settings("http://a", &variables).map(|settings| (settings.one_in, settings.follows_caller))
    }

    #[test]
    fn an_endpoint_comes_from_the_configuration_or_else_from_the_variables() {
        const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/");
        const TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces/x");
        let url = |endpoint, variables: &[_]| settings(endpoint, variables).map(|settings| settings.url);
        assert_eq!(url("", &[]), None);
        assert_eq!(url("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
        assert_eq!(url("", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")]), None);
        assert_eq!(url("", &[ALL]).unwrap(), "http://all:4318/v1/traces");
        assert_eq!(url("", &[ALL, TRACES]).unwrap(), "https://traces/x");
        assert_eq!(url("http://own/", &[ALL, TRACES]).unwrap(), "http://own/v1/traces");
        assert_eq!(url("http://own", &[("OTEL_SDK_DISABLED", "True")]), None);
        assert_eq!(url("", &[ALL, ("OTEL_TRACES_EXPORTER", "none")]), None);
    }

    #[test]
    fn header_fields_of_one_collector_are_not_sent_to_another() {
        const HEADERS: (&str, &str) = ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret");
        const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://vendor");
        let headers = |endpoint, variables: &[_]| settings(endpoint, variables).unwrap().headers.len();
        assert_eq!(headers("", &[ENDPOINT, HEADERS]), 1);
        assert_eq!(headers("https://vendor/", &[ENDPOINT, HEADERS]), 1);
        assert_eq!(headers("http://own", &[HEADERS]), 1);
        assert_eq!(headers("http://own", &[ENDPOINT, HEADERS]), 0);
        let reserved = ("OTEL_EXPORTER_OTLP_HEADERS", "content-type=text/html");
        assert_eq!(headers("http://own", &[reserved]), 0);
    }

    #[test]
    fn a_sampler_becomes_one_request_in_so_many() {
        assert_eq!(sampling("", ""), Some((100, true)));
        assert_eq!(sampling("always_on", ""), Some((1, false)));
        assert_eq!(sampling("always_off", ""), None);
        assert_eq!(sampling("parentbased_always_off", ""), Some((0, true)));
        assert_eq!(sampling("parentbased_traceidratio", "0.01"), Some((100, true)));
        assert_eq!(sampling("traceidratio", "0.3"), Some((3, false)));
        assert_eq!(sampling("traceidratio", "0"), None);
        for (sampler, argument) in [("traceidratio", ""), ("traceidratio", "2"), ("traceidratio", "NaN")] {
            assert_eq!(sampling(sampler, argument), Some((1, false)), "{argument}");
        }
        assert_eq!(sampling("jaeger_remote", ""), Some((100, true)));
    }

    #[test]
    fn lists_are_decoded_or_ignored_as_a_whole() {
        let headers = |text| settings("http://a", &[("OTEL_EXPORTER_OTLP_HEADERS", text)]).unwrap().headers;
        let field =
            |name: &'static str, value: &'static str| (HeaderName::from_static(name), HeaderValue::from_static(value));
        assert_eq!(
            headers("Authorization=Bearer%20a=b, x-b = c,"),
            [field("authorization", "Bearer a=b"), field("x-b", "c")]
        );
        for text in ["a", "a=b,c", "=b", "a b=c", "a=%0d%0a", "a=%ff"] {
            assert_eq!(headers(text), [], "{text}");
        }
        let variables = [("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,zone=%C3%A9"), ("OTEL_SERVICE_NAME", "y")];
        let attributes = settings("http://a", &variables).unwrap().resource_attributes;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(attributes, [pair("service.name", "x"), pair("zone", "é"), pair("service.name", "y")]);
    }

    #[test]
    fn a_timeout_is_given_in_milliseconds() {
        let timeout = |text| settings("http://a", &[("OTEL_EXPORTER_OTLP_TIMEOUT", text)]).unwrap().timeout;
        assert_eq!(timeout("250"), Duration::from_millis(250));
        assert_eq!(timeout("3600000"), MAX_SEND_TIMEOUT);
        for text in ["", "0", "5s", "-1"] {
            assert_eq!(timeout(text), SEND_TIMEOUT, "{text}");
        }
    }
}
