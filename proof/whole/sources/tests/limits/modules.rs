//! Finds source files that no program compiles, because no file declares them as a module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use syn::punctuated::Punctuated;

use super::File;

/// Returns the files that cannot be reached from the roots of the packages with these manifests.
pub fn forgotten<'f>(manifests: &[File], files: &'f [File]) -> Vec<&'f str> {
    let by_path: BTreeMap<&Path, &File> = files.iter().map(|file| (Path::new(&file.path), file)).collect();
    // A module is looked for in a directory: that of the file, or one named after the file.
    let mut left: Vec<PathBuf> = manifests.iter().flat_map(|manifest| roots(manifest, files)).collect();
    let roots: BTreeSet<PathBuf> = left.iter().cloned().collect();
    let mut reached = BTreeSet::new();
    while let Some(path) = left.pop() {
        let Some(file) = by_path.get(&*path) else { continue };
        if !reached.insert(path.clone()) {
            continue;
        }
        let parsed = syn::parse_file(&file.text).unwrap_or_else(|error| panic!("{}: {error}", file.path));
        let dir = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let is_mod = path.file_name().is_some_and(|name| name == "mod.rs");
        let below = if is_mod || roots.contains(&path) { dir.clone() } else { path.with_extension("") };
        declared(&parsed.items, &dir, &below, &mut left);
    }
    files.iter().map(|file| file.path.as_str()).filter(|path| !reached.contains(Path::new(path))).collect()
}

/// Returns the files from which the compiler begins to read the programs of a package.
fn roots(manifest: &File, files: &[File]) -> Vec<PathBuf> {
    let package = manifest.path.strip_suffix("Cargo.toml").unwrap_or_default();
    let has = |line: &str| manifest.text.lines().any(|other| other == line);
    let is_root = |path: &str| {
        let Some(path) = path.strip_prefix(package) else { return false };
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        match dir {
            "" => name == "build.rs",
            "src" => matches!(name, "lib.rs" | "main.rs"),
            "src/bin" | "benches" | "examples" => true,
            // All tests are one program, unless the manifest names others or leaves finding them to Cargo.
            "tests" => {
                let stem = name.strip_suffix(".rs").unwrap_or(name);
                !has("autotests = false") || has(&format!("name = \"{stem}\""))
            }
            _ => has(&format!("path = \"{path}\"")),
        }
    };
    files.iter().filter(|file| is_root(&file.path)).map(|file| PathBuf::from(&file.path)).collect()
}

/// Adds the files of the modules that these items declare. `dir` is the directory of the file, and `below` that of its
/// modules.
fn declared(items: &[syn::Item], dir: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    for item in items {
        let syn::Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        let paths: Vec<PathBuf> =
            module.attrs.iter().flat_map(|attribute| paths_in(&attribute.meta)).collect();
        let is_moved = module.attrs.iter().any(|attribute| attribute.path().is_ident("path"));
        if let Some((_, items)) = &module.content {
            // A path in a module in braces begins in the directory of that module.
            declared(items, &below.join(&name), &below.join(&name), found);
            continue;
        }
        found.extend(paths.iter().map(|path| without_ups(&dir.join(path))));
        if !is_moved {
            found.extend([below.join(format!("{name}.rs")), below.join(&name).join("mod.rs")]);
        }
    }
}

/// Returns the paths that `path = "..."` in an attribute gives a module. The compiler follows one in `cfg_attr` only with
/// some features.
fn paths_in(attribute: &syn::Meta) -> Vec<PathBuf> {
    match attribute {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => vec![path.value().into()],
            _ => Vec::new(),
        },
        syn::Meta::List(list) if list.path.is_ident("cfg_attr") => {
            let parts = list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
            parts.into_iter().flatten().flat_map(|part| paths_in(&part)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the path without `..`.
fn without_ups(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}
