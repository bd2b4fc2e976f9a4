#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what Ronde measures to a PNG.

Rows of `ronde bench --json`: time and bandwidth against size, and a panel for each model. Rows of `ronde sim --json`:
efficiency against ranks, and the parts of a step. Profiles (RONDE_PROFILE=FILE.json): time and count by size of
message; throughput against ranks, where their numbers differ.
"""
import argparse
import json
import pathlib
import sys

# What a file's keys, without their unit, are called in a legend.
LABELS = {"p50": "Ronde", "baseline_p50": "MPI", "baseline": "MPI, a call a tensor",
          "packed_baseline": "MPI, one packed call", "floor": "memcpy"}
COLOURS = ("#2a78d6", "#c98500", "#1baf7a", "#d03b3b", "#8a5cc2", "#52514e", "#5fb3d9", "#b86a9b")
# The message sizes of the EDSR study, as in `ronde prof report`: their ends.
CLASSES = {"1-128 KB": 2**17, "128 KB-16 MB": 2**24, "16-32 MB": 2**25, "32-64 MB": 2**26,
           ">64 MB": float("inf")}


class Refused(Exception):
    """The text says which input cannot be drawn, and why."""


def number(value):
    """A measured number. ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
        raise ValueError(f"{json.dumps(value)[:40]} is not a measured number")
    return float(value)


def read_row(row):
    """A row of `ronde bench`: what it is of, and its times in the unit of their keys."""
    times = {key[:-3]: None if value is None else number(value) for key, value in row.items()
             if key.endswith(("_us", "_ms")) and key not in ("p99_us", "min_us")}
    return {"benchmark": str(row["benchmark"]), "model": str(row["model"]) if "model" in row else None,
            "class": str(row.get("class", "")), "ranks": int(number(row["ranks"])), "bytes": number(row["bytes"]),
            "times": times}


def read_simulated(row):
    """A row of `ronde sim`: its settings in words, and its times; None where it has no step."""
    settings = [f"{key} {value}" for key, value in row.items()
                if key in ("bandwidth_gbit", "latency_us", "wire_dtype") or key.startswith("RONDE_")]
    if row["step_ms"] is None:
        return None
    return {"ranks": int(number(row["ranks"])), "settings": settings,
            **{key: number(row[key]) for key in ("step_ms", "compute_ms", "exposed_ms", "efficiency_percent")}}


def read_profile(profile):
    """A profile: what one rank did in a step, or in the run where it counted no steps."""
    if profile["ronde_profile"] != 1:
        raise ValueError("this plot.py reads layout 1 of profiles")
    merged, steps = profile["merged"], profile["merged"].get("steps", {})
    ranks, count = int(number(profile["ranks"])), number(steps.get("count", 0))
    if ranks < 1:
        raise ValueError("no ranks")
    scale = max(1, len(profile.get("per_rank", []))) * max(1.0, count)
    run = {"ranks": ranks, "has_steps": count > 0, "ms": dict.fromkeys(CLASSES, 0.0),
           "messages": dict.fromkeys(CLASSES, 0.0)}
    for each in merged.get("messages", []):
        title = next(title for title, end in CLASSES.items() if number(each["up_to_bytes"]) <= end)
        phases = [each["phases"].get(phase, {}) for phase in ("pack", "communicate", "unpack")]
        run["ms"][title] += sum(number(phase.get("total_us", 0)) for phase in phases) / 1e3 / scale
        run["messages"][title] += number(each["count"]) / scale
    total_us, timed = (number(steps.get("time", {}).get(key, 0)) for key in ("total_us", "count"))
    seconds, samples = number(merged.get("seconds", 0)), number(steps.get("samples", 0))
    run["samples_per_s"] = samples / seconds if seconds > 0 else 0
    run["steps_per_s"] = ranks * 1e6 * timed / total_us if total_us > 0 else 0
    return run


def read(path):
    """("rows", rows), ("simulated", rows) or ("profile", run) of a file. Refused where it is none of them."""
    try:
        data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: damaged JSON: {error}") from error
    try:
        if isinstance(data, list) and data and all(isinstance(row, dict) and "benchmark" in row for row in data):
            if all(row["benchmark"] == "sim" for row in data):
                return "simulated", list(filter(None, map(read_simulated, data)))
            return "rows", [read_row(row) for row in data]
        if isinstance(data, dict) and "ronde_profile" in data:
            return "profile", read_profile(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"no member {error}" if isinstance(error, KeyError) else error
        raise Refused(f"{path}: damaged: {what}") from error
    raise Refused(f"{path}: neither rows of `ronde bench --json` or `ronde sim --json` nor a profile of RONDE_PROFILE")


def amount(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def amount_tick(value, _position):
    return amount(value)


def size_text(size, _position=None):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def bars(axes, categories, series, label):
    """A bar for each series, {name: value by category}, side by side in each category."""
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        drawn = [(at, value) for at, value in enumerate(values) if value is not None]
        places = [at + (index - (len(series) - 1) / 2) * width for at, _ in drawn]
        made = axes.bar(places, [value for _, value in drawn], 0.92 * width, label=name,
                        color=COLOURS[index % len(COLOURS)])
        axes.bar_label(made, [amount(value) for _, value in drawn], fontsize=8, padding=2)
    axes.set_xticks(range(len(categories)), categories)
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(label)
    axes.margins(y=0.15 + 0.05 * len(series))  # above the bars is room for the legend
    axes.legend(fontsize=8, frameon=False, loc="upper center", ncol=2)
    axes.grid(axis="y", color="#e1e0d9")


def draw_sweep(panels, rows):
    """Time and bandwidth against size; `rows` by name of a file."""
    several = len({row["benchmark"] for of_file in rows.values() for row in of_file}) > 1
    lines = {}
    for file, of_file in rows.items():
        for row in of_file:
            for key, us in row["times"].items():
                if us and row["bytes"] > 0:
                    parts = [file] * (len(rows) > 1) + [row["benchmark"]] * several + [LABELS.get(key, key)]
                    lines.setdefault((key, ": ".join(parts)), []).append((row["bytes"], us))
    if not lines:
        raise Refused("no row has a time and a size to draw it by")
    for index, ((key, label), points) in enumerate(lines.items()):
        sizes, times = zip(*sorted(points))
        style = {"label": label, "color": COLOURS[index % len(COLOURS)], "marker": "o", "markersize": 3,
                 "linestyle": "--" if key.startswith("baseline") else "-"}
        panels[0].plot(sizes, times, **style)
        panels[1].plot(sizes, [size / us / 1e3 for size, us in zip(sizes, times)], **style)
    panels[0].set_yscale("log")
    panels[0].legend(fontsize=8, frameon=False)
    for panel, label in zip(panels, ("time of a call (p50), us", "size over time, GB/s")):
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(size_text)
        panel.tick_params(axis="x", labelsize=7)
        panel.set_ylabel(label)
        panel.grid(color="#e1e0d9")


def draw_model(panel, model, rows):
    """The times of all gradients of a model, by class of message sizes where rows have one."""
    titles, series = list(dict.fromkeys(row["class"] for of_file in rows.values() for row in of_file)), {}
    for file, of_file in rows.items():
        for row in of_file:
            for key, ms in row["times"].items():
                name = f"{file}: " * (len(rows) > 1) + LABELS.get(key, key)
                series.setdefault(name, [None] * len(titles))[titles.index(row["class"])] = ms
    series = {name: values for name, values in series.items() if any(value is not None for value in values)}
    if not series:
        raise Refused(f"no row of {model} has a time")
    bars(panel, titles, series, "ms")
    panel.set_title(f"gradients of {model}", fontsize=10)


def draw_rows(plots, files):
    every = [row for rows in files.values() for row in rows]
    models = list(dict.fromkeys(row["model"] for row in every if row["model"] is not None))
    sweeps = {name: [row for row in rows if row["model"] is None] for name, rows in files.items()}
    sweeps = {name: rows for name, rows in sweeps.items() if rows}
    count = 2 * bool(sweeps) + len(models)
    figure, panels = plots.subplots(1, count, figsize=(max(6, 4.6 * count), 3.8), squeeze=False)
    if sweeps:
        draw_sweep(panels[0], sweeps)
    for panel, model in zip(panels[0][count - len(models):], models):
        chosen = {name: [row for row in rows if row["model"] == model] for name, rows in files.items()}
        draw_model(panel, model, {name: rows for name, rows in chosen.items() if rows})
    ranks = sorted({row["ranks"] for row in every})
    names = ", ".join(dict.fromkeys(row["benchmark"] for row in every))
    figure.suptitle(f"{names}: {', '.join(map(str, ranks))} rank{'s' * (ranks != [1])}", fontsize=11)
    return figure


def draw_sizes(plots, runs):
    """The study's picture: time and count of messages by size."""
    titles = [title for title in CLASSES if any(run["messages"][title] > 0 for run in runs.values())]
    if not titles:
        raise Refused("no message was sent in these runs")
    figure, panels = plots.subplots(1, 2, figsize=(9.6, 3.8))
    of = "a step" if all(run["has_steps"] for run in runs.values()) else "the run"
    for panel, key, label in zip(panels, ("ms", "messages"), (f"ms of a rank in {of}", f"messages in {of}")):
        bars(panel, titles, {name: [run[key][title] for title in titles] for name, run in runs.items()}, label)
        panel.set_xlabel("size of message")
    return figure


def draw_scaling(plots, runs):
    """Throughput against ranks, with a line through the run on fewest."""
    key = "samples_per_s" if all(run["samples_per_s"] > 0 for run in runs) else "steps_per_s"
    points = sorted((run["ranks"], run[key]) for run in runs)
    most, per_rank = points[-1][0], points[0][1] / points[0][0]
    figure, panel = plots.subplots(figsize=(6.4, 3.8))
    panel.plot([0, most], [0, per_rank * most], "--", color=COLOURS[5], label="ideal")
    panel.plot(*zip(*points), "o-", color=COLOURS[0], label="measured")
    for ranks, value in points:
        panel.annotate(f"{amount(value)} ({value / ranks / per_rank:.0%})", (ranks, value), (6, -12),
                       textcoords="offset points", fontsize=8)
    panel.set_xticks(sorted({ranks for ranks, _ in points}))
    panel.set(xlabel="ranks", xlim=(0, most * 1.18), ylim=0,
              ylabel="samples a second" if key == "samples_per_s" else "steps of all ranks a second")
    panel.grid(color="#e1e0d9")
    panel.legend(fontsize=8, frameon=False)
    return figure


def draw_simulated(plots, files):
    """The scaling curve of each choice of settings, and what a step of the first choice is made of."""
    lines, common = {}, None
    for rows in files.values():
        for row in rows:
            common = set(row["settings"]) if common is None else common & set(row["settings"])
    for file, rows in files.items():
        for row in rows:
            words = [file] * (len(files) > 1) + [word for word in row["settings"] if word not in common]
            lines.setdefault(", ".join(words) or "simulated", []).append(row)
    if not lines:
        raise Refused("no row has a step that was measured")
    figure, panels = plots.subplots(1, 2, figsize=(9.6, 3.8))
    for index, (label, rows) in enumerate(lines.items()):
        panels[0].plot(*zip(*sorted((row["ranks"], row["efficiency_percent"]) for row in rows)), "o-", label=label,
                       color=COLOURS[index % len(COLOURS)])
    panels[0].set(xlabel="ranks", ylabel="efficiency, %", ylim=0)
    panels[0].set_xscale("log", base=2)
    panels[0].xaxis.set_major_formatter(amount_tick)
    label, rows = next(iter(lines.items()))
    rows, bottom = sorted(rows, key=lambda row: row["ranks"]), [0.0] * len(rows)
    parts = {"computing": [row["compute_ms"] for row in rows],
             "waiting for operations": [row["exposed_ms"] for row in rows],
             "computing slower": [max(0.0, row["step_ms"] - row["compute_ms"] - row["exposed_ms"]) for row in rows]}
    for index, (name, values) in enumerate(parts.items()):
        panels[1].bar(range(len(rows)), values, 0.7, bottom, label=name, color=COLOURS[index])
        bottom = [below + value for below, value in zip(bottom, values)]
    panels[1].set_xticks(range(len(rows)), [row["ranks"] for row in rows])
    panels[1].set(xlabel="ranks", ylabel="ms of a step")
    panels[1].set_title("" if label == "simulated" else label, fontsize=10)
    for panel in panels:
        panel.legend(fontsize=8, frameon=False)
        panel.grid(axis="y", color="#e1e0d9")
    return figure


def draw(plots, names, inputs):
    if len({kind for kind, _ in inputs}) > 1:
        raise Refused("rows of `ronde bench`, rows of `ronde sim` and profiles do not fit into one picture")
    files = dict(zip(names, (data for _, data in inputs)))
    if inputs[0][0] == "simulated":
        return draw_simulated(plots, files)
    if inputs[0][0] == "rows":
        return draw_rows(plots, files)
    runs = list(files.values())
    scales = len({run["ranks"] for run in runs}) > 1 and all(run["steps_per_s"] > 0 for run in runs)
    return draw_scaling(plots, runs) if scales else draw_sizes(plots, files)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", "--output", default="plot.png", help="the PNG (default: %(default)s)")
    parser.add_argument("--names", help="names of the files in the picture, with commas (default: as they are)")
    arguments = parser.parse_args()
    names = arguments.names.split(",") if arguments.names else [pathlib.Path(path).stem for path in arguments.files]
    if len(set(names)) != len(arguments.files):
        parser.error("each file needs a name of its own: give as many --names as files")
    try:
        inputs = [read(path) for path in arguments.files]
        try:
            import matplotlib
            matplotlib.use("Agg")
            from matplotlib import pyplot
        except ImportError as error:
            raise Refused(f"no matplotlib for {sys.executable} (Debian: apt-get install python3-matplotlib): "
                          f"{error}") from error
        figure = draw(pyplot, names, inputs)
        for panel in figure.axes:
            panel.spines[["top", "right"]].set_visible(False)
            panel.set_axisbelow(True)
        figure.tight_layout()
        figure.savefig(arguments.output, format="png", dpi=100)
    except Refused as refused:
        print(f"plot.py: {refused}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"plot.py: {arguments.output}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
