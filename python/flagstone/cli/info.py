"""`flagstone info`: what is installed here, and which devices it finds."""

import argparse
import os
import platform
import sys

from flagstone import _core
from flagstone.cli.output import Commands, print_json, size
from flagstone.errors import CudaUnavailableError, FlagstoneError


def add_parser(commands: Commands) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "info",
        help="what is installed, and which devices are found",
        description="Say which version this is, how it was built, and which devices it finds.",
        epilog="example: flagstone info --json",
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> None:
    """Print what is known."""
    try:
        _core.cuda_device_count()
        reason = None
    except CudaUnavailableError as error:
        reason = str(error)
    build, devices = _core.build_info(), _core.devices()
    conf = os.environ.get("FLAGSTONE_CONF", "")
    in_force, mistake = _in_force()
    prices = _core.simulated_prices()["source"]
    if build["profile"] == "debug":
        print("flagstone: a debug build, many times slower than a release build", file=sys.stderr)
    if options.json:
        print_json(
            {
                **build,
                "extension": _core.__file__,
                "python": f"{platform.python_implementation()} {platform.python_version()}",
                "backend": devices[0]["backend"],
                "cuda": {"available": reason is None, "reason": reason},
                "devices": devices,
                "simulated_prices": prices,
                "environment": {"conf": conf, "settings": in_force, "mistake": mistake},
            }
        )
        return
    print(f"flagstone {build['version']}, {build['profile']} build with {', '.join(build['features'])}")
    print(f"extension: {_core.__file__}")
    print(f"python: {platform.python_implementation()} {platform.python_version()}")
    print(f"cuda: {reason or 'available'}")
    print(f"prices of driver calls on simulated devices: {prices}")
    for device in devices:
        print(f"{device['backend']} device {device['ordinal']}: {device['name']}, {size(device['total_bytes'])}")
        for key, what in (("virtual_memory", "virtual memory management"), ("memory_pools", "driver memory pools")):
            print(f"  {what}: {'yes' if device[key] else 'no'}")
    print(f"FLAGSTONE_CONF: {mistake or conf or 'not set'}")
    print("settings, as keyword arguments of a pool or FLAGSTONE_CONF=key:value,key:value:")
    for key, allowed in build["settings"].items():
        print(f"  {key}: {allowed} (default: {_shown(allowed, build['defaults'][key])})")


def _shown(allowed: str, value: str) -> str:
    """Write the value of a setting with its unit where it is a number of bytes."""
    return size(int(value)) if allowed.startswith("bytes") and value.isdigit() and value != "0" else value


def _in_force() -> tuple[dict[str, object], str | None]:
    """Return the settings that FLAGSTONE_CONF gives a pool that is given none, and what is wrong with it."""
    try:
        return dict(_core.Pool(_core.SimulatedDevice(capacity=1 << 44, backed=False)).settings), None
    except FlagstoneError as error:  # a reserve above the limit, too
        return {}, str(error)
