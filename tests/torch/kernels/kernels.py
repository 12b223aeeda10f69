"""torch's CUDA kernels, computed on the CPU: under the simulated CUDA, scripts then get right numbers.

Each operator that has a CUDA kernel gets another one here: its CUDA tensors are copied to the host on the current
stream, the CPU's kernel runs, and what it gave or changed is copied back, so that stream order and allocation are as
on a device. Operators that the simulation carries out itself keep their kernels: allocation, views, copies of
contiguous memory, products of matrices.

New memory is stamped on its stream with bytes that are no number: what reads memory that nobody wrote since it was
given out, and what still uses memory that was given out again, has it in its results.

torch calls `install` at the end of `import torch` where this folder is on PYTHONPATH: what lies beside this file says
that it is one of torch's backends (an entry point of `torch.backends`). No script has to know.
"""

import ctypes
import functools
import inspect
import warnings

import torch

STAMP = 0xFF
"""Each byte of a stamp; floating point numbers of such bytes are none."""

KEPT = {
    "_local_scalar_dense",
    "_reshape_alias",
    "as_strided",
    "empty_strided",
    "is_set_to",
    "record_stream",
    "resize_",
    "set_",
    "unfold",
    "view",
    "view_as_complex",
    "view_as_real",
}
"""Operators that allocate nothing and compute nothing, or that the simulation carries out."""

PRODUCTS = {"addmm", "baddbmm", "bmm", "mm"}
"""Operators that are left to the simulated cuBLAS."""


def span(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements from a tensor's first to its last, in the order of their addresses."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return torch.as_strided(tensor, (last + 1,), (1,), tensor.storage_offset())


def down(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host, with the same strides."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    elements = span(tensor)
    host = torch.empty(elements.numel(), dtype=tensor.dtype)
    copy(host, elements)
    return torch.as_strided(host, tensor.size(), tensor.stride())


def up(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy back to the tensor that `host` is a copy of."""
    if tensor.size() != host.size():
        tensor.resize_(host.size())
    if tensor.stride() != host.stride():
        host = torch.empty_strided(tensor.size(), tensor.stride(), dtype=host.dtype).copy_(host)
    if host.numel():
        copy(span(tensor), span(host))


def empty(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a new tensor on the device, stamped on the current stream."""
    tensor = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device)
    storage, stream = tensor.untyped_storage(), torch.cuda.current_stream(device).cuda_stream
    place, nbytes = ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())
    _library.cudaMemsetAsync(place, STAMP, nbytes, ctypes.c_void_p(stream))
    return tensor


def new(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a new tensor on the device with what `host` holds."""
    tensor = empty(host, device)
    up(host, tensor)
    return tensor


class Call:
    """An operator's call: its arguments on the host, and where its CUDA tensors are."""

    def __init__(self, overload: torch._ops.OpOverload, arguments: tuple, options: dict) -> None:
        self.schema = overload._schema
        self.device: torch.device | None = None
        self.tensors: dict[int, torch.Tensor] = {}
        """The CUDA tensors, by their copies' ids."""
        self.arguments = [self.host(argument) for argument in arguments]
        self.options = {name: self.host(option) for name, option in options.items()}

    def host(self, argument: object) -> object:
        if isinstance(argument, torch.Tensor):
            if not argument.is_cuda:
                return argument
            self.device = self.device or argument.device
            copied = down(argument)
            self.tensors[id(copied)] = argument
            return copied
        if isinstance(argument, (list, tuple)):
            return type(argument)(self.host(item) for item in argument)
        if isinstance(argument, torch.device) and argument.type == "cuda":
            self.device = self.device or argument
            return torch.device("cpu")
        if isinstance(argument, torch.Generator):
            return None
        return argument

    def changed(self) -> list[torch.Tensor]:
        """Return the copies of what the operator writes to."""
        found = []
        for index, argument in enumerate(self.schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = self.arguments[index] if index < len(self.arguments) else self.options.get(argument.name)
                found.extend(value if isinstance(value, (list, tuple)) else [value])
        return found

    def given(self, result: object) -> object:
        """Return what the operator gave, on the device."""
        if isinstance(result, torch.Tensor):
            known = self.tensors.get(id(result))
            return new(result, self.device) if known is None else known
        if isinstance(result, (list, tuple)):
            return type(result)(self.given(item) for item in result)
        return result


def compute(name: str, *arguments: object, **options: object) -> object:
    """Compute an operator on the CPU."""
    overload = operator(name)
    call = Call(overload, arguments, options)
    result = overload(*call.arguments, **call.options)
    for host in call.changed():
        if id(host) in call.tensors:
            up(host, call.tensors[id(host)])
    return call.given(result)


@functools.cache
def operator(name: str) -> torch._ops.OpOverload:
    """Return an operator by its name."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy as torch does it: by the kernel that all backends without one of their own have."""
    return torch.ops.aten.copy_.default.redispatch(_OTHER, self, source, non_blocking)


def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy: contiguous memory, and between the host and the device, as torch does it."""
    plain = self.dtype == source.dtype and self.is_contiguous() and source.is_contiguous()
    if self.device == source.device and not (plain and self.size() == source.size()):
        return compute("copy_", self, source, non_blocking)
    return copy(self, source, non_blocking)


def empty_memory_format(size: list[int], **options: object) -> torch.Tensor:
    """Allocate memory for the program, stamped."""
    device = options.pop("device")
    return empty(torch.empty(size, **{**options, "device": "meta", "pin_memory": False}), device)


def install() -> None:
    """Put the kernels in place of torch's."""
    warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
    special = {"copy_": copy_, "empty.memory_format": empty_memory_format}
    # Versions of torch that do not know the option need none.
    known = inspect.signature(_kernels.impl).parameters
    override = {"allow_override": True} if "allow_override" in known else {}
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    for name in names:
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")
        if name in special or (has_kernel and name.partition(".")[0] not in KEPT | PRODUCTS):
            _kernels.impl(name, special.get(name) or functools.partial(compute, name), "CUDA", **override)
    # Attention and convolution by their definition: products of matrices.
    for enable in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{enable}_sdp")(False)
    torch.backends.cudnn.enabled = False


_OTHER = torch._C.DispatchKeySet(torch._C.DispatchKey.XPU)
_library = ctypes.CDLL("libcuda.so.1")
_kernels = torch.library.Library("aten", "IMPL")
