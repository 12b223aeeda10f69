//! A program that uses flagstone as a Rust library, without Python: `embed` on a simulated device, `embed cuda` on a GPU.

use std::process::ExitCode;
use std::time::Duration;

use flagstone::driver::cuda::Cuda;
use flagstone::driver::sim::Sim;
use flagstone::driver::{Driver, Stream};
use flagstone::{Config, Error, Pool, Stats};

const MIB: u64 = 1 << 20;

/// What a program does with a pool, the same on every kind of device.
fn use_pool<D: Driver>(driver: D) -> Result<Stats, Error> {
    let pool = Pool::new(driver, Config::default())?;
    let weights = pool.alloc(100 * MIB, Stream::LEGACY)?;
    let batch = pool.alloc(3 * MIB, Stream::LEGACY)?;

    // Another stream reads the batch: once freed, it is given out again only when that stream is done with it.
    pool.record_stream(batch, Stream::PER_THREAD)?;
    pool.free(batch)?;

    // The same stream gets freed memory back at once, without the driver.
    pool.free(weights)?;
    let again = pool.alloc(100 * MIB, Stream::LEGACY)?;
    assert_eq!(again, weights);
    pool.free(again)?;

    pool.driver().synchronize(Duration::MAX)?;
    pool.trim(0)?;
    Ok(pool.stats())
}

fn main() -> ExitCode {
    let stats = match std::env::args().nth(1).as_deref() {
        None => use_pool(Sim::default()),
        Some("cuda") => Cuda::new(0).and_then(use_pool),
        Some(other) => {
            eprintln!("usage: embed [cuda], not {other:?}");
            return ExitCode::from(2);
        }
    };
    match stats {
        Ok(stats) => {
            println!(
                "peak {} MiB, now held {} bytes",
                stats.peak_active_bytes / MIB,
                stats.reserved_bytes
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_held_in_the_end() {
        let stats = use_pool(Sim::default()).expect("a simulated device has the memory");
        assert_eq!((stats.live_blocks, stats.active_bytes, stats.reserved_bytes), (0, 0, 0));
        assert_eq!(stats.peak_active_bytes, 103 * MIB);
    }
}
