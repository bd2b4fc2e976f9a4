#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plot_test.py PLOT RONDE LAUNCHER...: draws what `ronde bench` writes under the launcher, and checks that each
picture shows something and that plot.py refuses what it cannot draw. Exit status 77 (skipped) without matplotlib."""
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

holder = tempfile.TemporaryDirectory()
os.environ["MPLCONFIGDIR"] = holder.name  # else matplotlib writes into the user's home
try:
    import matplotlib.image
except ImportError:
    print("skipped: no matplotlib for python3 (Debian: python3-matplotlib)")
    sys.exit(77)

plot, ronde, *launcher = sys.argv[1:]
folder = pathlib.Path(holder.name)
problems = []


def measure(name, words, **environment):
    line = [*launcher, ronde, "bench", *words, "--iters", "2", "--warmup", "1", "--json", folder / name]
    subprocess.run(line, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL,
                   timeout=60)


def save(name, value):
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def run(names, *words, **environment):
    line = [sys.executable, plot, *(folder / name for name in names), *words]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, **environment})


def check_drawn(*names):
    """The picture, in which the files are called A, B, C; an empty one has few colours."""
    picture = folder / "picture.png"
    result = run(names, "-o", picture, "--names", ",".join("ABC"[:len(names)]))
    if result.returncode != 0:
        sys.exit(f"{names}: exit code {result.returncode}: {result.stderr}")
    pixels = matplotlib.image.imread(picture)
    height, width, _ = pixels.shape
    colours = {tuple(pixel) for pixel in pixels.reshape(-1, pixels.shape[2])}
    if not (300 < height < 600 and 500 < width < 2000 and len(colours) > 50):
        problems.append(f"{names}: {width}x{height} pixels of {len(colours)} colours")
    picture.unlink()
    return pixels


def check_refused(words, *names, **environment):
    result = run(names, "-o", folder / "refused.png", **environment)
    lines = result.stderr.splitlines()
    if result.returncode != 2 or len(lines) != 1 or words not in lines[0]:
        problems.append(f"{names}: exit code {result.returncode}, not a line with {words!r}:\n{result.stderr}")
    if (folder / "refused.png").exists():
        problems.append(f"{names}: a picture, too")


def changed(profile, **steps):
    """The profile as of another run."""
    made = copy.deepcopy(profile)
    made["ranks"] = steps.pop("ranks", made["ranks"])
    made["merged"]["steps"].update(steps)
    return made


measure("sizes.json", ["allreduce", "--baseline", "--max", "64KiB"])
measure("models.json", ["exchange", "--model", "edsr,resnet18"], RONDE_PROFILE=str(folder / "profile.json"))
rows = json.loads((folder / "sizes.json").read_text(encoding="utf-8"))
profile = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
save("same.json", profile)
for ranks in (1, 2, 4):
    time = {"count": 10, "total_us": 1e6 * ranks}
    save(f"ranks{ranks}.json", changed(profile, ranks=ranks, count=10, time=time, samples=0))
half = copy.deepcopy(profile)
for each in half["merged"]["messages"]:
    each["count"] /= 2
save("half.json", half)

check_drawn("sizes.json")
check_drawn("sizes.json", "models.json")
check_drawn("models.json")
two_runs = check_drawn("profile.json", "same.json")
if (two_runs == check_drawn("profile.json", "half.json")).all():
    problems.append("half as many messages look the same")
if check_drawn("ranks1.json", "ranks2.json", "ranks4.json").shape == two_runs.shape:
    problems.append("runs on several numbers of ranks are not drawn as scaling")

subprocess.run([ronde, "sim", "--model", "edsr", "--compute-ms", "50", "--ranks", "1,2,4", "--bandwidth", "0.1,1",
                "--latency", "50", "--steps", "4", "--json", folder / "simulated.json"], check=True,
               stdout=subprocess.DEVNULL, timeout=60)
check_drawn("simulated.json")
simulated = json.loads((folder / "simulated.json").read_text(encoding="utf-8"))
for words, value in (
        ("no row has a step", [{**simulated[0], "step_ms": None}]),
        ("wrong.json: damaged: no member 'compute_ms'", [{"benchmark": "sim", "ranks": 2, "step_ms": 1}]),
        ("wrong.json: damaged JSON", json.dumps(profile)[:-50]),
        ("damaged JSON", ""),
        ("neither rows of `ronde bench --json` or `ronde sim --json` nor a profile", {"traceEvents": []}),
        ("layout 1", {**profile, "ronde_profile": 2}),
        ("wrong.json: damaged: no member 'merged'", {"ronde_profile": 1, "ranks": 2}),
        ('"fast" is not a measured number', [{**rows[0], "p50_us": "fast"}]),
        ("NaN is not a measured number", [{**rows[0], "p50_us": float("nan")}]),
        ("no row has a time", [{**rows[0], "p50_us": None, "baseline_p50_us": None}]),
        ("no message", {**profile, "merged": {**profile["merged"], "messages": []}})):
    save("wrong.json", value)
    check_refused(words, "wrong.json")
check_refused("No such file", "missing.json")
check_refused("do not fit into one picture", "sizes.json", "profile.json")
(folder / "matplotlib.py").write_text("raise ImportError('hidden')\n", encoding="utf-8")
check_refused("no matplotlib for", "sizes.json", PYTHONPATH=str(folder))
(folder / "matplotlib.py").unlink()
result = run(["sizes.json"], "-o", folder / "none" / "picture.png")
if result.returncode != 2 or "No such file" not in result.stderr:
    problems.append(f"a folder that is not there: exit code {result.returncode}: {result.stderr}")

print("\n".join(problems) or "all as expected")
sys.exit(1 if problems else 0)
