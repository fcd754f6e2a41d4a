//! Minifies the scripts of the page that a browser shows for a listing, and lists its files for
//! `src/http/routes/page.rs`.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use oxc_allocator::Allocator;
use oxc_codegen::{Codegen, CodegenOptions};
use oxc_minifier::{CompressOptions, MangleOptions, Minifier, MinifierOptions};
use oxc_parser::Parser;
use oxc_span::SourceType;

/// Directory of the page's files.
const PAGE: &str = "src/http/routes/page";

#[expect(clippy::disallowed_methods, reason = "a program that cargo runs")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={PAGE}");
    let source = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join(PAGE);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut names = Vec::new();
    for entry in fs::read_dir(&source)? {
        names.push(entry?.file_name().into_string().map_err(|name| format!("{} is not UTF-8", name.display()))?);
    }
    names.sort();
    fs::create_dir_all(out.join("page"))?;
    let mut list = "&[\n".to_owned();
    for name in names {
        let text = fs::read_to_string(source.join(&name))?;
        let is_script = Path::new(&name).extension().is_some_and(|extension| extension == "js");
        let sent = if is_script { minified(&name, &text)? } else { text };
        fs::write(out.join("page").join(&name), sent)?;
        writeln!(list, "    ({name:?}, include_str!(concat!(env!(\"OUT_DIR\"), \"/page/{name}\"))),")?;
    }
    list.push_str("]\n");
    fs::write(out.join("page_assets.rs"), list)?;
    Ok(())
}

/// Returns a script, an ECMAScript module, in as few bytes as possible.
///
/// # Errors
/// Returns the syntax errors of the script.
fn minified(name: &str, text: &str) -> Result<String, String> {
    let allocator = Allocator::default();
    let parsed = Parser::new(&allocator, text, SourceType::mjs()).parse();
    if parsed.panicked || !parsed.errors.is_empty() {
        return Err(format!("{PAGE}/{name}: {:?}", parsed.errors));
    }
    let mut program = parsed.program;
    let options =
        MinifierOptions { mangle: Some(MangleOptions::default()), compress: Some(CompressOptions::default()) };
    let scoping = Minifier::new(options).minify(&allocator, &mut program).scoping;
    Ok(Codegen::new().with_options(CodegenOptions::minify()).with_scoping(scoping).build(&program).code)
}
