"""`flagstone run`: an unchanged script on the swap."""

import subprocess
import sys

import pytest
import simcuda

pytestmark = pytest.mark.process(install=False)

SCRIPT = """
import sys, torch

class Kept: pass

def work():
    return torch.ones(1000, device="cuda") * 2

if __name__ == "__main__":
    import pickle
    assert pickle.loads(pickle.dumps(Kept())).__class__ is Kept
    assert float(work()[0].cpu()) == 2
    print(sys.argv[1:], torch.cuda.get_allocator_backend(), torch.cuda.max_memory_allocated())
    if "fail" in sys.argv:
        raise ValueError("as it was told")
    sys.exit(7 if "exit" in sys.argv else 0)
"""


def run(folder, *arguments, **environment):
    script = f"{folder}/script.py"
    with open(script, "w") as file:
        file.write(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "flagstone", "run", script, *arguments],
        env={**simcuda.environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )


def test_the_script_runs_as_it_does_by_itself():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ran = run(folder, "--epochs", "3")
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == "['--epochs', '3'] pluggable 8192\n"
        assert run(folder, "exit").returncode == 7
        ran = run(folder, "fail")
        assert ran.returncode == 1
        assert ran.stderr.startswith("Traceback (most recent call last):\n  File")
        assert ran.stderr.endswith("ValueError: as it was told\n")
        assert "flagstone/cli" not in ran.stderr


def test_what_cannot_be_run_is_said_in_a_line():
    missing = subprocess.run(
        [sys.executable, "-m", "flagstone", "run", "no-such-script.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )
    assert missing.returncode == 1
    assert missing.stderr == "flagstone: no-such-script.py: No such file or directory\n"
