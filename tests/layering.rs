//! Holds the layer rule of ARCHITECTURE.md: a module uses only those before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules, lowest first. Each may name itself and those before it. A folder's part that stands higher than the rest
/// of it has an entry of its own: `driver` is what a device must give, and no pool can name the devices behind it.
const LAYERS: [&str; 24] = [
    "bytes",
    "size_class",
    "sync",
    "driver",
    "error",
    "config",
    "freelist",
    "metadata",
    "arena",
    "thread",
    "stream",
    "pages",
    "histogram",
    "stats",
    "history",
    "pool",
    "driver/pinned",
    "driver/sim",
    "driver/cuda",
    "trace",
    "replay",
    "registry",
    "capi",
    "python",
];

/// Libraries that one module keeps to itself, so that nothing else depends on what they are.
const OWNERS: [(&str, &str); 3] = [("cudarc", "driver/cuda"), ("flate2", "trace"), ("pyo3", "python")];

#[test]
fn each_module_uses_only_those_before_it() {
    let faults: Vec<String> = sources().iter().flat_map(|(path, text)| upward(path, text)).collect();
    assert!(
        faults.is_empty(),
        "\n{}\n\nA module may use only those before it in LAYERS (tests/layering.rs), so that each can be read without those \
         after it. Move what is shared down, or pass it in.\n",
        faults.join("\n")
    );
}

#[test]
fn each_library_is_named_by_its_owner_alone() {
    let mut faults = Vec::new();
    for (path, text) in &sources() {
        for (library, owner) in OWNERS {
            if layer(&module(path)) != Some(owner) && code(text).contains(&format!("{library}::")) {
                faults.push(format!(
                    "src/{}: names {library}, which only src/{owner} may",
                    path.display()
                ));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn the_layers_are_those_of_the_table() {
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows: Vec<_> = LAYERS.map(|name| architecture.find(&format!("| `{name}` |"))).to_vec();
    assert!(
        rows.is_sorted() && !rows.contains(&None),
        "the table in ARCHITECTURE.md must have one row for each of LAYERS, in that order; found at {rows:?}"
    );
}

#[test]
fn a_use_of_a_later_module_is_found_in_every_form() {
    let faults = |path: &str, text: &str| upward(Path::new(path), text).len();
    assert_eq!(faults("driver/mod.rs", "use crate::pool::Pool;"), 1);
    assert_eq!(
        faults("driver/mod.rs", "use crate::{bytes, pool::{Pool, Block}, trace};"),
        2
    );
    assert_eq!(
        faults("driver/mod.rs", "use crate::{\n    bytes,\n    pool::Pool,\n};"),
        1
    );
    assert_eq!(faults("driver/sim/clock.rs", "fn f(p: &crate::replay::Replay) {}"), 1);
    assert_eq!(faults("pool/mod.rs", "use crate::driver::{Driver, sim::Sim};"), 1);
    assert_eq!(faults("driver/mod.rs", "use crate::Pool;"), 1, "a name of the root");
    assert_eq!(
        faults("driver/mod.rs", "use super::pool::Pool;"),
        1,
        "the root by another name"
    );
    assert_eq!(faults("unheard_of.rs", ""), 1);

    assert_eq!(
        faults("pool/mod.rs", "use crate::driver::{Driver, Stream};\nuse crate::error;"),
        0
    );
    assert_eq!(faults("driver/sim.rs", "use super::Driver;"), 0);
    assert_eq!(faults("driver/mod.rs", "//! Like [`crate::pool::Pool`]."), 0);
    assert_eq!(
        faults(
            "pool/mod.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::driver::sim::Sim;\n}"
        ),
        0
    );
}

/// What `text`, the source at `path` under src, uses that it may not.
fn upward(path: &Path, text: &str) -> Vec<String> {
    let place = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let source = path.display();
    let Some(own) = layer(&module(path)) else {
        return vec![format!("src/{source}: has no place in LAYERS (tests/layering.rs)")];
    };
    let mut faults = BTreeSet::new();
    for used in crate_paths(&code(text)) {
        match layer(&used) {
            Some(used) if place(used) <= place(own) => continue,
            Some(used) => faults.insert(format!("src/{source}: `{own}` uses `{used}`, which comes after it")),
            None => faults.insert(format!(
                "src/{source}: `crate::{used}` does not say which module it is from"
            )),
        };
    }
    // `super` out of the topmost folder is a way around `crate::`.
    let root = format!("use {}", "super::".repeat(module(path).split('/').count()));
    if code(text).lines().any(|line| line.starts_with(&root)) {
        faults.insert(format!(
            "src/{source}: `{root}` reaches the root; write `crate::` and the module"
        ));
    }
    faults.into_iter().collect()
}

/// The layer of a module or item, given its path with slashes: the longest entry of LAYERS that it begins with.
fn layer(path: &str) -> Option<&'static str> {
    let inside = |layer: &&str| {
        path.strip_prefix(*layer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    LAYERS.into_iter().filter(inside).max_by_key(|layer| layer.len())
}

/// The paths behind `crate::`, with slashes, `crate::{...}` and groups within it taken apart.
fn crate_paths(code: &str) -> Vec<String> {
    code.match_indices("crate::")
        .flat_map(|(start, prefix)| leaves("", &code[start + prefix.len()..]))
        .collect()
}

/// The paths that `text` begins with: one, or those of a group.
fn leaves(prefix: &str, text: &str) -> Vec<String> {
    let length = text
        .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(length);
    let path = if prefix.is_empty() {
        name.to_string()
    } else {
        format!("{prefix}/{name}")
    };
    if let Some(rest) = rest.strip_prefix("::") {
        return leaves(&path, rest);
    }
    let Some(group) = text.strip_prefix('{') else {
        return vec![path];
    };
    let (mut depth, mut start, mut paths) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        if depth == 0 && (letter == ',' || letter == '}') {
            let item = group[start..at].trim();
            if !item.is_empty() {
                paths.extend(leaves(prefix, item));
            }
            start = at + 1;
        }
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    paths
}

/// `text` without comments, and without its tests, which come last and may use anything.
fn code(text: &str) -> String {
    let lines = text
        .lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test"));
    lines
        .map(|line| line.split("//").next().unwrap_or_default().to_string() + "\n")
        .collect()
}

/// The module of a path under src, with slashes.
fn module(path: &Path) -> String {
    path.with_extension("")
        .to_string_lossy()
        .trim_end_matches("/mod")
        .to_string()
}

/// Every source but the root's and the files of tests, by its path under src.
fn sources() -> BTreeMap<PathBuf, String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("src can be read") {
            let path = entry.expect("src can be read").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    let src = root().join("src");
    let mut found = Vec::new();
    walk(&src, &mut found);
    let mut sources = BTreeMap::new();
    for path in found {
        let name = path.strip_prefix(&src).expect("found under src").to_path_buf();
        if name != Path::new("lib.rs") && !name.ends_with("tests.rs") {
            sources.insert(name, fs::read_to_string(&path).expect("sources are text"));
        }
    }
    sources
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}
