"""What a model's output distribution says of a question and of an answer, before any training.

The model before RLKF often tells what it knows less by its hidden states than by how sure its own
next tokens are: the entropy of the first token, the log-probability of the answer (Kadavath et al.,
2022; Malinin and Gales, 2021). The reward model can read them beside the text. Left out: anything
that needs several samples.
"""

from dataclasses import replace

import numpy as np
import torch

from lm.batching import batches_by_length, behind_prefix, cache_argument, check_lengths, read_prefix
from lm.chat import decode
from lm.forward import entropy, response_log_probs
from lm.sampling import generate
from reading import answers

TOP = 10  # next-token log-probabilities that a regression reads
QUANTITIES = ("log_prob", "entropy", "greedy_log_prob", "p_known")  # what is read, in nats; p_known as a logit
FEATURES = (  # which of them count for a refusal, and which for an answer; a question alone ranks nothing
    "refusal",
    "refusal x entropy",
    "refusal x greedy_log_prob",
    "refusal x p_known",
    "answer x log_prob",
    "answer x entropy",
    "answer x p_known",
)


@torch.no_grad()
def first_token_log_probs(lm, prompts, rows=32):
    """(entropy (n,) in nats, highest log-probs (n, TOP) in falling order) of the next token."""
    check_lengths(lm, prompts)
    prefix = read_prefix(lm, prompts)
    uncertainty, highest = np.zeros(len(prompts)), np.zeros((len(prompts), TOP))
    for batch in batches_by_length([len(p) for p in prompts], rows):
        inputs, cache = behind_prefix(lm, [prompts[i] for i in batch], prefix)
        with lm.autocast():
            to_cache = {cache_argument(lm.model): cache, "use_cache": True, "logits_to_keep": 1}
            logits = lm.model(**inputs, **to_cache).logits
        log_p = logits[:, -1].float().log_softmax(-1)
        uncertainty[batch] = entropy(log_p).cpu().numpy()
        highest[batch] = log_p.topk(TOP).values.cpu().numpy()
    return uncertainty, highest


class OutputReader:
    """Reads QUANTITIES off a model that does not change; what was read once is kept."""

    def __init__(self, lm, sampling, rows=64):
        self.lm, self.sampling, self.rows = lm, replace(sampling, temperature=0.0), rows
        self.of_prompt = {}  # prompt ids -> (entropy, log-probability of the greedy answer)
        self.of_pair = {}  # (prompt ids, response ids) -> (log-probability, refuses)

    def read_prompts(self, prompts):
        """Fill `of_prompt` for the prompts that are new."""
        new = [list(p) for p in dict.fromkeys(map(tuple, prompts)) if p not in self.of_prompt]
        if not new:
            return
        entropies, _ = first_token_log_probs(self.lm, new, self.rows)
        greedy = [r[0] for r in generate(self.lm, new, self.sampling)]
        log_probs = response_log_probs(self.lm, new, greedy, rows=self.rows)
        for prompt, h, tokens in zip(new, entropies.tolist(), log_probs):
            self.of_prompt[tuple(prompt)] = h, float(sum(tokens))

    def read_pairs(self, prompts, responses):
        """Fill `of_pair` for the pairs that are new."""
        pairs = dict.fromkeys((tuple(p), tuple(r)) for p, r in zip(prompts, responses))
        new = [(list(p), list(r)) for p, r in pairs if (p, r) not in self.of_pair]
        if not new:
            return
        log_probs = response_log_probs(self.lm, *map(list, zip(*new)), rows=self.rows)
        for (p, r), tokens in zip(new, log_probs):
            refuses = answers.read(decode(self.lm, r), []) == "refusal"
            self.of_pair[tuple(p), tuple(r)] = float(sum(tokens)), refuses

    def __call__(self, prompts, responses, p_known):
        """(quantities (n, 4), refuses (n,)) float32 on the CPU, of prompts with responses (ids)."""
        self.read_prompts(prompts)
        self.read_pairs(prompts, responses)
        rows, refuses = [], []
        for prompt, response, p in zip(prompts, responses, p_known):
            log_prob, refusal = self.of_pair[tuple(prompt), tuple(response)]
            h, greedy = self.of_prompt[tuple(prompt)]
            rows.append((log_prob, h, greedy, p))
            refuses.append(float(refusal))
        quantities = torch.tensor(rows, dtype=torch.float32)
        quantities[:, 3] = quantities[:, 3].clamp(1e-4, 1 - 1e-4).logit()
        return quantities, torch.tensor(refuses)


def features(quantities, refuses, mean, std):
    """FEATURES (n, 7) of quantities (n, 4), each first brought to mean 0 and deviation 1 by `mean`
    and `std` (4,) and kept within 4 deviations, so that no single answer rules.
    """
    log_prob, h, greedy, known = ((quantities - mean) / std).clamp(-4, 4).T
    answer = 1 - refuses
    columns = (refuses, refuses * h, refuses * greedy, refuses * known, answer * log_prob, answer * h, answer * known)
    return torch.stack(columns, 1)
