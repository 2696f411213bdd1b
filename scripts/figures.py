"""Draws the figures of docs/communication.md, reports of `cargo xtask bench`, and timelines. Run from anywhere:

    python3 scripts/figures.py                           writes docs/workers.svg and docs/all-reduce.svg
    python3 scripts/figures.py --check                   says whether they are what this script writes
    python3 scripts/figures.py FILE.json OUT.svg         draws a report, or a step of a training's --timeline
    python3 scripts/figures.py FILE.json OUT.svg --bars  draws the throughput of bench scaling as bars
    python3 scripts/figures.py FILE.json OUT.svg --step N  draws this step of a timeline, from 0

The first two need Python's standard library. A figure of theirs is a card with a colour of its own, so it is readable on
light and on dark pages. Browsers that prefer dark pages get a dark card. The others need matplotlib.
"""

import argparse
import itertools
import json
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
RANKS = 3

# What a class looks like on a light page, and on a dark one. A tint is a rank's own data, and the deep colour what all
# ranks have in common.
LOOKS = {
    "card": ("fill:#ffffff;stroke:#c9ced4", "fill:#15181c;stroke:#3b424a"),
    "ink": ("fill:#1d2126", "fill:#dfe3e8"),
    "soft": ("fill:#59616a", "fill:#9aa3ad"),
    "box": ("fill:none;stroke:#59616a", "fill:none;stroke:#9aa3ad"),
    "tint0": ("fill:#cfe3f6", "fill:#1f4566"),
    "tint1": ("fill:#f8dcc0", "fill:#6b4215"),
    "tint2": ("fill:#d5ecd0", "fill:#28552a"),
    "common": ("fill:#4a4f8f", "fill:#7d83cf"),
    "pale": ("fill:#ffffff", "fill:#101216"),
    "way": ("fill:none;stroke:#59616a;stroke-width:1.5", "fill:none;stroke:#9aa3ad;stroke-width:1.5"),
    "head": ("fill:#59616a", "fill:#9aa3ad"),
}


def style():
    def rules(scheme):
        return "".join(f".{name}{{{looks[scheme]}}}" for name, looks in LOOKS.items())

    font = "text{font:14px sans-serif;text-anchor:middle}.left{text-anchor:start}.small{font-size:12px}"
    return f"<style>{font}.bold{{font-weight:bold}}{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"


def box(look, x, y, width, height, label="", ink="ink"):
    """A rectangle with a text in its middle."""
    words = text(x + width / 2, y + height / 2 + 5, label, ink) if label else ""
    return f'<rect class="{look}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>\n{words}'


def text(x, y, words, look="ink"):
    return f'<text class="{look}" x="{x:g}" y="{y:g}">{escape(words)}</text>\n'


def arrow(x, y, to_x, to_y):
    """A straight way with a head at its end, down, up or to the right."""
    across, down = to_x - x, to_y - y
    length = (across**2 + down**2) ** 0.5
    (ux, uy), size = (across / length, down / length), 7
    left, right = ((to_x - size * ux - s * size / 2 * uy, to_y - size * uy + s * size / 2 * ux) for s in (1, -1))
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in ((to_x, to_y), left, right))
    end = f"{to_x - size * ux:.1f} {to_y - size * uy:.1f}"
    return f'<path class="way" d="M{x:g} {y:g}L{end}"/><path class="head" d="M{points}z"/>\n'


def figure(title, width, height, parts):
    card = box("card", 0.5, 0.5, width - 1, height - 1)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return f'{opening}\n<title>{escape(title)}</title>\n{style()}\n{card}{"".join(parts)}</svg>\n'


def workers():
    """The data in partitions, a worker for each, and the average that keeps their parameters equal."""
    wide, gap, left = 210, 20, 30
    mean = "all-reduce: the mean of all workers' gradients, the same bits everywhere"
    whole = RANKS * wide + (RANKS - 1) * gap
    parts = [
        text(left, 30, "training data", "left ink bold"),
        text(left + 110, 30, "(the global batch of a step)", "left soft"),
    ]
    for rank in range(RANKS):
        x = left + rank * (wide + gap)
        middle = x + wide / 2
        parts += [
            box(f"tint{rank}", x, 42, wide, 30, f"partition {rank}"),
            arrow(middle, 76, middle, 104),
            box("box", x, 106, wide, 166),
            text(middle, 128, f"worker {rank}", "ink bold"),
            text(middle, 146, f"rank {rank}, a process", "soft small"),
            box("common", x + 15, 156, wide - 30, 28, "parameters", "pale"),
            text(middle, 206, "forward and backward pass", "ink"),
            box(f"tint{rank}", x + 15, 218, wide - 30, 28, f"gradients of partition {rank}"),
            text(middle, 264, "update by the mean", "ink"),
            arrow(middle - 50, 274, middle - 50, 306),
            arrow(middle + 50, 306, middle + 50, 276),
        ]
    parts += [
        box("common", left, 308, whole, 32, mean, "pale"),
        text(left + whole / 2, 364, "Equal parameters and equal means give equal parameters. No data travel.", "soft"),
    ]
    return figure("Workers, their partitions of the data, and the all-reduce", whole + 2 * left, 380, parts)


def all_reduce():
    """The three states of a bucket on each rank: its own, its summed slice, all summed slices."""
    names, cell, high, gap = "abc", 62, 34, 26
    columns = [120, 120 + 3 * cell + 90, 120 + 6 * cell + 180]
    titles = ["a bucket of gradients", "each rank sums one slice", "all ranks have all slices"]
    parts = [text(x + 1.5 * cell, 30, title, "ink bold") for x, title in zip(columns, titles)]
    for rank in range(RANKS):
        y = 46 + rank * (high + gap)
        parts.append(text(24, y + high / 2 + 5, f"rank {rank}", "left ink"))
        for part in range(RANKS):
            own, summed, mean = (x + part * cell for x in columns)
            parts.append(box(f"tint{rank}", own, y, cell - 4, high, f"{names[rank]}{part}"))
            if part == rank:
                parts.append(box("common", summed, y, cell - 4, high, f"s{part}", "pale"))
            else:
                parts.append(box("box", summed, y, cell - 4, high))
            parts.append(box("common", mean, y, cell - 4, high, f"s{part}", "pale"))
    below = 46 + RANKS * (high + gap)
    middle = 46 + (RANKS * (high + gap) - gap) / 2
    for x, word in ((columns[0], "reduce"), (columns[1], "gather")):
        start, end = x + 3 * cell + 8, x + 3 * cell + 80
        parts += [arrow(start, middle, end, middle), text((start + end) / 2, middle - 10, word, "ink")]
    slices = "Rank 0 sums the slices 0 of all ranks, rank 1 the slices 1, rank 2 the slices 2."
    rule = "s0 = (a0 + b0 + c0) / 3, added in the order of the ranks, so every run has the same bits."
    parts += [
        text(24, below + 12, rule, "left ink"),
        text(24, below + 34, slices, "left soft"),
    ]
    return figure("The all-reduce of three ranks", columns[2] + 3 * cell + 24, below + 52, parts)


# The parts of a step, and what has a colour of its own.
PARTS = ["forward", "backward", "compress", "exposed", "decompress", "update", "other"]
SPEEDS = ["examples_per_second", "tokens_per_second", "speed"]
UNITS = {"examples_per_second": "examples/s", "tokens_per_second": "tokens/s", "peak_rss_mb": "peak memory, MB"}


def canvas(rows, columns, wide=6.0, high=3.6):
    """Places for charts, one row below the other."""
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "candelabrum", "axes.grid": True, "axes.axisbelow": True})
    shape = (wide * columns, high * rows)
    return pyplot.subplots(rows, columns, squeeze=False, figsize=shape, layout="constrained")


def groups_by(items, key):
    found = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def groups(rows, *settings):
    """The rows by the values of settings, in the order of their first occurrence."""
    return groups_by(rows, lambda row: tuple(row["point"].get(name) for name in settings))


def named(point):
    return ", ".join(str(value) if isinstance(value, str) else f"{name} {value}" for name, value in point)


def whisker(spread):
    return [[spread["median"] - spread["min"]], [spread["max"] - spread["median"]]]


def bars(ax, rows, figure):
    """A bar for each row, its median with the least and the greatest sample."""
    for place, row in enumerate(rows):
        spread = row["figures"].get(figure)
        if spread:
            ax.barh(place, spread["median"], xerr=whisker(spread), capsize=3, label=row["contender"])
            ax.annotate(f' {spread["median"]:,.4g}', (spread["max"], place), va="center")
    ax.set_yticks(range(len(rows)), [row["contender"] for row in rows])
    ax.invert_yaxis()
    ax.set_xlabel(UNITS.get(figure, figure))


def lines(ax, rows, setting, figure):
    """A line for each contender over a setting."""
    for contender in dict.fromkeys(row["contender"] for row in rows):
        own = [row for row in rows if row["contender"] == contender and figure in row["figures"]]
        xs = [row["point"][setting] for row in own]
        spreads = [row["figures"][figure] for row in own]
        ends = [list(itertools.chain(*side)) for side in zip(*map(whisker, spreads))] or None
        is_bound = contender in ("strangers", "memory")
        look = {"color": "gray", "linestyle": "--"} if is_bound else {"marker": "o"}
        ax.errorbar(xs, [spread["median"] for spread in spreads], yerr=ends, capsize=3, label=contender, **look)
    ax.set_xlabel(setting)
    ax.set_ylabel(UNITS.get(figure, figure))
    ax.legend(fontsize="small")


def legend(ax):
    """A key in which each name stands once."""
    key = dict(zip(*reversed(ax.get_legend_handles_labels())))
    ax.legend(key.values(), key, fontsize="small")


def parts(ax, rows):
    """The parts of a step one after the other. Their medians need not add up to the median of the whole."""
    for place, row in enumerate(rows):
        figures, left = row["figures"], 0.0
        whole = figures.get("step_seconds", {"median": 0.0})["median"]
        known = [part for part in PARTS if f"{part}_seconds" in figures]
        for part in known:
            width = 1e3 * figures[f"{part}_seconds"]["median"]
            ax.barh(place, width, left=left, color=f"C{PARTS.index(part)}", label=part)
            left += width
        if not known:
            ax.barh(place, 1e3 * whole, color="gray")
        ax.annotate(f" {1e3 * whole:.2f} ms", (max(left, 1e3 * whole), place), va="center")
    ax.set_yticks(range(len(rows)), [row["contender"] for row in rows])
    ax.invert_yaxis()
    ax.set_xlabel("milliseconds per step")
    legend(ax)


def bars_by_nodes(ax, rows):
    """A bar for each strategy at every number of workers, with its efficiency."""
    kinds = list(dict.fromkeys(row["contender"] for row in rows))
    counts = sorted({row["point"]["workers"] for row in rows})
    for row in rows:
        kind = kinds.index(row["contender"])
        x = counts.index(row["point"]["workers"]) + (kind + 0.5) * 0.8 / len(kinds) - 0.4
        spread = row["figures"][SPEEDS[0]]
        ax.bar(x, spread["median"], 0.8 / len(kinds), yerr=whisker(spread), capsize=3, color=f"C{kind}", label=kinds[kind])
        share = row["ratios"].get("efficiency")
        if share:
            ax.annotate(f'{100 * share["median"]:.0f}%', (x, spread["median"] / 2), ha="center")
    ax.set_xticks(range(len(counts)), counts)
    ax.set_xlabel("workers")
    ax.set_ylabel("examples/s")
    legend(ax)


def draw_report(report, as_bars):
    name, rows = report["bench"].removeprefix("bench-"), report["rows"]
    if name == "zoo":
        blocks = groups(rows, "network", "data", "batch_size")
        figure, axes = canvas(len(blocks), 2)
        for (key, own), row_axes in zip(blocks.items(), axes):
            for ax, value in zip(row_axes, ("loss", "test_accuracy")):
                for row in own:
                    values = [sample[value] for sample in row["samples"]]
                    steps = [(round + 1) * row["point"]["steps"] for round in range(len(values))]
                    if value == "loss":
                        first = row["facts"]["warm_up_losses"]
                        steps, values = [1] + [len(first) + step for step in steps], first[:1] + values
                    ax.plot(steps, values, marker="o", label=row["contender"])
                ax.set_title(f"{named(zip(('network', 'data', 'batch'), key))}: {value}")
                ax.set_xlabel("step")
                ax.legend()
    elif name == "scaling":
        blocks = groups(rows, "network", "backend")
        figure, axes = canvas(2, len(blocks), high=5.0)
        for index, (key, own) in enumerate(blocks.items()):
            most = max(row["point"]["workers"] for row in own)
            own_axes = axes[0][index], axes[1][index]
            if as_bars:
                bars_by_nodes(own_axes[0], [row for row in own if row["contender"] != "strangers"])
            else:
                lines(own_axes[0], own, "workers", SPEEDS[0])
                own_axes[0].set_ylim(bottom=0)
                own_axes[0].set_xticks(sorted({row["point"]["workers"] for row in own}))
            parts(own_axes[1], [row for row in own if row["point"]["workers"] == most])
            own_axes[0].set_title(", ".join(key))
            own_axes[1].set_title(f"{', '.join(key)}, {most} workers")
    elif name == "allreduce":
        blocks = groups(rows, "ranks")
        figure, axes = canvas(1, len(blocks))
        for ((ranks,), own), ax in zip(blocks.items(), axes[0]):
            lines(ax, own, "size", "seconds")
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_title(f"{ranks} ranks")
    elif name == "overlap":
        figure, axes = canvas(1, 1)
        parts(axes[0][0], rows)
    else:
        settings = dict.fromkeys(itertools.chain(*(row["point"] for row in rows)))
        settings = [name for name in settings if name not in ("workers", "checkpoint_every")]
        shown = [value for value in SPEEDS + ["peak_rss_mb"] if any(value in row["figures"] for row in rows)]
        shown = [value for value in shown if value != "examples_per_second" or "tokens_per_second" not in shown]
        blocks = groups(rows, *settings)
        figure, axes = canvas(len(blocks), len(shown))
        for (key, own), row_axes in zip(blocks.items(), axes):
            for ax, value in zip(row_axes, shown):
                bars(ax, own, value)
                ax.set_title(named(zip(settings, key)))
    machine = report["machine"]
    about = f"{machine['cpu']}, {machine['cores']} cores; medians of {report['plan']['rounds']} rounds"
    figure.suptitle(f"{name}: {about}; commit {machine['commit']}", fontsize="small", wrap=True)
    return figure


def draw_timeline(events, step):
    """One step of a timeline: a block for each rank and thread, with a lane for each level of nesting."""
    spans = [event for event in events if event["ph"] == "X"]
    steps = groups_by(sorted((s for s in spans if s["name"] == "step"), key=lambda s: s["ts"]), lambda s: s["pid"])
    count = min(map(len, steps.values()), default=0)
    step = count // 2 if step is None else step
    if step >= count:
        sys.exit(f"there is no step {step}: every rank has {count}")
    start = min(own[step]["ts"] for own in steps.values())
    end = max(own[step]["ts"] + own[step]["dur"] for own in steps.values())
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    inside = [s for s in spans if s["name"] != "epoch" and s["ts"] < end and s["ts"] + s["dur"] > start]
    threads = groups_by(sorted(inside, key=lambda s: (s["ts"], -s["dur"])), lambda s: (s["pid"], s["tid"]))
    kinds = list(dict.fromkeys(span["name"] for span in inside))
    figure, ((ax,),) = canvas(1, 1, wide=14, high=1 + 1.2 * len(threads))
    lane, ticks = 0, []
    for place in sorted(threads):
        ticks.append((lane, f"rank {place[0]}, {names.get(place, 'thread')}"))
        around, deepest = [], 0
        for span in threads[place]:
            around = [end_of for end_of in around if end_of > span["ts"]]
            left, right = max(span["ts"], start), min(span["ts"] + span["dur"], end)
            at = lane + len(around)
            ax.barh(at, (right - left) / 1e3, 0.9, (left - start) / 1e3, color=f"C{kinds.index(span['name'])}")
            about = next((span.get("args", {})[key] for key in ("bucket", "label", "op") if key in span.get("args", {})), "")
            if right - left > 0.03 * (end - start):
                words = f"{span['name']} {str(about).split(':')[0]}"
                ax.annotate(words, ((left - start) / 1e3, at), va="center", fontsize="x-small", clip_on=True)
            around.append(span["ts"] + span["dur"])
            deepest = max(deepest, len(around))
        lane += deepest + 1
    ax.set_yticks(*zip(*ticks))
    ax.invert_yaxis()
    ax.set_xlabel("milliseconds")
    ax.set_title(f"step {step}, {(end - start) / 1e3:.2f} ms. A span stands below the one around it.")
    return figure


def draw(args):
    document = json.loads(args.file.read_text())
    if "traceEvents" in document:
        figure = draw_timeline(document["traceEvents"], args.step)
    else:
        figure = draw_report(document, args.bars)
    figure.savefig(args.out, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--bars", action="store_true")
    parser.add_argument("--step", type=int)
    args = parser.parse_args()
    if args.file and args.out:
        return draw(args)
    figures = {"workers.svg": workers(), "all-reduce.svg": all_reduce()}
    if args.check:
        old = [name for name, svg in figures.items() if (DOCS / name).read_text() != svg]
        sys.exit(f"docs/{', docs/'.join(old)}: not what scripts/figures.py writes, run it" if old else 0)
    for name, svg in figures.items():
        (DOCS / name).write_text(svg)


main()
