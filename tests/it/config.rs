//! The command line: the program's output and its exit status.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

/// Runs the program without the `N5_` variables of the test's environment.
fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_n5-server"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("N5_")) {
        command.env_remove(name);
    }
    command.args(arguments).envs(environment.iter().copied()).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn check_config_confirms_and_summarizes_a_valid_configuration() {
    let output = run(&["--check-config", "em=/data/em.n5"], &[("N5_CACHE__DECODED", "1GiB")]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("configuration is valid\n"));
    assert!(stdout(&output).contains("/em/ from /data/em.n5") && stdout(&output).contains("1GiB decoded"));
}

#[test]
fn an_invalid_configuration_exits_with_status_2_and_lists_all_errors() {
    let output = run(&["--set", "cache.decodedd=1GiB"], &[("N5_SERVER__LISTEN", "nowhere")]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    for text in ["did you mean cache.decoded?", "environment variable N5_SERVER__LISTEN", "127.0.0.1:8080"] {
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    }
}

#[test]
fn invalid_access_rules_exit_with_status_2() {
    // The systemd unit has RestartPreventExitStatus=2: the service is not restarted.
    let output = run(&["--set", "access.rules=/a", "--listen", "127.0.0.1:0"], &[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("/a"), "{}", stderr(&output));
}

#[test]
fn a_missing_file_or_an_unknown_option_exits_with_status_2() {
    let output = run(&["--config", "no-such-file.toml"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no-such-file.toml: cannot be read"));
    assert_eq!(run(&["--no-such-option"], &[]).status.code(), Some(2));
}

#[test]
fn a_printed_configuration_can_be_fed_back() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("printed.toml");
    let first = run(&["--print-config", "--listen", "[::1]:0", "a=/a", "b=/b"], &[("N5_LOG__FORMAT", "json")]);
    assert_eq!(first.status.code(), Some(0));
    std::fs::write(&file, &first.stdout).unwrap();
    let second = run(&["--print-config", "--config", file.to_str().unwrap()], &[]);
    assert_eq!(stdout(&second), stdout(&first));
    assert!(stdout(&first).contains("listen = \"[::1]:0\""));
}

#[test]
fn the_printed_defaults_are_a_valid_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("default.toml");
    std::fs::write(&file, run(&["--print-default-config"], &[]).stdout).unwrap();
    let read = run(&["--print-config", "--config", file.to_str().unwrap()], &[]);
    assert_eq!(stdout(&read), stdout(&run(&["--print-config"], &[])));
    assert_eq!(read.status.code(), Some(0));
}

#[test]
fn an_existing_directory_with_an_equals_sign_is_a_root_without_a_name() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("run=7")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_n5-server"))
        .current_dir(directory.path())
        .args(["--check-config", "run=7"])
        .output()
        .unwrap();
    assert!(stdout(&output).contains("/ from run=7"), "{}", stdout(&output));
}

#[test]
fn the_version_lists_the_codecs() {
    let output = run(&["--version"], &[]);
    assert!(stdout(&output).starts_with(&format!("n5-server {}\ncodecs: raw gzip", env!("CARGO_PKG_VERSION"))));
    assert_eq!(stdout(&run(&["-V"], &[])).trim(), format!("n5-server {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_container_cannot_have_the_name_of_a_route() {
    for (word, _) in n5_server::http::route::endpoints() {
        let output = run(&["--check-config", &format!("{word}=/data/em.n5")], &[]);
        assert_eq!(output.status.code(), Some(2), "{word}");
        assert!(stderr(&output).contains("is a word of the server itself"), "{}", stderr(&output));
    }
}

/// Creates the directories in which the command lines of the tests run.
fn directories_of_a_newcomer() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for container in ["em.n5", "seg.n5", "other/em.n5"] {
        std::fs::create_dir_all(path(container)).unwrap();
        std::fs::write(path(container).join("attributes.json"), r#"{"n5":"4.0.0"}"#).unwrap();
    }
    let sizes = r#""dimensions":[4,4],"blockSize":[4,4],"dataType":"uint8""#;
    for (dataset, further) in [
        ("em.n5/raw", r#""compression":{"type":"raw"},"resolution":[0,4],"units":["nm","nm"]"#),
        ("seg.n5/labels", r#""compression":{"type":"gzp"}"#),
    ] {
        std::fs::create_dir_all(path(dataset).join("0")).unwrap();
        std::fs::write(path(dataset).join("attributes.json"), format!("{{{sizes},{further}}}")).unwrap();
        let block = [&[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4][..], &[7; 16]].concat();
        std::fs::write(path(dataset).join("0/0"), block).unwrap();
    }
    std::fs::create_dir_all(path("volume.zarr")).unwrap();
    std::fs::write(path("volume.zarr/zarr.json"), "{}").unwrap();
    std::fs::write(path("volume.h5"), b"\x89HDF\r\n\x1a\n").unwrap();
    std::fs::create_dir_all(path("empty")).unwrap();
    std::fs::write(path("lab.toml"), "[server]\nlisten = 9942\n").unwrap();
    std::fs::write(path("wrong.toml"), "[server]\nlisten = 99420\nviewr = \"\"\n[cache]\ndecoded = \"lots\"\n")
        .unwrap();
    directory
}

#[test]
fn each_command_line_is_understood_or_explained() {
    let directory = directories_of_a_newcomer();
    // Command lines, exit statuses, and words of the output.
    let cases: &[(&str, i32, &[&str])] = &[
        ("--check-config em.n5", 0, &["/ from em.n5"]),
        ("--check-config em.n5 seg.n5", 0, &["/em/ from em.n5", "/seg/ from seg.n5"]),
        ("--check-config em.n5 other/em.n5", 2, &["other/em.n5: ", "write NAME=DIRECTORY"]),
        ("--check-config x=em.n5 seg.n5", 0, &["/x/ from em.n5", "/seg/ from seg.n5"]),
        ("serve --check-config em.n5", 0, &["/ from em.n5"]),
        ("--check-config --port 9942", 0, &["127.0.0.1:9942"]),
        ("--check-config -p 9942 --set server.listen=0.0.0.0:80", 0, &["0.0.0.0:9942"]),
        ("--check-config -p 9942 --set server.listen=unix:/run/n5", 2, &["--port 9942", "Unix socket"]),
        ("--check-config --listen 9942", 0, &["127.0.0.1:9942"]),
        ("--check-config --config lab.toml", 0, &["127.0.0.1:9942"]),
        ("--check-config --config wrong.toml", 2, &["\"99420\" is not an address", "did you mean server.viewer?"]),
        ("--check-config --listen localhost:9960", 0, &["127.0.0.1:9960"]),
        ("--check-config --listen example.org:80", 2, &["example.org:80", "127.0.0.1:8080"]),
        ("--prot 80", 2, &["a similar argument exists: '--port'"]),
        ("verfy em.n5", 2, &["did you mean `n5-server verify`?"]),
        ("verfy em.n5 --report x", 2, &["did you mean `n5-server verify`?"]),
        ("hepl", 2, &["did you mean `n5-server help`?"]),
        ("-p 9942 serve em.n5", 2, &["write the command first"]),
        ("em.n5 verify", 2, &["write the command first"]),
        ("token ann --expires tomorrow", 2, &["\"tomorrow\" is neither", "90d", "2027-01-31T00:00:00Z"]),
        ("--check-config em.n5 slice.n5", 0, &["/slice.n5/ from slice.n5"]),
        ("serve man", 1, &["cannot open man: there is no such directory"]),
        ("token.n5", 1, &["cannot open token.n5: there is no such directory"]),
        ("absent.n5", 1, &["cannot open absent.n5: there is no such directory"]),
        ("volume.h5", 1, &["HDF5 file", "save its datasets as N5"]),
        ("volume.zarr", 1, &["Zarr store"]),
        ("em.n5/attributes.json", 1, &["give the directory that contains the whole container"]),
        ("verify volume.zarr", 2, &["Zarr store"]),
        ("verify empty", 4, &["there is no dataset in", "is its storage mounted?"]),
        ("verify -q empty", 4, &["there is no dataset in"]),
        ("inspect em.n5 absent", 2, &["there is no group or dataset /absent"]),
        ("completions bash", 0, &["complete -F"]),
        ("completions csh", 2, &["possible values: bash, elvish, fish, powershell, zsh"]),
        ("man", 0, &[".TH n5-server 1", ".SS verify", ".nf"]),
    ];
    for (line, status, words) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_n5-server"));
        let output = command.args(line.split(' ')).current_dir(directory.path()).output().unwrap();
        let text = format!("{}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(*status), "{line}: {text}");
        for word in *words {
            assert!(text.contains(word), "{line}: {text}");
        }
    }
}

#[test]
fn a_name_in_another_encoding_is_explained_and_can_be_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let latin = OsStr::from_bytes(b"M\xfcnchen.n5");
    let with_name = OsStr::from_bytes(b"munich=M\xfcnchen.n5");
    for name in [latin, OsStr::new("em.n5")] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    let check = |root: &OsStr| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_n5-server"));
        command.args([OsStr::new("--check-config"), root, OsStr::new("em.n5")]);
        command.current_dir(directory.path()).output().unwrap()
    };
    let refused = check(latin);
    assert_eq!(refused.status.code(), Some(2));
    let text = stderr(&refused);
    assert!(text.contains("a name in UTF-8") && text.contains("write NAME=DIRECTORY"), "{text}");
    let understood = check(with_name);
    assert_eq!(understood.status.code(), Some(0), "{}", stderr(&understood));
    assert!(stdout(&understood).contains("/munich/ from "), "{}", stdout(&understood));
}

/// The transcript of what a newcomer may type. Its snapshot is the document: every answer must be one that helps.
#[test]
fn every_answer_of_the_transcript_helps() {
    let directory = directories_of_a_newcomer();
    let mut transcript = String::new();
    for line in [
        "--check-config em.n5",
        "--check-config em.n5 seg.n5",
        "--check-config em.n5 other/em.n5",
        "--check-config first=em.n5 second=other/em.n5",
        "--check-config em.n5 slice.n5",
        "--check-config --port 9942 em.n5",
        "--check-config --listen example.org:80 em.n5",
        "--check-config --config lab.toml em.n5",
        "--check-config --config wrong.toml em.n5",
        "--check-config --set cache.decodedd=1GiB em.n5",
        "--prot 80 em.n5",
        "verfy em.n5",
        "-p 9942 serve em.n5",
        "absent.n5",
        "volume.h5",
        "volume.zarr",
        "em.n5/attributes.json",
        "verify em.n5",
        "verify seg.n5",
        "verify em.n5 absent",
        "verify empty",
        "verify volume.zarr",
        "inspect em.n5",
        "inspect em.n5 raw",
        "inspect em.n5 absent",
        "completions csh",
        "--version",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_n5-server"));
        command.args(line.split(' ')).current_dir(directory.path());
        // The figures must not depend on the machine.
        command.env("N5_SERVER__THREADS", "2").env("N5_MEMORY__LIMIT", "least").env("N5_LOG__FORMAT", "text");
        let output = command.output().unwrap();
        let answer = format!("{}{}", stdout(&output), stderr(&output));
        let status = output.status.code().unwrap();
        let _ = write!(transcript, "$ n5-server {line}\n{answer}[exit status {status}]\n\n");
    }
    let transcript = transcript.replace(directory.path().to_str().unwrap(), "/data");
    let transcript = transcript.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let without_time = |line: &str| if line.ends_with(" blocks/s") { "TIME, SPEED" } else { line }.to_owned() + "\n";
    insta::assert_snapshot!(transcript.lines().map(without_time).collect::<String>());
}
