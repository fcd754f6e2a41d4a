//! Reloads of the running program's configuration by SIGHUP.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::program::{Connection, Program};
use crate::support::wait_until_blocking;
use crate::support::writer::N5;

fn volume() -> N5 {
    let n5 = N5::new();
    n5.dataset("v", &[64, 64], &[32, 32], "raw").fill(|_| true, |_| false);
    n5
}

fn config_for(n5: &N5, more: &str) -> String {
    format!("{more}\n[[containers]]\nname = \"em\"\nroot = \"{}\"\n", n5.root().display())
}

#[test]
fn no_request_is_lost_while_the_configuration_changes() {
    let n5 = volume();
    let policies = ["revalidate", "immutable"];
    let config =
        |round: usize| config_for(&n5, &format!("container_defaults.cache_control = {:?}", policies[round % 2]));
    let program = Program::start(&config(0));
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = ["/em/v/0/1", "/em/v/attributes.json", "/slice/em/v?start=3,4&stop=40,50", "/zarr2/em/v/1/0"]
        .into_iter()
        .map(|path| {
            let (is_over, answered, mut connection) = (Arc::clone(&is_over), Arc::clone(&answered), program.connect());
            std::thread::spawn(move || {
                let expected = connection.get(path, "").unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    let reply = connection.get(path, "").expect("the connection stays");
                    assert_eq!((reply.status, &reply.body), (200, &expected.body), "{path}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for round in 1..20 {
        let before = answered.load(Ordering::Relaxed);
        assert!(program.reload(&config(round)).contains("configuration read again"));
        let policy = program.get("/em/v/0/0").header("cache-control").unwrap().to_owned();
        assert_eq!(policy.contains("immutable"), round % 2 == 1, "{policy}");
        while answered.load(Ordering::Relaxed) < before + 8 && clients.iter().all(|client| !client.is_finished()) {
            std::thread::yield_now();
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn a_new_rule_applies_to_the_next_request_on_open_connections() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, ""));
    let paths = ["/em/v/0/0", "/em/v/9/9", "/zarr2/em/v/0/0", "/slice/em/v", "/info/em/v", "/em/v/attributes.json"];
    let mut open: Vec<_> = paths.iter().map(|path| (path, program.connect())).collect();
    let statuses = |open: &mut Vec<(&&str, Connection)>| -> Vec<u16> {
        open.iter_mut().map(|(path, connection)| connection.get(path, "").unwrap().status).collect()
    };
    // Twice: the thread cache answers the second round.
    for _ in 0..2 {
        assert_eq!(statuses(&mut open), [200, 404, 200, 200, 200, 200]);
    }
    program.reload(&config_for(&n5, "access.rules = [\"/em = nobody\"]"));
    assert_eq!(statuses(&mut open), [401; 6]);
    program.reload(&config_for(&n5, "access.rules = [\"/em = public\"]"));
    assert_eq!(statuses(&mut open), [200, 404, 200, 200, 200, 200]);
}

#[test]
fn a_reload_adds_and_removes_the_challenge_at_which_browsers_ask_for_a_password() {
    let n5 = volume();
    let config = |more: &str| config_for(&n5, &format!("{more}\naccess.rules = [\"/em = nobody\"]"));
    let program = Program::start(&config(""));
    let mut connection = program.connect();
    let mut has_challenge = || {
        let reply = connection.get("/em/v/0/0", "").unwrap();
        let challenges: Vec<&str> =
            reply.head.lines().filter_map(|line| line.strip_prefix("www-authenticate: ")).collect();
        assert!(reply.status == 401 && challenges.iter().any(|value| value.starts_with("Bearer")), "{challenges:?}");
        challenges.iter().any(|value| value.starts_with("Basic"))
    };
    for (more, is_expected) in [("", false), ("access.basic_challenge = true", true), ("", false)] {
        program.reload(&config(more));
        assert_eq!(has_challenge(), is_expected, "{more}");
    }
}

#[test]
fn a_configuration_truncated_before_its_rules_grants_no_access() {
    let n5 = volume();
    let program = Program::start(&format!("{}\n[access]\ndefault = \"private\"\n", config_for(&n5, "")));
    for beginning in ["", "[access]", "[access]\nmetrics = \"ann\""] {
        let line = program.reload(&format!("{}\n{beginning}\n", config_for(&n5, "")));
        assert!(line.contains("ERROR") && line.contains("is the file whole?"), "{line}");
        assert_eq!(program.get("/em/v/0/0").status, 401);
        assert_eq!(program.metric("n5_config_last_reload_successful"), Some(0.0));
    }
    program.reload(&config_for(&n5, "access.rules = [\"/ = public\"]"));
    assert_eq!(program.get("/em/v/0/0").status, 200);
    let program = Program::start(&config_for(&n5, "access.metrics = \"ann\""));
    let line = program.reload(&config_for(&n5, ""));
    assert!(line.contains("ERROR") && line.contains("is the file whole?"), "{line}");
    assert_eq!((program.get("/em/v/0/0").status, program.get("/metrics").status), (200, 401));
    // The file is cut off after `tokens`, with all containers private. Only the line that protects the metrics is
    // missing.
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "# None yet.\n").unwrap();
    let access = format!("[access]\ndefault = \"private\"\ntokens = \"{}\"", tokens.path().display());
    let program = Program::start(&format!("{}\n{access}\nmetrics = \"ann\"\n", config_for(&n5, "")));
    let line = program.reload(&format!("{}\n{access}\n", config_for(&n5, "")));
    assert!(line.contains("ERROR") && line.contains("make the metrics public"), "{line}");
    assert_eq!((program.get("/em/v/0/0").status, program.get("/metrics").status), (401, 401));
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, ""));
    let successful = || program.metric("n5_config_last_reload_successful");
    assert_eq!(successful(), Some(1.0));
    let time = || program.metric("n5_config_last_reload_success_timestamp_seconds").unwrap();
    let started = time();
    let faulty = config_for(&n5, "limits.slise = 1\naccess.default = \"privat\"\ncors.origins = [\"x\"]");
    let line = program.reload(&faulty);
    assert!(line.contains("ERROR") && line.contains("stays in force"), "{line}");
    for key in ["limits.slise", "access.default", "cors.origins"] {
        assert!(line.contains(key), "{line} does not name {key}");
    }
    assert_eq!((successful(), time()), (Some(0.0), started));
    // Each of these errors is detected at a different stage of the reload.
    for faulty in [
        "[[containers]".to_owned(),
        config_for(&n5, "access.tokens = \"/does/not/exist\""),
        config_for(&n5, "access.rules = [\"/em\"]"),
        "[[containers]]\nname = \"em\"\nroot = \"/does/not/exist\"".to_owned(),
        String::new(),
        "# [[containers]]\nlog.level = \"info\"\n".to_owned(),
    ] {
        let line = program.reload(&faulty);
        assert!(line.contains("stays in force"), "{faulty}: {line}");
        assert_eq!(program.get("/em/v/0/0").status, 200);
        assert_eq!(successful(), Some(0.0));
    }
    assert!(program.reload(&config_for(&n5, "")).contains("read again"));
    assert_eq!(successful(), Some(1.0));
    assert!(time() > started);
}

#[test]
fn adding_and_removing_containers_keeps_the_cache_of_the_others() {
    let (n5, other) = (volume(), volume());
    let both = format!("{}[[containers]]\nname = \"lm\"\nroot = \"{}\"\n", config_for(&n5, ""), other.root().display());
    let program = Program::start(&config_for(&n5, ""));
    let misses = || program.metric("n5_cache_requests_total{cache=\"stored\",result=\"miss\"}").unwrap() as u64;
    let decoded = || program.metric("n5_blocks_decoded_total{codec=\"raw\"}").unwrap() as u64;
    let read = |name: &str| {
        assert_eq!(program.get(&format!("/slice/{name}/v?start=1,1&stop=63,63")).status, 200, "{name}");
    };
    read("em");
    let known = (misses(), decoded());
    assert_eq!(program.get("/lm/v/0/0").status, 404);
    assert!(program.reload(&both).contains("changed=\"containers\""));
    read("em");
    assert_eq!((misses(), decoded()), known, "what was cached was read again");
    read("lm");
    assert!(decoded() > known.1);
    // Changing a wait keeps the cache. Changing the cache's size replaces it.
    let known = decoded();
    program.reload(&format!("limits.budget_wait = \"1s\"\n{both}"));
    read("lm");
    assert_eq!(decoded(), known);
    program.reload(&format!("cache.decoded = \"10MiB\"\n{both}"));
    assert_eq!(program.metric("n5_cache_capacity_bytes{cache=\"decoded\"}"), Some(f64::from(10 << 20)));
    read("lm");
    assert!(decoded() > known);
    program.reload(&config_for(&n5, ""));
    assert_eq!(program.get("/lm/v/0/0").status, 404);
    read("em");
}

#[test]
fn a_replaced_cache_releases_its_memory() {
    let n5 = N5::new();
    n5.dataset("v", &[1024, 512], &[128, 128], "raw").fill(|_| true, |_| false);
    let program = Program::start(&config_for(&n5, ""));
    let held = || program.metric("n5_budget_bytes{budget=\"decode\"}").unwrap();
    // A connection from before the reload that is idle during it.
    let mut idle = program.connect();
    assert_eq!(idle.get("/em/v/0/0", "").unwrap().status, 200);
    assert_eq!(idle.get("/slice/em/v?start=1,1&stop=1023,511", "").unwrap().status, 200);
    let full = f64::from(1 << 20);
    assert!(held() >= full, "{}", held());
    program.reload(&config_for(&n5, "cache.decoded = \"250MiB\""));
    assert!(wait_until_blocking(|| held() <= full / 8.0), "{} are still held", held());
    assert_eq!(idle.get("/em/v/0/0", "").unwrap().status, 200);
}

#[test]
fn a_new_rule_applies_while_a_containers_directory_is_missing() {
    let (healthy, n5) = (volume(), volume());
    let root = n5.root().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::rename(n5.root().join("v"), root.join("v")).unwrap();
    let config = |more: &str| {
        format!("{}[[containers]]\nname = \"sick\"\nroot = \"{}\"\n", config_for(&healthy, more), root.display())
    };
    let program = Program::start(&config(""));
    assert_eq!(program.get("/sick/v/0/0").status, 200);
    std::fs::rename(&root, n5.root().join("away")).unwrap();
    // The request timeout also changes the deadline of the container's store.
    let rule = "access.rules = [\"/em = nobody\"]\nserver.request_timeout = \"7s\"";
    program.configure(&config(rule));
    program.signal(rustix::process::Signal::HUP);
    let line = program.logged("served as before");
    assert!(line.contains("sick") && line.contains("there is no such directory"), "{line}");
    assert!(program.logged("configuration ").contains("read again"));
    assert_eq!((program.get("/em/v/0/0").status, program.get("/sick/v/0/0").status), (401, 503));
    // A container that was never served is refused, and the error names it.
    let more = format!("{}[[containers]]\nname = \"new\"\nroot = \"/does/not/exist\"\n", config(rule));
    let line = program.reload(&more);
    assert!(line.contains("stays in force") && line.contains("new") && !line.contains("sick"), "{line}");
    std::fs::rename(n5.root().join("away"), &root).unwrap();
    assert_eq!((program.get("/em/v/0/0").status, program.get("/sick/v/0/0").status), (401, 200));
}

/// A tmpfs mounted on a directory, unmounted on drop.
struct Tmpfs<'a>(&'a std::path::Path);

impl<'a> Tmpfs<'a> {
    /// Mounts a tmpfs. Returns `None` if this process is not permitted to.
    fn mount(at: &'a std::path::Path) -> Option<Self> {
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "none"]).arg(at).stderr(std::process::Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn an_unmounted_container_stays_unavailable_after_a_reload() {
    let (n5, place) = (volume(), tempfile::TempDir::new().unwrap());
    let Some(mounted) = Tmpfs::mount(place.path()) else {
        eprintln!("skipped: this process may not mount; mounting needs CAP_SYS_ADMIN");
        return;
    };
    let copy = std::process::Command::new("cp").arg("-r").arg(n5.root().join("v")).arg(place.path()).status().unwrap();
    assert!(copy.success());
    let config = |more: &str| format!("{more}\n[[containers]]\nname = \"em\"\nroot = \"{}\"\n", place.path().display());
    let program = Program::start(&config(""));
    assert_eq!(program.get("/em/v/0/0").status, 200);
    drop(mounted);
    assert_eq!(program.get("/em/v/0/0").status, 503);
    for more in ["", "server.request_timeout = \"7s\"", "container_defaults.symlinks = \"follow\""] {
        assert!(program.reload(&config(more)).contains("read again"));
        assert_eq!(program.get("/em/v/0/0").status, 503, "{more}");
        assert_eq!(program.get("/readyz").status, 503, "{more}");
    }
}

#[test]
fn a_container_that_must_be_mounted_is_unavailable_until_it_is() {
    let (n5, place) = (volume(), tempfile::TempDir::new().unwrap());
    let mount =
        format!("[[containers]]\nname = \"mount\"\nroot = \"{}\"\nmust_be_mount = true\n", place.path().display());
    let program = Program::start(&format!("{}{mount}", config_for(&n5, "")));
    let line = program.logged("without this container");
    assert!(line.contains("nothing is mounted there"), "{line}");
    let statuses = || ["/em/v/0/0", "/mount/v/0/0", "/readyz"].map(|path| program.get(path).status);
    assert_eq!(statuses(), [200, 503, 503]);
    let Some(_mounted) = Tmpfs::mount(place.path()) else {
        eprintln!("the rest is skipped: this process may not mount; mounting needs CAP_SYS_ADMIN");
        return;
    };
    program.logged("can be opened now");
    assert_eq!(statuses(), [200, 404, 200]);
}

/// Starts a server on which no object exists. Returns its URL and the heads of the requests that it has received.
fn empty_server() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let recorded = Arc::clone(&heads);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).unwrap_or(0) > 0 {
                head.push(byte[0]);
            }
            recorded.lock().unwrap().push(String::from_utf8(head).unwrap().to_ascii_lowercase());
            let _ = socket.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        }
    });
    (url, heads)
}

#[test]
fn credentials_that_cannot_be_read_at_a_reload_are_used_after_the_next_one() {
    let (url, heads) = empty_server();
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    let config = |store: &str| format!("[[containers]]\nname = \"em\"\nroot = \"{url}/v.n5\"\n{store}");
    let requests_for = |program: &Program, path: &str| {
        heads.lock().unwrap().clear();
        assert_eq!(program.get(path).status, 404);
        let requests = std::mem::take(&mut *heads.lock().unwrap());
        assert!(!requests.is_empty());
        requests
    };
    let program = Program::start(&config(""));
    assert!(requests_for(&program, "/em/a/0").iter().all(|head| !head.contains("authorization")));
    // A reload by which nothing changes sends nothing to the store.
    program.reload(&config(""));
    assert!(heads.lock().unwrap().is_empty());
    let named = config(&format!("[containers.store]\ncredentials = \"file:{}\"\n", token.display()));
    program.reload(&named);
    assert!(requests_for(&program, "/em/a/1").iter().all(|head| !head.contains("authorization")));
    std::fs::write(&token, "canary").unwrap();
    program.reload(&named);
    let requests = requests_for(&program, "/em/a/2");
    assert!(requests.iter().all(|head| head.contains("\r\nauthorization: bearer canary\r\n")), "{requests:?}");
}

#[test]
fn shutdown_does_not_wait_for_a_hanging_reload() {
    let n5 = volume();
    let mut program = Program::start(&config_for(&n5, "server.drain_delay = \"0s\""));
    let hanging = program.replace_configuration_by_pipe();
    program.signal(rustix::process::Signal::HUP);
    // Returns when the server opens the pipe. The server's read then blocks, as nothing is written.
    let _reading = std::fs::OpenOptions::new().write(true).open(hanging).unwrap();
    assert_eq!(program.get("/em/v/0/0").status, 200);
    program.signal(rustix::process::Signal::TERM);
    assert!(program.ended().success());
}

#[test]
fn a_starting_server_handles_signals() {
    let n5 = volume();
    let many = |n| format!("[[containers]]\nname = \"c{n}\"\nroot = \"{}\"\n", n5.root().display());
    let config: String = (0..200).map(many).collect();
    // The signals may come after the start has ended, so this takes several attempts.
    for _ in 0..20 {
        let mut program = Program::starting(&config);
        while !program.handles_signal(rustix::process::Signal::HUP)
            || !program.handles_signal(rustix::process::Signal::TERM)
        {
            assert!(program.child.try_wait().unwrap().is_none(), "the server has ended by itself");
        }
        program.signal(rustix::process::Signal::HUP);
        program.signal(rustix::process::Signal::TERM);
        assert!(program.ended().success());
        if program.rest_of_log().iter().any(|line| line.contains("told to stop before anything was served")) {
            return;
        }
    }
    panic!("the server does not handle signals while it starts");
}

#[test]
fn a_container_that_cannot_be_opened_at_startup_is_served_later() {
    let (n5, late) = (volume(), volume());
    let root = late.root().join("root");
    let config = format!("{}[[containers]]\nname = \"late\"\nroot = \"{}\"\n", config_for(&n5, ""), root.display());
    let program = Program::start(&config);
    let line = program.logged("without this container");
    assert!(line.contains("ERROR") && line.contains("late") && line.contains("there is no such directory"), "{line}");
    let statuses =
        || ["/em/v/0/0", "/late/v/0/0", "/late/v/9/9", "/late/", "/readyz"].map(|path| program.get(path).status);
    assert_eq!(statuses(), [200, 503, 503, 503, 503]);
    // The missing container does not prevent a reload.
    assert!(program.reload(&format!("cors.origins = []\n{config}")).contains("read again"));
    assert_eq!(statuses(), [200, 503, 503, 503, 503]);
    let other = late.root().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::rename(late.root().join("v"), other.join("v")).unwrap();
    std::fs::rename(other, &root).unwrap();
    program.logged("can be opened now");
    assert_eq!(statuses(), [200, 200, 404, 200, 200]);
}

#[test]
fn a_server_without_any_usable_container_exits_with_an_error() {
    let n5 = volume();
    let config =
        |name: &str| format!("[[containers]]\nname = \"{name}\"\nroot = \"{}\"\n", n5.root().join(name).display());
    let mut program = Program::starting(&format!("{}{}", config("one"), config("two")));
    let line = program.logged("cannot open");
    assert!(line.contains("\"one\"") && line.contains("\"two\""), "{line}");
    assert_eq!(program.ended().code(), Some(1));
}

#[test]
fn settings_that_need_a_restart_are_logged_and_the_others_apply() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, ""));
    // The test gives the address on the command line, which takes precedence over the file.
    let more = "server.threads = 7\nserver.max_connections = 3\nlog.format = \"json\"\ntls.handshake_timeout = \"7s\"\nserver.base_path = \"/p\"";
    program.configure(&config_for(&n5, more));
    program.signal(rustix::process::Signal::HUP);
    let line = program.logged("restart");
    assert!(line.contains("\"log.format, server.max_connections, server.threads, tls.handshake_timeout\""), "{line}");
    assert!(program.logged("read again").contains("changed=\"server.base_path\""));
    assert_eq!(program.get("/p/em/v/0/0").status, 200);
    assert_eq!(program.get("/em/v/0/0").status, 404);
}

#[test]
fn a_reload_changes_the_log_level() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, ""));
    program.get("/em/v/0/0?first");
    program.logged("first");
    program.reload(&config_for(&n5, "log.level = \"warn,n5_server::server=info\""));
    program.get("/em/v/0/0?second");
    program.configure(&config_for(&n5, "log.level = \"info\"\nserver.threads = 5"));
    program.signal(rustix::process::Signal::HUP);
    // Checks all lines up to the one that says what needs a restart.
    let mut line = program.logged("");
    while !line.contains("restart") {
        assert!(!line.contains("second"), "{line}");
        line = program.logged("");
    }
}
