//! Files for operators: every metric in the dashboard and the alerts exists, every alert has a paragraph in the
//! documentation, every promise has a test, and the units and manifests are valid for their tools.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use n5_server::telemetry::metrics::METRICS;
use serde_json::Value;

use crate::support::program::{PATIENCE, Program};
use crate::support::writer::N5;
use crate::support::{skip_without, wait_until_blocking};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn alerts() -> Vec<Value> {
    let document: Value = serde_saphyr::from_str(&read("config/prometheus/alerts.yml")).unwrap();
    document["groups"][0]["rules"].as_array().unwrap().clone()
}

/// Returns every expression of the dashboard with Grafana's variables replaced.
fn dashboard() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        if let Some(text) = value.get("expr").and_then(Value::as_str) {
            found.push(text.replace("$__rate_interval", "5m").replace("$instance", "a"));
        }
        for below in value.as_object().into_iter().flat_map(|members| members.values()) {
            collect(below, found);
        }
        for below in value.as_array().into_iter().flatten() {
            collect(below, found);
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(&read("config/grafana/n5-server.json")).unwrap(), &mut found);
    found
}

/// Returns the names of the metrics in an expression, as they stand in `# TYPE` lines.
fn metrics_of(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("n5_") || word.starts_with("process_"));
    let stem = |word: &str| {
        let suffix = ["_bucket", "_sum", "_count"].into_iter().find(|suffix| word.ends_with(suffix));
        suffix.map_or(word, |suffix| word.trim_end_matches(suffix)).to_owned()
    };
    metrics.map(stem).collect()
}

#[test]
fn every_metric_of_the_dashboard_and_alerts_is_exported() {
    let n5 = N5::new();
    n5.dataset("v", &[64, 64], &[32, 32], "gzip").fill(|_| true, |_| false);
    n5.dataset("bad", &[4], &[4], "gzip");
    n5.file("bad/0", vec![0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3]);
    let disk = tempfile::TempDir::new().unwrap();
    let config = format!(
        "server.threads = 1\ncache.disk.path = {:?}\nlimits.slice_budget = \"1MiB\"\naccess.rules = [\"/hidden = nobody\"]\naccess.tokens = {:?}\n[[containers]]\nroot = \"{}\"\n",
        disk.path(),
        "TOKENS",
        n5.root().display()
    );
    n5.file("tokens", b"# none\n");
    let program = Program::start(&config.replace("TOKENS", &n5.root().join("tokens").display().to_string()));
    for (path, status) in [
        ("/v/0/0", 200),
        ("/slice/v?format=png", 200),
        ("/slice/bad", 422),
        ("/readyz", 200),
        ("/hidden/x", 401),
        ("/v/", 200),
    ] {
        assert_eq!(program.get(path).status, status, "{path}");
    }
    // The server checks the token file every second. The file is invalid from now on.
    n5.file("tokens", b"nonsense");
    program.logged("stays in force");
    // At most one decode per thread runs at a time, so some requests wait.
    let waits = || program.get("/metrics").body.contains("n5_queue_wait_duration_seconds_count");
    let mut rounds = 0;
    while !waits() {
        rounds += 1;
        assert!(rounds < 200, "no request ever waited");
        let clients: Vec<_> = (0..16)
            .map(|n| {
                let mut connection = program.connect();
                std::thread::spawn(move || connection.get(&format!("/slice/v?format=png&start={n},{n}"), "").unwrap())
            })
            .collect();
        for client in clients {
            assert_eq!(client.join().unwrap().status, 200);
        }
    }
    let text = program.get("/metrics").body;
    let known: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut used = BTreeSet::new();
    for expression in
        dashboard().into_iter().chain(alerts().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()))
    {
        for metric in metrics_of(&expression) {
            // These metrics exist only if TLS or a remote store is used. The table of metrics has its own test.
            let is_optional = metric.starts_with("n5_tls_") || metric.starts_with("n5_upstream_");
            let is_shown = known.contains(metric.as_str()) || is_optional;
            assert!(is_shown, "{metric} in {expression}");
            used.insert(metric);
        }
    }
    assert!(used.iter().all(|name| !name.starts_with("n5_") || METRICS.iter().any(|row| row.name == name)), "{used:?}");
    // Conversely, every metric is in the dashboard or in an alert.
    for metric in METRICS {
        assert!(used.contains(metric.name), "{} is neither in the dashboard nor in an alert", metric.name);
    }
}

#[test]
fn requests_to_a_store_are_in_the_metrics_and_summed_in_the_log_at_the_end() {
    let n5 = N5::new();
    n5.dataset("v", &[64, 64], &[32, 32], "gzip").fill(|_| true, |_| false);
    let inner = Program::start(&format!("[[containers]]\nroot = \"{}\"\n", n5.root().display()));
    let config = format!("[[containers]]\nname = \"em\"\nroot = \"http://{}/\"\n", inner.address);
    let program = Program::start(&config);
    assert_eq!(program.get("/n5/em/v/0/0").status, 200);
    let text = program.get("/metrics").body;
    for metric in METRICS.iter().filter(|metric| metric.name.starts_with("n5_upstream_")) {
        let has_container = |line: &str| line.starts_with(metric.name) && line.contains("container=\"em\"");
        assert!(text.lines().any(has_container), "{}", metric.name);
    }
    let found = "n5_upstream_requests_total{container=\"em\",op=\"get\",result=\"success\"}";
    assert!(program.metric(found).unwrap() >= 1.0);
    program.signal(rustix::process::Signal::TERM);
    let line = program.logged("requests to the store since the start");
    assert!(line.contains("em") && line.contains("get_bytes"), "{line}");
}

/// Runs a tool and returns its output, or `None` if the tool is not installed.
fn run(tool: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(tool).args(arguments).current_dir(path("")).output() {
        Err(_) => {
            skip_without(tool);
            None
        }
        Ok(output) => {
            let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
            assert!(output.status.success(), "{tool} {arguments:?}: {text}");
            Some(text)
        }
    }
}

#[test]
fn alerts_and_dashboard_are_valid_promql_and_every_alert_can_fire() {
    run("promtool", &["check", "rules", "config/prometheus/alerts.yml"]);
    run("promtool", &["test", "rules", "config/prometheus/alerts_test.yml"]);
    let tests = read("config/prometheus/alerts_test.yml");
    for alert in alerts() {
        let fires = format!("{{alertname=\"{}\"}}', value: ", alert["alert"].as_str().unwrap());
        let is_tested =
            tests.match_indices(&fires).any(|(at, _)| matches!(tests.as_bytes()[at + fires.len()], b'1'..=b'9'));
        assert!(is_tested, "no test makes this alert fire: {alert}");
    }
    // An alert without its metrics never fires, so the test `quiet` must contain the metrics of every alert.
    let quiet = tests.split("  - interval: ").find(|test| test.contains("name: quiet ")).unwrap();
    for alert in alerts() {
        for metric in metrics_of(alert["expr"].as_str().unwrap()) {
            assert!(quiet.contains(&metric), "the test `quiet` lacks {metric} of {alert}");
        }
    }
    let expressions = dashboard();
    assert!(expressions.len() > 30, "{}", expressions.len());
    let rules: Vec<Value> = expressions
        .iter()
        .enumerate()
        .map(|(n, expression)| serde_json::json!({ "record": format!("panel:{n}"), "expr": expression }))
        .collect();
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("dashboard.yml");
    // JSON is valid YAML.
    let document = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    fs::write(&file, document.to_string()).unwrap();
    run("promtool", &["check", "rules", &file.display().to_string()]);
}

#[test]
fn the_metrics_pass_promtool() {
    let n5 = N5::new();
    let program = Program::start(&format!("[[containers]]\nroot = \"{}\"\n", n5.root().display()));
    let text = program.get("/metrics").body;
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("metrics");
    fs::write(&file, text).unwrap();
    let missing = "echo 'left out: there is no promtool' >&2; exit 0";
    run(
        "sh",
        &[
            "-c",
            &format!("command -v promtool >/dev/null || {{ {missing}; }}; promtool check metrics <{}", file.display()),
        ],
    );
}

#[test]
fn each_alert_is_documented() {
    let document = read("docs/OPERATIONS.md");
    let sections: BTreeSet<&str> = document.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let alerts = alerts();
    for alert in &alerts {
        let name = alert["alert"].as_str().unwrap();
        assert!(sections.contains(name), "docs/OPERATIONS.md has no section {name}");
        let runbook = alert["annotations"]["runbook"].as_str().unwrap();
        assert!(runbook.ends_with(&format!("docs/OPERATIONS.md#{}", name.to_lowercase())), "{runbook}");
        assert!(alert["annotations"]["summary"].is_string() && alert["labels"]["severity"].is_string(), "{name}");
    }
    for section in sections.iter().filter(|section| section.starts_with("N5")) {
        assert!(alerts.iter().any(|alert| alert["alert"] == **section), "there is no alert {section}");
    }
}

#[test]
fn each_promise_names_an_existing_test() {
    let document = read("docs/OPERATIONS.md");
    let table = document.split("## Promises").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter_map(|line| line.strip_prefix('|'))
        .map(|row| row.trim_end_matches('|').split('|').map(str::trim).collect())
        .skip(2)
        .collect();
    assert!(rows.len() > 15, "{}", rows.len());
    for cells in rows {
        assert_eq!(cells.len(), 3, "{cells:?}");
        let tests: Vec<&str> = cells[1].split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "{cells:?} names no test");
        for test in tests {
            let (file, name) = test.split_once("::").unwrap_or((test, ""));
            let file = if Path::new(file).extension().is_some() || file.contains('/') {
                file.to_owned()
            } else {
                format!("tests/it/{file}.rs")
            };
            let file = if path(&file).exists() { file } else { format!("tests/clients/{file}") };
            let text = read(&file);
            let exists =
                name.is_empty() || text.contains(&format!("fn {name}(")) || text.contains(&format!("def {name}("));
            assert!(exists, "{file} has no test {name}");
        }
    }
}

#[test]
fn the_systemd_unit_is_valid() {
    // `systemd-analyze` requires the program to exist, as `/bin/true` does.
    let unit = read("config/systemd/n5-server.service").replace("/usr/local/bin/n5-server", "/bin/true");
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("n5-server.service");
    fs::write(&file, unit).unwrap();
    if let Some(text) = run("systemd-analyze", &["verify", &file.display().to_string()]) {
        assert!(!text.contains("n5-server.service"), "{text}");
    }
}

/// Writes the configuration of the manifests' pods, with an existing token file, into a directory. Returns its path.
fn settings_of_a_pod(kubernetes: &str, directory: &Path) -> String {
    let first: Value = serde_saphyr::from_str(kubernetes.split("\n---\n").next().unwrap()).unwrap();
    let (file, tokens) = (directory.join("n5-server.toml"), directory.join("tokens"));
    fs::write(&tokens, "# one line for each token\n").unwrap();
    let text = first["data"]["n5-server.toml"].as_str().unwrap();
    let mounted = "/etc/n5-server-secrets/tokens";
    assert!(text.contains(mounted));
    fs::write(&file, text.replace(mounted, &tokens.display().to_string())).unwrap();
    file.display().to_string()
}

/// Returns the text between the first `before` and the next `after`.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("there is no {before:?}"));
    rest.split_once(after).map_or(rest, |(found, _)| found).trim()
}

#[test]
fn shipped_memory_limits_cover_the_announced_memory() {
    let directory = tempfile::TempDir::new().unwrap();
    let kubernetes = read("config/kubernetes/n5-server.yaml");
    let pod = settings_of_a_pod(&kubernetes, directory.path());
    let compose = read("config/compose/compose.yaml");
    let unit = read("config/systemd/n5-server.service");
    let mebibytes = |size: &str| {
        let (number, unit) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap());
        let factor = if unit.to_ascii_lowercase().starts_with('g') { 1024 } else { 1 };
        number.parse::<u64>().unwrap() * factor
    };
    for (config, limit) in [
        (vec!["--config", &pod], between(&kubernetes, "limits: { cpu: \"2\", memory: ", " }")),
        (vec!["--config", &pod], between(&kubernetes, "requests: { cpu: \"1\", memory: ", " }")),
        (vec!["--config", "config/compose/n5-server.toml"], between(&compose, "mem_limit: ", "\n")),
        (vec![], between(&unit, "MemoryMax=", "\n")),
    ] {
        // This machine may have more memory than the one for which the limit is meant.
        let least = ["--check-config", "--set", "memory.limit=least"];
        let text = run(env!("CARGO_BIN_EXE_n5-server"), &[&least[..], &config[..]].concat()).unwrap();
        let caches: u64 = between(&text, "memory ", "MiB at most").parse().unwrap();
        let connections: u64 = between(&text, "which take up to ", " MiB more").parse().unwrap();
        // The formula is in docs/OPERATIONS.md, Sizing.
        assert!(caches + connections + 64 <= mebibytes(limit), "{config:?}: {limit}: {text}");
    }
}

#[test]
fn example_configurations_are_valid() {
    let kubernetes = read("config/kubernetes/n5-server.yaml");
    let directory = tempfile::TempDir::new().unwrap();
    let program = env!("CARGO_BIN_EXE_n5-server");
    run(program, &["--check-config", "--config", &settings_of_a_pod(&kubernetes, directory.path())]);
    run(program, &["--check-config", "--config", "config/compose/n5-server.toml"]);
    // The grace period of the pods exceeds `drain_delay` (8 s) and the shutdown timeout (30 s) together.
    let grace = kubernetes.split("terminationGracePeriodSeconds: ").nth(1).unwrap().split('\n').next().unwrap();
    assert!(grace.parse::<u64>().unwrap() > 8 + 30);
}

#[test]
fn log_lines_that_cannot_be_written_are_only_counted() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let program = Program::start_logging_to("[log]\nlevel = \"info\"\n", &[], Some(full));
    let lost = || program.metric("n5_log_lines_dropped_total").unwrap();
    // A separate thread writes the log line of the start.
    assert!(wait_until_blocking(|| lost() > 0.0), "the line of the start is not counted as lost");
    let before = lost();
    for _ in 0..3 {
        assert_eq!(program.get("/attributes.json").status, 200);
    }
    let are_counted = wait_until_blocking(|| lost() >= before + 3.0);
    assert!(are_counted, "{} lines are lost, expected {before} + 3", lost());
}

#[test]
fn sd_notify_reports_ready_reloading_and_stopping() {
    let directory = tempfile::TempDir::new().unwrap();
    let name = directory.path().join("notify");
    let socket = UnixDatagram::bind(&name).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let next_notification = || {
        let mut text = vec![0; 1000];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let program = Program::start_in("", &[("NOTIFY_SOCKET", name.to_str().unwrap())]);
    assert_eq!(next_notification(), "READY=1\n");
    program.reload("");
    let reloading = next_notification();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(next_notification(), "READY=1\n");
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(next_notification(), "STOPPING=1\n");
}

#[test]
fn too_low_system_limits_are_logged_at_startup() {
    let run = "ulimit -n 200; ulimit -v 4000000000; exec \"$0\" --listen 127.0.0.1:0";
    let mut command = Command::new("sh");
    let mut server = command
        .args(["-c", run, env!("CARGO_BIN_EXE_n5-server")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut started = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut started).unwrap();
    server.kill().unwrap();
    let log = server.wait_with_output().unwrap().stderr;
    let log = String::from_utf8(log).unwrap();
    assert!(started.contains("listening on"), "{log}");
    assert!(log.contains("limit of open files") && log.contains("limit=200 "), "{log}");
    assert!(log.contains("address space is limited"), "{log}");
}
