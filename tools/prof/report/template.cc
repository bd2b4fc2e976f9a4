// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/report/views.h"

namespace ronde::prof {

const char* const kPageTemplate = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Ronde profile</title>
<style>
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #0b0b0b; --soft: #52514e; --line: #e1e0d9;
  --card: #f4f3ef; --backward: #2a78d6; --communication: #1baf7a; --wait: #d03b3b; --span: #c98500;
  --heat: 42, 120, 214; }
@media (prefers-color-scheme: dark) {
  :root { --page: #1a1a19; --ink: #ffffff; --soft: #c3c2b7; --line: #2c2c2a; --card: #242422;
    --backward: #3987e5; --communication: #199e70; --wait: #e66767; --span: #c98500; }
}
body { margin: 0 auto; max-width: 1000px; padding: 24px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; line-height: 1.3; margin: 4px 0 12px; }
hr { border: 0; border-top: 1px solid var(--line); margin: 40px 0 24px; }
h2 { font-size: 16px; margin: 32px 0 8px; }
p, li { margin: 4px 0; }
.soft { color: var(--soft); }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.tile { background: var(--card); border-radius: 6px; padding: 8px 14px; }
.tile b { display: block; font-size: 20px; font-weight: 600; }
.legend span { margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin-right: 6px; }
.wide { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 700px; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg text.ink { fill: var(--ink); }
svg line { stroke: var(--line); }
</style>
<main id="main"></main>
<script>
"use strict";
const runs = "DATA";
const main = document.getElementById("main");
const WIDTH = 950;

function add(parent, name, attributes = {}, text = "") {
  const of_svg = name === "svg" || parent instanceof SVGElement;
  const made = of_svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
                      : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  parent.appendChild(made);
  return made;
}

function number(value) {
  return value.toLocaleString("en", {maximumSignificantDigits: value < 100 ? 2 : 3});
}

function duration(ms) {
  return ms > 0 && ms < 0.1 ? number(ms * 1e3) + " us" : number(ms) + " ms";
}

function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

function picture(height) {
  return add(add(main, "div", {class: "wide"}), "svg",
      {viewBox: `0 0 ${WIDTH} ${height}`, role: "img"});
}

function bar(svg, x, y, width, height, colour, tip) {
  const made = add(svg, "rect", {x, y, width: Math.max(width, 1), height,
                                 rx: Math.min(2, width / 2), style: `fill: var(--${colour})`});
  add(made, "title", {}, tip);
}

/// A round distance between marks, of which `most` or fewer fit into `length`.
function distance(length, most) {
  const rough = length / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map(x => x * power).find(x => x >= rough);
}

function legend(names) {
  const line = add(main, "p", {class: "legend soft"});
  for (const [colour, name] of names) {
    const entry = add(line, "span");
    add(entry, "i", {style: `background: var(--${colour})`});
    entry.append(name);
  }
}

/// Rows of bars over a time in ms: [{title, bars: [{begin, end, row, name}]}].
function draw_times(rows, length) {
  const LEFT = 170, ROW = 22;
  const scale = (WIDTH - LEFT - 30) / length;
  const bottom = rows.length * ROW + 4;
  const svg = picture(bottom + 24);
  const step = distance(length, 10);
  for (let ms = 0; ms <= length; ms += step) {
    const x = LEFT + ms * scale;
    add(svg, "line", {x1: x, x2: x, y1: 0, y2: bottom});
    add(svg, "text", {x, y: bottom + 16, "text-anchor": "middle"}, number(ms) + " ms");
  }
  rows.forEach((row, index) => {
    const y = index * ROW + 4;
    add(svg, "text", {x: 0, y: y + 12}, row.title);
    for (const each of row.bars) {
      bar(svg, LEFT + each.begin * scale, y, (each.end - each.begin) * scale, ROW - 8, each.row,
          `${each.name}: ${duration(each.end - each.begin)}`);
    }
  });
  const shown = new Set(rows.flatMap(row => row.bars.map(each => each.row)));
  legend([["backward", "backward"], ["communication", "communication"],
          ["wait", "the program waits"], ["span", "span of the program"]]
             .filter(([colour]) => shown.has(colour)));
}

function draw_step(run) {
  if (run.timeline && run.timeline.ms > 0) {
    add(main, "h2", {}, "One step, of each rank");
    const rows = new Map();
    for (const slice of run.timeline.slices) {
      const row = slice.row === "wait" || slice.row === "span" ? "program" : slice.row;
      const title = `rank ${slice.rank}: ${row}`;
      if (!rows.has(title)) rows.set(title, {title, bars: []});
      rows.get(title).bars.push(slice);
    }
    const sorted = [...rows.values()].sort((a, b) =>
        a.title.localeCompare(b.title, "en", {numeric: true}));
    draw_times(sorted, run.timeline.ms);
  } else if (run.step_ms > 0) {
    add(main, "h2", {}, "Parts of a step, on average: lengths, not places");
    const end = run.step_ms - run.exposed_ms;
    draw_times([
      {title: "backward", bars: [{begin: Math.max(0, end - run.backward_ms), end,
                                  row: "backward", name: "backward"}]},
      {title: "communication", bars: [{begin: Math.max(0, run.step_ms - run.communication_ms),
                                       end: run.step_ms, row: "communication",
                                       name: "communication"}]},
      {title: "exposed", bars: [{begin: end, end: run.step_ms, row: "wait", name: "exposed"}]}],
      run.step_ms);
  }
}

function draw_sizes(run) {
  if (run.sizes.length === 0) return;
  add(main, "h2", {}, "Messages by size: time of a rank in a step");
  const LEFT = 90, ROW = 24, most = Math.max(...run.sizes.map(size => size.ms), 1e-9);
  const svg = picture(run.sizes.length * ROW);
  run.sizes.forEach((size, index) => {
    const y = index * ROW, width = size.ms / most * (WIDTH - LEFT - 360);
    add(svg, "text", {x: 0, y: y + 15}, size.title);
    bar(svg, LEFT, y + 3, width, ROW - 8, "communication", duration(size.ms));
    add(svg, "text", {x: LEFT + width + 8, y: y + 15}, `${duration(size.ms)}, ` +
        `${number(size.count)} messages, p50 ${duration(size.p50)}, p99 ${duration(size.p99)}`);
  });
}

function draw_waits(run) {
  const most = Math.max(...run.waited.flatMap(row => row.ms.map(each => each[1])), 0);
  if (run.ranks < 2 || most === 0) return;
  add(main, "h2", {}, "Who waited for whom: ms a step");
  const LEFT = 90, TOP = 24, SIDE = Math.max(14, Math.min(64, (WIDTH - LEFT) / run.ranks));
  const high = Math.min(SIDE, 32);
  const svg = picture(TOP + run.waited.length * high);
  for (let rank = 0; rank < run.ranks; rank++) {
    if (SIDE < 30 && rank % 8 !== 0) continue;
    add(svg, "text", {x: LEFT + (rank + 0.5) * SIDE, y: 14, "text-anchor": "middle"},
        (rank === 0 ? "for " : "") + rank);
  }
  run.waited.forEach((row, index) => {
    const y = TOP + index * high;
    add(svg, "text", {x: 0, y: y + high / 2 + 4}, `rank ${row.rank}`);
    add(svg, "rect", {x: LEFT, y, width: run.ranks * SIDE - 2, height: high - 2,
      style: "fill: rgba(var(--heat), 0.06)"});
    row.ms.forEach(([rank, ms]) => {
      const share = ms / most;
      const cell = add(svg, "rect", {x: LEFT + rank * SIDE, y, width: SIDE - 2, height: high - 2,
        style: `fill: rgba(var(--heat), ${0.06 + 0.94 * share})`});
      add(cell, "title", {}, `rank ${row.rank} waited ${duration(ms)} for rank ${rank}`);
      if (SIDE < 40) return;
      add(svg, "text", {x: LEFT + (rank + 0.5) * SIDE - 1, y: y + high / 2 + 4, class: "ink",
        "text-anchor": "middle"}, number(ms));
    });
  });
}

function draw_scaling() {
  const have_samples = runs.every(run => run.samples_per_s > 0);
  const points = runs.map(run => [run.ranks, have_samples ? run.samples_per_s
                                                          : run.ranks / run.step_ms * 1e3])
      .filter(point => isFinite(point[1]) && point[1] > 0).sort((a, b) => a[0] - b[0]);
  if (points.length < 2) return;
  add(main, "h2", {}, `Scaling: ${have_samples ? "samples" : "steps of all ranks"} a second by ranks`);
  const LEFT = 70, HEIGHT = 280, most_ranks = points[points.length - 1][0];
  const per_rank = points[0][1] / points[0][0];
  const most = Math.max(per_rank * most_ranks, ...points.map(point => point[1]));
  const svg = picture(HEIGHT + 30);
  const x = ranks => LEFT + ranks / most_ranks * (WIDTH - LEFT - 130);
  const y = value => HEIGHT - value / most * (HEIGHT - 12);
  const step = distance(most, 5);
  for (let value = 0; value <= most; value += step) {
    add(svg, "line", {x1: LEFT, x2: WIDTH - 130, y1: y(value), y2: y(value)});
    add(svg, "text", {x: LEFT - 8, y: y(value) + 4, "text-anchor": "end"}, number(value));
  }
  add(svg, "line", {x1: x(0), y1: y(0), x2: x(most_ranks), y2: y(per_rank * most_ranks),
                    style: "stroke: var(--soft)", "stroke-dasharray": "4 4"});
  add(svg, "polyline", {points: points.map(point => `${x(point[0])},${y(point[1])}`).join(" "),
                        style: "fill: none; stroke: var(--backward); stroke-width: 2"});
  for (const [ranks, value] of points) {
    const dot = add(svg, "circle", {cx: x(ranks), cy: y(value), r: 4,
                                    style: "fill: var(--backward)"});
    add(dot, "title", {}, `${ranks} ranks: ${number(value)} a second`);
    add(svg, "text", {x: x(ranks), y: HEIGHT + 18, "text-anchor": "middle"}, ranks);
    const share = Math.round(value / (per_rank * ranks) * 100);
    add(svg, "text", {x: x(ranks) + 8, y: y(value) + 16, class: "ink"},
        `${number(value)} (${share} %)`);
  }
}

function draw(run) {
  if (main.hasChildNodes()) add(main, "hr");
  add(main, "p", {class: "soft"}, `${run.source}: ${counted(run.ranks, "rank")} on ` +
      `${counted(run.hosts, "host")}, ${counted(run.steps, "step")}`);
  add(main, "h1", {}, run.findings.length ? run.findings[0].text : "nothing stands out");
  const tiles = add(main, "div", {class: "tiles"});
  const share = run.step_ms > 0 ? ` (${Math.round(run.exposed_ms / run.step_ms * 100)} %)` : "";
  for (const [value, name] of [
      [run.step_ms > 0 && duration(run.step_ms), "a step"],
      [run.step_ms > 0 && duration(run.exposed_ms) + share, "exposed communication"],
      [run.communication_ms > 0 && duration(run.communication_ms), "communication a step"],
      [run.samples_per_s > 0 && number(run.samples_per_s), "samples a second"]]) {
    if (!value) continue;
    const tile = add(tiles, "div", {class: "tile"});
    add(tile, "b", {}, value);
    tile.append(name);
  }
  if (run.findings.length > 1) {
    add(main, "h2", {}, "Findings, with what each costs a rank in a step");
    const list = add(main, "ol");
    for (const each of run.findings) {
      add(list, "li", {}, each.text + (each.ms > 0 ? ` (${duration(each.ms)})` : ""));
    }
  }
  draw_step(run);
  draw_sizes(run);
  draw_waits(run);
}

draw_scaling();
runs.forEach(draw);
</script>
</html>
)html";

}  // namespace ronde::prof
