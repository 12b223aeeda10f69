//! Random sequences with captures and graphs, on two devices, from several threads, against a naive reference.
//!
//! Captures are begun, ended, aborted, replayed and released, announced or not, beside everything else. Each block has a stamp of
//! its own, written by its stream or by the replays of its graph, and the user of the pool keeps to the rules of streams
//! and graphs: whatever the device's checker finds then, and each byte that is not as it was left, is the pool's fault.

mod actions;
mod capture;
mod machine;
#[path = "../common/requests.rs"]
mod requests;

use actions::{Action, actions};
use flagstone::config::{Config, Dependencies, Source};
use machine::Machine;
use proptest::prelude::*;
use requests::dependencies;

fn run(source: Source, magazine: u64, dependencies: Dependencies, actions: &[(usize, Action)]) {
    let mut config = Config::default();
    (config.source, config.magazine, config.dependencies) = (source, magazine, dependencies);
    let mut machines = [0, 1].map(|ordinal| Machine::new(ordinal, &config));
    for (device, action) in actions {
        let elsewhere = machines[1 - device].pool.clone();
        machines[*device].step(action, &elsewhere);
        machines.iter().for_each(Machine::verify);
    }
    machines.into_iter().for_each(Machine::finish);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn graphs_of_virtual_memory_agree_with_the_reference(actions in actions(), waits in dependencies()) {
        run(Source::VirtualMemory, 64 << 20, waits, &actions);
    }

    #[test]
    fn graphs_of_slabs_agree_with_the_reference(actions in actions(), waits in dependencies()) {
        run(Source::Slabs, 64 << 20, waits, &actions);
    }

    #[test]
    fn graphs_of_the_drivers_pool_agree_with_the_reference(actions in actions(), waits in dependencies()) {
        run(Source::DriverPool, 64 << 10, waits, &actions);
    }
}
