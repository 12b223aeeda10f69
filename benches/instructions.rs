//! Instructions of the pool's operations, counted by callgrind: `cargo bench --bench instructions`.
//!
//! Counts do not depend on what else the machine does, so each has a ceiling, a tenth above the count when it was set: one
//! that is crossed fails the run. Each case runs in processes of its own, once for few and once for many rounds, and the
//! difference is what the rounds take.

#![expect(clippy::print_stdout, reason = "a program that reports, not the library")]

use std::hint::black_box;
use std::process::{Command, ExitCode};

use flagstone::driver::sim::{Options, Sim};
use flagstone::driver::{DevicePtr, Stream};
use flagstone::{Config, Pool};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const FEW: u64 = 1_000;
const MANY: u64 = 11_000;

/// What is counted: a name, the most instructions that one round may take, the pool's configuration and the round.
type Case = (&'static str, u64, &'static str, fn(&Pool<Sim>));

const CASES: [Case; 6] = [
    ("pair of 512 bytes", 180, "", |pool| pair(pool, 512)),
    ("pair of 64 KiB", 168, "", |pool| pair(pool, 64 * KIB)),
    ("pair of 16 MiB", 185, "", |pool| pair(pool, 16 * MIB)),
    ("pair of 512 bytes, no magazine", 1100, "magazine:0", |pool| {
        pair(pool, 512)
    }),
    ("pair of 64 KiB, no magazine", 1065, "magazine:0", |pool| {
        pair(pool, 64 * KIB)
    }),
    ("100 blocks of 4 KiB, freed in order", 17_500, "", |pool| {
        batch(pool, 4 * KIB)
    }),
];

fn pair(pool: &Pool<Sim>, bytes: u64) {
    let block = pool
        .alloc(black_box(bytes), Stream::LEGACY)
        .expect("the device has the memory");
    pool.free(black_box(block)).expect("the block is live");
}

fn batch(pool: &Pool<Sim>, bytes: u64) {
    let alloc = |_| {
        pool.alloc(black_box(bytes), Stream::LEGACY)
            .expect("the device has the memory")
    };
    let blocks: [DevicePtr; 100] = std::array::from_fn(alloc);
    blocks
        .iter()
        .for_each(|block| pool.free(*block).expect("the block is live"));
}

/// Runs one case's rounds; the process that is counted.
fn run(case: &Case, rounds: u64) {
    let device = Options {
        backed: false,
        ..Options::default()
    };
    let config = Config::parse(case.2).expect("known keys");
    let pool = Pool::new(Sim::new(device), config).expect("the device has the memory");
    (0..rounds).for_each(|_| case.3(&pool));
}

/// The instructions of a process that runs the case's rounds.
fn count(name: &str, rounds: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([name, &rounds.to_string()])
        .output()
        .map_err(|error| format!("valgrind does not run ({error}): install it with your system's packages"))?;
    let report = String::from_utf8_lossy(&output.stderr);
    let counted = report
        .lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    counted.ok_or_else(|| format!("valgrind counted nothing: {report}"))
}

/// The instructions of one of the case's rounds.
fn per_round(name: &str) -> Result<u64, String> {
    Ok((count(name, MANY)? - count(name, FEW)?) / (MANY - FEW))
}

fn main() -> ExitCode {
    // cargo passes arguments of its own, none of which is a case's name.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, rounds] = &arguments[..]
        && let (Some(case), Ok(rounds)) = (CASES.iter().find(|case| case.0 == name), rounds.parse())
    {
        run(case, rounds);
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, most, ..) in CASES {
        match per_round(name) {
            Ok(counted) if counted <= most => println!("{counted:>8}  {name}"),
            Ok(counted) => {
                println!("{counted:>8}  {name}: FAILED, at most {most}");
                failed += 1;
            }
            Err(reason) => {
                println!("          {name}: FAILED, {reason}");
                failed += 1;
            }
        }
    }
    println!("{} passed, {failed} failed", CASES.len() - failed);
    ExitCode::from(u8::from(failed > 0))
}
