//! Traces that the running program sends to a collector.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::Value;

use crate::support::program::{PATIENCE, Program};
use crate::support::writer::N5;

const SPAN: &str = "00f067aa0ba902b7";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A collector of traces: its address, and the spans that it receives.
struct Collector {
    address: String,
    /// Spans of one message each.
    spans: Receiver<Vec<Value>>,
    /// Head of each request, in lower case, and the attributes of its resource.
    requests: Receiver<(String, Vec<Value>)>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let ((tell, spans), (tell_request, requests)) = (channel(), channel());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (tell, tell_request) = (tell.clone(), tell_request.clone());
                std::thread::spawn(move || {
                    let mut stream = BufReader::new(stream.unwrap());
                    loop {
                        let mut head = String::new();
                        while !head.ends_with("\r\n\r\n") {
                            if stream.read_line(&mut head).unwrap_or(0) == 0 {
                                return;
                            }
                        }
                        let head = head.to_ascii_lowercase();
                        assert!(
                            head.starts_with("post /v1/traces ") && head.contains("content-type: application/json")
                        );
                        let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
                        let mut body = vec![0; length.parse().unwrap()];
                        stream.read_exact(&mut body).unwrap();
                        let message: Value = serde_json::from_slice(&body).unwrap();
                        let resource = &message["resourceSpans"][0];
                        let attributes = resource["resource"]["attributes"].as_array().unwrap().clone();
                        let _ = tell_request.send((head, attributes));
                        let _ = tell.send(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
                        let response =
                            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
                        stream.get_mut().write_all(response.as_bytes()).unwrap();
                    }
                });
            }
        });
        Self { address, spans, requests }
    }

    /// Returns the next trace of a path: the span of the request, and its child spans.
    fn trace_of(&self, path: &str) -> (Value, Vec<Value>) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (requests, steps): (Vec<Value>, Vec<Value>) =
                self.spans.recv_timeout(left).unwrap().into_iter().partition(|span| span["kind"] == 2);
            let is_it = |span: &Value| attribute(span, "url.path").as_deref() == Some(path);
            if let Some(request) = requests.into_iter().find(is_it) {
                let is_its = |step: &Value| step["parentSpanId"] == request["spanId"];
                return (request.clone(), steps.into_iter().filter(is_its).collect());
            }
        }
    }
}

fn attribute(span: &Value, key: &str) -> Option<String> {
    let attributes = span["attributes"].as_array()?;
    let value = &attributes.iter().find(|attribute| attribute["key"] == key)?["value"];
    value["stringValue"].as_str().or_else(|| value["intValue"].as_str()).map(str::to_owned)
}

fn nanoseconds(span: &Value, key: &str) -> u128 {
    span[key].as_str().unwrap().parse().unwrap()
}

fn configured(n5: &N5, endpoint: &str, more: &str) -> String {
    format!(
        "{more}\ntracing.otlp_endpoint = \"{endpoint}\"\ntracing.one_in = 1\n[[containers]]\nroot = \"{}\"\n",
        n5.root().display()
    )
}

fn volume() -> N5 {
    let n5 = N5::new();
    n5.dataset("v", &[64, 64], &[32, 32], "gzip").fill(|_| true, |_| false);
    n5
}

#[test]
fn the_collector_gets_a_span_per_request_and_step_and_no_token() {
    let (n5, collector) = (volume(), Collector::start());
    n5.file("tokens", b"# none\n");
    let access = format!(
        "server.trusted_proxies = [\"127.0.0.1\"]\naccess.rules = [\"/v = public\"]\naccess.tokens = \"{}\"",
        n5.root().join("tokens").display()
    );
    let program = Program::start(&configured(&n5, &format!("http://{}", collector.address), &access));
    let parent = format!("traceparent: 00-{TRACE}-{SPAN}-01\r\n");
    let mut connection = program.connect();
    assert_eq!(connection.get("/slice/v?format=png&start=1,1", &parent).unwrap().status, 200);
    let (request, steps) = collector.trace_of("/slice/v");
    let (_, resource) = collector.requests.recv().unwrap();
    assert_eq!(resource[0]["value"]["stringValue"], "n5-server");
    assert_eq!((request["traceId"].as_str(), request["parentSpanId"].as_str()), (Some(TRACE), Some(SPAN)));
    assert_eq!((request["name"].as_str(), request["kind"].as_u64()), (Some("GET slice"), Some(2)));
    assert_eq!(attribute(&request, "http.response.status_code").as_deref(), Some("200"));
    let (began, ended) = (nanoseconds(&request, "startTimeUnixNano"), nanoseconds(&request, "endTimeUnixNano"));
    assert!(began < ended);
    let mut recorded = BTreeSet::new();
    for step in &steps {
        assert_eq!(step["traceId"], TRACE);
        let (from, to) = (nanoseconds(step, "startTimeUnixNano"), nanoseconds(step, "endTimeUnixNano"));
        assert!(began <= from && from <= to && to <= ended, "{step} outside of {request}");
        recorded.insert(format!("{} {}", step["name"].as_str().unwrap(), attribute(step, "n5.of").unwrap()));
    }
    for expected in ["storage get", "decode gzip", "encode png"] {
        assert!(recorded.contains(expected), "{expected} is not in {recorded:?}");
    }
    // Requests on the fast path are traced, too. A trusted caller can exclude a request.
    assert_eq!(connection.get("/v/0/0", &parent).unwrap().status, 200);
    assert_eq!(collector.trace_of("/v/0/0").0["traceId"], TRACE);
    let unwanted = format!("traceparent: 00-{TRACE}-{SPAN}-00\r\n");
    assert_eq!(connection.get("/v/0/1", &unwanted).unwrap().status, 200);
    // The last spans are sent before the program ends. Tokens are never sent.
    let secret = "n5t_0123456789";
    assert_eq!(connection.get(&format!("/token/{secret}/v/1/0?token={secret}"), "").unwrap().status, 401);
    assert_eq!(connection.get(&format!("/v/1/1?token={secret}"), "").unwrap().status, 401);
    program.signal(rustix::process::Signal::TERM);
    let mut rest = String::new();
    while !rest.contains("/v/1/1") {
        let spans = collector.spans.recv_timeout(PATIENCE).unwrap();
        rest.extend(spans.iter().map(Value::to_string));
    }
    assert!(!rest.contains(secret) && !rest.contains("/v/0/1"), "{rest}");
}

#[test]
fn an_unreachable_collector_loses_only_traces() {
    let n5 = volume();
    // The listener is dropped at once, so no process listens on this address.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut program = Program::start(&configured(&n5, &format!("http://{address}"), ""));
    for _ in 0..10 {
        assert_eq!(program.get("/slice/v?start=1,1").status, 200);
    }
    program.logged("the collector takes no traces");
    assert!(program.metric("n5_traces_dropped_total{reason=\"collector\"}").unwrap() >= 1.0);
    program.signal(rustix::process::Signal::TERM);
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn opentelemetry_environment_variables_apply() {
    let (n5, collector) = (volume(), Collector::start());
    let endpoint = format!("http://{}/", collector.address);
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20Secret,x-tenant=em"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_SERVICE_NAME", "volumes"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment=test"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
    ];
    let config = format!("[[containers]]\nroot = \"{}\"\n", n5.root().display());
    let program = Program::start_in(&config, &environment);
    assert!(program.logged("environment variable ignored").contains("OTEL_EXPORTER_OTLP_TIMEOUT"));
    for block in ["/v/0/0", "/v/0/1"] {
        assert_eq!(program.get(block).status, 200);
        collector.trace_of(block);
    }
    let (head, resource) = collector.requests.recv().unwrap();
    assert!(head.contains("authorization: bearer secret\r\n") && head.contains("x-tenant: em\r\n"), "{head}");
    let value =
        |key: &str| resource.iter().find(|attribute| attribute["key"] == key).unwrap()["value"]["stringValue"].clone();
    assert_eq!((value("service.name"), value("deployment.environment")), ("volumes".into(), "test".into()));
    assert_eq!(value("service.version"), env!("CARGO_PKG_VERSION"));
    // The sampler is off, although the configuration asks for traces.
    let off = [("OTEL_TRACES_SAMPLER", "always_off")];
    let program = Program::start_in(&configured(&n5, &endpoint, ""), &off);
    assert_eq!(program.get("/v/1/0").status, 200);
    program.signal(rustix::process::Signal::TERM);
    assert!(program.rest_of_log().iter().any(|line| line.contains("all answers finished")));
    assert!(collector.spans.try_recv().is_err());
}
