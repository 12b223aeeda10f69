"""Runs what README.md and the pages of docs/ show, and holds their tables to the code. Examples with torch are run by
tests/torch/test_docs.py, those with other libraries by tests/libraries/test_docs.py, Rust's by cargo."""

import re
import shlex
import subprocess
import sys

import pages
import pytest
from pages import PAGES, ROOT

import flagstone
from flagstone import _core


def run(command, folder):
    """Runs it as a user would, and shows what it printed where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if pages.program(page) or pages.commands(page)])
def test_examples(page, tmp_path):
    code = pages.program(page)
    if code:
        run([sys.executable, "-c", code], tmp_path)
    # What the README replays is in the repository; what a page replays was made by its own pages.
    folder = ROOT if page == "README.md" else tmp_path
    for line in pages.commands(page):
        run([sys.executable, "-m", *shlex.split(line)], folder)


def test_every_example_is_run_by_somebody():
    known = {"python", "sh", "rust", "text", ""}
    for page, text in PAGES.items():
        languages = re.findall(r"^```(\w*)$", text, re.MULTILINE)[::2]
        assert set(languages) <= known, f"{page}: nobody runs {set(languages) - known}"


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page, text in PAGES.items():
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert f"\n{target}:" in makefile, f"{page}: make {target}"


def test_links_lead_somewhere():
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", text):
            assert (ROOT / page).parent.joinpath(link).exists(), f"{page}: {link}"


def test_the_table_of_settings_is_the_program_s():
    info = _core.build_info()
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \| `(.+)` \|$", PAGES["docs/settings.md"], re.MULTILINE)
    assert {key: allowed for key, allowed, _ in rows} == info["settings"]
    told = {key: default.replace("64MiB", str(64 << 20)) for key, _, default in rows}
    assert told == info["defaults"]


def test_every_environment_variable_is_told():
    sources = [*ROOT.glob("python/**/*.py"), *ROOT.glob("src/**/*.rs")]
    variables = {name for source in sources for name in re.findall(r'"(FLAGSTONE_[A-Z_]+)"', source.read_text())}
    assert variables == set(re.findall(r"^\| `(FLAGSTONE_\w+)` \|", PAGES["docs/settings.md"], re.MULTILINE))


def test_the_figures_are_what_is_measured():
    run([sys.executable, "benches/traces/figures.py", "--check"], ROOT)


def test_everything_public_says_what_it_is():
    for name in flagstone.__all__:
        thing = getattr(flagstone, name)
        assert thing.__doc__, name
        if isinstance(thing, type) and thing.__module__ == "flagstone":
            members = {member: getattr(thing, member) for member in dir(thing) if not member.startswith("_")}
            silent = [member for member, value in members.items() if not value.__doc__]
            assert silent == [], name
