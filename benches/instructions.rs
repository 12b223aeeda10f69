//! Instructions of the pool's operations, counted by callgrind: `cargo bench --bench instructions`.
//!
//! Counts do not depend on what else the machine does, so each has a ceiling, a tenth above the count when it was set: one
//! that is crossed fails the run. Each case runs in processes of its own, once for few and once for many rounds, and the
//! difference is what the rounds take.
//!
//! What the statistics cost is the difference to a build without, `--features uncounted`, which writes its counts to a file
//! (`save FILE`) for the other one to read (`against FILE`): `.ci/counts.sh` does both.

#![expect(clippy::print_stdout, reason = "a program that reports, not the library")]

use std::fs;
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

/// The most instructions that the statistics may add to a pair that magazines meet.
const COUNTING: f64 = 15.0;
/// What the names of those begin with.
const HIT: &str = "pair of ";

const CASES: [Case; 9] = [
    ("pair of 512 bytes", 180, "", |pool| pair(pool, 512)),
    ("pair of 4 KiB", 180, "", |pool| pair(pool, 4 * KIB)),
    ("pair of 64 KiB", 168, "", |pool| pair(pool, 64 * KIB)),
    ("pair of 1 MiB", 168, "", |pool| pair(pool, MIB)),
    ("pair of 2 MiB", 185, "", |pool| pair(pool, 2 * MIB)),
    ("pair of 16 MiB", 185, "", |pool| pair(pool, 16 * MIB)),
    ("no magazine, pair of 512 bytes", 1690, "magazine:0", |pool| {
        pair(pool, 512)
    }),
    ("no magazine, pair of 64 KiB", 1650, "magazine:0", |pool| {
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
fn per_round(name: &str) -> Result<f64, String> {
    Ok((count(name, MANY)? - count(name, FEW)?) as f64 / (MANY - FEW) as f64)
}

/// What a build wrote with `save`: the instructions of each case.
fn saved(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.strip_suffix(name)?.trim().parse().ok())
}

/// Why a count is too high, if it is; and what there is to say of it otherwise.
fn judge(case: &Case, counted: f64, uncounted: Option<f64>) -> Result<String, String> {
    let (name, most, ..) = *case;
    if counted > most as f64 {
        return Err(format!("at most {most}"));
    }
    match uncounted.map(|uncounted| counted - uncounted) {
        Some(more) if name.starts_with(HIT) && more > COUNTING => {
            Err(format!("{more:.1} of them by the statistics, at most {COUNTING}"))
        }
        Some(more) if name.starts_with(HIT) => Ok(format!(", {more:.1} of them by the statistics")),
        _ => Ok(String::new()),
    }
}

fn main() -> ExitCode {
    // cargo passes an argument of its own.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let (mut save, mut against) = (None, String::new());
    if let [first, second] = &arguments[..] {
        if let (Some(case), Ok(rounds)) = (CASES.iter().find(|case| case.0 == first), second.parse()) {
            run(case, rounds);
            return ExitCode::SUCCESS;
        }
        match first.as_str() {
            "save" => save = Some(second),
            _ => against = fs::read_to_string(second).unwrap_or_default(),
        }
    }
    let (mut failed, mut report) = (0, String::new());
    for case in &CASES {
        let name = case.0;
        let judged = per_round(name).map(|counted| (counted, judge(case, counted, saved(&against, name))));
        match judged {
            Ok((counted, _)) if save.is_some() => report += &format!("{counted:>9.1}  {name}\n"),
            Ok((counted, Ok(more))) => println!("{counted:>9.1}  {name}{more}"),
            Ok((counted, Err(reason))) => {
                println!("{counted:>9.1}  {name}: FAILED, {reason}");
                failed += 1;
            }
            Err(reason) => {
                println!("           {name}: FAILED, {reason}");
                failed += 1;
            }
        }
    }
    if let Some(file) = save {
        print!("{report}");
        if let Err(error) = fs::write(file, report) {
            println!("{file}: FAILED, {error}");
            failed += 1;
        }
    }
    println!("{} passed, {failed} failed", CASES.len() - failed);
    ExitCode::from(u8::from(failed > 0))
}
