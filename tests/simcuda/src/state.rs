//! The simulated machine: its devices, made when the driver starts and kept until the process ends.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::sync::OnceLock;

use flagstone::driver::sim::{Code, CuResult, Device, Options};

use crate::calls;
use crate::runtime_api::idle_kernels;
use crate::settings::{Settings, settings};
use crate::timing;

/// The machine.
pub struct Machine {
    devices: Vec<Device>,
    /// Device attributes that differ from the usual, by number.
    pub attributes: &'static BTreeMap<u32, c_int>,
}

static MACHINE: OnceLock<CuResult<Machine>> = OnceLock::new();

/// Says on standard error what the devices found, when the process ends, and writes the counts where they are wanted.
extern "C" fn report() {
    if let Ok(Settings { counts: Some(file), .. }) = settings() {
        let idle = idle_kernels();
        let idle: String = idle.lines().map(|line| format!("idle:{line}\n")).collect();
        if let Err(error) = fs::write(file, calls::list() + &idle) {
            eprintln!("simcuda: {}: {error}", file.display());
        }
    }
    let Ok(machine) = machine() else { return };
    for device in &machine.devices {
        for violation in device.violations() {
            eprintln!("simcuda: device {}: {violation}", device.properties().ordinal);
        }
    }
}

/// Starts the driver.
pub fn start() -> CuResult {
    MACHINE.get_or_init(|| {
        // SAFETY: the function can be called at any time. Where it cannot be registered the report is missing.
        unsafe { libc::atexit(report) };
        let settings = settings().map_err(|_| Code::INVALID_VALUE)?;
        timing::set(settings.timing.0, settings.timing.1);
        let device = |ordinal| {
            Device::new(Options {
                ordinal,
                capacity: settings.memory,
                strict: settings.strict,
                virtual_memory: settings.attributes.get(&102) != Some(&0),
                ..Options::default()
            })
        };
        Ok(Machine {
            devices: (0..settings.devices).map(device).collect(),
            attributes: &settings.attributes,
        })
    });
    match machine()?.devices.len() {
        0 => Err(Code::NO_DEVICE),
        _ => Ok(()),
    }
}

/// The machine, once the driver was started.
pub fn machine() -> CuResult<&'static Machine> {
    MACHINE
        .get()
        .ok_or(Code::NOT_INITIALIZED)?
        .as_ref()
        .map_err(|&code| code)
}

/// Where this library reaches the byte at an address: device memory of a strict device is not at its own address.
pub fn host_address(addr: u64) -> u64 {
    let owner = machine().and_then(|machine| machine.owner(addr));
    owner.map_or(addr, |device| device.host_address(addr))
}

impl Machine {
    /// How many devices there are.
    pub fn count(&self) -> c_int {
        self.devices.len() as c_int
    }

    /// The device of an ordinal.
    pub fn device(&self, ordinal: c_int) -> CuResult<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(Code::INVALID_DEVICE)
    }

    /// The device that has memory at an address.
    pub fn owner(&self, addr: u64) -> CuResult<&Device> {
        self.devices
            .iter()
            .find(|device| device.memory_kind(addr).is_some())
            .ok_or(Code::INVALID_VALUE)
    }
}
