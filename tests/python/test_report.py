"""`flagstone report`: the page, in a real browser where there is one."""

import html
import json
import os
import pickle
import random
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import flagstone
from flagstone import _core, history
from flagstone.report import build
from flagstone.report._runs import Runs
from flagstone.testing import SimulatedDevice

MIB = 1 << 20
TRACE = Path(__file__).parents[2] / "benches/traces/gpt_variable_length.csv.gz"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium: install your system's package chromium")


def allocate_weights(pool):
    for _ in range(4):
        pool.alloc_raw(8 * MIB)


@pytest.fixture
def snapshot(tmp_path):
    """A recorded history with stacks: weights that stay, something that is freed, and a block that waits."""
    device = SimulatedDevice(capacity=1 << 30, backed=False)
    pool = flagstone.Pool(device)
    other = device.create_stream()
    with history.record(pool, stacks=True):
        allocate_weights(pool)
        pool.free_raw(pool.alloc_raw(100 * MIB))
        buffer = pool.alloc(16 * MIB)
        device.hold(other)
        pool.record_stream(buffer, other)
        pool.keep_stream(other)
        buffer.free(other)
    path = tmp_path / "run.pickle"
    pool.history().save(path)
    device.release(other)
    return path


def page_data(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_a_trace_becomes_a_page(child, tmp_path):
    ran = child("-m", "flagstone", "report", str(TRACE), "-o", str(tmp_path / "page.html"), "--json")
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)
    assert summary["page"] == str(tmp_path / "page.html")
    replayed = _core.replay(_core.Trace(TRACE))
    assert summary["peak_live_bytes"] == replayed["peak_live_bytes"]
    assert summary["peak_reserved_bytes"] == replayed["peak_reserved_bytes"]
    rows = {row["name"]: row for row in summary["settings"]}
    assert rows["flagstone"]["peak_reserved_bytes"] == replayed["peak_reserved_bytes"]
    assert rows["torch-native"]["peak_reserved_bytes"] > replayed["peak_reserved_bytes"]
    page = (tmp_path / "page.html").read_text()
    assert page_data(page)["settings"] == summary["settings"]
    ran = child("-m", "flagstone", "report", str(TRACE), "-o", str(tmp_path / "page.html"), "--conf", "growth:16MiB")
    assert ran.returncode == 0, ran.stderr
    assert "flagstone, growth:16MiB" in ran.stdout


def test_uses_on_other_streams_last_as_long_on_the_page_as_in_its_table(tmp_path):
    lines = ["op,id,size,stream,t_us"]
    for step in range(20):
        lines += [f"a,{step},{(3 + step % 5) * MIB},1,{1000 * step}", f"x,{step},0,2,{1000 * step}"]
        lines += [f"f,{step},0,1,{1000 * step + 100}"]
        if step > 2:
            lines += [f"e,{step - 3},0,2,{1000 * step + 200}"]
    lines += [f"e,{step},0,2,30000" for step in (17, 18, 19)]
    (tmp_path / "uses.csv").write_text("\n".join(lines) + "\n")
    page, summary = build(tmp_path / "uses.csv")
    held = {row["name"]: row["peak_reserved_bytes"] for row in summary["settings"]}
    assert summary["peak_reserved_bytes"] == held["flagstone"]
    columns = page_data(page)["columns"]
    freed, waited = {}, []
    for kind, address, time in zip(columns["kind"], columns["address"], columns["time_us"], strict=True):
        if kind == 1:
            freed[address] = time
        elif kind == 2:
            waited.append(time - freed.pop(address))
    assert max(waited) > 2000, "longer than until the next request: the use lasts"
    assert columns["time_us"] == sorted(columns["time_us"])
    assert columns["time_us"][-1] == 19_100, "what a replay frees at its end is not shown"
    assert columns["kind"].count(0) == columns["kind"].count(1) == 20


def test_requests_that_fail_are_shown(tmp_path, child):
    (tmp_path / "large.csv").write_text(f"op,id,size\na,0,{5 * MIB}\na,1,{90 * MIB}\na,2,{MIB}\nf,1,0\nf,0,0\nf,2,0\n")
    environment = {**os.environ, "FLAGSTONE_CONF": "limit:64MiB"}
    command = ("-m", "flagstone", "report", str(tmp_path / "large.csv"), "-o", str(tmp_path / "page.html"))
    assert child(*command, env=environment).returncode == 0
    columns = page_data((tmp_path / "page.html").read_text())["columns"]
    calls = [(kind, time) for kind, time in zip(columns["kind"], columns["time_us"], strict=True) if kind in (0, 1, 5)]
    assert calls == [(0, 0), (5, 5), (0, 10), (1, 20), (1, 25)]


def test_a_place_that_cannot_be_written_is_known_before_the_work(child, tmp_path):
    for place in (tmp_path, tmp_path / "none" / "page.html"):
        ran = child("-m", "flagstone", "report", str(tmp_path / "no.pickle"), "-o", str(place))
        assert ran.returncode == 1
        assert ran.stderr.startswith(f"flagstone: {place}: ")
    assert not list(tmp_path.iterdir())


def test_a_history_is_shown_as_it_was(snapshot):
    page, summary = build(snapshot)
    assert summary["placed_by"] == "flagstone"
    assert summary["peak_live_bytes"] == 132 * MIB
    assert summary["peak_reserved_bytes"] == 132 * MIB
    data = page_data(page)
    recorded = pickle.loads(snapshot.read_bytes())["device_traces"][0]
    assert data["columns"]["address"] == [entry["addr"] for entry in recorded]
    assert any("allocate_weights (" in frame for frames in data["stacks"] for frame in frames)


def test_blocks_and_memory_from_before_the_recording_are_known(tmp_path):
    pool = flagstone.Pool(SimulatedDevice(capacity=1 << 30, backed=False))
    kept, freed = pool.alloc_raw(3 * MIB), pool.alloc_raw(5 * MIB)
    with history.record(pool):
        pool.free_raw(freed)
        pool.alloc_raw(40 * MIB)
    pool.history().save(tmp_path / "run.pickle")
    page, summary = build(tmp_path / "run.pickle")
    data = page_data(page)
    assert sorted(block[:2] for block in data["blocks"]) == sorted([[kept, 3 * MIB], [freed, 5 * MIB]])
    assert sum(size for _, size in data["memory"]) == 8 * MIB
    assert summary["peak_live_bytes"] == 43 * MIB


def test_a_page_needs_no_network(snapshot):
    page, _ = build(snapshot)
    assert "Content-Security-Policy" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|https?://", page)


def test_what_a_file_says_is_text(tmp_path):
    evil = "</script><script>document.title='evil'</script>"
    pool = flagstone.Pool(SimulatedDevice(capacity=1 << 30, backed=False))
    namespace = {"pool": pool}
    with history.record(pool, stacks=True):
        exec(compile("pool.alloc_raw(100)", evil, "exec"), namespace)
    pool.history().save(tmp_path / "run.pickle")
    page, _ = build(tmp_path / "run.pickle")
    assert evil not in page
    assert any(evil in frame for frames in page_data(page)["stacks"] for frame in frames)


def test_a_pickle_that_loads_a_class_is_refused(tmp_path, child):
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[Path("x")]], "segments": []}))
    with pytest.raises(flagstone.TraceError):
        build(path)
    ran = child("-m", "flagstone", "report", str(path), "-o", str(tmp_path / "page.html"))
    assert ran.returncode == 1
    assert not (tmp_path / "page.html").exists()


def test_a_snapshot_without_settings_is_shown(snapshot):
    data = pickle.loads(snapshot.read_bytes())
    data["allocator_settings"] = None
    snapshot.write_bytes(pickle.dumps(data))
    assert build(snapshot)[1]["placed_by"] == "torch"


def test_a_snapshot_that_is_none_is_an_error_that_names_the_file(snapshot, tmp_path, child):
    data = pickle.loads(snapshot.read_bytes())
    data["device_traces"][0][1]["frames"] = [1]
    snapshot.write_bytes(pickle.dumps(data))
    ran = child("-m", "flagstone", "report", str(snapshot), "-o", str(tmp_path / "page.html"))
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"flagstone: {snapshot}: not a snapshot")
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "page.html").exists()


def test_runs_are_those_of_a_set():
    chance = random.Random(1)
    runs, reference = Runs(), set()
    for _ in range(2000):
        start, size = chance.randrange(200), chance.randrange(1, 20)
        numbers = range(start, start + size)
        if chance.random() < 0.5:
            runs.add(start, size)
            reference.update(numbers)
        else:
            runs.remove(start, size)
            reference.difference_update(numbers)
        found = list(runs)
        assert {number for start, size in found for number in range(start, start + size)} == reference
        assert all(first[0] + first[1] < second[0] for first, second in pairwise(found))
        assert runs.bytes == len(reference)


ANSWER = "(answer) => parent.postMessage(JSON.stringify(answer), '*')"

WINDOW = """<!doctype html>
<meta name="color-scheme" content="light dark">
<style>body { margin: 0 } iframe { border: 0; display: block }</style>
<script>addEventListener("message", (event) => {
  const box = document.createElement("output");
  box.id = "answer";
  box.textContent = event.data;
  document.body.append(box);
})</script>
<iframe src="page.html" width="WIDTH" height="1600"></iframe>
"""


@pytest.fixture
def browse(tmp_path):
    """Open a page in a browser, run a script in it, and return what the script returns."""

    def run(page, script, *, width=1200, dark=False, screenshot=None):
        # A window has a least width, a frame has none.
        (tmp_path / "page.html").write_text(f"{page}<script>(async () => {{ {script} }})().then({ANSWER})</script>")
        path = tmp_path / "window.html"
        path.write_text(WINDOW.replace("WIDTH", str(width)))
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width, 500)},1600"]
        command += ["--virtual-time-budget=20000", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        command += [f"--screenshot={screenshot}"] if screenshot else ["--dump-dom"]
        ran = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=55, check=True)
        if screenshot:
            return None
        found = re.search(r'<output id="answer">(.*?)</output>', ran.stdout, re.DOTALL)
        assert found, "the script did not end"
        return json.loads(html.unescape(found[1]))

    return run


ROWS = """
const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)].map(
  (row) => [...row.cells].map((cell) => (cell.querySelector("summary") ?? cell).textContent));
const shown = () => new Promise((done) => setTimeout(done, 100));
"""


@needs_chromium
def test_the_page_says_who_holds_what(snapshot, browse):
    page, _ = build(snapshot)
    answer = browse(
        page,
        ROWS
        + """
        const peak = rows("holders");
        document.getElementById("end").click();
        await shown();
        return {
          ready: document.documentElement.dataset.ready,
          cards: [...document.querySelectorAll("dd")].map((card) => card.textContent),
          peak, end: rows("holders"), blocks: rows("blocks"), costs: rows("fragmentation"), settings: rows("settings"),
        };
        """,
    )
    assert answer["ready"] == "yes"
    assert answer["cards"][:4] == ["132.0 MiB", "132.0 MiB", "1.000", "0 bytes"]
    assert answer["peak"][0][1:] == ["100.0 MiB", "0 bytes", "75.8 %", "1", "100.0 MiB"]
    ((holder, *numbers),) = answer["end"]
    assert holder.startswith("allocate_weights (python/test_report.py:")
    assert numbers == ["32.0 MiB", "32.0 MiB", "100.0 %", "4", "8.00 MiB"]
    assert [row[3] for row in answer["blocks"]] == ["waits for other streams", *["live"] * 4]
    costs = {row[0]: row[1:] for row in answer["costs"]}
    assert costs["freed, waiting for other streams"] == ["16.0 MiB", "0 bytes"]
    assert costs["idle between and behind blocks"] == ["84.0 MiB", "0 bytes"]
    assert {"flagstone", "torch-native", "torch-expandable"} <= {row[0] for row in answer["settings"]}


@needs_chromium
def test_a_place_is_the_innermost_of_the_program_itself(snapshot, browse):
    data = pickle.loads(snapshot.read_bytes())
    entries = [entry for entry in data["device_traces"][0] if entry["action"] == "alloc"]
    torch = "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py"
    frames = [
        {"name": "at::native::empty_cuda", "filename": "/build/EmptyTensor.cpp", "line": 1},
        {"name": "forward", "filename": torch, "line": 134},
        {"name": "<listcomp>", "filename": "/home/me/work/models/gpt.py", "line": 20},
        {"name": "attend", "filename": "/home/me/work/models/gpt.py", "line": 21},
        {"name": "main", "filename": "train.py", "line": 3},
    ]
    stacks = [frames, frames[1:], frames[3:], frames[:2], frames[2:3], []]
    for entry, stack in zip(entries, stacks, strict=True):
        entry["frames"] = stack
    snapshot.write_bytes(pickle.dumps(data))
    page, _ = build(snapshot)
    stacks = "[...document.querySelectorAll('#blocks pre')].map((stack) => stack.textContent)"
    answer = browse(page, f"{ROWS} return {{ blocks: rows('blocks'), stacks: {stacks} }};")
    assert {row[5] for row in answer["blocks"]} == {
        "attend (models/gpt.py:21) → at::native::empty_cuda (build/EmptyTensor.cpp:1)",
        "attend (models/gpt.py:21) → forward (modules/linear.py:134)",
        "attend (models/gpt.py:21)",
        "at::native::empty_cuda (build/EmptyTensor.cpp:1)",
        "<listcomp> (models/gpt.py:20)",
    }
    assert f"forward ({torch}:134)\n<listcomp> (/home/me/work/models/gpt.py:20)" in "\n".join(answer["stacks"])


@needs_chromium
def test_a_tap_on_the_map_says_whose_a_block_is(snapshot, browse):
    page, _ = build(snapshot)
    answer = browse(
        page,
        """
        const box = document.querySelector("#map canvas").getBoundingClientRect();
        const place = { clientX: box.left + 2, clientY: box.top + 2, bubbles: true };
        document.querySelector("#map canvas").dispatchEvent(new PointerEvent("pointerdown", place));
        return document.getElementById("block-text").textContent;
        """,
    )
    assert re.fullmatch(r"0x[0-9a-f]+: [\d.]+ MiB, live, \w+ \(python/test_report\.py:\d+\)", answer)


@needs_chromium
def test_tables_sort_and_filter(browse):
    page, _ = build(TRACE)
    answer = browse(
        page,
        ROWS
        + """
        const column = (index) => rows("settings").map((row) => row[index]);
        const head = document.querySelectorAll("#settings th button")[3];
        head.click();
        const down = column(3);
        head.click();
        const up = column(3);
        const filter = document.querySelector("#settings .filter");
        filter.value = "NATIVE";
        filter.dispatchEvent(new Event("input"));
        return { down, up, found: column(0), sorted: document.querySelectorAll("#settings th")[3].ariaSort };
        """,
    )
    assert answer["down"] == sorted(answer["down"], reverse=True)
    assert answer["up"] == sorted(answer["down"])
    assert len(set(answer["up"])) > 1
    assert answer["found"] == ["torch-native"]
    assert answer["sorted"] == "ascending"


@needs_chromium
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_phones_and_the_dark(snapshot, browse, tmp_path, width, dark):
    page, _ = build(snapshot)
    answer = browse(
        page,
        """
        const paper = getComputedStyle(document.body).backgroundColor;
        const colors = (canvas) => {
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const found = new Set();
          for (let i = 0; i < pixels.length; i += 4) found.add(pixels.slice(i, i + 4).join());
          return found.size;
        };
        return {
          paper, wide: document.documentElement.scrollWidth, window: innerWidth,
          chart: colors(document.getElementById("chart")), map: colors(document.querySelector("#map canvas")),
        };
        """,
        width=width,
        dark=dark,
    )
    assert answer["window"] == width
    assert answer["wide"] <= width, "the page is wider than the window"
    brightness = sum(map(int, re.findall(r"\d+", answer["paper"])[:3]))
    assert (brightness < 200) == dark
    assert answer["chart"] > 3, "nothing is drawn"
    assert answer["map"] > 1
    picture = tmp_path / "page.png"
    browse(page, "", width=width, dark=dark, screenshot=picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@needs_chromium
def test_100_000_events_are_shown(browse, tmp_path):
    chance = random.Random(2)
    live: list[int] = []
    lines = ["op,id,size,stream,t_us"]
    for number in range(100_000):
        if len(live) > 500 or (live and chance.random() < 0.5):
            lines.append(f"f,{live.pop(chance.randrange(len(live)))},0,0,{number}")
        else:
            lines.append(f"a,{number},{chance.randrange(1, 4 * MIB)},0,{number}")
            live.append(number)
    (tmp_path / "many.csv").write_text("\n".join(lines) + "\n")
    page, summary = build(tmp_path / "many.csv")
    assert summary["events"] > 100_000
    answer = browse(
        page,
        ROWS
        + """
        document.getElementById("end").click();
        await shown();
        return document.getElementById("moment-text").textContent;
        """,
    )
    assert f"{len(live)} blocks" in answer


@needs_chromium
def test_the_time_until_it_is_drawn_is_measured(child):
    ran = child(str(TRACE.parents[1] / "report_page.py"), "1000", cwd=TRACE.parents[2])
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)
    assert measured["events"] > 1000
    assert 0 < measured["milliseconds_least"] <= measured["milliseconds"] <= measured["milliseconds_most"]
    assert measured["page_bytes"] > 100_000
