"""What torch calls while it is imported, through the entry point `torch.backends`: nothing, unless it is asked for.

With `FLAGSTONE_TORCH=1` in the environment flagstone becomes torch's allocator, with the settings of `FLAGSTONE_CONF`,
in every process that imports torch: for code that cannot be edited, and for what starts processes, as torchrun.
"""

from flagstone._process import switched_on

VARIABLE = "FLAGSTONE_TORCH"


def load() -> None:
    """Install flagstone where the environment says so; `ConfigError` for a value that is neither 0 nor 1."""
    if switched_on(VARIABLE, "1 to make flagstone torch's allocator, 0 or nothing to leave torch alone"):
        # From the module: the package may be the one that is importing torch just now.
        from flagstone.torch._swap import install

        install()
