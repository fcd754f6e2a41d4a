//! The sources as the compiler sees them without tests: modules, their items, and the paths that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Item, UseTree};

/// Path of a module. It is empty for the server's `lib.rs`, and begins with the name of the crate for other crates of
/// the workspace.
pub type ModulePath = Vec<String>;

/// One file of a crate.
pub(super) struct SourceFile {
    /// The file, relative to the crate's `src/`.
    pub(super) file: PathBuf,
    /// Path of the crate's `lib.rs`.
    root: ModulePath,
    /// Items other than tests.
    items: Vec<Item>,
    text: String,
}

/// All files of the libraries, by module.
pub(super) struct Sources {
    files: BTreeMap<ModulePath, SourceFile>,
}

impl Sources {
    /// Parses every file below the `src` folders, `main.rs` and files of tests excepted. Each folder comes with the
    /// path of its `lib.rs`.
    pub(super) fn read(folders: &[(ModulePath, PathBuf)]) -> Self {
        let mut sources = Self { files: BTreeMap::new() };
        for (root, src) in folders {
            sources.add(root, src);
        }
        sources
    }

    fn add(&mut self, root: &ModulePath, src: &Path) {
        for path in rust_files(src) {
            let file = path.strip_prefix(src).unwrap().to_owned();
            let stem = file.file_stem().unwrap().to_str().unwrap();
            if stem == "main" || stem == "tests" || stem.ends_with("_tests") || file.iter().any(|part| part == "tests")
            {
                continue;
            }
            let mut module = root.clone();
            module.extend(file.parent().unwrap().iter().map(|part| part.to_str().unwrap().to_owned()));
            if stem != "mod" && stem != "lib" {
                module.push(stem.to_owned());
            }
            let text = fs::read_to_string(&path).unwrap();
            let mut items = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())).items;
            items.retain(|item| !is_test(item));
            self.files.insert(module, SourceFile { file, root: root.clone(), items, text });
        }
    }

    /// Names of types (structs, enums, unions, traits and aliases), with the files that define them.
    pub(super) fn types(&self) -> BTreeMap<String, Vec<&Path>> {
        let mut types: BTreeMap<String, Vec<&Path>> = BTreeMap::new();
        for source in self.files.values() {
            let mut names = TypeNames::default();
            source.items.iter().for_each(|item| names.visit_item(item));
            for name in names.0 {
                types.entry(name).or_default().push(&source.file);
            }
        }
        types
    }

    /// Lines that are neither blank nor comments nor tests.
    pub(super) fn code_lines(&self) -> usize {
        self.files.values().map(SourceFile::code_lines).sum()
    }

    /// Returns the other modules that each module's code names. A name that a module re-exports counts for the module
    /// that defines it. A trait of the folder above does not count for the files that implement it.
    pub(super) fn imports(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        self.files
            .iter()
            .map(|(module, source)| {
                let mut paths = NamedPaths::default();
                source.items.iter().for_each(|item| paths.visit_item(item));
                let implemented = implemented_traits(&source.items);
                let counts = |path: &&ModulePath| {
                    let is_above = self.resolve(module, path).is_some_and(|found| module.starts_with(&found));
                    !(is_above && path.last().is_some_and(|name| implemented.contains(name)))
                };
                let named = paths.0.iter().filter(counts).filter_map(|path| self.resolve(module, path));
                (module.clone(), named.filter(|found| found != module).collect())
            })
            .collect()
    }

    /// Returns the module that `path` leads to if it is written in `module`.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<ModulePath> {
        let absolute = self.absolute(module, path)?;
        self.defining(&absolute, 0)
    }

    /// Returns `path` as the path of a module and its item, or `None` if it leads out of the workspace.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let (mut base, mut rest) = match first.as_str() {
            "crate" => (self.files[module].root.clone(), rest),
            "self" => (module.to_vec(), rest),
            "super" => (module.split_last()?.1.to_vec(), rest),
            child if self.files.contains_key(&[module, &[child.to_owned()]].concat()) => (module.to_vec(), path),
            // Another crate of the workspace.
            _ if self.files.get(&path[..1]).is_some_and(|source| source.root == path[..1]) => (Vec::new(), path),
            _ => return None,
        };
        while let Some((first, after)) = rest.split_first().filter(|(first, _)| *first == "super") {
            debug_assert_eq!(first, "super");
            base.pop()?;
            rest = after;
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// Follows re-exports to the module in which the item at `absolute` is defined.
    fn defining(&self, absolute: &[String], depth: usize) -> Option<ModulePath> {
        let length = (0..=absolute.len()).rev().find(|length| self.files.contains_key(&absolute[..*length]))?;
        let (module, rest) = absolute.split_at(length);
        if let (Some(name), true) = (rest.first(), depth < 8) {
            let mut uses = Uses::default();
            self.files[module].items.iter().for_each(|item| uses.visit_item(item));
            if let Some(target) = uses.0.iter().find(|(alias, _)| alias == name).map(|(_, target)| target)
                && let Some(mut target) = self.absolute(module, target)
            {
                target.extend_from_slice(&rest[1..]);
                return self.defining(&target, depth + 1);
            }
        }
        Some(module.to_vec())
    }
}

impl SourceFile {
    fn code_lines(&self) -> usize {
        let body = self.text.split("#[cfg(test)]\nmod ").next().unwrap();
        body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
    }
}

/// Names of the traits that a file implements.
fn implemented_traits(items: &[Item]) -> BTreeSet<String> {
    let implemented =
        items.iter().filter_map(|item| if let Item::Impl(item) = item { item.trait_.as_ref() } else { None });
    implemented.filter_map(|(_, path, _)| path.segments.last()).map(|segment| segment.ident.to_string()).collect()
}

/// Returns all Rust files below `path`.
pub fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.flat_map(|path| rust_files(&path)).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    found.sort();
    found
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the enum is non-exhaustive")]
fn attributes(item: &Item) -> &[syn::Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_test(item: &Item) -> bool {
    attributes(item).iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

#[derive(Default)]
struct TypeNames(Vec<String>);

impl<'ast> Visit<'ast> for TypeNames {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the enum is non-exhaustive")]
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(item) {
            return;
        }
        match item {
            Item::Struct(item) => self.0.push(item.ident.to_string()),
            Item::Enum(item) => self.0.push(item.ident.to_string()),
            Item::Union(item) => self.0.push(item.ident.to_string()),
            Item::Trait(item) => self.0.push(item.ident.to_string()),
            Item::Type(item) => self.0.push(item.ident.to_string()),
            _ => {}
        }
        visit::visit_item(self, item);
    }
}

/// Names that `use` brings into a module, with the paths that they stand for.
#[derive(Default)]
struct Uses(Vec<(String, ModulePath)>);

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        flatten(&item.tree, &mut Vec::new(), &mut self.0);
    }
    // Imports inside functions are not imports of the module.
    fn visit_item_fn(&mut self, _: &'ast syn::ItemFn) {}
    fn visit_item_impl(&mut self, _: &'ast syn::ItemImpl) {}
}

fn flatten(tree: &UseTree, prefix: &mut ModulePath, found: &mut Vec<(String, ModulePath)>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            found.push((prefix.last().cloned().unwrap_or_default(), prefix.clone()));
        }
        UseTree::Name(name) => {
            found.push((name.ident.to_string(), [prefix.as_slice(), &[name.ident.to_string()]].concat()));
        }
        UseTree::Rename(rename) => {
            found.push((rename.rename.to_string(), [prefix.as_slice(), &[rename.ident.to_string()]].concat()));
        }
        UseTree::Glob(_) => found.push(("*".to_owned(), prefix.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, found)),
    }
}

/// Every path that code names in `use`, types, expressions and patterns.
#[derive(Default)]
struct NamedPaths(Vec<ModulePath>);

impl<'ast> Visit<'ast> for NamedPaths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut found = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut found);
        self.0.extend(found.into_iter().map(|(_, path)| path));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}
