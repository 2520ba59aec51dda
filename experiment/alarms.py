"""What PPO's figures say to the person who watches: plain sentences on what looks wrong."""

import math


def abstention(figures):
    """A sentence on how often the policy abstains before the first update (figures of the first
    step), and whether that is too rare.
    """
    unguided, guided = figures["refusals_unknown"], figures["refusals_guided"]
    nothing = guided < 0.02 and not unguided >= 0.02
    return (
        f"{'-' if math.isnan(unguided) else f'{unguided:.0%}'} of unguided answers to unknown questions and"
        f" {guided:.0%} of guided answers refuse"
        + ("; there is next to nothing to reinforce (a warm-up, --sft.steps, would help)" if nothing else "")
    )


def alarms(figures, start, balanced, balanced_at_start):
    """Plain sentences about what looks wrong in a step's figures, beside those of the first step
    (`start`).

    `balanced` is the validation questions' mean of known accuracy and refusal recall, now and
    before the first step.
    """
    found, refused_at_start = [], start["refusals_known"] if math.isfinite(start["refusals_known"]) else 0.0
    if figures["first_ratio_off"] > 1e-3:
        found.append(
            f"the first ratio is off 1 by {figures['first_ratio_off']:.1e}: old log-probabilities are not this policy's"
        )
    if figures["reward_deviation"] < 1e-4:
        found.append("all rewards of the step are equal: there is nothing to learn from")
    if figures["refusals_known"] > refused_at_start + 0.1:
        found.append(f"refusals on known questions rose from {refused_at_start:.0%} to {figures['refusals_known']:.0%}")
    if figures["reward"] > start["reward"] and balanced < balanced_at_start - 0.02:
        found.append(
            f"the reward rose to {figures['reward']:.2f}, but balanced on the validation questions fell to"
            f" {balanced:.3f}"
        )
    if figures["skipped"]:
        found.append("an update was skipped: its gradients were not finite")
    return found
