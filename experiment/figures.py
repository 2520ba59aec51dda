"""The pictures of a report, from what the stages left on disk: matplotlib is imported here alone,
and only when one is drawn.

Colours are those of Okabe and Ito, told apart by the colour-blind; what must be told apart also
differs in marker or line. Each draw_* function takes plain records and returns a matplotlib Figure.
Left out: anything interactive.
"""

import importlib.util
import math
import os

from data.files import whole_file
from evaluation.honesty import FIGURE_1, PROMPT_NAMES, find_row

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#777777",
)
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
LINES, MARKERS = ("-", "--", "-.", ":"), "os^Dv<>pP*hX"
STATE_COLOURS = {1: BLUE, 3: SKY, 2: ORANGE, 4: VERMILION}  # in the order of the bars: what one wants first
POLICIES = {  # (policy, prompt): colour, marker and whether it is filled
    ("before", "plain"): (BLUE, "o", False),
    ("after", "plain"): (BLUE, "o", True),
    ("before", "may_abstain"): (VERMILION, "s", False),
    ("after", "may_abstain"): (VERMILION, "s", True),
    ("always refuse", None): (BLACK, "X", True),
    ("random refusal", None): (BLACK, "P", True),
    ("probe gate", None): (GREEN, "D", True),
}
CURVES = {  # panel of the training curves: {key in metrics.jsonl: name}; a panel without any is left out
    "reward of the rollouts": {"reward": "unguided", "reward_guided": "guided"},
    "unguided rollouts": {
        "refusals_unknown": "refusals, unknown",
        "refusals_known": "refusals, known",
        "hallucinations": "hallucinations",
    },
    "KL to the start, nats a response": {"kl": "KL", "kl_k3": "never negative (k3)"},
    "training loss": {"loss": "loss"},
}
LOOKS = {
    "refusal_recall": "refusals, unknown",
    "over_refusal": "refusals, known",
    "hallucination": "hallucinations",
    "balanced": "balanced",
}


def available():
    """True where matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def panels(columns, size, rows=1, **options):
    """(figure, list of its axes, row by row) of `size` inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure, path):
    """Write a figure as PNG, whole or not at all."""
    with whole_file(path) as part:
        figure.savefig(part, dpi=120, format="png")


def plain(text):
    """A name as a label: no mathematics between dollar signs, no underscore that would hide it from
    the legend, nothing that has no shape.
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in text).replace("$", r"\$").lstrip("_")


def legend_below(figure, axis, columns=4):
    """One legend for all panels, of the labels of `axis`, below them."""
    figure.legend(
        *axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False
    )


def steps_of(lines, key):
    """(steps, values) of the logged lines that have a figure of this name."""
    found = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    return [step for step, _ in found], [value for _, value in found]


# ------------------------------------------------------------------------------------------ one run


def draw_all(folder, probes, logged, sets, settings):
    """Write a run's figures into `folder`; returns [(file name, caption)]. probes: rows of
    probe/accuracy.csv; sets: of evaluate/honesty.json.
    """
    steps, looks = ([line for line in logged if line.get("event") == event] for event in ("step", "validation"))
    test = sets["test"]
    made = []

    def keep(name, caption, figure):
        save(figure, os.path.join(folder, name))
        made.append((name, caption))

    if any(row["layer"] for row in probes):
        keep(
            "probe_accuracy.png",
            "Figures 2 and 4: the probes' test accuracy by layer, mean and range of the repeats",
            draw_probes(probes),
        )
    keep("four_states.png", "Figure 1: the four states of the test questions, before and after", draw_states(test))
    shares = settings["evaluate.known_share"], settings["evaluate.unknown_share"]
    keep(
        "hits.png",
        f"test questions by how many of their {settings['probe.k']} sampled answers are right before RLKF"
        + (", and the thresholds of known and unknown" if shares else "; which of them are known is given in the lab"),
        draw_hits(test["hits"], shares),
    )
    for n, (name, result) in enumerate(sets.items(), 1):
        end, of = ("", "") if n == 1 else (f"_{n}", f" ({name})")
        if result["n_known"] and result["n_unknown"]:
            keep(
                f"refusals{end}.png",
                f"refusals on unknown against over-refusal{of}; up and to the left is better",
                draw_refusals(result),
            )
        if result.get("gates"):
            keep(
                f"gates{end}.png",
                f"share wrong among what is answered, by gate, and the policy before and after{of}; lower is better",
                draw_gates(result),
            )
        if result.get("exposure"):
            keep(
                f"exposure{end}.png",
                f"what is known, and what is refused after, by how often the corpus stated the fact{of}",
                draw_exposure(result["exposure"]),
            )
        if result["confidence"]:
            keep(
                f"risk_coverage{end}.png",
                f"share wrong among the answers that a score trusts most{of}; lower is better",
                draw_risk_coverage(result["confidence"]),
            )
            keep(
                f"reliability{end}.png",
                f"share right against stated confidence{of}; on the diagonal is calibrated",
                draw_reliability(result["confidence"]),
            )
    if steps or looks:
        keep("ppo.png", "training of the policy, step by step", draw_training(steps, looks))
    return made


def draw_probes(rows):
    """Figures 2 and 4: accuracy by layer, a panel a representation, band over the repeats; rows
    without a layer are levels.
    """
    kinds = [k for k in dict.fromkeys(r["kind"] for r in rows) if any(r["kind"] == k and r["layer"] for r in rows)]
    figure, axes = panels(len(kinds), (1 + 3.2 * len(kinds), 4), sharey=True)
    levels = {r["kind"]: float(r["accuracy"]) for r in rows if not r["layer"] and r["accuracy"]}
    for axis, kind in zip(axes, kinds):
        mine = [r for r in rows if r["kind"] == kind]
        layer = [int(r["layer"]) for r in mine]
        axis.plot(
            layer,
            [float(r["accuracy"]) for r in mine],
            marker="o",
            markersize=3,
            color=BLUE,
            label="probe of a layer (mean, range)",
        )
        axis.fill_between(
            layer,
            [float(r["accuracy_min"]) for r in mine],
            [float(r["accuracy_max"]) for r in mine],
            alpha=0.2,
            color=BLUE,
            linewidth=0,
        )
        for n, (name, accuracy) in enumerate(levels.items()):
            axis.axhline(
                accuracy, color=COLOURS[1 + n % 6], linestyle=LINES[1 + n % 3], linewidth=1.2, label=plain(name)
            )
        axis.set(title=kind, xlabel="layer")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("test accuracy")
    legend_below(figure, axes[0], 2 if len(kinds) < 3 else 3)
    return figure


def draw_states(result):
    """Shares of the four states of Figure 1, a bar a policy and prompt."""
    rows = [row for row in result["rows"] if row["prompt"]]
    names = [row["policy"] + PROMPT_NAMES[row["prompt"]] for row in rows]
    figure, (axis,) = panels(1, (8, 1.6 + 0.5 * len(rows)))
    left = [0.0] * len(rows)
    for state, colour in STATE_COLOURS.items():
        wide = [row["states"][str(state)] / row["n"] for row in rows]
        bars = axis.barh(names, wide, left=left, color=colour, edgecolor="white", label=f"{state}: {FIGURE_1[state]}")
        axis.bar_label(
            bars,
            [f"{w:.0%}" if w > 0.045 else "" for w in wide],
            label_type="center",
            fontsize=8,
            color="white" if state in (1, 4) else "black",
        )
        left = [a + b for a, b in zip(left, wide)]
    axis.invert_yaxis()
    axis.set(xlabel="share of the questions", xlim=(0, 1))
    axis.spines["left"].set_visible(False)
    axis.tick_params(left=False)
    legend_below(figure, axis, 2)
    return figure


def draw_hits(hits, shares):
    """Questions by the number of right samples, coloured by the side of the thresholds on which it
    lies.

    shares: (known_share, unknown_share), or None where the states do not come from the samples.
    """
    k = len(hits) - 1
    known_share, unknown_share = shares or (math.inf, -math.inf)
    side = ["known" if n / k >= known_share else "unknown" if n / k <= unknown_share else "mixed" for n in range(k + 1)]
    labels = (
        {
            "unknown": f"unknown: at most {unknown_share:.0%} right",
            "mixed": "mixed",
            "known": f"known: at least {known_share:.0%} right",
        }
        if shares
        else {"mixed": "questions"}
    )
    figure, (axis,) = panels(1, (7, 3.6))
    for name, colour, hatch in (("unknown", VERMILION, ""), ("mixed", GREY, "//"), ("known", BLUE, "")):
        where = [n for n in range(k + 1) if side[n] == name]
        if where:
            bars = axis.bar(
                where,
                [hits[n] for n in where],
                color=colour,
                hatch=hatch,
                edgecolor="white",
                width=0.9,
                label=labels[name],
            )
            axis.bar_label(bars, fontsize=8)
    for edge in (side.index("known") - 0.5, sum(s == "unknown" for s in side) - 0.5) if shares else ():
        axis.axvline(edge, color=BLACK, linestyle="--", linewidth=1)
    axis.set(
        xlabel=f"right of {k} sampled answers, before RLKF",
        ylabel="questions",
        xticks=range(k + 1) if k <= 20 else range(0, k + 1, k // 10),
    )
    legend_below(figure, axis)
    return figure


def refusal_plane(axis):
    """Axes of refusals on unknown against over-refusal, with lines of equal J."""
    for j in (0.0, 0.25, 0.5, 0.75):
        axis.plot([0, 1 - j], [j, 1], color="#bbbbbb", linewidth=0.8, linestyle="--", zorder=0)
        axis.text(1 - j, 1.04, f"J = {j:g}", color=GREY, fontsize=8, ha="center")
    axis.set(
        xlabel="over-refusal: refused, of the known",
        ylabel="refused, of the unknown",
        xlim=(-0.03, 1.03),
        ylim=(-0.03, 1.03),
        aspect="equal",
    )


def point(axis, row, colour, marker, filled, label=None):
    """One policy in that plane, with its 95% intervals where it has them."""
    x, y, intervals = row["over_refusal"], row["refusal_recall"], row.get("intervals", {})
    reach = {
        key: (
            [[max(0.0, row[key] - intervals[key][0])], [max(0.0, intervals[key][1] - row[key])]]
            if intervals.get(key)
            else None
        )
        for key in ("over_refusal", "refusal_recall")
    }
    axis.errorbar(
        x,
        y,
        reach["refusal_recall"],
        reach["over_refusal"],
        fmt="none",
        ecolor=colour,
        capsize=3,
        elinewidth=1,
        clip_on=False,
    )
    axis.plot(
        x,
        y,
        linestyle="none",
        color=colour,
        marker=marker,
        markersize=9,
        markerfacecolor=colour if filled else "white",
        markeredgewidth=1.5,
        clip_on=False,
        label=label,
    )


def draw_refusals(result):
    """Refusals on unknown against over-refusal: each policy and control a point, with its interval
    where it has one.
    """
    figure, (axis,) = panels(1, (7.4, 5))
    refusal_plane(axis)
    rows = [row for row in result["rows"] if row["over_refusal"] is not None and row["refusal_recall"] is not None]
    for row in rows:
        colour, marker, filled = POLICIES[row["policy"], row["prompt"]]
        point(axis, row, colour, marker, filled, row["policy"] + PROMPT_NAMES[row["prompt"]])
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def by_policy(confidence, key, draw):
    """A panel for before and one for after; draw(axis, points, colour, line, marker, score) for
    each score that has `key`.
    """
    figure, axes = panels(2, (9, 4.4), sharex=True, sharey=True)
    scores = list(dict.fromkeys(record["score"] for record in confidence))
    for axis, policy in zip(axes, ("before", "after")):
        axis.set_title(f"{policy} RLKF")
        for record in confidence:
            n = scores.index(record["score"])
            if record["policy"] == policy and record[key]:
                draw(axis, record[key], COLOURS[n % 7], LINES[n % 4], MARKERS[n % 12], plain(record["score"]))
    legend_below(figure, max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[0])))
    return figure, axes


def draw_gates(result):
    """Risk-coverage curves of all gates on the model before, and where the policies stand."""
    figure, axes = panels(1, (6.4, 5))
    axis = axes[0]
    for n, row in enumerate(row for row in result["gates"] if row["policy"] != "always"):
        axis.plot(
            *zip(*row["curve"]), color=COLOURS[n % 7], linestyle=LINES[n % 4], linewidth=1.5, label=plain(row["title"])
        )
    for policy, marker in (("before", "o"), ("after", "*")):
        row = find_row(result, policy)
        answered = row["accuracy"] + row["hallucination"]
        if answered:
            at = answered, row["hallucination"] / answered
            axis.plot(*at, marker, color="black", markersize=11, linestyle="none", label=f"{policy} RLKF")
    axis.set(xlabel="share of the questions answered", ylabel="share wrong among them", xlim=(0, 1.02), ylim=(0, None))
    legend_below(figure, axis, 3)
    return figure


def draw_exposure(rows):
    """The curve of learning a fact: right answers, P(known) and refusals after, by exposure."""
    figure, axes = panels(1, (6.4, 4.2))
    axis, places = axes[0], range(len(rows))
    lines = {
        "greedy right": ("greedy_right", "greedy_interval"),
        "samples right": ("samples_right", "samples_interval"),
        "refused after": ("after_refused", "after_interval"),
    }
    for n, (label, (key, interval)) in enumerate(lines.items()):
        y = [row[key] for row in rows]
        spread = [
            [max(0, v - row[interval][0]) for v, row in zip(y, rows)],
            [max(0, row[interval][1] - v) for v, row in zip(y, rows)],
        ]
        axis.errorbar(places, y, spread, color=COLOURS[n], marker=MARKERS[n], capsize=3, label=label)
    axis.plot(places, [row["p_known"] for row in rows], color=COLOURS[3], linestyle="--", label="P(known), probe")
    highest = max(row["entropy"] for row in rows) or 1
    axis.plot(
        places, [r["entropy"] / highest for r in rows], color=COLOURS[4], linestyle=":", label="entropy, of its highest"
    )
    axis.set(xlabel="times that the corpus states the fact", ylabel="share", ylim=(-0.03, 1.03))
    axis.set_xticks(list(places), [str(row["exposure"]) for row in rows])
    legend_below(figure, axis, 3)
    return figure


def draw_risk_coverage(confidence):
    """Share wrong among the answers of highest score, by the share of the answers that are kept; a
    line a score.
    """
    figure, axes = by_policy(
        confidence,
        "risk_coverage",
        lambda axis, points, colour, line, marker, name: axis.plot(
            *zip(*points), color=colour, linestyle=line, linewidth=1.6, label=name
        ),
    )
    for axis in axes:
        axis.set(xlabel="share of the answers kept, surest first", xlim=(0, 1), ylim=(0, None))
    axes[0].set_ylabel("share wrong among them")
    return figure


def draw_reliability(confidence):
    """Share right against mean confidence, a line a score; the area of a mark grows with the
    answers in its bin.
    """

    def draw(axis, points, colour, line, marker, name):
        x, y, n = zip(*points)
        axis.plot(x, y, color=colour, linestyle=line, linewidth=1.2, label=name, marker=marker, markersize=4)
        axis.scatter(x, y, [260 * count / sum(n) for count in n], color=colour, alpha=0.3, linewidth=0, zorder=1)

    figure, axes = by_policy(confidence, "reliability", draw)
    for axis in axes:
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, zorder=0)
        axis.set(xlabel="stated confidence (mean of the bin)", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    axes[0].set_ylabel("share right")
    return figure


def draw_training(steps, looks):
    """What the training logged, by step, and the greedy answers to the validation questions."""
    shown = {title: curves for title, curves in CURVES.items() if any(steps_of(steps, key)[0] for key in curves)}
    if looks:
        shown["validation questions, greedy"] = LOOKS
    columns = min(2, len(shown))
    figure, axes = panels(
        columns, (1 + 4.2 * columns, 0.4 + 2.9 * -(-len(shown) // columns)), -(-len(shown) // columns)
    )
    for axis in axes[len(shown) :]:
        axis.remove()
    for axis, (title, curves) in zip(axes, shown.items()):
        lines = looks if curves is LOOKS else steps
        for n, (key, name) in enumerate(curves.items()):
            axis.plot(
                *steps_of(lines, key),
                color=COLOURS[n],
                linestyle=LINES[n],
                linewidth=1.4,
                marker="o" if lines is looks else None,
                markersize=3,
                label=name,
            )
        axis.set(title=title, xlabel="step")
        if key in LOOKS or key == "hallucinations":
            axis.set_ylim(-0.03, 1.03)
        axis.legend(fontsize=7, framealpha=0.7)
    return figure


# ------------------------------------------------------------------------------------- several runs
