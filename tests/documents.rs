//! Holds SAFETY.md to what is there: the tests, files and commands that it names exist.

use std::fs;
use std::path::Path;

#[test]
fn what_safety_says_an_invariant_is_held_by_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (safety, makefile) = (read("SAFETY.md"), read("Makefile"));
    let mut sources = String::new();
    collect(&root.join("src"), &mut sources);
    collect(&root.join("tests"), &mut sources);

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

/// Adds the text of every Rust and Python source in the folder.
fn collect(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "py") {
            *sources += &fs::read_to_string(&path).expect("sources are text");
        }
    }
}
