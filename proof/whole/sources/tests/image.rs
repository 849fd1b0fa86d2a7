//! Checks that the Dockerfile agrees with the tree. Every file that the Dockerfile copies must exist, or the
//! Dockerfile must build it. The Dockerfile must build and install what `make demo` needs, and must see
//! everything that git keeps. These tests do not build or run the image.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test

use std::collections::{BTreeMap, BTreeSet};

use super::rooms::{self, root};

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the instructions of each stage of a Dockerfile, each in one line.
fn stages(dockerfile: &str) -> Vec<Vec<String>> {
    let text = dockerfile.replace("\\\n", " ");
    let mut stages: Vec<Vec<String>> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with("FROM ") {
            stages.push(Vec::new());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        stages.last_mut().expect("FROM comes first").push(words.join(" "));
    }
    stages
}

/// Returns the operands of the instructions that begin with `beginning`: the words after it that are not
/// options.
fn operands<'a>(instructions: &'a [String], beginning: &str) -> Vec<Vec<&'a str>> {
    let of = |rest: &'a str| rest.split(' ').filter(|word| !word.starts_with('-')).collect();
    instructions.iter().filter_map(|line| line.strip_prefix(beginning)).map(of).collect()
}

/// Returns the packages in `cargo build ... -p ONE -p TWO`, anywhere in a text.
fn cargo_packages(text: &str) -> BTreeSet<&str> {
    let builds = text.split("cargo build").skip(1).filter_map(|rest| rest.split(['\n', '&']).next());
    builds
        .flat_map(|build| build.split(" -p ").skip(1))
        .filter_map(|rest| rest.split_whitespace().next())
        .collect()
}

/// Returns the files that `cargo build` makes for each package of the workspace, according to the package's
/// manifest.
fn artifacts() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for name in rooms::crates() {
        let dir = root().join(name);
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let name_in = |section: &str| {
            let (_, rest) = manifest.split_once(&format!("{section}\n"))?;
            let line = rest
                .lines()
                .take_while(|line| !line.starts_with('['))
                .find(|line| line.starts_with("name"))?;
            line.split('"').nth(1).map(str::to_owned)
        };
        let package = name_in("[package]").unwrap();
        let library =
            manifest.contains("\"cdylib\"").then(|| name_in("[lib]").unwrap_or(package.replace('-', "_")));
        let mut made: Vec<String> = library.map(|name| format!("lib{name}.so")).into_iter().collect();
        if dir.join("src/main.rs").exists() {
            made.push(name_in("[[bin]]").unwrap_or_else(|| package.clone()));
        }
        found.insert(package, made);
    }
    found
}

/// Returns the Debian packages that scripts/setup installs for each of its keywords.
fn debian_packages(setup: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut found = BTreeMap::new();
    for line in setup.lines() {
        let Some((word, need)) = line.trim().split_once(") need ") else { continue };
        // The line is `need WHAT 'PACKAGES' CHECK`. An operand of one word has no quotes.
        let mut rest = need;
        let mut words = Vec::new();
        while words.len() < 2 {
            let quote = rest.chars().next().filter(|first| matches!(first, '\'' | '"'));
            let (one, behind) = match quote {
                Some(quote) => rest[1..].split_once(quote).unwrap(),
                None => rest.split_once(' ').unwrap(),
            };
            words.push(one);
            rest = behind.trim_start();
        }
        found.insert(word, words[1].split(' ').collect());
    }
    found
}

/// Returns the keywords that scripts/setup lists for a purpose, such as `demo`.
fn needs_of<'a>(setup: &'a str, purpose: &str) -> Vec<&'a str> {
    let line = setup.lines().find(|line| line.starts_with(&format!("{purpose}) needs=")));
    line.unwrap_or_else(|| panic!("no purpose {purpose}")).split('\'').nth(1).unwrap().split(' ').collect()
}

fn demo_recipe(makefile: &str) -> String {
    let (_, rest) = makefile.split_once("\ndemo:").expect("make demo");
    rest.lines()
        .skip(1)
        .take_while(|line| line.starts_with('\t'))
        .fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn what_is_copied_is_in_the_tree_or_is_built() {
    let text = read("Dockerfile");
    let [build, last] = &stages(&text)[..] else { panic!("two stages") };
    let artifacts = artifacts();
    let built: BTreeSet<&str> = cargo_packages(&build.join("\n"))
        .into_iter()
        .flat_map(|package| artifacts.get(package).unwrap_or_else(|| panic!("no package {package}")))
        .map(String::as_str)
        .collect();
    let copied = operands(last, "COPY --from=build ");
    let (_, copied) = copied.first().and_then(|words| words.split_last()).expect("files of the build");
    let copied: BTreeSet<&str> =
        copied.iter().map(|path| path.strip_prefix("/src/target/release/").expect("of the build")).collect();
    assert_eq!(copied, built, "what is copied, and what is built");
    let stripped = build.iter().find_map(|line| line.split_once(" strip ")).expect("strip").1;
    for file in &built {
        assert!(stripped.split(' ').any(|word| word.strip_prefix("target/release/") == Some(file)), "{file}");
    }
    for words in operands(build, "COPY ").into_iter().chain(operands(last, "COPY ")) {
        let (_, sources) = words.split_last().unwrap();
        for source in sources.iter().filter(|source| !source.starts_with("/src/")) {
            assert!(root().join(source).exists(), "COPY {source}");
        }
    }
}

#[test]
fn the_image_builds_and_brings_what_the_demonstration_needs() {
    let text = read("Dockerfile");
    let [build, last] = &stages(&text)[..] else { panic!("two stages") };
    let (build, last) = (build.join("\n"), last.join("\n"));
    let recipe = demo_recipe(&read("Makefile"));
    let here = cargo_packages(&build);
    for package in cargo_packages(&recipe) {
        assert!(here.contains(package), "make demo builds {package}");
    }
    let setup = read("scripts/setup");
    let known = debian_packages(&setup);
    let installed: BTreeSet<&str> = last
        .split_once("apt-get install ")
        .and_then(|(_, rest)| rest.split(" && ").next())
        .expect("apt-get install")
        .split(' ')
        .filter(|word| !word.starts_with('-'))
        .collect();
    // Packages that are needed only to compile and link are in the stage that builds, and not in the final
    // image.
    for word in needs_of(&setup, "demo").into_iter().filter(|word| !["cc", "sqlite-headers"].contains(word)) {
        for package in &known[word] {
            assert!(installed.contains(package), "make demo needs {package}");
        }
    }
    let all: BTreeSet<&str> = known.values().flatten().copied().collect();
    for package in &installed {
        assert!(all.contains(package), "scripts/setup knows no {package}");
    }
    assert!(last.contains("\nUSER duralite\n"), "the image does not run as root");
}

#[test]
fn what_the_image_runs_is_built_and_on_its_path() {
    let text = read("Dockerfile");
    let [build, last] = &stages(&text)[..] else { panic!("two stages") };
    let value = |name: &str| last.iter().find_map(|line| line.strip_prefix(name)).expect("there is one");
    let program = value("CMD ").split('"').nth(1).expect("a program");
    let artifacts = artifacts();
    let build = build.join("\n");
    let mut built = cargo_packages(&build).into_iter().flat_map(|package| &artifacts[package]);
    assert!(built.any(|made| made == program), "{program} is not built");
    let copied = operands(last, "COPY --from=build ");
    let place = copied.first().and_then(|words| words.last()).expect("a directory").trim_end_matches('/');
    assert!(value("ENV ").contains(&format!("\"{place}:")), "{place} is not on the path");
}

#[test]
fn the_image_sees_what_git_keeps() {
    let ignored = read(".gitignore");
    let ignored: BTreeSet<&str> = ignored.lines().map(|line| line.trim_start_matches('/')).collect();
    for line in read(".dockerignore").lines().filter(|line| *line != ".git") {
        let pattern = line.strip_prefix("**/").unwrap_or(line);
        assert!(ignored.contains(pattern) || ignored.contains(format!("{pattern}/").as_str()), "{line}");
    }
}

#[test]
fn what_the_tests_read_is_understood() {
    let text = "# a\nFROM a AS b\nRUN x \\\n    && cargo build -p one -p two \\\n    && y\nFROM c\nCOPY --from=b /p /q /r/\n";
    let stages = stages(text);
    assert_eq!(stages[0][1], "RUN x && cargo build -p one -p two && y");
    assert_eq!(cargo_packages(&stages[0][1]).into_iter().collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(operands(&stages[1], "COPY --from=b "), [["/p", "/q", "/r/"]]);
    let setup =
        "demo) needs='cc a b' ;;\n    a) need 'an a' 'a-dev a' has a ;;\n    b) need \"$b\" b has b ;; # c\n";
    assert_eq!(needs_of(setup, "demo"), ["cc", "a", "b"]);
    let known = debian_packages(setup);
    assert_eq!((known["a"].as_slice(), known["b"].as_slice()), (&["a-dev", "a"][..], &["b"][..]));
    assert_eq!(demo_recipe("x:\n\tno\n\ndemo: ## it\n\tone\n\ttwo\n\ny:\n\tno\n"), "\tone\n\ttwo\n");
}
