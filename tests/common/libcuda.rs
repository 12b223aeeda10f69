//! Driver libraries for tests, and tests that run in a process of their own with one of them.
//!
//! The dynamic loader reads `LD_LIBRARY_PATH` once, when a process starts: so a test starts itself again.

use std::any::type_name;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Set in the process that runs a test's body.
const CHILD: &str = "FLAGSTONE_TEST_CHILD";

/// A driver library that a test runs with.
pub enum Library {
    /// The simulated driver.
    Simulated,
    /// The simulated driver without some of its symbols, as older drivers are.
    Without(&'static [&'static str]),
    /// Files of the library's names that are no libraries. They also hide a real driver.
    Broken,
}

/// Runs `body` in another process, with this driver library and these environment variables.
///
/// # Panics
/// Where the body does, with what it printed.
pub fn with_driver<F: FnOnce()>(library: &Library, settings: &[(&str, &str)], body: F) {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    let path = type_name::<F>().trim_end_matches("::{{closure}}");
    let name = path.split_once("::").expect("closures are in a test").1;
    let folder = library.folder(path);
    let child = Command::new(env::current_exe().expect("the test's file"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", &folder)
        .envs(settings.iter().copied())
        .output()
        .expect("the test's file starts");
    let output = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{name} failed in its own process:\n{output}");
    assert!(
        output.contains("1 passed"),
        "{name} was not found in its own process:\n{output}"
    );
}

impl Library {
    /// A folder for `LD_LIBRARY_PATH` (so without a colon) that has the library under the names that are tried first and last.
    fn folder(&self, test: &str) -> PathBuf {
        let bytes = match self {
            Self::Simulated => None,
            Self::Without(symbols) => Some(without(symbols)),
            Self::Broken => Some(b"not a library".to_vec()),
        };
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("libcuda")
            .join(test.replace("::", "-"));
        fs::create_dir_all(&folder).expect("a folder under the target folder");
        for name in ["libcuda.so", "libcuda.so.1"] {
            let file = folder.join(name);
            let _ = fs::remove_file(&file);
            match &bytes {
                Some(bytes) => fs::write(&file, bytes).expect("a library of the test's own"),
                None => std::os::unix::fs::symlink(simulated(), &file).expect("a link to the library"),
            }
        }
        folder
    }
}

/// The simulated driver library, built once.
fn simulated() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("it is target/tmp");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "simcuda", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            // A sanitizer's, perhaps: they would be applied to what runs while it is built.
            .env_remove("RUSTFLAGS")
            .status()
            .expect("cargo starts");
        assert!(built.success(), "the simulated driver does not build");
        target.join("debug/libsimcuda.so")
    })
}

/// The simulated library with the names of some symbols changed: the loader does not find them.
fn without(symbols: &[&str]) -> Vec<u8> {
    let mut library = fs::read(simulated()).expect("it was built");
    for symbol in symbols {
        // As it stands in the table of exported names: between two zeros.
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let found: Vec<usize> = (0..library.len() - name.len())
            .filter(|&at| library[at..].starts_with(&name))
            .collect();
        assert!(!found.is_empty(), "the simulated driver does not export {symbol}");
        for at in found {
            library[at + 1] = b'_';
        }
    }
    library
}
