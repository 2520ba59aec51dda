"""What PPO takes for the value of a state: a linear head on the policy's own trunk, or a model of its own.

The head costs nothing beside the policy's forward pass and is the default. The separate critic starts from the reward
model, as in Ouyang et al.: its values are rewards from the first step on, and its gradient touches the policy only in that
both are clipped to one norm; it costs a second model with its moments. Where the reward model reads P(known), the critic
takes the output that does not. Left out: a critic that shares a part of the trunk.
"""
import torch

import optim
from forward import forward_arguments, response_positions


class Critic(torch.nn.Module):
    """The trunk of a reward.RewardModel with one output; values start as its normalised scores of what is written so far.

    Of a head that reads P(known) the scores are those at P(known) = 1/2.
    """

    def __init__(self, model):
        super().__init__()
        weight = model.lm.model.score.weight.detach()[:1]                        # (1, width)
        self.trunk, self.autocast = model.lm.model.base_model, model.lm.autocast
        self.head = torch.nn.Linear(weight.shape[1], 1).to(weight.device)
        with torch.no_grad():
            self.head.weight.copy_(weight / model.std)
            self.head.bias.fill_(-model.mean / model.std)

    def forward(self, batch):
        """Values (tokens,) float32 of the states before each response token of a forward.Batch, tokens in row-major order."""
        with self.autocast():
            states = self.trunk(**forward_arguments(self.trunk, batch)).last_hidden_state   # (batch, own time, width)
        return self.head(states[response_positions(batch)].float())[:, 0]


def new_value_head(policy):
    """A linear layer from the policy's last hidden state to one value, zero at the start, in float32."""
    width = policy.model.get_output_embeddings().weight.shape[1]
    head = torch.nn.Linear(width, 1).to(policy.device)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def values(critic, hidden, batch):
    """Values (tokens,) by either kind: `hidden` (tokens, width) are the policy's states, `batch` is what they come from."""
    return critic(batch) if isinstance(critic, Critic) else critic(hidden)[:, 0]


def new_optimizer(policy, critic, config):
    """AdamW with one group for the policy and one for the value head or critic (config: ppo.PPOConfig)."""
    return optim.adamw([{"params": list(policy.model.parameters()), "lr": config.lr},
                        {"params": list(critic.parameters()), "lr": config.value_lr}])
