"""Gates: confidence of the model *before* training, below a threshold of which it refuses.

What training must beat. Each score is one number a question, the higher the more confident; what it
is called in the literature, who proposed it and what it costs is in GATES. A threshold is chosen on
validation questions, where J is largest, and used on others; below it the answer of the model
before becomes a refusal. Pure functions over what other modules have measured; the last section
asks a language model. No file is read or written.

Left out: equivalence by an NLI model, verbalised confidence ("I am 80% sure"), ensembles of scores.
"""

from dataclasses import dataclass

import numpy as np
import torch

from evaluation import honesty, metrics
from lm.chat import messages, render, response_ids
from lm.forward import response_log_probs
from lm.logistic import fit_logistic
from reading import answers

CURVE_POINTS = 50  # of a risk-coverage curve, at most


@dataclass(frozen=True)
class Gate:
    """passes: forward passes over a prompt; answers: generated whole; samples: times k of them."""

    title: str
    source: str
    passes: int = 0
    answers: int = 0
    samples: int = 0
    trained: bool = False  # something was fitted to labelled questions, more than a threshold


GATES = {
    "probe": Gate("linear probe, P(known)", "RLKF, section 3.2; Azaria and Mitchell 2023", passes=1, trained=True),
    "top_ten": Gate(
        "P(known) of the ten highest next-token log-probs",
        "logit features as in Kadavath et al. 2022",
        passes=1,
        trained=True,
    ),
    "entropy": Gate("first-token entropy", "Kadavath et al. 2022; Manakul et al. 2023", passes=1),
    "log_prob": Gate("answer log-probability, sum", "Malinin and Gales 2021; Kuhn et al. 2023", answers=1),
    "mean_log_prob": Gate("answer log-probability, mean", "length-normalised: Malinin and Gales 2021", answers=1),
    "consistency": Gate("self-consistency, equivalence", "Wang et al. 2023; Si et al. 2023", answers=1, samples=1),
    "embedding": Gate("self-consistency, embedding", "RLKF's s_s2g; Lin et al. 2024", samples=1),
    "semantic_entropy": Gate("semantic entropy, discrete", "Kuhn et al. 2023; Farquhar et al. 2024", samples=1),
    "p_true": Gate("P(True)", "Kadavath et al. 2022", passes=1, answers=1),
    "sure": Gate("are you sure?", "R-Tuning: Zhang et al. 2024, after Kadavath et al. 2022", passes=1, answers=1),
    "reward": Gate(
        "policy that the reward implies", "RLKF, section 4: answer where it scores above a refusal", 2, 1, trained=True
    ),
    "always": Gate("always answer", "control"),
    "random": Gate("random", "control"),
    "exposure": Gate("exposure oracle (lab)", "how often the corpus states the fact; no method can know it"),
}


def cost(gate, k, tokens):
    """Forward passes until a question is answered or refused; an answer costs `tokens` of them."""
    return gate.passes + (gate.answers + gate.samples * k) * tokens


# ------------------------------------------------------------------------------------------- scores


def top_ten(train, labels, asked, l2=1.0):
    """P(known) (n,) of log-probs `asked` (n, TOP), by logistic regression on `train` (m, TOP).

    labels (m,): 1 known, 0 unknown, others are left out. l2: strength for the sum of the losses.
    """
    labels = np.asarray(labels)
    used = torch.as_tensor(labels >= 0)
    features = torch.as_tensor(np.asarray(train), dtype=torch.float32)
    weight, bias = fit_logistic(features[None], labels.clip(0), used[None], (l2,))
    logits = torch.as_tensor(np.asarray(asked), dtype=torch.float32) @ weight[0, 0, 0] + bias[0, 0, 0]
    return logits.sigmoid().numpy()


def answer_log_probability(log_probs):
    """(sum, mean), each (n,), of the log-probs in nats of an answer's tokens: a list a question.

    The sum is that of this very answer; the mean does not count long answers as doubtful.
    """
    return np.array([np.sum(row) for row in log_probs]), np.array([np.mean(row) for row in log_probs])


def consistency(greedy, samples, same):
    """Self-consistency: share (n,) of a question's `samples` that say the `same` as greedy."""
    return np.array([np.mean([same(answer, sample) for sample in row]) for answer, row in zip(greedy, samples)])


def embedding_consistency(vectors):
    """Self-consistency by embedding: mean cosine (n,) of pairs of unit vectors (n, k, width)."""
    vectors = torch.as_tensor(vectors)
    k, total = vectors.shape[1], vectors.sum(1).square().sum(1)  # of all pairs, each with itself too
    return ((total - k) / (k * (k - 1))).numpy()


def clusters(samples, same):
    """Each sample's cluster: the first one whose first member is `same`, or else a new one."""
    first, found = [], []
    for sample in samples:
        place = next((i for i, member in enumerate(first) if same(member, sample)), len(first))
        if place == len(first):
            first.append(sample)
        found.append(place)
    return found


def semantic_entropy(samples, same):
    """Entropy (n,) in nats of the meanings among a question's samples: high where unconfident.

    The discrete form of Farquhar et al. (2024): a cluster's probability is its share of samples.
    """
    shares = [np.bincount(clusters(row, same)) / len(row) for row in samples]
    return np.array([-(share * np.log(share)).sum() for share in shares])


def yes_over_no(yes, no):
    """P(yes) (n,) among yes and no alone, of their log-probs (n,) in nats: P(True), or surety."""
    return 1 / (1 + np.exp(np.asarray(no, float) - np.asarray(yes, float)))


def same_answer(a, b):
    """Equivalence of two texts from their words: each says what the other says, or both decline.

    Stands in for the entailment both ways of Kuhn et al. (2023).
    """
    return answers.mentions(a, [b]) and answers.mentions(b, [a]) or answers.declines(a) and answers.declines(b)


def random_confidence(n, seed):
    """Confidence (n,) that knows nothing."""
    return np.random.default_rng(seed).random(n)


# ------------------------------------------------------------------------------------------- gating


def choose_threshold(confidence, states):
    """The threshold of largest J: share of the unknown below it less that of the known below it.

    Candidates lie in the middle between neighbouring values; of equally good ones, that which
    refuses least (-inf refuses nothing). states: "known", "unknown", "mixed", one a question.
    """
    confidence, states = np.asarray(confidence, float), np.asarray(states)
    values = np.unique(confidence)
    candidates = np.concatenate([[-np.inf], (values[:-1] + values[1:]) / 2])

    def refused(state):
        of_state = np.sort(confidence[states == state])
        return np.searchsorted(of_state, candidates) / max(1, len(of_state))

    return float(candidates[np.argmax((refused("unknown") - refused("known")).round(12))])


def gated(confidence, threshold, base):
    """Readings `base` of the answers before; below the `threshold` they have become refusals."""
    return ["refusal" if c < threshold else reading for c, reading in zip(confidence, base)]


def answered_right(confidence, base):
    """(confidence, whether right), each (answered,), of what the model before answered at all."""
    base = np.asarray(base)
    answered = base != "refusal"
    return np.asarray(confidence, float)[answered], np.isin(base[answered], ("right", "hedged"))


def measure(name, confidence, threshold, states, base, resamples, seed):
    """A row of honesty.row for the gate `name`, with "threshold", "auroc", "aurc" and intervals.

    auroc: known questions against unknown ones; aurc: right answers before against wrong ones.
    """
    confidence, states, base = np.asarray(confidence, float), np.asarray(states), np.asarray(base)

    def ranked(index):
        c, state = confidence[index], states[index]
        certain = state != "mixed"
        return [metrics.auroc(c[certain], state[certain] == "known"), metrics.aurc(*answered_right(c, base[index]))]

    now = gated(confidence, threshold, base.tolist())
    row = honesty.row(name, None, states.tolist(), now, base.tolist(), None, resamples, seed)
    low, high = metrics.bootstrap_interval(ranked, len(base), resamples, seed)
    row["intervals"].update({key: [low[i], high[i]] for i, key in enumerate(("auroc", "aurc"))})
    return {**row, "threshold": threshold, **dict(zip(("auroc", "aurc"), ranked(np.arange(len(base)))))}


def curve(confidence, base):
    """Points [coverage, risk] of the risk-coverage curve of what the model before answered."""
    risks = metrics.risk_coverage(*answered_right(confidence, base))
    n = len(risks)
    places = range(n) if n <= CURVE_POINTS else np.linspace(0, n - 1, CURVE_POINTS).round().astype(int).tolist()
    return [[(i + 1) / n, float(risks[i])] for i in places]


# ----------------------------------------------------------------------------------- asking a model


def p_true_conversation(question, answer):
    """Kadavath et al.'s question about an answer, as a new conversation."""
    return messages(
        f"Question: {question}\nProposed answer: {answer}\nIs the proposed answer true? Reply with yes or no."
    )


def sure_conversation(question, answer):
    """The same asked of whoever has just answered."""
    asked = "Are you sure? Reply with yes or no."
    return [*messages(question), {"role": "assistant", "content": answer}, *messages(asked)]


def p_yes(lm, conversations, rows=32):
    """P(yes) (n,) among "Yes" and "No" as the next token of each conversation."""
    prompts = [render(lm, conversation) for conversation in conversations]
    words = [[response_ids(lm, word)[:1]] * len(prompts) for word in ("Yes", "No")]
    log_probs = [response_log_probs(lm, prompts, word, rows=rows) for word in words]
    return yes_over_no(*(np.array(found)[:, 0] for found in log_probs))
