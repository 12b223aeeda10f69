"use strict";
// Everything on the page is computed here from the recorded events; "moment" is how many of them have happened.

const data = JSON.parse(document.getElementById("data").textContent);
const { kind, address, size, stream, stack, time_us: time, reserved } = data.columns;
const [ALLOC, FREE, FREED, MAP, UNMAP] = [0, 1, 2, 3, 4];
const EVENTS = kind.length;
const element = (id) => document.getElementById(id);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---------------------------------------------------------------- numbers as people read them

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

function bytes(value) {
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${UNITS[unit]}`;
}

function duration(us) {
  if (us < 1e3) return `${Math.round(us)} µs`;
  return us < 1e6 ? `${(us / 1e3).toFixed(1)} ms` : `${(us / 1e6).toFixed(2)} s`;
}

const count = (value) => value.toLocaleString("en");
const share = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "");
const hex = (value) => `0x${value.toString(16)}`;

// ---------------------------------------------------------------- levels over time

const live = new Float64Array(EVENTS + 1);
const held = new Float64Array(EVENTS + 1);
live[0] = data.blocks.reduce((sum, block) => sum + block[1], 0);
held[0] = data.memory.reduce((sum, run) => sum + run[1], 0);
for (let i = 0; i < EVENTS; i += 1) {
  live[i + 1] = live[i] + (kind[i] === ALLOC ? size[i] : kind[i] === FREE ? -size[i] : 0);
  held[i + 1] = reserved[i];
}
const start = EVENTS ? time[0] : 0;
const when = (moment) => (moment ? time[moment - 1] - start : 0);

function highest(levels) {
  let best = 0;
  for (let i = 1; i < levels.length; i += 1) if (levels[i] > levels[best]) best = i;
  return best;
}
const mostLive = highest(live);
// Memory comes just before the block that it is for: idle there is what that block could not use.
let mostHeld = highest(held);
while (mostHeld > 0 && mostHeld < EVENTS && kind[mostHeld - 1] === MAP) mostHeld += 1;

// ---------------------------------------------------------------- what is where at a moment

/** The first place in a sorted list whose value is not below `value`. */
function place(list, value) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Ranges of addresses that are there, as runs that do not touch. */
class Runs {
  constructor(ranges) {
    this.starts = [];
    this.ends = [];
    for (const [from, length] of ranges) this.add(from, from + length);
  }

  add(from, to) {
    const first = place(this.ends, from);
    let last = first;
    while (last < this.starts.length && this.starts[last] <= to) last += 1;
    if (last > first) {
      from = Math.min(from, this.starts[first]);
      to = Math.max(to, this.ends[last - 1]);
    }
    this.starts.splice(first, last - first, from);
    this.ends.splice(first, last - first, to);
  }

  remove(from, to) {
    const first = place(this.ends, from + 1);
    let last = first;
    while (last < this.starts.length && this.starts[last] < to) last += 1;
    if (last === first) return;
    const kept = [];
    if (this.starts[first] < from) kept.push([this.starts[first], from]);
    if (this.ends[last - 1] > to) kept.push([to, this.ends[last - 1]]);
    this.starts.splice(first, last - first, ...kept.map((run) => run[0]));
    this.ends.splice(first, last - first, ...kept.map((run) => run[1]));
  }
}

const rounded = (value) => Math.max(512, Math.ceil(value / 512) * 512);

/** Blocks by address, with `waiting` where they are freed and in use on another stream; and the memory behind addresses. */
function stateAt(moment) {
  const blocks = new Map();
  for (const [at, length, on] of data.blocks) {
    blocks.set(at, { address: at, size: length, stream: on, stack: 0, since: -1, waiting: false });
  }
  const memory = new Runs(data.memory);
  for (let i = 0; i < moment; i += 1) {
    const at = address[i];
    if (kind[i] === ALLOC) {
      blocks.set(at, { address: at, size: size[i], stream: stream[i], stack: stack[i], since: i, waiting: false });
    } else if (kind[i] === FREE) {
      const block = blocks.get(at);
      if (block) block.waiting = true;
    } else if (kind[i] === FREED) {
      if (blocks.get(at)?.waiting) blocks.delete(at);
    } else if (kind[i] === MAP) {
      memory.add(at, at + size[i]);
    } else if (kind[i] === UNMAP) {
      memory.remove(at, at + size[i]);
    }
  }
  const sorted = [...blocks.values()].sort((a, b) => a.address - b.address);
  const runs = memory.starts.map((from, i) => ({ from, to: memory.ends[i], blocks: [], used: 0 }));
  for (const block of sorted) {
    const index = place(memory.ends, block.address + 1);
    const run = runs[index];
    if (run && run.from <= block.address) {
      run.blocks.push(block);
      run.used += Math.min(rounded(block.size), run.to - block.address);
    }
  }
  return { blocks: sorted, runs };
}

/** Sums over a state, in bytes. */
function measure(state, moment) {
  const sums = { held: held[moment], live: 0, rounding: 0, waiting: 0, idle: 0, largest: 0, ranges: 0, mapped: 0 };
  for (const block of state.blocks) {
    if (block.waiting) {
      sums.waiting += rounded(block.size);
    } else {
      sums.live += block.size;
      sums.rounding += rounded(block.size) - block.size;
    }
  }
  const gap = (from, to) => {
    if (to > from) {
      sums.idle += to - from;
      sums.largest = Math.max(sums.largest, to - from);
      sums.ranges += 1;
    }
  };
  for (const run of state.runs) {
    let at = run.from;
    sums.mapped += run.to - run.from;
    for (const block of run.blocks) {
      gap(at, block.address);
      at = Math.max(at, block.address + rounded(block.size));
    }
    gap(at, run.to);
  }
  return sums;
}

// ---------------------------------------------------------------- who holds a block

const hasStacks = data.stacks.some((frames) => frames.length > 0);
const NO_STACK = "no Python stack: C++, as autograd's threads";

/** Of installed packages, of Python itself, or not Python: "name (file:line)" of somebody else's code. */
const FOREIGN = /[/\\](?:site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]|\((?:\?\?|[^()]*\.(?:c|cc|cpp|cu|cuh|h|hpp|so)):\d+\)$/;

/** A frame with the last two parts of its path; the whole one is in the stack. */
const short = (frame) => frame.replace(/\((?:[^()]*[/\\])?([^()/\\]+[/\\][^()/\\]+:\d+)\)$/, "($1)");

/** A stack in a line: the innermost line of the program's own code, and what it called in the end. */
function nameOf(frames) {
  // A function with a name says more than a comprehension or a lambda within it.
  const named = frames.filter((frame) => !frame.startsWith("<"));
  const inner = named[0] ?? frames[0];
  const own = named.find((frame) => !FOREIGN.test(frame)) ?? inner;
  return own === inner ? short(own) : `${short(own)} \u2192 ${short(inner)}`;
}

const names = data.stacks.map((frames) => (frames.length ? nameOf(frames) : null));

function holder(block) {
  if (hasStacks) return names[block.stack] ?? (block.since < 0 ? "live before the recording" : NO_STACK);
  return block.since < 0 ? `${bytes(block.size)}, live before the recording` : `blocks of ${bytes(block.size)}`;
}

/** Which blocks are freed before the recording ends: by the event that allocated them, or by the address from before. */
const freed = new Uint8Array(EVENTS);
const freedFromBefore = new Set();
{
  const born = new Map();
  for (let i = 0; i < EVENTS; i += 1) {
    if (kind[i] === ALLOC) {
      born.set(address[i], i);
    } else if (kind[i] === FREE) {
      if (born.has(address[i])) freed[born.get(address[i])] = 1;
      else freedFromBefore.add(address[i]);
    }
  }
}
const isKept = (block) => (block.since < 0 ? !freedFromBefore.has(block.address) : !freed[block.since]);

/** The colours of holders: neighbours in the order of all that each ever allocated are far apart on the circle. */
const hues = new Map();
{
  const sums = new Map();
  const add = (name, value) => sums.set(name, (sums.get(name) ?? 0) + value);
  for (const [at, length] of data.blocks) add(holder({ address: at, size: length, stack: 0, since: -1 }), length);
  for (let i = 0; i < EVENTS; i += 1) {
    if (kind[i] === ALLOC) add(holder({ size: size[i], stack: stack[i], since: i }), size[i]);
  }
  [...sums].sort((a, b) => b[1] - a[1]).forEach(([name], rank) => hues.set(name, (210 + rank * 137.508) % 360));
}

const tint = (name) => `hsl(${hues.get(name)} 55% ${color("--tone")})`;

function groups(blocks) {
  const found = new Map();
  for (const block of blocks) {
    if (block.waiting) continue;
    // Different stacks below the same line are different holders.
    const key = hasStacks ? `s${block.stack}${block.since < 0}` : holder(block);
    const group = found.get(key) ?? { name: holder(block), frames: data.stacks[block.stack], bytes: 0, kept: 0, blocks: 0, largest: 0 };
    group.bytes += block.size;
    if (isKept(block)) group.kept += block.size;
    group.blocks += 1;
    group.largest = Math.max(group.largest, block.size);
    found.set(key, group);
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes);
}

// ---------------------------------------------------------------- tables that sort and filter

const SHOWN = 300;

/**
 * A table in `parent`; its filter and order stay when the rows change. Columns: name, value, text, `number` or `wide`, and of
 * those with blocks' holders `frames` and `color`.
 */
function makeTable(parent, columns, label) {
  let rows = [];
  let order = null;
  let down = true;
  const filter = document.createElement("input");
  filter.className = "filter";
  filter.type = "search";
  filter.placeholder = "filter";
  filter.setAttribute("aria-label", `filter ${label}`);
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  // Whoever has no pointer scrolls with the keys.
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", label);
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const more = document.createElement("p");
  more.className = "note";
  scroll.append(table);
  parent.append(filter, scroll, more);
  const heads = columns.map((column, index) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (column.number) cell.className = "number";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.name;
    button.addEventListener("click", () => {
      down = order === index ? !down : Boolean(column.number);
      order = index;
      draw();
    });
    cell.append(button);
    head.append(cell);
    return cell;
  });
  const text = (column, row) => (column.text ? column.text(row) : String(column.value(row)));

  function draw() {
    const wanted = filter.value.toLowerCase();
    let shown = rows;
    if (wanted) shown = shown.filter((row) => columns.some((column) => text(column, row).toLowerCase().includes(wanted)));
    if (order !== null) {
      const { value } = columns[order];
      const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
      shown = [...shown].sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
    }
    heads.forEach((cell, index) => {
      if (index === order) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    body.replaceChildren(
      ...shown.slice(0, SHOWN).map((row) => {
        const line = document.createElement("tr");
        for (const column of columns) {
          const cell = line.insertCell();
          if (column.number) cell.className = "number";
          if (column.wide) cell.className = "wide";
          if (column.color) {
            const swatch = document.createElement("span");
            swatch.className = "swatch";
            swatch.style.background = column.color(row);
            cell.append(swatch);
          }
          const frames = column.frames ? column.frames(row) : [];
          if (frames.length > 1 || (frames.length === 1 && frames[0] !== text(column, row))) {
            const details = document.createElement("details");
            const summary = document.createElement("summary");
            const whole = document.createElement("pre");
            summary.textContent = text(column, row);
            whole.textContent = frames.join("\n");
            details.append(summary, whole);
            cell.append(details);
          } else {
            cell.append(text(column, row));
          }
        }
        return line;
      }),
    );
    const left = shown.length - SHOWN;
    more.textContent = left > 0 ? `and ${count(left)} more: filter to see them` : "";
  }
  filter.addEventListener("input", draw);
  return (newRows) => {
    rows = newRows;
    draw();
  };
}

const number = (name, value, text) => ({ name, value, text, number: true });
const showHolders = makeTable(
  element("holders"),
  [
    {
      name: hasStacks ? "allocated at" : "blocks",
      value: (row) => row.name,
      frames: (row) => row.frames,
      color: (row) => tint(row.name),
      wide: true,
    },
    number("bytes", (row) => row.bytes, (row) => bytes(row.bytes)),
    number("never freed", (row) => row.kept, (row) => bytes(row.kept)),
    number("share", (row) => row.bytes, (row) => share(row.bytes, row.all)),
    number("blocks", (row) => row.blocks, (row) => count(row.blocks)),
    number("largest", (row) => row.largest, (row) => bytes(row.largest)),
  ],
  "holders",
);
const showFragmentation = makeTable(
  element("fragmentation"),
  [
    { name: "what", value: (row) => row.name, wide: true },
    number("at that moment", (row) => row.now, (row) => row.write(row.now)),
    number("when most was held", (row) => row.peak, (row) => row.write(row.peak)),
  ],
  "fragmentation",
);
const showSettings = makeTable(
  element("settings"),
  [
    { name: "setting", value: (row) => row.name },
    number("held at most", (row) => row.peak_reserved_bytes, (row) => bytes(row.peak_reserved_bytes)),
    number(
      "against the recording",
      (row) => row.peak_reserved_bytes,
      (row) => `${row.peak_reserved_bytes >= held[mostHeld] ? "+" : "−"}${bytes(Math.abs(row.peak_reserved_bytes - held[mostHeld]))}`,
    ),
    number("utilisation", (row) => row.utilisation, (row) => row.utilisation.toFixed(3)),
    number("driver calls", (row) => row.driver_calls, (row) => count(row.driver_calls)),
    number("time in the driver", (row) => row.driver_time_us ?? 0, (row) => duration(row.driver_time_us ?? 0)),
    { name: "failed requests", value: (row) => row.errors, number: true },
  ],
  "settings",
);
const showBlocks = makeTable(
  element("blocks"),
  [
    number("bytes", (row) => row.size, (row) => bytes(row.size)),
    { name: "address", value: (row) => row.address, text: (row) => hex(row.address) },
    { name: "stream", value: (row) => row.stream, text: (row) => (row.stream ? hex(row.stream) : "default") },
    { name: "state", value: (row) => (row.waiting ? "waits for other streams" : "live") },
    number("since", (row) => row.since, (row) => (row.since < 0 ? "before" : duration(time[row.since] - start))),
    { name: "holder", value: holder, frames: (row) => data.stacks[row.stack], wide: true },
  ],
  "blocks",
);

// ---------------------------------------------------------------- pictures

/** Makes a canvas as sharp as the screen; returns its context and its size in page pixels. */
function sharpen(canvas) {
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width, height };
}

/** Round numbers from 0 to `top`, at most `most` steps apart: 1, 2 or 5 of some power of ten times `unit`. */
function ticks(top, most, unit = 1) {
  const least = top / unit / most;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max(1 / unit, [1, 2, 5, 10].find((factor) => factor * power >= least) * power) * unit;
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** The unit in which a number of bytes is written. */
const unitOf = (value) => 1024 ** Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));

const MARGIN = { left: 64, right: 8, top: 8, bottom: 22 };
const byTime = () => element("axis").value === "time";
const last = () => Math.max(1, byTime() ? when(EVENTS) : EVENTS);

function drawChart(moment) {
  const { context, width, height } = sharpen(element("chart"));
  const [inner, tall] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
  const top = Math.max(1, held[mostHeld], live[mostLive]);
  const y = (value) => MARGIN.top + tall * (1 - value / top);
  const x = (at) => MARGIN.left + (inner * (byTime() ? when(at) : at)) / last();
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = color("--soft");
  context.strokeStyle = color("--line");
  context.textBaseline = "middle";
  context.textAlign = "right";
  const unit = unitOf(top);
  for (const value of ticks(top, 6, unit)) {
    context.fillText(value ? `${+(value / unit).toFixed(3)} ${UNITS[Math.log2(unit) / 10]}` : "0", MARGIN.left - 6, y(value));
    context.beginPath();
    context.moveTo(MARGIN.left, y(value));
    context.lineTo(MARGIN.left + inner, y(value));
    context.stroke();
  }
  for (const value of ticks(last(), Math.max(2, Math.min(8, Math.floor(inner / 70))))) {
    const text = byTime() ? duration(value) : count(value);
    const at = MARGIN.left + (inner * value) / last();
    // Within the picture, also at its ends.
    const half = context.measureText(text).width / 2;
    context.textAlign = "center";
    context.fillText(text, Math.min(width - half, at), height - MARGIN.bottom / 2);
    context.beginPath();
    context.moveTo(at, MARGIN.top + tall);
    context.lineTo(at, MARGIN.top + tall + 4);
    context.stroke();
  }
  // The highest level of each pixel's events, so that no peak is lost.
  const columns = Math.max(1, Math.floor(inner));
  const top_of = (levels) => {
    const tops = new Float64Array(columns).fill(-1);
    for (let i = 0; i <= EVENTS; i += 1) {
      const column = Math.min(columns - 1, Math.floor(x(i) - MARGIN.left));
      tops[column] = Math.max(tops[column], levels[i]);
      // A level lasts until the next event.
      const next = i < EVENTS ? Math.min(columns - 1, Math.floor(x(i + 1) - MARGIN.left)) : columns - 1;
      for (let c = column + 1; c < next; c += 1) tops[c] = levels[i];
      if (next > column) tops[next] = Math.max(tops[next], levels[i]);
    }
    return tops;
  };
  const trace = (tops) => {
    context.beginPath();
    tops.forEach((value, column) => context.lineTo(MARGIN.left + column, y(Math.max(0, value))));
  };
  const liveTops = top_of(live);
  trace(liveTops);
  context.lineTo(MARGIN.left + columns - 1, y(0));
  context.lineTo(MARGIN.left, y(0));
  context.globalAlpha = 0.35;
  context.fillStyle = color("--live");
  context.fill();
  context.globalAlpha = 1;
  trace(liveTops);
  context.strokeStyle = color("--live");
  context.stroke();
  trace(top_of(held));
  context.strokeStyle = color("--held");
  context.lineWidth = 2;
  context.stroke();
  context.strokeStyle = color("--mark");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x(moment), MARGIN.top);
  context.lineTo(x(moment), MARGIN.top + tall);
  context.stroke();
}

const LINE = 14;
const LINES = 36;
const RUNS = 64;

function drawMap(state) {
  const map = element("map");
  const largest = [...state.runs].sort((a, b) => b.to - b.from - (a.to - a.from)).slice(0, RUNS);
  const shown = largest.sort((a, b) => a.from - b.from);
  const all = shown.reduce((sum, run) => sum + run.to - run.from, 0);
  // One scale for all runs, so that lengths can be compared.
  const perLine = Math.max(512, all / LINES, Math.max(0, ...shown.map((run) => run.to - run.from)) / LINES);
  // Asked for once: there may be many blocks.
  const known = new Map();
  const tints = (name) => known.get(name) ?? known.set(name, tint(name)).get(name);
  map.replaceChildren(
    ...shown.map((run) => {
      const box = document.createElement("div");
      box.className = "run";
      const title = document.createElement("span");
      const canvas = document.createElement("canvas");
      const length = run.to - run.from;
      title.textContent = `${hex(run.from)}, ${bytes(length)}, ${share(run.used, length)} in use`;
      canvas.style.height = `${Math.ceil(length / perLine) * LINE}px`;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", title.textContent);
      box.append(title, canvas);
      canvas.draw = () => drawRun(canvas, run, perLine, tints);
      const point = (event) => {
        const line = Math.floor(event.offsetY / LINE);
        const at = run.from + (line + event.offsetX / canvas.clientWidth) * perLine;
        element("block-text").textContent = describe(run, at);
      };
      // A finger that taps does not move.
      for (const what of ["pointermove", "pointerdown"]) canvas.addEventListener(what, point);
      return box;
    }),
  );
  if (state.runs.length > shown.length) {
    const more = document.createElement("p");
    more.className = "note";
    more.textContent = `and ${count(state.runs.length - shown.length)} smaller runs`;
    map.append(more);
  }
  for (const canvas of map.querySelectorAll("canvas")) canvas.draw();
}

function describe(run, at) {
  const block = run.blocks.find((one) => one.address <= at && at < one.address + rounded(one.size));
  if (!block) return at < run.to ? `${hex(Math.floor(at))}: idle` : "\u00a0";
  const state = block.waiting ? "waits for other streams" : "live";
  return `${hex(block.address)}: ${bytes(block.size)}, ${state}, ${holder(block)}`;
}

function drawRun(canvas, run, perLine, tints) {
  const { context, width } = sharpen(canvas);
  const fill = (from, to, style) => {
    context.fillStyle = style;
    for (let line = Math.floor((from - run.from) / perLine); line * perLine < to - run.from; line += 1) {
      const left = Math.max(0, (from - run.from) / perLine - line) * width;
      const right = Math.min(1, (to - run.from) / perLine - line) * width;
      context.fillRect(left, line * LINE, Math.max(right - left, 0.25), LINE - 2);
    }
  };
  fill(run.from, run.to, color("--idle"));
  const stripes = hatch(context);
  for (const block of run.blocks) {
    const to = Math.min(run.to, block.address + rounded(block.size));
    // Neighbours stay apart where there is room for a gap.
    const gap = Math.min((to - block.address) * 0.1, perLine / width);
    fill(block.address, to - gap, block.waiting ? stripes : tints(holder(block)));
  }
}

function hatch(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const paint = tile.getContext("2d");
  paint.strokeStyle = color("--held");
  paint.lineWidth = 2;
  paint.beginPath();
  paint.moveTo(0, 6);
  paint.lineTo(6, 0);
  paint.stroke();
  return context.createPattern(tile, "repeat");
}

// ---------------------------------------------------------------- the page

const FACTS = [
  ["held from the driver", "held"],
  ["live, as asked for", "live"],
  ["lost to rounding", "rounding"],
  ["freed, waiting for other streams", "waiting"],
  ["idle between and behind blocks", "idle"],
  ["largest idle range", "largest"],
  ["idle ranges", "ranges", count],
];

function showMoment(moment) {
  const state = stateAt(moment);
  const sums = measure(state, moment);
  element("moment-text").textContent =
    `after ${count(moment)} of ${count(EVENTS)} events, ${duration(when(moment))}: ` +
    `${bytes(live[moment])} live in ${count(state.blocks.filter((block) => !block.waiting).length)} blocks, ${bytes(held[moment])} held`;
  drawChart(moment);
  drawMap(state);
  showHolders(groups(state.blocks).map((group) => ({ ...group, all: sums.live })));
  showBlocks([...state.blocks].sort((a, b) => b.size - a.size));
  const rows = FACTS.map(([name, key, write = bytes]) => ({ name, now: sums[key], peak: worst[key], write }));
  rows.push({
    name: "held and mapped nowhere",
    now: Math.max(0, sums.held - sums.mapped),
    peak: Math.max(0, worst.held - worst.mapped),
    write: bytes,
  });
  const scattered = (of) => (of.idle ? 1 - of.largest / of.idle : 0);
  rows.push({
    name: "of the idle bytes not in the largest range",
    now: scattered(sums),
    peak: scattered(worst),
    write: (value) => `${(100 * value).toFixed(1)} %`,
  });
  showFragmentation(rows);
}

const worst = measure(stateAt(mostHeld), mostHeld);
const slider = element("moment");
slider.max = String(EVENTS);
let waiting = false;

function go(moment) {
  slider.value = String(moment);
  if (waiting) return;
  waiting = true;
  // Of many changes at once the last is shown.
  setTimeout(() => {
    waiting = false;
    showMoment(Number(slider.value));
  });
}

function pick(event) {
  const canvas = element("chart");
  const part = (event.offsetX - MARGIN.left) / (canvas.clientWidth - MARGIN.left - MARGIN.right);
  const wanted = Math.min(1, Math.max(0, part)) * last();
  go(byTime() ? Math.min(EVENTS, place(time, wanted + start) + 1) : Math.round(wanted));
}

slider.addEventListener("input", () => go(Number(slider.value)));
element("chart").addEventListener("pointerdown", pick);
element("chart").addEventListener("pointermove", (event) => event.buttons && pick(event));
element("axis").addEventListener("change", () => go(Number(slider.value)));
element("most-live").addEventListener("click", () => go(mostLive));
element("most-held").addEventListener("click", () => go(mostHeld));
element("end").addEventListener("click", () => go(EVENTS));
window.addEventListener("resize", () => go(Number(slider.value)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => go(Number(slider.value)));

element("source").textContent = `${data.trace} (${data.format}), placed by ${data.placed_by}`;
document.title = `${data.trace}: flagstone report`;
const cards = [
  ["live at most", bytes(live[mostLive])],
  ["held at most", bytes(held[mostHeld])],
  ["live to held", held[mostHeld] ? (live[mostLive] / held[mostHeld]).toFixed(3) : "–"],
  ["idle at that peak", bytes(worst.idle)],
  ["events", count(EVENTS)],
  ["out of memory", count(kind.filter((one) => one === 5).length)],
];
element("cards").replaceChildren(
  ...cards.map(([name, value]) => {
    const box = document.createElement("div");
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    [term.textContent, text.textContent] = [name, value];
    box.append(term, text);
    return box;
  }),
);
element("lag").textContent = data.lag_ms
  ? `The work behind an event is taken to be done ${data.lag_ms} ms later.`
  : "The work behind an event is taken to be done at once.";
element("fragmentation-text").textContent =
  `When most was held, ${bytes(worst.idle)} of ${bytes(worst.held)} were idle (${share(worst.idle, worst.held) || "0 %"}), in ` +
  `${count(worst.ranges)} ranges of at most ${bytes(worst.largest)}; ${bytes(worst.rounding)} were lost to rounding, and ` +
  `${bytes(worst.waiting)} waited for other streams.`;
showSettings(data.settings);
showMoment(mostLive);
slider.value = String(mostLive);
document.documentElement.dataset.ready = "yes";
