//! The direction of imports. A module imports only from modules below its own, and inside a folder a file imports only
//! from files below its own. The two tables are the design.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::structure::{ModulePath, rust_files, workspace_imports};

/// Every module of the server and every crate of the workspace, with those that it imports.
const IMPORTS: &[(&str, &[&str])] = &[
    ("cli", &["server", "http", "access", "verify", "container", "n5_format", "store", "telemetry", "config"]),
    ("server", &["conn", "demo", "http", "access", "container", "store", "runtime", "telemetry", "config"]),
    ("conn", &["fastpath", "http", "store", "runtime", "telemetry", "config"]),
    ("demo", &["store"]),
    ("fastpath", &["http", "view", "container", "cache", "store", "telemetry"]),
    (
        "http",
        &[
            "access",
            "output",
            "view",
            "n5_metadata",
            "read",
            "container",
            "cache",
            "n5_format",
            "store",
            "runtime",
            "telemetry",
            "config",
        ],
    ),
    ("access", &["runtime", "telemetry", "http_client", "config"]),
    ("output", &["png_gray", "n5_format"]),
    ("png_gray", &[]),
    ("verify", &["view", "n5_metadata", "read", "container", "cache", "n5_format", "store", "config"]),
    ("view", &["n5_metadata", "read", "container", "cache", "n5_format", "store"]),
    ("n5_metadata", &["n5_format"]),
    ("read", &["container", "cache", "n5_format", "store", "runtime", "telemetry"]),
    ("container", &["cache", "n5_format", "store", "runtime", "telemetry", "config"]),
    ("cache", &["n5_format", "store", "runtime", "telemetry", "config"]),
    ("n5_format", &[]),
    ("store", &["runtime", "telemetry", "http_client", "config"]),
    ("runtime", &["telemetry"]),
    ("telemetry", &["http_client", "config"]),
    ("http_client", &[]),
    ("config", &[]),
];

/// The files of every folder from top to bottom: each imports only from those that come after it. The folder's own
/// file, which lists them, is not among them.
const ORDER: &[(&str, &str)] = &[
    ("access", "jwt jwks token_file policy caller"),
    (
        "cache",
        "block_load blocks datasets objects eviction validated budget buffers error read_options known_missing outages freshness",
    ),
    ("cli", "run healthcheck inspect serve verify command_help arguments process"),
    ("cli::verify", "report recovery report_lines terminal"),
    (
        "config",
        "load roots summary memory_sizes memory_bounds validate sections store_settings root_address values similar",
    ),
    (
        "conn",
        "listener connections hyper_connection fast_connection header_filter http2 connection_memory peers reply_writer serving_snapshot signals tls metered_socket send_queue so_meminfo socket threshold_pool workers",
    ),
    ("conn::fast_connection", "header_timer receive_buffer"),
    ("conn::http2", "watchdog admission frames hpack"),
    (
        "container",
        "block_indices browse subdirectories groups nonblocking stored_blocks grid_component handle resources",
    ),
    ("fastpath", "thread_cache reply"),
    (
        "http",
        "authorization error_page routes slice_picture slice_request slice_source file_name compress body request observe app admission exposition forwarded html credentials readiness common_headers mount respond query options route problem redact viewer_files embedded_viewer",
    ),
    ("http::admission", "client_limits fair_polling in_flight stalled_store_limit"),
    ("http::query", "slice_query numpy_index params"),
    ("http::routes", "info recursive_info operations slice stats thumbnail view viewer stored listing page"),
    ("http_client", "blocking client connector resolver tls"),
    (
        "n5_format",
        "array convert range_reads block attributes document compression json_object json statistics strided data_type grid",
    ),
    ("n5_format::compression", "encoding blosc bzip2 blosc_sys gzip lz4 raw xz zstd stream codec"),
    (
        "n5_metadata",
        "summary description canonical channels compatibility coordinate_space neuroglancer tensorstore codec units volume level multiscale node calibration voxel_size problem json_values",
    ),
    ("n5_metadata::multiscale", "bdv cosem n5_viewer ome_ngff paintera pyramid"),
    (
        "output",
        "accept thumbnail jpeg json n5_block npy png raw tiff composite image_stack imagej_metadata image encoding colours",
    ),
    ("png_gray", "layout deflate filter huffman"),
    (
        "read",
        "auto_window check derived band_stream slice_reader sample gather partial_reads nonblocking_gather canvas read_stats plan existing_blocks bands",
    ),
    ("runtime", "cpu_pool off_thread watched_files allocator fair_queue"),
    ("runtime::fair_queue", "semaphore single_flight state flow"),
    ("server", "reload mounts process_memory access_control data_search"),
    ("store", "disk_cache instrumented remote local memory page_cache file_meta listing disk_pool object error key"),
    (
        "store::disk_cache",
        "cached_store reader writer maintenance handle shared counters write_queue directory containers entry_file index clock",
    ),
    (
        "store::remote",
        "credentials object client waiting_calls upstream signer failure forbidden listing location profile variables",
    ),
    ("store::local", "page_cache scan tree open_file resolve directory_check"),
    (
        "store::remote::upstream",
        "registry service bucket answer checked_body retry concurrency_limit counters failure latency_histogram ratio_budget",
    ),
    (
        "store::remote::listing",
        "lister http_root bucket page_reader selection html_index json_index index_entry bucket_xml transport error_document xml",
    ),
    ("telemetry", "logs trace log_throttle metrics"),
    ("telemetry::metrics", "disk_cache labels names"),
    ("telemetry::trace", "export settings"),
    ("verify", "aggregator previous_run event walk prefetch walk_item checks entries finding retry"),
    (
        "view",
        "subtree precomputed reencoded zarr2 zarr3 zarr_subtree zarr_node omero zarr_array axis_order lookup chunk chunk_encoder volume node",
    ),
    ("view::precomputed", "scale compressed_segmentation image"),
];

/// Imports between modules or folders `depth` levels below the root that lie in `folder`.
fn imports_within(folder: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let child = |module: &ModulePath| module.strip_prefix(folder)?.first().cloned();
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for (module, imported) in workspace_imports() {
        let Some(importer) = child(&module) else { continue };
        let targets = found.entry(importer.clone()).or_default();
        targets.extend(imported.iter().filter_map(child).filter(|target| *target != importer));
    }
    found
}

#[test]
fn module_imports_match_the_table() {
    let table = IMPORTS.iter().map(|(module, imported)| {
        ((*module).to_owned(), imported.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>())
    });
    let (table, actual) = (table.collect::<BTreeMap<_, _>>(), imports_within(&[]));
    for (module, imported) in &actual {
        assert_eq!(table.get(module), Some(imported), "the row of {module}");
    }
    assert_eq!(table.len(), actual.len());
}

#[test]
fn the_import_table_is_in_layer_order() {
    for (n, (module, imported)) in IMPORTS.iter().enumerate() {
        for name in *imported {
            assert!(IMPORTS[n + 1..].iter().any(|row| row.0 == *name), "{module} stands below {name}");
        }
    }
}

#[test]
fn files_import_only_from_files_below_them() {
    let modules = workspace_imports();
    let folders: BTreeSet<Vec<String>> =
        modules.keys().flat_map(|module| (1..module.len()).map(|depth| module[..depth].to_vec())).collect();
    let mut rows: BTreeMap<&str, &str> = ORDER.iter().copied().collect();
    for folder in folders {
        let name = folder.join("::");
        let actual = imports_within(&folder);
        if actual.len() < 2 {
            continue;
        }
        let row = rows.remove(name.as_str()).unwrap_or_else(|| panic!("{name} has no row"));
        let order: Vec<&str> = row.split(' ').collect();
        assert_eq!(
            order.iter().map(|file| (*file).to_owned()).collect::<BTreeSet<_>>(),
            actual.keys().cloned().collect(),
            "the files of {name}"
        );
        for (n, file) in order.iter().enumerate() {
            for imported in &actual[*file] {
                let is_below = order[n + 1..].contains(&imported.as_str());
                assert!(is_below, "{name}: {file} imports {imported}, which stands above it");
            }
        }
    }
    assert!(rows.is_empty(), "no such folders: {rows:?}");
}

/// Two tests compare addresses: `concurrency::a_slice_of_one_block_is_not_copied` and
/// `concurrency::bodies_of_stored_blocks_share_the_cached_bytes`. For all other routes, this test forbids
/// `copy_from_slice` and `BytesMut`, which copy bytes into a new buffer. Decoding and encoding fill `Vec`s instead.
#[test]
fn modules_that_send_data_never_name_a_copying_buffer() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for module in ["cache", "container", "read", "http", "fastpath"] {
        for path in rust_files(&src.join(module)) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
            for forbidden in ["copy_from_slice", "BytesMut"] {
                assert!(!code.contains(forbidden), "{} uses {forbidden}", path.display());
            }
        }
    }
}
