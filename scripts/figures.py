"""Writes the figures of docs/communication.md: docs/workers.svg and docs/all-reduce.svg. Run from anywhere:

    python3 scripts/figures.py            writes them
    python3 scripts/figures.py --check    says whether they are what this script writes

Python's standard library is enough. A figure is a card with a colour of its own, so it is readable on light and on
dark pages. Browsers that prefer dark pages get a dark card.
"""

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


def main():
    figures = {"workers.svg": workers(), "all-reduce.svg": all_reduce()}
    if sys.argv[1:] == ["--check"]:
        old = [name for name, svg in figures.items() if (DOCS / name).read_text() != svg]
        sys.exit(f"docs/{', docs/'.join(old)}: not what scripts/figures.py writes, run it" if old else 0)
    for name, svg in figures.items():
        (DOCS / name).write_text(svg)


main()
