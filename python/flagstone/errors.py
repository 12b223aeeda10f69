"""The errors that flagstone raises. Each carries the numbers of its message as attributes.

The extension imports this file when the first error is raised; every class can be pickled.
"""


class FlagstoneError(Exception):
    """Base of every error that flagstone raises itself. The pool's accounts are as they were before the call."""

    def __init__(self, message: str = "", **numbers: object) -> None:
        """Keep `numbers` as attributes beside the message."""
        super().__init__(message)
        self.__dict__.update(numbers)


class OutOfMemoryError(FlagstoneError, MemoryError):
    """No memory could be had after every step was tried. Free something, ask for less, or raise the limit.

    The numbers are bytes, at the moment of the failure. What was tried, in order, is in `steps`: the name, the bytes
    that became free or went back to the driver, and the nanoseconds that it took.
    """

    requested: int
    device: int
    """The device's ordinal."""
    limit: int | None
    """The pool's limit, or None."""
    allocated: int
    """Live, rounded to size classes."""
    pending: int
    """Freed, and waiting for other streams."""
    reserved: int
    """Held from the driver."""
    cached: int
    """Held, and neither live nor waiting."""
    largest_free: int
    """The largest free range of the stream that asked."""
    device_free: int | None
    """Free on the device for any process; None where the driver did not answer."""
    device_total: int
    """The device's memory."""
    steps: tuple[tuple[str, int, int], ...]


class TooLargeError(FlagstoneError, MemoryError, ValueError):
    """The request is larger than any block can be: it can never succeed."""

    requested: int
    most: int


class InvalidPointerError(FlagstoneError, ValueError):
    """The pointer was not given out by this pool, or its buffer was freed. Nothing was changed."""

    address: int


class DoubleFreeError(InvalidPointerError):
    """The block was freed already. Nothing was changed."""


class StreamError(FlagstoneError, ValueError):
    """The stream was destroyed, belongs to another device, or is not a stream."""

    stream: int
    device: int


class DeviceError(FlagstoneError, ValueError):
    """There is no such device."""

    device: int
    count: int


class CudaUnavailableError(FlagstoneError, RuntimeError):
    """There is no CUDA in this process: no driver, no device, or a driver that does not start. The message says why."""


class ForkError(FlagstoneError, RuntimeError):
    """This process was forked after the pool was made, where CUDA does not work. Start processes with spawn."""


class TooManyError(FlagstoneError, RuntimeError):
    """The pool has no record left for one more stream or thread. Use streams again instead of making new ones."""

    what: str


class ConfigError(FlagstoneError, ValueError):
    """A configuration key or value is not allowed. The message names the key and what is allowed."""

    key: str
    value: str
    allowed: str


class DriverError(FlagstoneError, RuntimeError):
    """A driver call failed."""

    call: str
    code: int
    name: str


class TraceError(FlagstoneError, ValueError):
    """A trace could not be read. The message names the file and, where there is one, the line."""


class SimulatedDeviceWarning(RuntimeWarning):
    """No CUDA device was found, so `backend="auto"` took the simulated device. Said once in a process."""
