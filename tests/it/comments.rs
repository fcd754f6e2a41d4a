//! The comments of the sources: sentences of bounded length, beginnings and ends, and names that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::structure::rust_files;

/// Longest sentence of a comment, in words.
const LONGEST_SENTENCE: usize = 40;

/// Phrases that make a sentence hard to follow. There is a plainer way to say each.
const UNCLEAR_PHRASES: &[&str] =
    &["by which", "of which", "of that name", "so many", "for people", "n-th", "whoever", "every so"];

/// Words in backticks that stand for something outside the sources.
const FOREIGN_NAMES: &[&str] = &[
    // Functions and constants of C-Blosc, mimalloc, NumPy, zlib and Linux.
    "blosc_d",
    "blosc_internal_bitunshuffle",
    "blosc_internal_unshuffle",
    "purge_delay",
    "inverted_cdf",
    "uncompress",
    "sk_buff",
    "skb_shared_info",
    "sendfile",
    "openat2",
    // A unit that a container may name.
    "microns",
];

/// Names of programs and libraries that are written in lower case, also at the beginning of a sentence.
const LOWER_CASE_NAMES: &[&str] =
    &["bgzip", "hyper", "mimalloc", "n5-server", "n5-viewer", "numcodecs", "z5", "zarr-python"];

/// Returns all files below `src` and `crates/*/src`.
fn sources() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(workspace.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    crates.chain([workspace.join("src")]).flat_map(|folder| rust_files(&folder)).collect()
}

/// Consecutive lines with the same comment marker (`//`, `///` or `//!`).
struct Comment {
    /// File and line where the comment begins.
    at: String,
    is_doc: bool,
    /// The lines without the marker.
    lines: Vec<String>,
}

/// Returns the comments that stand on lines of their own.
fn comments_in(path: &Path) -> Vec<Comment> {
    let file = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(path).display();
    let text = fs::read_to_string(path).unwrap();
    let mut comments: Vec<Comment> = Vec::new();
    let mut previous_marker = "";
    for (index, line) in text.lines().map(str::trim).enumerate() {
        let marker = ["//!", "///", "//"].into_iter().find(|marker| line.starts_with(marker)).unwrap_or_default();
        if !marker.is_empty() {
            if marker != previous_marker {
                let at = format!("{file}:{}", index + 1);
                comments.push(Comment { at, is_doc: marker != "//", lines: Vec::new() });
            }
            comments.last_mut().unwrap().lines.push(line[marker.len()..].trim().to_owned());
        }
        previous_marker = marker;
    }
    comments
}

fn all_comments() -> Vec<Comment> {
    let comments: Vec<Comment> = sources().iter().flat_map(|path| comments_in(path)).collect();
    assert!(comments.len() > 3000, "only {} comments", comments.len());
    comments
}

impl Comment {
    /// Returns the paragraphs. An item of a list is a paragraph. Code, tables and headings are left out.
    fn paragraphs(&self) -> Vec<String> {
        let mut paragraphs = vec![String::new()];
        let mut in_code = false;
        for line in &self.lines {
            let is_fence = line.starts_with("```");
            in_code ^= is_fence;
            if in_code || is_fence || line.is_empty() || line.starts_with(['|', '#']) {
                paragraphs.push(String::new());
                continue;
            }
            if line.starts_with(['-', '*']) || line.split_once(". ").is_some_and(|(number, _)| is_number(number)) {
                paragraphs.push(String::new());
            }
            let paragraph = paragraphs.last_mut().unwrap();
            paragraph.push_str(line);
            paragraph.push(' ');
        }
        paragraphs.retain(|paragraph| !paragraph.is_empty());
        paragraphs
    }

    /// Returns the single lower-case words in backticks.
    fn names(&self) -> BTreeSet<String> {
        let paragraphs = self.paragraphs();
        let quoted = paragraphs.iter().flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
        quoted.filter(|text| is_lower_case_identifier(text)).map(str::to_owned).collect()
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_lower_case_identifier(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(is_allowed)
}

/// Splits text into sentences, at a period, question mark or colon before a space.
fn sentences(paragraph: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut rest = paragraph;
    while let Some(end) = [". ", "? ", ": "].iter().filter_map(|end| rest.find(end)).min() {
        let (sentence, after) = rest.split_at(end + 1);
        sentences.push(sentence);
        rest = after;
    }
    sentences.push(rest);
    sentences
}

fn words(code: &str) -> impl Iterator<Item = String> {
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').map(str::to_owned)
}

#[test]
fn no_sentence_of_a_comment_is_longer_than_40_words() {
    let mut faults = Vec::new();
    for comment in all_comments() {
        for paragraph in comment.paragraphs() {
            for sentence in sentences(&paragraph) {
                let count = sentence.split_whitespace().count();
                if count > LONGEST_SENTENCE {
                    faults.push(format!("{}: {count} words: {sentence}", comment.at));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the phrases of [`UNCLEAR_PHRASES`] in a paragraph. "Each of which" is plain.
fn unclear_phrases(paragraph: &str) -> Vec<&'static str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '-';
    let words: Vec<String> = paragraph.split(|letter| !is_word(letter)).map(str::to_lowercase).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
    let text = format!(" {} ", words.join(" ")).replace(" each of which ", " ");
    UNCLEAR_PHRASES.iter().copied().filter(|phrase| text.contains(&format!(" {phrase} "))).collect()
}

#[test]
fn no_comment_has_an_unclear_phrase() {
    let mut faults = Vec::new();
    for comment in all_comments() {
        for paragraph in comment.paragraphs() {
            let found = unclear_phrases(&paragraph);
            faults.extend(found.iter().map(|phrase| format!("{}: \"{phrase}\": {paragraph}", comment.at)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_doc_comment_begins_with_a_capital_and_its_first_paragraph_ends_with_a_period() {
    let mut faults = Vec::new();
    // The doc comments of the command line are its help text, without periods.
    let is_checked = |comment: &&Comment| comment.is_doc && !comment.at.starts_with("src/cli/arguments.rs");
    for comment in all_comments().iter().filter(is_checked) {
        let paragraphs = comment.paragraphs();
        let Some(first) = paragraphs.first().map(|paragraph| paragraph.trim_end()) else { continue };
        let begins = first.starts_with(|letter: char| letter.is_uppercase() || letter.is_ascii_digit())
            || first.starts_with(['`', '[', '"', '*'])
            || LOWER_CASE_NAMES.iter().any(|name| first.starts_with(name));
        // A text in backticks alone is a value: the label or the header that the item stands for.
        let is_value = first.starts_with('`') && first.ends_with('`') && first.matches('`').count() == 2;
        if !begins || !(is_value || first.ends_with(['.', ':', '?']) || first.ends_with(".)")) {
            faults.push(format!("{}: {first}", comment.at));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_name_in_a_comment_exists_in_the_sources() {
    let mut known: BTreeSet<String> = FOREIGN_NAMES.iter().map(|name| (*name).to_owned()).collect();
    for path in sources() {
        let text = fs::read_to_string(path).unwrap();
        known.extend(text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(words));
    }
    let mut faults = Vec::new();
    for comment in all_comments() {
        let unknown = comment.names().into_iter().filter(|name| !known.contains(name));
        faults.extend(unknown.map(|name| format!("{}: `{name}`", comment.at)));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The names of items and fields, the types that are used, and the words of string literals: all names except those of
/// parameters and local variables.
#[derive(Default)]
struct ItemNames(BTreeSet<String>);

impl<'ast> Visit<'ast> for ItemNames {
    fn visit_pat_ident(&mut self, _: &'ast syn::PatIdent) {}

    fn visit_expr(&mut self, expression: &'ast syn::Expr) {
        // A path of one segment may be a variable.
        let is_word = matches!(expression, syn::Expr::Path(path) if path.path.segments.len() == 1);
        if !is_word {
            visit::visit_expr(self, expression);
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.0.extend(call.tokens.to_string().split('"').skip(1).step_by(2).flat_map(words));
    }

    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        self.0.extend(words(&literal.value()));
    }

    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.0.insert(name.to_string());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

/// Every documented function: its name, and the names in its doc comment that neither the function nor `items` has.
struct FunctionDocs<'names> {
    items: &'names BTreeSet<String>,
    faults: Vec<String>,
}

/// All words of a function, its doc comment excepted. An unused parameter loses its leading underscore.
#[derive(Default)]
struct OwnNames(BTreeSet<String>);

impl<'ast> Visit<'ast> for OwnNames {
    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.0.insert(name.to_string().trim_start_matches('_').to_owned());
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.0.extend(words(&call.tokens.to_string()));
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

impl FunctionDocs<'_> {
    fn check(&mut self, attributes: &[syn::Attribute], name: &syn::Ident, own: &BTreeSet<String>) {
        let lines = attributes.iter().filter_map(|attribute| {
            let syn::Meta::NameValue(doc) = &attribute.meta else { return None };
            let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(line), .. }) = &doc.value else { return None };
            doc.path.is_ident("doc").then(|| line.value().trim().to_owned())
        });
        let comment = Comment { at: String::new(), is_doc: true, lines: lines.collect() };
        let unknown = comment.names().into_iter().filter(|word| !self.items.contains(word) && !own.contains(word));
        self.faults.extend(unknown.map(|word| format!("fn {name}: `{word}`")));
    }
}

impl<'ast> Visit<'ast> for FunctionDocs<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let mut own = OwnNames::default();
        own.visit_item_fn(function);
        self.check(&function.attrs, &function.sig.ident, &own.0);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let mut own = OwnNames::default();
        own.visit_impl_item_fn(function);
        self.check(&function.attrs, &function.sig.ident, &own.0);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        let mut own = OwnNames::default();
        own.visit_trait_item_fn(function);
        self.check(&function.attrs, &function.sig.ident, &own.0);
        visit::visit_trait_item_fn(self, function);
    }
}

#[test]
fn a_functions_doc_comment_names_its_own_parameters_only() {
    let files: Vec<(PathBuf, syn::File)> = sources()
        .into_iter()
        .map(|path| {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            (path, file)
        })
        .collect();
    let mut items = ItemNames(FOREIGN_NAMES.iter().map(|name| (*name).to_owned()).collect());
    for (_, file) in &files {
        items.visit_file(file);
    }
    let mut faults = Vec::new();
    for (path, file) in &files {
        let mut docs = FunctionDocs { items: &items.0, faults: Vec::new() };
        docs.visit_file(file);
        faults.extend(docs.faults.iter().map(|fault| format!("{}: {fault}", path.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn faults_of_comments_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rs");
    let text = "/// Returns `width`. One\n/// `other` line.\n///\n/// - an item\nfn f(wide: u8) {}\n// A remark\n";
    fs::write(&path, text).unwrap();
    let comments = comments_in(&path);
    assert_eq!(comments[0].paragraphs(), ["Returns `width`. One `other` line. ", "- an item "]);
    assert_eq!(sentences("One. Two: three? Four").len(), 4);
    assert_eq!(unclear_phrases("Whoever reads items, each of which (or of which) counts"), ["of which", "whoever"]);
    assert_eq!(comments.iter().map(|comment| comment.is_doc).collect::<Vec<_>>(), [true, false]);
    let file = syn::parse_file(text).unwrap();
    let mut items = ItemNames::default();
    items.visit_file(&file);
    assert!(items.0.contains("f") && !items.0.contains("wide"), "{:?}", items.0);
    let mut docs = FunctionDocs { items: &BTreeSet::new(), faults: Vec::new() };
    docs.visit_file(&file);
    assert_eq!(docs.faults, ["fn f: `other`", "fn f: `width`"]);
}
