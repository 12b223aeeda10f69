"""BENCHMARKS.md is written by `benches/report.py`, section by section."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPORT = str(ROOT / "benches/report.py")
LIFETIMES = "id,lower,upper,size\n0,0,2,600\n1,1,3,400\n2,2,4,600\n"


def test_every_section_of_the_file_is_one_that_the_command_writes(child):
    asked = child(REPORT, "BENCHMARKS.md", "no-such-section", cwd=ROOT)
    assert asked.returncode == 2
    names = asked.stderr.rpartition("there are ")[2].split(", ")
    sections = (ROOT / "benches/sections.py").read_text(encoding="utf-8")
    headings = re.findall(r'"(## .*)",', sections)
    assert len(headings) == len(names)
    found = re.findall(r"^## .*", (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found == [heading for heading in headings if heading in found]


def test_a_section_is_replaced_and_the_others_stay(child, tmp_path):
    instance, file = tmp_path / "three.csv", tmp_path / "file.md"
    instance.write_text(LIFETIMES)
    file.write_text(
        "# Old\n\nold head\n\n## The known optimum\n\nold\n\n"
        "## A pair behind free blocks\n\nas it was\n\n## Gone\n\nunknown\n"
    )
    written = child(REPORT, str(file), "packing", "--lifetimes", str(instance), cwd=ROOT)
    assert (written.returncode, written.stderr) == (0, "")
    text = file.read_text()
    assert text.startswith("# Benchmarks\n")
    assert re.findall("^## .*", text, re.MULTILINE) == [
        "## A pair behind free blocks",
        "## The known optimum",
    ]
    assert "as it was" in text
    assert "old" not in text
    # All of them fit: what is live is what is held.
    assert re.search(r"^\| three \| 1\.00", text, re.MULTILINE)
    assert re.search(r"^_\d{4}-\d\d-\d\d: .* flagstone \d", text, re.MULTILINE)


def test_what_sections_say_in_short_is_in_front_and_in_the_readme(child, tmp_path):
    instance, file, readme = tmp_path / "three.csv", tmp_path / "file.md", tmp_path / "README.md"
    instance.write_text(LIFETIMES)
    file.write_text(
        "## A data loader\n\nold\n\n<!-- in short: It loads. -->\n\n## Threads\n\n<!-- in short: It has threads. -->\n"
    )
    place = "Before\n\n<!-- benchmarks: written by make bench -->{}<!-- end of benchmarks -->\n\nAfter\n"
    readme.write_text(place.format("\n- It was slow.\n"))
    written = child(REPORT, str(file), "packing", "--lifetimes", str(instance), cwd=ROOT)
    assert (written.returncode, written.stderr) == (0, "")
    short = "\n\n- It has threads.\n- It loads.\n\n"
    assert readme.read_text() == place.format(short)
    assert f"{short}## Threads\n" in file.read_text()


def test_the_readme_says_what_the_file_says():
    file, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("BENCHMARKS.md", "README.md"))
    told = readme.partition("make bench -->")[2].partition("<!-- end")[0].strip()
    assert told.splitlines() == [f"- {short}" for short in re.findall("<!-- in short: (.*) -->", file)]


def test_what_was_not_measured_is_said(child, tmp_path):
    file = tmp_path / "file.md"
    # There is no environment with torch, and no soak was run, where there is nothing.
    written = child(REPORT, str(file), "soak", "threads", cwd=tmp_path)
    assert (written.returncode, written.stderr) == (0, "")
    sections = file.read_text().split("\n## ")[1:]
    assert [section.split("\n", 3)[2] for section in sections] == [
        "Not measured: `make simcuda` was not run.",
        "Not measured: `make soak` was not run.",
    ]
