//! Holds SAFETY.md to what is there: the tests, files and commands that it names exist, and every file with lock-free code has
//! faults that its models must notice.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn what_safety_says_an_invariant_is_held_by_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (safety, makefile) = (read("SAFETY.md"), read("Makefile"));
    let files = ["src", "tests"].map(|folder| sources(&root.join(folder)));
    let sources: String = files.concat().into_iter().map(|(_, text)| text).collect();

    let mut names = 0;
    for row in safety.lines().filter(|line| line.starts_with("| ")) {
        let held_by = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for name in held_by.split('`').skip(1).step_by(2) {
            let exists = if let Some(target) = name.strip_prefix("make ") {
                makefile.contains(&format!("\n{target}:"))
            } else if name.contains('/') {
                root.join(name).exists() || root.join("src").join(name).exists()
            } else if name.contains('_') {
                sources.contains(&format!("fn {name}(")) || sources.contains(&format!("def {name}("))
            } else {
                continue;
            };
            assert!(
                exists,
                "SAFETY.md names `{name}`, which is not there, in the row\n{row}"
            );
            names += 1;
        }
    }
    assert!(names > 0, "SAFETY.md names no test");
}

/// Files with atomics, or folders of them, that need no faults in `tests/mutants/list.txt`, and why not.
const NO_FAULTS: [(&str, &str); 30] = [
    ("arena/alias.rs", UNDER_LOCK),
    ("arena/growth.rs", UNDER_LOCK),
    ("arena/idle.rs", UNDER_LOCK),
    (
        "arena/mod.rs",
        "under the arena's lock, and hints beside it: who needs to know takes the lock",
    ),
    (
        "arena/patience.rs",
        "hints: one that is a little old waits a little longer or shorter",
    ),
    ("arena/range.rs", UNDER_LOCK),
    ("arena/region.rs", UNDER_LOCK),
    (
        "arena/slab.rs",
        "under the arena's lock; the table's entries publish what others read",
    ),
    ("arena/window.rs", UNDER_LOCK),
    ("driver/sim", "the device of the tests: numbers that are given out once"),
    ("freelist/mod.rs", "while all threads are quiet"),
    ("histogram.rs", NUMBERS),
    (
        "history/stack.rs",
        "what a thread keeps is its own; the number only says when to forget it",
    ),
    ("pages/mod.rs", NUMBERS),
    ("pool/check.rs", "while all threads are quiet"),
    ("pool/dependencies.rs", NUMBERS),
    ("pool/give.rs", HELD),
    ("pool/guard.rs", HELD),
    ("pool/miss.rs", HELD),
    ("pool/private.rs", "under the lock of the routes"),
    ("pool/report.rs", NUMBERS),
    ("pool/steps.rs", NUMBERS),
    ("python/bench/machine.rs", "numbers that one thread has"),
    ("python/block.rs", "a flag, set while the block is in use"),
    ("python/errors.rs", "a flag, so that something is said once"),
    ("replay/metered.rs", NUMBERS),
    ("thread/current.rs", "a number that is given out once"),
    (
        "thread/magazine.rs",
        "within the owner's section or a taker's, which thread/cache.rs and thread/cache/taker.rs hold apart",
    ),
    ("thread/slots.rs", NUMBERS),
    ("thread/sums.rs", NUMBERS),
];
const UNDER_LOCK: &str = "under the arena's lock";
const HELD: &str = "records of blocks or arenas that the caller holds";
const NUMBERS: &str = "numbers that nothing else is read through";

#[test]
fn lock_free_code_has_three_faults_a_file_that_its_models_must_notice() {
    const ORDERINGS: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("tests/mutants/list.txt")).unwrap();
    let mut unused = NO_FAULTS.map(|(path, _)| path).to_vec();
    for (path, text) in sources(&root.join("src")) {
        let name = path.strip_prefix(root.join("src")).unwrap().to_str().unwrap();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        // Tests are last, and models are files of tests.
        let code = text
            .lines()
            .take_while(|line| !line.starts_with("#[cfg(all(test") && *line != "#[cfg(test)]");
        let mut words = code
            .filter(is_code)
            .flat_map(|line| line.split(|c: char| !c.is_alphanumeric()));
        let is_atomic = text.contains("atomic::") && words.any(|word| ORDERINGS.contains(&word));
        if !is_atomic || name.ends_with("models.rs") || name.ends_with("tests.rs") {
            continue;
        }
        let faults = list.lines().filter(|line| *line == format!("src/{name}")).count();
        let exempt = |path: &&str| {
            name.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if faults < 3 {
            assert!(
                NO_FAULTS.iter().any(|(path, _)| exempt(path)),
                "src/{name} has atomics, and {faults} faults in tests/mutants/list.txt: it needs three, or a reason in NO_FAULTS"
            );
            unused.retain(|path| !exempt(path));
        }
    }
    assert!(unused.is_empty(), "NO_FAULTS names what needs no reason: {unused:?}");
}

/// Every Rust and Python source in the folder, with its text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            found.append(&mut sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs" || end == "py") {
            let text = fs::read_to_string(&path).expect("sources are text");
            found.push((path, text));
        }
    }
    found
}
