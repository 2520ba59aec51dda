"""Pictures of several runs side by side: a comparison, and the ablations of one run."""

from evaluation.honesty import find_row
from experiment.figures import COLOURS, LINES, MARKERS, legend_below, panels, plain, point, refusal_plane


def draw_comparison(names, sets):
    """Refusals on unknown against over-refusal, a run a point (after, with its interval) and a line
    from where it began (before).
    """
    figure, (axis,) = panels(1, (8, 5))
    refusal_plane(axis)
    for n, (name, result) in enumerate(zip(names, sets)):
        before, after = find_row(result, "before"), find_row(result, "after")
        if None in [row[key] for row in (before, after) for key in ("over_refusal", "refusal_recall")]:
            continue
        colour, marker = COLOURS[n % 7], MARKERS[n % 12]
        axis.plot(
            [before["over_refusal"], after["over_refusal"]],
            [before["refusal_recall"], after["refusal_recall"]],
            color=colour,
            linewidth=0.7,
            alpha=0.6,
        )
        point(axis, {**before, "intervals": {}}, colour, marker, False)
        point(axis, after, colour, marker, True, plain(name))
    axis.legend(
        fontsize=8,
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        title="after (hollow: before)",
        title_fontsize=8,
    )
    return figure


def draw_ablation(rows, curves):
    """Refusals on unknown against over-refusal, a variant a point with its interval; validation
    against generated tokens.

    rows: ablate.summary's; curves: {variant: [[[tokens, balanced], ...] a seed]}.
    """
    figure, (points, lines) = panels(2, (13, 6))
    for n, row in enumerate(row for row in rows if "truthful" in row):
        bar = lambda key: [[row[key] - row[f"{key} low"]], [row[f"{key} high"] - row[key]]]
        points.errorbar(
            row["over_refusal"],
            row["refusal_recall"],
            bar("refusal_recall"),
            bar("over_refusal"),
            marker=MARKERS[n // 7 % 12],
            color=COLOURS[n % 7],
            linestyle="none",
            capsize=2,
            elinewidth=0.6,
            label=plain(row["variant"]),
        )
    points.set(xlabel="over-refusal: refused, of the known", ylabel="refused, of the unknown")
    for n, (name, seeds) in enumerate(curves.items()):
        for i, curve in enumerate(seeds):
            label = plain(name) if i == 0 else None
            if curve[-1][0]:
                lines.plot(
                    *zip(*curve),
                    marker=MARKERS[n // 7 % 12],
                    markersize=4,
                    color=COLOURS[n % 7],
                    linestyle=LINES[n // 7 % 4],
                    linewidth=0.9,
                    label=label,
                )
            else:  # nothing generated: its best look, as a level
                lines.axhline(max(y for _, y in curve), color=COLOURS[n % 7], linestyle=":", label=label)
    lines.set(
        xlabel="tokens generated in training",
        ylabel="validation: (accuracy on known + refusals on unknown) / 2",
        ylim=(0.4, 1.02),
    )
    legend_below(figure, lines, 5)
    return figure
