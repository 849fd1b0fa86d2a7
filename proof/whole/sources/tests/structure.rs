//! Checks that the files of a crate depend on each other in one direction. No file may use something from a
//! file that uses it, directly or indirectly. The same must hold for folders. A folder is a top-level module
//! of the crate together with all modules below it. The test reports a cycle with its path.
//!
//! A file depends on whatever it names outside its tests, in `use` or in a path. If a module only re-exports
//! a name (`use child::Name`), the dependency is on the file that defines the name. `mod child;` alone does
//! not use the child.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use duralite_wal::engines::ENGINES;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use syn::UseTree;

use super::rooms;

/// A module's path from the crate's root; empty for the root.
type Module = Vec<String>;

/// A name that a `use` imports, and the full path of the imported item.
struct Import {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// The names by which one file refers to others.
#[derive(Default)]
struct File {
    children: Vec<String>,
    imports: Vec<Import>,
    paths: Vec<Vec<String>>,
}

impl File {
    fn of(source: TokenStream) -> Self {
        let mut file = Self::default();
        file.read(source);
        file
    }

    /// Reads tokens, including those in groups and in macros, which may name other files too.
    fn read(&mut self, tokens: TokenStream) {
        let tokens = without_attributes(tokens);
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += match token {
                TokenTree::Ident(word) if word == "mod" && has_no_body(&tokens[at..]) => {
                    self.children.push(tokens[at + 1].to_string());
                    3
                }
                TokenTree::Ident(word) if word == "use" => self.read_use(&tokens, at),
                TokenTree::Ident(_) => self.read_path(&tokens[at..]),
                TokenTree::Group(group) => {
                    self.read(group.stream());
                    1
                }
                // A path that begins with `::` belongs to another crate.
                _ if is_separator(&tokens[at..]) => 3,
                _ => 1,
            };
        }
    }

    /// Reads tokens that begin with `use`: an item, or the lifetimes that an `impl Trait` captures. Returns
    /// the number of tokens that it has read.
    fn read_use(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let len = tokens[at..].iter().position(|token| is_mark(token, ';')).map_or(1, |end| end + 1);
        let Ok(item) = syn::parse2::<syn::ItemUse>(tokens[at..at + len].iter().cloned().collect()) else {
            return 1;
        };
        let is_public = at.checked_sub(1).is_some_and(|before| match &tokens[before] {
            TokenTree::Ident(word) => word == "pub",
            TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
            _ => false,
        });
        self.read_tree(&item.tree, &[], is_public);
        len
    }

    /// Adds the names that one branch of a `use` imports.
    fn read_tree(&mut self, tree: &UseTree, before: &[String], is_public: bool) {
        let then = |name: &dyn ToString| [before, &[name.to_string()][..]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.read_tree(&path.tree, &then(&path.ident), is_public),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|branch| self.read_tree(branch, before, is_public));
            }
            // `module::{self}` is the module.
            UseTree::Name(name) if name.ident == "self" => {
                (before.last().cloned().unwrap_or_default(), before.to_vec())
            }
            UseTree::Rename(name) if name.ident == "self" => (name.rename.to_string(), before.to_vec()),
            UseTree::Name(name) => (name.ident.to_string(), then(&name.ident)),
            UseTree::Rename(name) => (name.rename.to_string(), then(&name.ident)),
            UseTree::Glob(_) => ("*".to_owned(), then(&"*")),
        };
        self.imports.push(Import { name, path, is_public });
    }

    /// Reads the path at the beginning of these tokens. Returns the number of tokens in the path.
    fn read_path(&mut self, tokens: &[TokenTree]) -> usize {
        let mut path = vec![tokens[0].to_string()];
        let mut len = 1;
        while is_separator(&tokens[len..])
            && let Some(TokenTree::Ident(next)) = tokens.get(len + 2)
        {
            path.push(next.to_string());
            len += 3;
        }
        if path.len() > 1 {
            self.paths.push(path);
        }
        len
    }
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == mark)
}

/// Returns whether the tokens begin with `::`.
fn is_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(one), two, ..]
        if one.as_char() == ':' && one.spacing() == Spacing::Joint && is_mark(two, ':'))
}

/// Returns whether this is `mod NAME;`, and not a module with a body in braces.
fn has_no_body(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [_, TokenTree::Ident(_), end, ..] if is_mark(end, ';'))
}

/// Removes attributes, including documentation comments. Also removes all items that are only for tests.
fn without_attributes(tokens: TokenStream) -> Vec<TokenTree> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        // An inner attribute has a `!` before its brackets.
        let inner = usize::from(tokens.get(at + 1).is_some_and(|token| is_mark(token, '!')));
        match tokens.get(at + 1 + inner) {
            Some(TokenTree::Group(attribute))
                if is_mark(&tokens[at], '#') && attribute.delimiter() == Delimiter::Bracket =>
            {
                at += 2 + inner;
                if inner == 0 && is_for_tests(attribute.stream()) {
                    at += len_of_item(&tokens[at..]);
                }
            }
            _ => {
                kept.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    kept
}

/// Returns whether an attribute is a `cfg` with `test` in it, but without `not`.
fn is_for_tests(attribute: TokenStream) -> bool {
    let mut words = Vec::new();
    let mut left = vec![attribute];
    while let Some(tokens) = left.pop() {
        for token in tokens {
            match token {
                TokenTree::Ident(word) => words.push(word.to_string()),
                TokenTree::Group(group) => left.push(group.stream()),
                _ => {}
            }
        }
    }
    let says = |wanted: &str| words.iter().any(|word| word == wanted);
    words.first().is_some_and(|first| first == "cfg") && says("test") && !says("not")
}

/// Returns the number of tokens in the item at the beginning of these tokens. Further attributes before the
/// item count too.
fn len_of_item(tokens: &[TokenTree]) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => is_mark(token, ';'),
    };
    tokens.iter().position(ends).map_or(tokens.len(), |end| end + 1)
}

/// The modules of a crate that have a file of their own.
struct Modules(BTreeMap<Module, File>);

impl Modules {
    /// Returns the modules that can be reached from a crate's root.
    fn of(root: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let dir = root.parent().map(Path::to_path_buf).unwrap_or_default();
        let mut found = vec![(Module::new(), root.to_path_buf(), dir)];
        while let Some((module, path, dir)) = found.pop() {
            let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let file = File::of(source.parse().unwrap_or_else(|error| panic!("{path:?}: {error}")));
            for child in &file.children {
                let of_child = [module.clone(), vec![child.clone()]].concat();
                let below = dir.join(child);
                let beside = [dir.join(format!("{child}.rs")), below.join("mod.rs")];
                // A module in braces in this file, or under `#[path]`, has no file at the usual place.
                if let Some(path) = beside.into_iter().find(|path| path.is_file()) {
                    found.push((of_child, path, below));
                }
            }
            modules.insert(module, file);
        }
        Self(modules)
    }

    /// Returns the path from the crate's root; `None` for a path that leads out of the crate.
    fn absolute(&self, from: &Module, path: &[String]) -> Option<Vec<String>> {
        let child = [from.as_slice(), &path[..1]].concat();
        match path[0].as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([from.as_slice(), &path[1..]].concat()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                Some([&from[..from.len().saturating_sub(ups)], &path[ups..]].concat())
            }
            _ if self.0.contains_key(&child) => Some([from.as_slice(), path].concat()),
            _ => None,
        }
    }

    /// Returns the module that defines the item at `path`, which begins at the crate's root.
    fn owner(&self, path: &[String], depth: u32) -> Module {
        let len = (0..=path.len()).rev().find(|len| self.0.contains_key(&path[..*len])).unwrap_or(0);
        let (module, rest) = (path[..len].to_vec(), &path[len..]);
        let passed_on = rest.first().and_then(|name| {
            let import = self.0.get(&module)?.imports.iter().find(|import| import.name == *name)?;
            let target = self.absolute(&module, &import.path)?;
            Some([&target, &rest[1..]].concat())
        });
        match passed_on {
            Some(path) if depth > 0 => self.owner(&path, depth - 1),
            _ => module,
        }
    }

    /// Returns the modules that each module uses.
    fn uses(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let used = |(module, file): (&Module, &File)| {
            let imports = file.imports.iter().filter(|import| !import.is_public).map(|import| &import.path);
            let paths = imports.chain(&file.paths).filter_map(|path| self.absolute(module, path));
            let mut used: BTreeSet<Module> = paths.map(|path| self.owner(&path, 8)).collect();
            used.remove(module);
            (module.clone(), used)
        };
        self.0.iter().map(used).collect()
    }
}

/// Returns the shortest path from a module back to itself.
fn way_back(uses: &BTreeMap<Module, BTreeSet<Module>>, start: &Module) -> Option<Vec<Module>> {
    let mut ways = VecDeque::from([vec![start.clone()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in way.last().and_then(|last| uses.get(last)).into_iter().flatten() {
            let longer = [way.as_slice(), std::slice::from_ref(next)].concat();
            if next == start {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push_back(longer);
            }
        }
    }
    None
}

/// Returns for each folder the other folders that it uses.
fn uses_of_folders(uses: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let folder = |module: &Module| module.iter().take(1).cloned().collect::<Module>();
    let mut found: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, used) in uses {
        let from = folder(module);
        // Leaves out the root, because it re-exports names, and defines things that all modules use.
        let others = used.iter().map(folder).filter(|other| !other.is_empty() && *other != from);
        found.entry(from.clone()).or_default().extend(others);
    }
    found
}

/// The crates in which folders still use each other in cycles.
const WITH_CIRCLES_OF_FOLDERS: [&str; 1] = ["store/bench"];

/// Returns the cycles among the files of the crate with this root, in the form of [`circles_among`]. If there
/// are none and `of_folders` is true, returns the cycles among the crate's folders instead.
fn circles(root: &Path, of_folders: bool) -> (usize, BTreeSet<String>) {
    let uses = Modules::of(root).uses();
    let in_files = circles_among(&uses);
    if in_files.0 > 0 || !of_folders { in_files } else { circles_among(&uses_of_folders(&uses)) }
}

/// Returns the number of modules that are in cycles, and the paths of the cycles.
fn circles_among(uses: &BTreeMap<Module, BTreeSet<Module>>) -> (usize, BTreeSet<String>) {
    let named = |module: &Module| if module.is_empty() { "the root".to_owned() } else { module.join("::") };
    let ways: Vec<_> = uses.keys().filter_map(|module| way_back(uses, module)).collect();
    let texts = ways.iter().map(|way| {
        // `ways` has a cycle once for each of its modules. To list the cycle only once, let it always begin
        // with the module that comes first in order.
        let around = &way[..way.len() - 1];
        let first = (0..around.len()).min_by_key(|at| &around[*at]).unwrap_or(0);
        let mut names: Vec<_> =
            (0..around.len()).map(|i| named(&around[(first + i) % around.len()])).collect();
        names.push(names[0].clone());
        names.join(" -> ")
    });
    (ways.len(), texts.collect())
}

/// Returns the roots of a crate's library and programs.
fn roots(dir: &Path) -> Vec<PathBuf> {
    let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
    let named = manifest.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
    let mut roots: Vec<_> = named.chain(["src/lib.rs", "src/main.rs"]).map(|path| dir.join(path)).collect();
    let programs = std::fs::read_dir(dir.join("src/bin")).into_iter().flatten().flatten();
    roots.extend(programs.map(|program| program.path()));
    roots.retain(|root| root.is_file());
    roots.sort();
    roots.dedup();
    roots
}

#[test]
fn the_files_of_a_crate_depend_on_each_other_one_way() {
    let mut wrong = Vec::new();
    let mut crates = 0;
    for name in rooms::crates() {
        for root in roots(&rooms::root().join(&name)) {
            crates += 1;
            let of_folders = !WITH_CIRCLES_OF_FOLDERS.contains(&name.as_str());
            let (files, ways) = circles(&root, of_folders);
            if files > 0 {
                wrong.push(format!("{name}: {files} files or folders in circles"));
                wrong.extend(ways.into_iter().map(|way| format!("    {way}")));
            }
        }
    }
    assert!(crates > 10, "found {crates} crates only");
    assert!(wrong.is_empty(), "circles:\n{}", wrong.join("\n"));
}

/// Writes a crate with these files, and returns its cycles.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    for (path, source) in files {
        let path = dir.path().join("src").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, source).unwrap();
    }
    circles(&dir.path().join("src/lib.rs"), true).1.into_iter().collect()
}

#[test]
fn circles_are_found_however_they_are_written() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; pub mod c; pub use a::A;"),
        ("a.rs", "use crate::b::{self, B}; pub struct A;"),
        ("b.rs", "pub struct B; fn f() { assert!(matches!(1, x if crate::c::d::ok(x))) }"),
        ("c/mod.rs", "pub mod d;"),
        ("c/d.rs", "use std::fmt; use crate::{A as Renamed};"),
    ]);
    assert_eq!(found, ["a -> b -> c::d -> a"]);
    let parents = circles_of(&[("lib.rs", "mod a; struct S; fn f() { a::g() }"), ("a.rs", "use super::S;")]);
    assert_eq!(parents, ["the root -> a -> the root"]);
    let folders = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod c; pub mod d;"),
        ("a/c.rs", "use crate::b::B;"),
        ("a/d.rs", "pub struct D;"),
        ("b.rs", "use crate::a::d::D; pub struct B;"),
    ]);
    assert_eq!(folders, ["a -> b -> a"]);
}

/// Checks that in `wal` only the registry uses the code of an engine. Other code that needs an engine must
/// ask the registry, and must not depend on which engines exist.
#[test]
fn the_registry_alone_names_the_engines() {
    let root = rooms::root().join("crates/wal/src/lib.rs");
    let uses = Modules::of(&root).uses();
    for engine in ENGINES {
        let room = ["engines".to_owned(), engine.name.to_owned()];
        let is_in = |module: &Module| module.starts_with(&room);
        let users: Vec<_> = uses
            .iter()
            .filter(|(user, used)| !is_in(user) && used.iter().any(is_in))
            .map(|(user, _)| user.join("::"))
            .collect();
        assert_eq!(users, ["engines"], "who names {room:?}");
    }
}

/// The lists of engines that decide what is tested. No compiler checks these lists. Each entry gives the
/// file, the text before the list, and a suffix that follows each engine's name. CONTRIBUTING.md lists all
/// places that name engines.
const LISTS: [(&str, &str, &str); 6] = [
    ("scripts/test", "for engine in ", ""),
    ("scripts/proof", "all_engines=", ""),
    ("scripts/fuzz", "targets=", "_recover"),
    ("python/tests/dropin/harness.py", "ENGINES = ", ""),
    ("python/tests/versions/sqlite.py", "ENGINES = ", ""),
    ("crates/cli/src/launch.rs", "Where the log goes: ", ""),
];

#[test]
fn lists_of_engines_have_every_engine() {
    for (file, beginning, suffix) in LISTS {
        let text = std::fs::read_to_string(rooms::root().join(file)).unwrap();
        let (_, rest) = text.split_once(beginning).unwrap_or_else(|| panic!("{file}: no {beginning:?}"));
        let list = rest.split([')', ';', '}']).next().unwrap_or_default();
        let words: Vec<&str> = list.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for engine in ENGINES {
            let name = format!("{}{suffix}", engine.name);
            // `scripts/test` need not list the first engine, because tests use that engine if no other is
            // set.
            let is_default = file == "scripts/test" && engine.name == ENGINES[0].name;
            assert!(is_default || words.contains(&name.as_str()), "{file}: {beginning:?} lacks {name}");
        }
    }
}

#[test]
fn what_is_no_use_makes_no_circle() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; mod c; use b::B; pub use a::A; fn f(_: B, _: c::C) {}"),
        // The root re-exports this name, but does not define it.
        ("a.rs", "use super::B; pub struct A; impl<'c> A { fn g(&'c self) {} }"),
        (
            "b.rs",
            "//! crate::a::A\n/* crate::a */ pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
        ),
        (
            "c.rs",
            "pub struct C; const T: &str = \"crate::f\"; const R: &str = r#\"\"crate::f\"#; use std::fmt;",
        ),
    ]);
    assert!(found.is_empty(), "{found:?}");
}
