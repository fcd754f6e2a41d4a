//! Links the coverage counters for C libraries (`edges.c`) if `fuzz/run` instruments these.

fn main() {
    println!("cargo::rerun-if-changed=edges.c");
    println!("cargo::rerun-if-env-changed=N5_FUZZ_EDGES");
    if std::env::var_os("N5_FUZZ_EDGES").is_some() {
        cc::Build::new().file("edges.c").opt_level(2).link_lib_modifier("+whole-archive").compile("edges");
        println!("cargo::rustc-link-arg=-Wl,--wrap=__sanitizer_cov_trace_pc");
    }
}
