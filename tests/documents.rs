//! Holds SAFETY.md to what is there: the tests that it names exist.

use std::fs;
use std::path::Path;

#[test]
fn the_tests_that_safety_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let safety = fs::read_to_string(root.join("SAFETY.md")).unwrap();
    let named: Vec<(&str, &str)> = safety.split('`').filter_map(|quoted| quoted.split_once("::")).collect();
    let named: Vec<_> = named.into_iter().filter(|(file, _)| file.contains('.')).collect();
    assert!(!named.is_empty(), "SAFETY.md names no test as `file::name`");
    for (file, name) in named {
        let text =
            fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("SAFETY.md names {file}: {error}"));
        let defined = [format!("fn {name}("), format!("def {name}(")]
            .iter()
            .any(|definition| text.contains(definition));
        assert!(defined, "SAFETY.md names {name}, which is not in {file}");
    }
}
