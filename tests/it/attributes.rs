//! Long, unusual or hostile `attributes.json`: attributes that other readers accept are served, and memory stays within
//! the announced limits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use n5_server::container::Settings;
use serde_json::{Value, json};

use crate::support::program::{PATIENCE, Program};
use crate::support::writer::N5;
use crate::support::{Client, local, options, settings};

const MIB: u64 = 1 << 20;

fn settings_for_16_mib() -> Settings {
    Settings { max_attributes_bytes: 16 * MIB, slice_budget: 128 * MIB, stored_cache: 64 * MIB, ..settings() }
}

fn client(n5: &N5) -> Client {
    Client::new(local(n5.root()), settings_for_16_mib(), options())
}

/// Returns the attributes of a dataset of `uint8`, with `further` members.
fn array_attributes(dimensions: &[u64], block: u64, further: &str) -> String {
    let blocks = vec![block; dimensions.len()];
    format!(
        r#"{{"dimensions":{dimensions:?},"blockSize":{blocks:?},"dataType":"uint8","compression":{{"type":"raw"}}{further}}}"#
    )
}

/// Returns an array of about `bytes` bytes of text. Each of its objects of 7 bytes takes 900 bytes as a tree. It has
/// fewer than two million values.
fn nested_objects(bytes: usize) -> String {
    let each = if bytes > 4 << 20 { r#"{"":0},         "# } else { r#"{"":0},"# };
    format!("[{}0]", each.repeat(bytes / each.len()))
}

fn problems(info: &Value) -> String {
    info["problems"].to_string()
}

#[tokio::test]
async fn three_megabytes_of_attributes_are_served_by_every_route() {
    let n5 = N5::new();
    let history: Vec<Value> = (0..14_000)
        .map(|n| json!({"step": n, "program": "align 1.2", "parameters": {"shift": [0.5, n], "note": "\u{fc} \n"}}))
        .collect();
    let images: Vec<Value> =
        (0..3000).map(|n| json!({"name": n, "datasets": [{"path": "s0"}], "axes": ["x"]})).collect();
    let history = Value::Array(history);
    let own =
        format!(",\n  \"resolution\": [4, 8],\n  \"history\": {}", serde_json::to_string_pretty(&history).unwrap());
    n5.file("g/v/attributes.json", array_attributes(&[40, 36], 16, &own));
    n5.file("g/v/0/0", [&[0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 16][..], &[7; 256]].concat());
    let group = json!({"multiscales": images, "history": history, "omero": {"id": 1}});
    n5.file("h/attributes.json", group.to_string());
    n5.file("h/s0/attributes.json", array_attributes(&[40], 16, ""));
    let client = client(&n5);

    let info = client.get("/info/g/v").await.json();
    assert_eq!(
        (&info["kind"], &info["resolution"], problems(&info).contains("missing")),
        (&json!("dataset"), &json!([4.0, 8.0]), false)
    );
    assert_eq!((&info["attributes"]["history"], &info["attributes"]["blockSize"]), (&history, &json!([16, 16])));
    assert_eq!(info["tensorstore"]["spec"]["metadata"]["resolution"], json!([4.0, 8.0]));
    let slice = client.get("/slice/g/v?start=0,0&stop=2,2").await;
    assert_eq!(&slice.body[..], [7; 4]);
    assert_eq!(client.get("/zarr3/g/v/zarr.json").await.json()["attributes"]["history"], history);
    assert_eq!(client.get("/zarr2/g/v/.zattrs").await.json()["history"], history);
    assert_eq!(client.get("/as/gzip/g/v/attributes.json").await.json()["resolution"], json!([4.0, 8.0]));
    assert_eq!(client.get("/precomputed/g/v/info").await.status, 200);
    assert_eq!(client.get("/g/?format=json").await.json()["entries"][0]["kind"], "dataset");
    let consolidated = client.get("/zarr3/g/zarr.json").await.json();
    assert_eq!(consolidated["consolidated_metadata"]["metadata"]["v"]["attributes"]["history"], history);
    let consolidated = client.get("/zarr2/g/.zmetadata").await.json();
    assert_eq!(consolidated["metadata"]["v/.zattrs"]["history"], history);

    let info = client.get("/info/h").await.json();
    assert_eq!((&info["kind"], &info["multiscale"]["convention"]), (&json!("multiscale"), &json!("ome-ngff")));
    assert_eq!(info["attributes"], group);
    let attributes = client.get("/zarr3/h/zarr.json").await.json()["attributes"].clone();
    assert_eq!((&attributes["history"], &attributes["ome"]["omero"]), (&history, &json!({"id": 1})));
    assert_eq!(client.get("/as/gzip/h/attributes.json").await.json()["history"], history);
}

#[tokio::test]
async fn unrepresentable_numbers_and_escapes_are_repeated_verbatim() {
    let n5 = N5::new();
    let strange =
        r#","over":[ 1e999, -1E+400, 0.10, 123456789012345678901234567890 ],"lone":"\ud800 \udc00x","\udfff":1"#;
    let repeated = r#""over":[1e999,-1E+400,0.10,123456789012345678901234567890],"lone":"\ud800 \udc00x","\udfff":1"#;
    n5.file("v/attributes.json", array_attributes(&[4], 4, strange));
    n5.file("g/attributes.json", format!("{{{}}}", &strange[1..]));
    n5.file("g/d/attributes.json", array_attributes(&[4], 4, ""));
    let client = client(&n5);
    for path in [
        "/info/v",
        "/info/g",
        "/zarr2/v/.zattrs",
        "/zarr3/v/zarr.json",
        "/zarr2/g/.zattrs",
        "/zarr3/g/zarr.json",
        "/zarr2/.zmetadata",
        "/zarr3/zarr.json",
        "/as/raw/g/attributes.json",
    ] {
        let reply = client.get(path).await;
        let text = String::from_utf8(reply.body.to_vec()).unwrap();
        assert!(reply.status == 200 && text.contains(repeated), "{path}: {text}");
        serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap();
    }
    assert_eq!(client.get("/slice/v").await.body.len(), 4);
    // An attribute that the server needs counts as missing if it contains such a number.
    n5.file("bad/attributes.json", array_attributes(&[4], 4, r#","resolution":[1e999]"#));
    let reply = client.get("/info/bad").await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    assert!(
        text.contains(r#""resolution":null"#) && text.contains("the attribute resolution counts as missing"),
        "{text}"
    );
    n5.file("bad/attributes.json", array_attributes(&[4], 4, r#","blockSize":[1e999]"#));
    let reply = client.get("/slice/bad").await;
    assert_eq!(reply.problem(), "not-a-dataset");
    assert!(reply.json()["detail"].as_str().unwrap().contains("blockSize cannot be read"), "{:?}", reply.body);
}

#[tokio::test]
async fn attributes_beyond_the_limits_are_refused_with_the_reason_and_do_not_affect_siblings() {
    let deep = array_attributes(&[4], 4, &format!(r#","a":{}{}"#, "[".repeat(64), "]".repeat(64)));
    let many = array_attributes(&[4], 4, &format!(r#","a":[{}0]"#, "0,".repeat(2_000_000)));
    let long = array_attributes(&[4], 4, &format!(r#","a":"{}""#, "x".repeat(16 << 20)));
    for (attributes, reason, slice) in [
        (deep, "it has more than 64 levels of arrays and objects", "not-a-dataset"),
        (many, "it has more than 2000000 values", "not-a-dataset"),
        (long, "limits.attributes", "too-large"),
    ] {
        let n5 = N5::new();
        n5.file("g/bad/attributes.json", attributes);
        n5.file("g/good/attributes.json", array_attributes(&[4], 4, r#","mine":1"#));
        n5.file("g/attributes.json", r#"{"mine":2}"#);
        let client = client(&n5);
        let info = client.get("/info/g/bad").await.json();
        assert!(info["kind"] == "group" && problems(&info).contains(reason), "{reason}: {info}");
        let refused = client.get("/slice/g/bad").await;
        assert_eq!(refused.problem(), slice);
        assert!(refused.json()["detail"].as_str().unwrap().contains(reason), "{:?}", refused.body);

        let listed = client.get("/g/?format=json").await.json()["entries"].to_string();
        assert!(
            listed.contains(r#""kind":"group","name":"bad""#) && listed.contains(r#""kind":"dataset","name":"good""#),
            "{listed}"
        );
        assert_eq!(client.get("/info/g").await.json()["attributes"], json!({"mine": 2}));
        assert_eq!(client.get("/zarr2/g/.zattrs").await.json(), json!({"mine": 2}));
        let below = client.get("/zarr3/g/zarr.json").await.json()["consolidated_metadata"]["metadata"].clone();
        assert_eq!(
            (&below["good"]["attributes"], &below["bad"]["attributes"]),
            (&json!({"mine": 1}), &json!({})),
            "{below}"
        );
        assert_eq!(client.get("/zarr2/g/.zmetadata").await.json()["metadata"]["good/.zattrs"]["mine"], 1);
        assert_eq!(client.get("/as/gzip/g/attributes.json").await.json(), json!({"mine": 2}));
        assert_eq!(client.get("/slice/g/good").await.body.len(), 4);
        // Any path below a dataset may name a block.
        assert_eq!(client.get("/g/bad/0/0/0").await.status, 404);
    }
}

#[tokio::test]
async fn an_attribute_that_is_too_large_to_be_interpreted_counts_as_missing() {
    let n5 = N5::new();
    n5.file(
        "v/attributes.json",
        array_attributes(&[4], 4, &format!(r#","transform":{},"axes":["x"]"#, nested_objects(1 << 20))),
    );
    n5.file(
        "c/attributes.json",
        format!(r#"{{"dimensions":[4],"blockSize":[4],"dataType":"uint8","compression":{}}}"#, nested_objects(1 << 20)),
    );
    let client = client(&n5);
    let info = client.get("/info/v").await.json();
    assert!(
        problems(&info).contains("the attribute transform counts as missing: it is too large"),
        "{}",
        problems(&info)
    );
    assert_eq!((&info["kind"], &info["axes"]), (&json!("dataset"), &json!(["x"])));
    assert!(info["attributes"]["transform"].as_array().is_some_and(|list| list.len() > 100_000));
    assert_eq!(client.get("/slice/v").await.body.len(), 4);
    let reply = client.get("/slice/c").await;
    assert!(
        reply.problem() == "not-a-dataset" && reply.json()["detail"].as_str().unwrap().contains("too large"),
        "{:?}",
        reply.body
    );
}

#[tokio::test]
async fn the_attributes_around_a_directory_share_one_budget() {
    let n5 = N5::new();
    // Each document takes a fifth of the memory for interpreting. Four of them exceed the budget of a request.
    let some = format!(r#","scales":{}"#, nested_objects(1000));
    n5.file("g/attributes.json", r#"{"scales":[[1],[2],[4]]}"#);
    for level in ["s0", "s1", "s2"] {
        n5.file(&format!("g/{level}/attributes.json"), array_attributes(&[8], 4, &some));
    }
    let client = Client::new(local(n5.root()), Settings { slice_budget: MIB, ..settings_for_16_mib() }, options());
    let info = client.get("/info/g").await.json();
    assert!(problems(&info).contains("g/s1/attributes.json counts as missing: all attributes around"), "{info}");
    assert_eq!(info["multiscale"]["levels"][0]["path"], "s0");
}

#[tokio::test]
async fn documents_beyond_the_slice_budget_get_413_or_are_shortened() {
    let n5 = N5::new();
    n5.file("v/attributes.json", array_attributes(&[16], 16, &format!(r#","more":"{}""#, "x".repeat(300 << 10))));
    for number in 0..1300 {
        n5.file(&format!("g/{number}/attributes.json"), "{}");
    }
    let small = Client::new(local(n5.root()), Settings { slice_budget: MIB, ..settings_for_16_mib() }, options());
    // The budget is charged for five copies of the text.
    let refused = small.get("/zarr2/v/.zattrs").await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (413, "too-large"), "{:?}", refused.body);
    assert!(
        refused.json()["detail"].as_str().unwrap().contains("limits.slice_budget allows 1048576"),
        "{:?}",
        refused.body
    );
    let page = small.get("/g/?format=json").await.json();
    assert_eq!(page["entries"].as_array().unwrap().len(), 1251, "of 838 bytes each");
    let after = page["next"].as_str().unwrap();
    let rest = small.get(&format!("/g/?format=json&after={after}")).await.json();
    assert!(rest["entries"].as_array().unwrap().len() == 49 && rest["next"].is_null());
    let large = Client::new(local(n5.root()), settings_for_16_mib(), options());
    assert_eq!(large.get("/zarr2/v/.zattrs").await.status, 200);
    assert_eq!(large.get("/g/?format=json").await.json()["entries"].as_array().unwrap().len(), 1300);
    // Consolidated metadata is omitted if there is no memory for it.
    let n5 = N5::new();
    for number in 0..200 {
        n5.file(&format!("g/{number}/attributes.json"), "{}");
    }
    for (slice_budget, is_there) in [(MIB, false), (16 * MIB, true)] {
        let client = Client::new(local(n5.root()), Settings { slice_budget, ..settings_for_16_mib() }, options());
        let group = client.get("/zarr3/g/zarr.json").await;
        assert_eq!((group.status.as_u16(), group.json().get("consolidated_metadata").is_some()), (200, is_there));
    }
}

/// Starts a server of these datasets with small caches and budgets, 89 MiB in total with 8 MiB for attributes.
fn start_program(n5: &N5) -> Program {
    let root = n5.root().display();
    Program::start(&format!(
        "[server]\nmax_connections = 256\n[log]\nlevel = 'error'\n[cache]\ndecoded = '16MiB'\nstored = '16MiB'\n[limits]\n\
         slice_budget = '32MiB'\ndecode_budget = '1MiB'\ntransfer_budget = '16MiB'\nattributes = '16MiB'\nbudget_wait = '60s'\n\
         [[containers]]\nroot = '{root}'\n"
    ))
}

/// Announced memory of caches and budgets, attributes, connections and the program itself, in MiB.
const ANNOUNCED_MIB: u64 = 16 + 16 + 32 + 1 + 16 + 8 + 10 + 64;

#[test]
fn datasets_with_large_attributes_hold_little_memory_while_their_slices_wait() {
    for (count, bytes) in [(16, 1 << 20), (6, 15 << 20)] {
        let n5 = N5::new();
        for number in 0..count {
            let further = format!(r#","nobody":{}"#, nested_objects(bytes));
            n5.file(&format!("d{number}/attributes.json"), array_attributes(&[4096, 2048], 512, &further));
        }
        let program = start_program(&n5);
        // Responses of 8 MiB. Clients read nothing before every request is answered or waits for memory.
        let (clients, heads, read) = (count * 4, AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for number in 0..clients {
                let (mut connection, heads, read) = (program.connect(), &heads, &read);
                scope.spawn(move || {
                    connection.ask(&format!("/slice/d{}?format=raw", number % count));
                    let head = connection.head().unwrap();
                    assert_eq!((head.status, head.length()), (200, 8 << 20));
                    heads.fetch_add(1, Ordering::Relaxed);
                    while !read.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    assert_eq!(std::io::copy(&mut connection.body(8 << 20), &mut std::io::sink()).unwrap(), 8 << 20);
                });
            }
            let started = Instant::now();
            let waiting = || program.metric("n5_queue_waiting{queue=\"slice\"}").unwrap_or(0.0) as usize;
            while heads.load(Ordering::Relaxed) + waiting() < clients && started.elapsed() < PATIENCE / 2 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let peak = program.memory_bytes("VmHWM") >> 20;
            read.store(true, Ordering::Relaxed);
            assert!(peak <= ANNOUNCED_MIB, "{count} documents of {bytes} bytes: {peak} MiB");
        });
        let peak = program.memory_bytes("VmHWM") >> 20;
        assert!(peak <= ANNOUNCED_MIB, "{count} documents of {bytes} bytes: {peak} MiB");
    }
}

#[test]
fn large_documents_for_many_clients_stay_within_the_budgets() {
    let n5 = N5::new();
    let large = format!(r#""nobody":{},"more":{}"#, nested_objects(1 << 19), nested_objects(1 << 19));
    n5.file("v/attributes.json", array_attributes(&[16], 16, &format!(",{large}")));
    n5.file("g/attributes.json", format!("{{{large},\"ome\":{{{large}}}}}"));
    let program = start_program(&n5);
    let paths = ["/zarr2/v/.zattrs", "/info/v", "/zarr3/v/zarr.json", "/zarr2/g/.zattrs", "/as/raw/g/attributes.json"];
    let replies: Vec<_> = std::thread::scope(|scope| {
        let ask = |path| {
            let mut connection = program.connect();
            scope.spawn(move || connection.get(path, ""))
        };
        let asked: Vec<_> = paths.into_iter().cycle().take(15).map(ask).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let peak = program.memory_bytes("VmHWM") >> 20;
    assert!(peak <= ANNOUNCED_MIB, "{peak} MiB");
    for reply in replies {
        let reply = reply.unwrap();
        assert!(reply.status == 200 && reply.body.len() > 1 << 20, "{}", reply.head);
    }
}
