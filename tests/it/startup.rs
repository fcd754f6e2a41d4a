//! Start of the program as users run it: its first lines, the browser that `--open` starts, and a reload of containers that
//! are named on the command line.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::support::program::Program;
use crate::support::{skip_without, wait_until_blocking};

/// The running program with its standard output; killed when dropped.
struct Started {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Started {
    /// Runs `command`, a line of the shell in which `$0` is the program.
    fn run(command: &str, search_path: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", command, env!("CARGO_BIN_EXE_n5-server")]).env("PATH", search_path).stdin(Stdio::null());
        let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the next line of standard output.
    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// Returns the port in the first line, whose address must begin with `origin`.
    fn port(&mut self, origin: &str) -> u16 {
        let line = self.line();
        let (_, address) = line.split_once(" listening on ").unwrap();
        address.strip_prefix(origin).unwrap_or_else(|| panic!("{line}")).trim_end_matches('/').parse().unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn on_all_addresses_the_second_line_says_where_to_connect() {
    for (listen, local) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")] {
        if TcpListener::bind((local.trim_matches(['[', ']']), 0)).is_err() {
            continue;
        }
        let mut started = Started::run(&format!("exec \"$0\" --listen {listen}:0"), "/usr/bin:/bin");
        let port = started.port(&format!("http://{listen}:"));
        let line = started.line();
        let here = format!("on this machine: http://{local}:{port}/");
        let rest = line.strip_prefix(&here).unwrap_or_else(|| panic!("{line}"));
        // Without a network, there is no other address.
        let elsewhere = rest.strip_prefix("; from other machines, probably: http://");
        assert!(rest.is_empty() || elsewhere.is_some_and(|url| url.ends_with(&format!(":{port}/"))), "{line}");
        assert!(started.line().starts_with("serving "), "the lines are in order");
    }
}

#[test]
fn a_directory_without_n5_is_named_at_the_start_and_served() {
    let directory = TempDir::new().unwrap();
    fs::create_dir_all(directory.path().join("pics/raw")).unwrap();
    fs::write(directory.path().join("pics/raw/a.png"), "picture").unwrap();
    let root = directory.path().display();
    let mut started = Started::run(&format!("exec \"$0\" --port 0 {root}"), "/usr/bin:/bin");
    let port = started.port("http://127.0.0.1:");
    assert!(started.line().starts_with("serving "));
    assert!(started.line().starts_with("memory limit "));
    let line = started.line();
    let expected = format!("nothing to serve was found in {root}: none of its 3 directories has the attributes.json");
    assert!(line.starts_with(&expected) && line.contains("Give the directory of an N5 container"), "{line}");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(), "data may come later");

    fs::write(directory.path().join("pics/raw/attributes.json"), r#"{"n5":"4.0.0"}"#).unwrap();
    let program = Program::serving(directory.path(), &[]);
    program.signal(rustix::process::Signal::TERM);
    let log = program.rest_of_log().join("\n");
    assert!(!log.contains("nothing to serve"), "{log}");
}

#[test]
fn the_start_says_how_access_stands_and_the_log_warns_of_settings_without_effect() {
    let directory = TempDir::new().unwrap();
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, format!("ann {}\n", "0".repeat(64))).unwrap();
    let tokens = format!("--set access.tokens={}", tokens.display());
    for (arguments, expected) in [
        (format!("--listen 0.0.0.0:0 {tokens}"), "access: public by default, 0 rules, 1 token; metrics: public"),
        ("--listen 0.0.0.0:0".to_owned(), "access: anyone who can reach this address can read everything"),
    ] {
        let mut started = Started::run(&format!("exec \"$0\" {arguments}"), "/usr/bin:/bin");
        let lines = [(); 5].map(|()| started.line());
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{lines:?}");
    }
    let mut started = Started::run("exec \"$0\" --port 0", "/usr/bin:/bin");
    let lines = [(); 4].map(|()| started.line());
    assert!(!lines.iter().any(|line| line.starts_with("access")), "{lines:?}");

    let warning = "everyone can read everything without a token";
    let check = format!("exec \"$0\" --check-config {tokens}");
    let output = Command::new("sh").args(["-c", &check, env!("CARGO_BIN_EXE_n5-server")]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(&format!("\nwarning     {warning}")), "{text}");
    let program = Program::start("[access]\ndefault = \"private\"\n");
    program.logged("every caller is refused");
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_n5-server")).args(["--port", &port]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let expected = format!("cannot listen on 127.0.0.1:{port}: another program, perhaps another n5-server");
    assert!(text.contains(&expected) && text.contains("--port 0 for any free port"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

/// Writes a program `xdg-open` to `directory`, which records its argument and its limit of open files in `opened`.
fn write_fake_browser(directory: &Path) {
    let opened = directory.join("opened");
    // The limit is set after the start. It takes a browser longer to open its first file.
    let script =
        format!("#!/bin/sh\nsleep 0.3\necho \"$1 $(ulimit -n)\" > '{0}.new'\nmv '{0}.new' '{0}'\n", opened.display());
    fs::write(directory.join("xdg-open"), script).unwrap();
    fs::set_permissions(directory.join("xdg-open"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_browser_gets_a_local_url_and_the_limits_of_the_shell() {
    let directory = TempDir::new().unwrap();
    write_fake_browser(directory.path());
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate_file, key_file) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    fs::write(&certificate_file, key.cert.pem()).unwrap();
    fs::write(&key_file, key.signing_key.serialize_pem()).unwrap();
    let tls = format!("--set tls.certificate={} --set tls.key={}", certificate_file.display(), key_file.display());
    for (settings, scheme) in [("", "http"), (tls.as_str(), "https")] {
        let opened = directory.path().join("opened");
        let _ = fs::remove_file(&opened);
        let search_path = format!("{}:/usr/bin:/bin", directory.path().display());
        let command = format!("ulimit -S -n 512; exec \"$0\" --open --listen 0.0.0.0:0 {settings}");
        let mut started = Started::run(&command, &search_path);
        let port = started.port(&format!("{scheme}://0.0.0.0:"));
        assert!(wait_until_blocking(|| opened.exists()), "the browser is not started");
        assert_eq!(fs::read_to_string(&opened).unwrap(), format!("{scheme}://127.0.0.1:{port}/ 512\n"));
    }
}

#[test]
fn help_has_colours_only_on_a_terminal_without_no_color() {
    let program = env!("CARGO_BIN_EXE_n5-server");
    let green = "\u{1b}[1m\u{1b}[32mUsage:";
    let piped = Command::new(program).arg("-h").output().unwrap();
    assert!(!String::from_utf8_lossy(&piped.stdout).contains('\u{1b}'));
    for (no_color, is_coloured) in [("", true), ("1", false)] {
        let line = format!("{program} -h");
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color").env_remove("CLICOLOR");
        let Ok(shown) = terminal.env("NO_COLOR", no_color).stdin(Stdio::null()).output() else {
            return skip_without("script");
        };
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.contains("Usage:"), "{text:?}");
        assert_eq!(text.contains(green), is_coloured, "{text:?}");
    }
}

#[test]
fn a_single_container_has_the_name_of_its_directory() {
    let directory = TempDir::new().unwrap();
    let root = directory.path().join("jrc_mouse-1.n5");
    fs::create_dir_all(root.join("em")).unwrap();
    fs::write(root.join("em/attributes.json"), "{}").unwrap();
    let program = Program::serving(&root, &[]);
    let name_at = |program: &Program, path: &str| {
        let body: serde_json::Value = serde_json::from_str(&program.get(path).body).unwrap();
        body["name"].clone()
    };
    assert_eq!(name_at(&program, "/info/"), "jrc_mouse-1");
    assert_eq!(name_at(&program, "/info/em"), "em");
    // The demo has no directory.
    assert_eq!(name_at(&Program::start(""), "/info/"), serde_json::Value::Null);
}

#[test]
fn the_name_of_a_container_is_hidden_from_those_who_may_not_read_its_root() {
    let directory = TempDir::new().unwrap();
    let root = directory.path().join("jrc_mouse-1.n5");
    fs::create_dir_all(root.join("em")).unwrap();
    fs::write(root.join("em/attributes.json"), "{}").unwrap();
    for (root_rule, is_shown) in [("/ = public", true), ("/ = nobody", false)] {
        let program = Program::serving(&root, &[&format!("access.rules=[\"{root_rule}\", \"/em = public\"]")]);
        let page = program.connect().get("/n5/em/", "Accept: text/html,application/xhtml+xml\r\n").unwrap();
        assert_eq!(page.status, 200);
        assert_eq!(page.body.contains("jrc_mouse-1"), is_shown, "{}", page.body);
    }
}

#[test]
fn containers_of_the_command_line_keep_their_names_after_a_reload() {
    let directory = TempDir::new().unwrap();
    let roots = ["em.n5", "seg.n5"].map(|name| directory.path().join(name));
    for root in &roots {
        fs::create_dir(root).unwrap();
        fs::write(root.join("attributes.json"), r#"{"n5":"4.0.0"}"#).unwrap();
    }
    let program = Program::serving_roots(&roots);
    for _ in 0..2 {
        for path in ["/em/attributes.json", "/seg/attributes.json"] {
            assert_eq!(program.get(path).status, 200, "{path}");
        }
        program.signal(rustix::process::Signal::HUP);
        program.logged("configuration read again");
    }
}
