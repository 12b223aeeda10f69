//! Holds the layer rule of ARCHITECTURE.md: a module uses only those below it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules at the crate's root, lowest first. Each may name itself and those before it.
const LAYERS: [&str; 18] = [
    "bytes",
    "size_class",
    "sync",
    "driver",
    "error",
    "config",
    "freelist",
    "metadata",
    "arena",
    "stream",
    "stats",
    "pages",
    "pool",
    "trace",
    "replay",
    "registry",
    "capi",
    "python",
];

/// Libraries that one module keeps to itself, so that nothing else depends on what they are.
const OWNERS: [(&str, &str); 3] = [("cudarc", "driver/cuda"), ("flate2", "trace"), ("pyo3", "python")];

#[test]
fn each_module_uses_only_those_below_it() {
    let faults: Vec<String> = sources().iter().flat_map(|(path, text)| upward(path, text)).collect();
    assert!(
        faults.is_empty(),
        "\n{}\n\nA module may use only those before it in LAYERS (tests/layering.rs), so that each can be read without those \
         above. Move what is shared down, or pass it in.\n",
        faults.join("\n")
    );
}

#[test]
fn each_library_is_named_by_its_owner_alone() {
    let mut faults = Vec::new();
    for (path, text) in &sources() {
        for (library, owner) in OWNERS {
            let owned = path.starts_with(owner) || path.with_extension("") == Path::new(owner);
            if !owned && code(text).any(|(_, line)| line.contains(&format!("{library}::"))) {
                faults.push(format!("src/{} names {library}, which only src/{owner} may", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn the_layers_are_those_of_the_source_and_of_the_picture() {
    let mut modules: Vec<String> = sources().keys().map(|path| module(path)).collect();
    modules.dedup();
    let mut layers: Vec<String> = LAYERS.map(String::from).to_vec();
    layers.sort();
    assert_eq!(modules, layers, "the modules of src (left) and LAYERS in tests/layering.rs (right)");
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let places: Vec<_> = LAYERS.iter().map(|name| architecture.find(&format!("| `{name}` |"))).collect();
    assert!(
        places.is_sorted() && !places.contains(&None),
        "the table in ARCHITECTURE.md has not one row for each of LAYERS, in that order: {:?}",
        LAYERS.iter().zip(&places).collect::<Vec<_>>()
    );
}

#[test]
fn a_use_of_a_higher_layer_is_found_in_every_form() {
    let faults = |path: &str, text: &str| upward(Path::new(path), text).len();
    assert_eq!(faults("pool/mod.rs", "use crate::driver::{Driver, sim::Sim};"), 0);
    assert_eq!(faults("driver/mod.rs", "use crate::pool::Pool;"), 1);
    assert_eq!(faults("driver/mod.rs", "use crate::{bytes, pool::{Pool, Block}, trace};"), 2);
    assert_eq!(faults("driver/mod.rs", "use crate::{\n    bytes,\n    pool::Pool,\n};"), 1);
    assert_eq!(faults("driver/sim/clock.rs", "fn f(p: &crate::pool::Pool) {}"), 1);
    assert_eq!(faults("driver/mod.rs", "use crate::Pool;"), 1);
    assert_eq!(faults("driver/mod.rs", "use super::pool::Pool;"), 1);
    assert_eq!(faults("driver/sim.rs", "use super::Driver;"), 0);
    assert_eq!(faults("driver/mod.rs", "//! Like [`crate::pool::Pool`]."), 0);
    assert_eq!(faults("unheard_of.rs", ""), 1);
}

/// What `text`, the source at `path` under src, uses that it may not.
fn upward(path: &Path, text: &str) -> Vec<String> {
    let layer = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let own = module(path);
    let Some(own_layer) = layer(&own) else {
        return vec![format!("src/{}: `{own}` has no place in LAYERS (tests/layering.rs)", path.display())];
    };
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| faults.push(format!("src/{}:{line}: {what}", path.display()));
    for (line, name) in crate_names(text) {
        match layer(&name) {
            Some(used) if used <= own_layer => {}
            Some(_) => fault(line, format!("`{own}` uses `{name}`, which is above it")),
            None => fault(line, format!("`crate::{name}` does not say which module it is from")),
        }
    }
    // `super` out of the module's own folder is a way around `crate::`.
    let depth = path.with_extension("").iter().filter(|part| *part != "mod").count();
    let reach = format!("use {}", "super::".repeat(depth));
    for (line, _) in code(text).filter(|(_, text)| text.starts_with(&reach)) {
        fault(line, "reaches the root with `super`; write `crate::` and the module".into());
    }
    faults
}

/// The names directly behind `crate::`, also inside `crate::{...}`, with their line numbers.
fn crate_names(text: &str) -> Vec<(usize, String)> {
    let code: String = code(text).map(|(_, line)| line + "\n").collect();
    let mut names = Vec::new();
    for (start, prefix) in code.match_indices("crate::") {
        let line = code[..start].matches('\n').count() + 1;
        let rest = &code[start + prefix.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            names.extend(group_heads(group).into_iter().map(|name| (line, name)));
        } else {
            names.push((line, head(rest)));
        }
    }
    names
}

/// The first identifier of each item of a use group, given the text behind its opening brace.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut item) = (0, Vec::new(), String::new());
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(head(std::mem::take(&mut item).trim_start())),
            _ if depth == 0 => item.push(letter),
            _ => {}
        }
    }
    heads.push(head(item.trim_start()));
    heads.retain(|name| !name.is_empty());
    heads
}

fn head(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

/// The lines of `text` without their `//` comments, numbered from 1.
fn code(text: &str) -> impl Iterator<Item = (usize, String)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default().to_string()))
}

/// The module at the crate's root that a path under src belongs to.
fn module(path: &Path) -> String {
    path.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_string()
}

/// Every source but the root, by its path under src.
fn sources() -> BTreeMap<PathBuf, String> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, into);
            } else if path.extension().is_some_and(|end| end == "rs") {
                into.push(path);
            }
        }
    }
    let src = root().join("src");
    let mut paths = Vec::new();
    walk(&src, &mut paths);
    let relative = |path: &PathBuf| path.strip_prefix(&src).unwrap().to_path_buf();
    let text = |path: &PathBuf| fs::read_to_string(path).unwrap();
    paths.iter().map(|path| (relative(path), text(path))).filter(|(path, _)| path != Path::new("lib.rs")).collect()
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}
