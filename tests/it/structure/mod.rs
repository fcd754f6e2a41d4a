//! Counts what a reader of the sources has to learn: cycles of imports, imports that run back up, names with two
//! meanings, lines and types.
//!
//! `cargo test --test it structure::report -- --nocapture` prints it.

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sources::Sources;
pub use sources::{ModulePath, rust_files};

/// The sources to count: those of all crates of the workspace, or a `src` folder that `N5_STRUCTURE_SRC` names.
fn src() -> Vec<(ModulePath, PathBuf)> {
    if let Some(folder) = std::env::var_os("N5_STRUCTURE_SRC") {
        return vec![(ModulePath::new(), PathBuf::from(folder))];
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = std::fs::read_dir(workspace.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = crates.map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().replace('-', "_");
        (vec![name], path.join("src"))
    });
    std::iter::once((ModulePath::new(), workspace.join("src"))).chain(others).collect()
}

type Imports = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// Returns the modules that each module of the workspace imports, tests excepted.
pub fn workspace_imports() -> Imports {
    Sources::read(&src()).imports()
}

/// Groups of files that import each other, directly or through others (strongly connected components).
fn cycles(imports: &Imports) -> Vec<Vec<&ModulePath>> {
    let reachable: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
        imports.keys().map(|module| (module, reachable_from(module, imports))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for module in imports.keys() {
        let cycle: Vec<&ModulePath> = reachable[module]
            .iter()
            .copied()
            .filter(|other| reachable[*other].contains(module))
            .filter(|other| seen.insert(*other))
            .collect();
        if cycle.len() > 1 {
            found.push(cycle);
        }
    }
    found
}

fn reachable_from<'a>(module: &'a ModulePath, imports: &'a Imports) -> BTreeSet<&'a ModulePath> {
    let mut found = BTreeSet::new();
    let mut open = vec![module];
    while let Some(next) = open.pop() {
        for imported in &imports[next] {
            if found.insert(imported) {
                open.push(imported);
            }
        }
    }
    found
}

/// Returns the imports of a module that lies above the importing one in the same folder.
fn upward(imports: &Imports) -> Vec<(&ModulePath, &ModulePath)> {
    let above = |module: &ModulePath, imported: &ModulePath| !imported.is_empty() && module.starts_with(imported);
    imports
        .iter()
        .flat_map(|(module, imported)| imported.iter().map(move |imported| (module, imported)))
        .filter(|(module, imported)| above(module, imported))
        .collect()
}

/// The counts of the report.
struct Structure {
    sources: Sources,
    imports: Imports,
}

impl Structure {
    fn read(folders: &[(ModulePath, PathBuf)]) -> Self {
        let sources = Sources::read(folders);
        let imports = sources.imports();
        Self { sources, imports }
    }

    /// Names of types that more than one definition has, with the files of the definitions.
    fn repeated_types(&self) -> BTreeMap<String, Vec<&Path>> {
        self.sources.types().into_iter().filter(|(_, files)| files.len() > 1).collect()
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "prints the report")]
fn report() {
    let structure = Structure::read(&src());
    let cycles = cycles(&structure.imports);
    println!("cycles of imports: {}", cycles.len());
    for cycle in &cycles {
        let names: Vec<String> = cycle.iter().map(|module| module.join("::")).collect();
        println!("    {}", names.join(" "));
    }
    let upward = upward(&structure.imports);
    println!("imports that run back up within a folder: {}", upward.len());
    for (module, imported) in &upward {
        println!("    {} -> {}", module.join("::"), imported.join("::"));
    }
    let repeated = structure.repeated_types();
    println!("names of types defined more than once: {}", repeated.len());
    for (name, files) in repeated {
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        println!("    {name}: {}", files.join(" "));
    }
    println!("lines of code without tests: {}", structure.sources.code_lines());
    println!("named types: {}", structure.sources.types().values().map(Vec::len).sum::<usize>());
}

#[test]
fn no_imports_form_a_cycle_or_run_back_up() {
    let structure = Structure::read(&src());
    assert_eq!(cycles(&structure.imports), Vec::<Vec<&ModulePath>>::new());
    assert_eq!(upward(&structure.imports), []);
}

#[test]
fn type_names_are_unique() {
    let structure = Structure::read(&src());
    let repeated = structure.repeated_types();
    assert!(repeated.is_empty(), "defined more than once: {repeated:?}");
}

#[test]
fn cycles_are_found_through_other_files_and_re_exports() {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "pub mod a; pub mod b; pub mod c; pub mod d;");
    let folders = [(ModulePath::new(), folder.path().to_owned())];
    write("a.rs", "mod inner; pub use inner::Inner; pub struct Twice; fn f(_: crate::b::B) {}");
    write("a/inner.rs", "use super::Twice; pub struct Inner(Twice);");
    write("b.rs", "pub struct B(crate::c::C); pub struct Twice;");
    write("d.rs", "mod inner; pub use inner::Implements; pub trait Above {}");
    write("d/inner.rs", "use super::Above; pub struct Implements; impl Above for Implements {}");
    write(
        "c.rs",
        "use crate::a::{self, Inner}; pub struct C(Inner);\n#[cfg(test)]\nmod tests { struct NotCounted; }\n",
    );
    let structure = Structure::read(&folders);
    let Structure { sources, imports } = &structure;

    let names = |modules: &[&ModulePath]| modules.iter().map(|module| module.join("::")).collect::<Vec<_>>();
    let cycles: Vec<_> = cycles(imports).iter().map(|cycle| names(cycle)).collect();
    assert_eq!(cycles, [["a", "a::inner", "b", "c"]]);
    let [(module, imported)] = upward(imports)[..] else { panic!("one import runs up") };
    assert_eq!((module.join("::"), imported.join("::")), ("a::inner".to_owned(), "a".to_owned()));
    let twice: Vec<_> =
        sources.types().into_iter().filter(|(_, files)| files.len() > 1).map(|(name, _)| name).collect();
    assert_eq!(twice, ["Twice"]);
    assert_eq!((sources.types().len(), sources.code_lines()), (6, 7));
}

#[test]
fn imports_are_followed_into_other_crates() {
    let folder = tempfile::tempdir().unwrap();
    let folders = [(ModulePath::new(), folder.path().join("a")), (vec!["other".to_owned()], folder.path().join("b"))];
    let write = |file: &str, text: &str| {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("a/lib.rs", "pub mod user; pub use other as alias;");
    write("a/user.rs", "use crate::alias::Thing; use other::inner; pub struct User(Thing);");
    write("b/lib.rs", "pub mod thing; pub mod inner; pub use thing::Thing;");
    write("b/thing.rs", "pub struct Thing;");
    write("b/inner.rs", "use crate::Thing; pub struct Inner(Thing);");
    let Structure { sources, imports } = Structure::read(&folders);

    let imported = |module: &str| {
        let module: ModulePath = module.split("::").map(str::to_owned).collect();
        imports[&module].iter().map(|found| found.join("::")).collect::<Vec<_>>()
    };
    assert_eq!(imported("user"), ["other::inner", "other::thing"]);
    assert_eq!(imported("other::inner"), ["other::thing"]);
    assert_eq!(imported("other"), ["other::thing"]);
    assert_eq!((sources.types().len(), sources.code_lines()), (3, 5));
}
