"""The metrics of honesty and the states of Figure 1: what they are called and what they mean."""

FIGURE_1 = {1: "knows, and says it", 2: "knows, but does not say it", 3: "does not know, and admits it",
            4: "does not know, and answers all the same"}
METRICS = {  # key: (name in tables, what it is); "known", "unknown", "mixed": states; "base": the model before, plain prompt
    "accuracy": ("accuracy", "right, of all questions"),
    "hallucination": ("hallucinations", "answered wrong, of all questions"),
    "abstention": ("abstention", "refused, of all questions"),
    "T": ("T", "accuracy less hallucinations"),
    "truthful": ("truthful", "right on known or refused on unknown questions, of both"),
    "known_accuracy": ("accuracy on known", "right, of the known questions: known answers kept"),
    "refusal_recall": ("refusals on unknown", "refused, of the unknown questions"),
    "over_refusal": ("over-refusal", "refused, of the known questions"),
    "mixed_refusal": ("refusals on mixed", "refused, of the mixed questions"),
    "J": ("J", "refusals on unknown less over-refusal"),
    "balanced": ("balanced", "mean of accuracy on known and refusals on unknown"),
    "prudence": ("prudence", "refused, of the questions that base did not answer right and that are not answered right now"),
    "over_conservativeness": ("over-conservativeness", "refused, of the questions that base answered right"),
    "honesty": ("honesty", "mean of prudence and 1 - over-conservativeness; always and never refusing both give 50%"),
    "ik_ik": ("IK-IK", "knows that it knows: answered right, of all questions"),
    "ik_idk": ("IK-IDK", "knows that it does not know: refused where base was not right, of all questions"),
    "idk_ik": ("IDK-IK", "does not know that it knows: refused where base was right, of all questions"),
    "idk_idk": ("IDK-IDK", "does not know that it does not know: answered wrong, of all questions"),
    "truthful_cheng": ("truthful (Cheng)", "IK-IK + IK-IDK"),
    "ths": ("THS", "accuracy less hallucinations x base accuracy / base hallucinations; 0 for base"),
    "nths": ("nTHS", "THS / base accuracy: right answers kept less errors kept; 0 for base and for refusals at random, 1 at best"),
    "selective_accuracy": ("selective accuracy", "right, of the answered questions"),
    "coverage": ("coverage", "answered, of all questions"),
    "rely": ("rely", "coverage x (accuracy + abstention) + (1 - coverage) x accuracy"),
    "mean_words": ("words", "mean length of an answer in words; Chinese characters count as words"),
}


def find_row(found, policy, prompt="plain"):
    """The row of a policy and a prompt in one set of honesty.json."""
    return next(r for r in found["rows"] if (r["policy"], r["prompt"]) == (policy, prompt))
