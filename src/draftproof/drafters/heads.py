"""The heads as torch modules, in the arithmetic and with the tensor names that vLLM loads.

Slot i of a text holds what the engine gives a head at position i: the target's state after token i, and token i + 1.
The head answers with a guess of token i + 2. Its k-th guess in a row reads its own output in place of the target's
state, while earlier positions keep what came from the target: ``Attention`` has keys of both kinds (training-time test
of EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from draftproof.drafters.features import FINAL


class Sizes(NamedTuple):
    """What a head takes from the target's configuration."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float

    @classmethod
    def of(cls, config: Any) -> Sizes:
        theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            config.hidden_size, config.intermediate_size, config.num_attention_heads, config.num_key_value_heads,
            head_dim, config.rms_norm_eps, float(theta),
        )  # fmt: skip


class Norm(nn.Module):
    """RMS norm, in float32 as the engine does it."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        full = x.float()
        return full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Context(NamedTuple):
    """Where the slots of a batch lie; texts are aligned at their ends."""

    rotation: tuple[Tensor, Tensor]
    """Cosines and sines, [batch, 1, slots, head_dim]."""
    first: Tensor
    """[batch]: the first slot that is not padding."""
    window: int
    """The last slots, in which the head guesses."""

    @property
    def window_rotation(self) -> tuple[Tensor, Tensor]:
        cosines, sines = self.rotation
        return cosines[:, :, -self.window :], sines[:, :, -self.window :]


def rotary(position: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Llama's rotary embedding of positions [batch, slots]."""
    steps = torch.arange(0, sizes.head_dim, 2, device=position.device, dtype=torch.float32) / sizes.head_dim
    angle = position[..., None].float() * sizes.rope_theta**-steps
    angle = torch.cat([angle, angle], -1)[:, None]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * rotation[0] + turned * rotation[1]


def shifted(x: Tensor, by: int, dim: int) -> Tensor:
    """`x` moved `by` slots to later ones; what enters at the front is never read by a guess that counts."""
    return torch.roll(x, by, dim) if by else x


class Attention(nn.Module):
    """Grouped-query attention over the target's slots and the guesses in between."""

    def __init__(self, sizes: Sizes, inputs: int) -> None:
        super().__init__()
        self.sizes = sizes
        kv = sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(inputs, sizes.heads * sizes.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, kv, bias=False)
        self.v_proj = nn.Linear(inputs, kv, bias=False)
        self.o_proj = nn.Linear(sizes.heads * sizes.head_dim, sizes.hidden, bias=False)

    def keys(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, heads, slots, head_dim] of inputs [batch, slots, inputs]."""
        groups = self.sizes.heads // self.sizes.kv_heads
        k, v = (
            p(x).unflatten(-1, (self.sizes.kv_heads, -1)).transpose(1, 2).float() for p in (self.k_proj, self.v_proj)
        )
        return rotate(k, rotation).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)

    def forward(self, x: Tensor, context: Context, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attention output of `x` [batch, window, inputs]: the guess in the chain's last place.

        `chain[0]` are keys and values of all slots, from the target; `chain[m]` those of m-th guesses, of the window.
        """
        depth, window = len(chain) - 1, context.window
        rotation = context.window_rotation
        q = rotate(self.q_proj(x).unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2).float(), rotation)
        q = q * self.sizes.head_dim**-0.5
        keys, values = chain[0]
        slot = torch.arange(keys.shape[2], device=x.device)
        now = slot[-window:, None] - depth
        seen = (slot[None, None] <= now[None]) & (slot[None, None] >= context.first[:, None, None])
        scores = (q @ keys.transpose(2, 3)).float().masked_fill(~seen[:, None], -1e30)
        own = [(shifted(k, depth - m, 2), shifted(v, depth - m, 2)) for m, (k, v) in enumerate(chain[1:], start=1)]
        weights = torch.cat([scores, *((q * k).sum(-1, keepdim=True) for k, _ in own)], -1).softmax(-1)
        out = weights[..., : keys.shape[2]] @ values
        for at, (_, v) in enumerate(own):
            out = out + weights[..., keys.shape[2] + at, None] * v
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Head(nn.Module):
    """A drafter of one layer on top of the target's states. Subclasses say what goes in and what comes out."""

    states: slice
    """Which of the target's states it reads."""
    self_attn: Attention
    mlp: Mlp
    post_attention_layernorm: Norm

    @abstractmethod
    def combine(self, states: Tensor) -> Tensor:
        """The target's states [..., states * hidden] as the first guess takes them."""

    @abstractmethod
    def inputs(self, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream and the attention's input."""

    @abstractmethod
    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """What the output matrix takes, and the state that the next guess reads."""

    @abstractmethod
    def start(self, target: Any) -> None:
        """Begin from the target's last layer."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The weights under the names of vLLM's loader."""

    def guesses(self, embedding: Tensor, states: Tensor, context: Context, depth: int) -> list[Tensor]:
        """Inputs of the output matrix for the first to the `depth`-th guess, [batch, window, hidden] each.

        `embedding` [batch, slots, hidden] of token i + 1, `states` [batch, slots, states * hidden] after token i. The
        m-th guess in slot i is the end of a chain that began in slot i - m + 1.
        """
        window = context.window
        stream, x = self.inputs(embedding, self.combine(states))
        chain = [self.self_attn.keys(x, context.rotation)]
        rotation = context.window_rotation
        stream, x = stream[:, -window:], x[:, -window:]
        found = []
        while True:
            stream = stream + self.self_attn(x, context, chain)
            stream = stream + self.mlp(self.post_attention_layernorm(stream))
            out, state = self.outputs(stream)
            found.append(out)
            if len(found) == depth:
                return found
            stream, x = self.inputs(embedding[:, -window:], shifted(state, 1, 1))
            chain.append(self.self_attn.keys(x, rotation))

    def layer_tensors(self, prefix: str) -> dict[str, Tensor]:
        return {
            f"{prefix}{part}.{name}": weight
            for part in ("self_attn", "mlp", "post_attention_layernorm")
            for name, weight in getattr(self, part).state_dict().items()
        }

    def start_layer(self, layer: Any, *, gain: float) -> None:
        """Copy the part of a target's layer that has the same shape; what writes to the stream is scaled by `gain`."""
        with torch.no_grad():
            self.mlp.load_state_dict({name: w.float() for name, w in layer.mlp.state_dict().items()})
            self.self_attn.o_proj.weight.copy_(layer.self_attn.o_proj.weight.float() * gain)
            self.mlp.down_proj.weight.mul_(gain)
            self.post_attention_layernorm.weight.copy_(layer.post_attention_layernorm.weight.float())
            for name in ("q_proj", "k_proj", "v_proj"):
                given, own = getattr(layer.self_attn, name).weight.float(), getattr(self.self_attn, name).weight
                own.mul_(0.1)
                own[:, -given.shape[1] :].copy_(given)


class Eagle3(Head):
    """EAGLE-3: three states of the target, an output matrix of its own over a part of the vocabulary."""

    states = slice(0, FINAL)

    def __init__(self, sizes: Sizes, vocabulary: int) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.input_layernorm, self.hidden_norm = Norm(hidden, sizes.eps), Norm(hidden, sizes.eps)
        self.self_attn, self.mlp = Attention(sizes, 2 * hidden), Mlp(sizes)
        self.post_attention_layernorm, self.norm = Norm(hidden, sizes.eps), Norm(hidden, sizes.eps)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)

    def start(self, target: Any) -> None:
        layer, hidden = target.model.layers[-1], self.fc.out_features
        self.start_layer(layer, gain=1.0)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, 2 * hidden :] += torch.eye(hidden)
            self.hidden_norm.weight.copy_(layer.input_layernorm.weight.float())
            self.norm.weight.copy_(target.model.norm.weight.float())

    def combine(self, states: Tensor) -> Tensor:
        return self.fc(states)

    def inputs(self, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return state, torch.cat([self.input_layernorm(embedding), self.hidden_norm(state)], -1)

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(stream), stream

    def tensors(self) -> dict[str, Tensor]:
        return {
            "fc.weight": self.fc.weight,
            **self.layer_tensors("midlayer."),
            "midlayer.input_layernorm.weight": self.input_layernorm.weight,
            "midlayer.hidden_norm.weight": self.hidden_norm.weight,
            "norm.weight": self.norm.weight,
            "lm_head.weight": self.lm_head.weight,
        }


class Eagle(Head):
    """EAGLE: the target's last state after the final norm, the target's own output matrix, no norm before attention."""

    states = slice(FINAL, FINAL + 1)

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.self_attn, self.mlp = Attention(sizes, hidden), Mlp(sizes)
        self.post_attention_layernorm = Norm(hidden, sizes.eps)
        self.target_norm = Norm(hidden, sizes.eps)
        self.target_norm.weight.requires_grad_(False)

    def start(self, target: Any) -> None:
        layer, hidden = target.model.layers[-1], self.fc.out_features
        # No norm holds the output, and it is read again as a state: it begins as the identity, or it runs away.
        self.start_layer(layer, gain=0.02)
        with torch.no_grad():
            self.target_norm.weight.copy_(target.model.norm.weight.float())
            # The layer expects its own norm's scale; here comes the final norm's.
            size = self.target_norm.weight.abs().clamp(min=0.5).copysign(self.target_norm.weight)
            for projection in (self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj):
                projection.weight.mul_(layer.input_layernorm.weight.float() / size)
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, hidden:] += torch.eye(hidden)

    def combine(self, states: Tensor) -> Tensor:
        return self.target_norm(states)

    def inputs(self, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        stream = self.fc(torch.cat([embedding.float(), state], -1))
        return stream, stream

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        return stream, stream

    def tensors(self) -> dict[str, Tensor]:
        return {"fc.weight": self.fc.weight, **self.layer_tensors("layers.0.")}


class Mtp(Head):
    """A multi-token-prediction module as MiMo has it: the target's last state before the final norm."""

    states = slice(FINAL, FINAL + 1)

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.token_layernorm, self.hidden_layernorm = Norm(hidden, sizes.eps), Norm(hidden, sizes.eps)
        self.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.input_layernorm = Norm(hidden, sizes.eps)
        self.self_attn, self.mlp = Attention(sizes, hidden), Mlp(sizes)
        self.post_attention_layernorm, self.final_layernorm = Norm(hidden, sizes.eps), Norm(hidden, sizes.eps)

    def start(self, target: Any) -> None:
        layer, hidden = target.model.layers[-1], self.input_proj.out_features
        self.start_layer(layer, gain=0.3)
        with torch.no_grad():
            self.input_layernorm.weight.copy_(layer.input_layernorm.weight.float())
            for norm in (self.hidden_layernorm, self.final_layernorm):
                norm.weight.copy_(target.model.norm.weight.float())
            self.input_proj.weight.mul_(0.1)
            self.input_proj.weight[:, :hidden] += torch.eye(hidden)

    def combine(self, states: Tensor) -> Tensor:
        return states

    def inputs(self, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        stream = self.input_proj(torch.cat([self.hidden_layernorm(state), self.token_layernorm(embedding)], -1))
        return stream, self.input_layernorm(stream)

    def outputs(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        out = self.final_layernorm(stream)
        return out, out

    def tensors(self) -> dict[str, Tensor]:
        prefix = "model.mtp_layers.0."
        norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm")
        return {
            prefix + "input_proj.weight": self.input_proj.weight,
            **self.layer_tensors(prefix),
            **{f"{prefix}{name}.weight": getattr(self, name).weight for name in norms},
        }


class Draft(nn.Module):
    """A small Llama of its own: some layers of the target, its embedding and output matrix, none of its states."""

    def __init__(self, sizes: Sizes, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DraftLayer(sizes) for _ in range(layers))
        self.norm = Norm(sizes.hidden, sizes.eps)

    def start(self, target: Any) -> None:
        """The target's first layers, and its last one at the end."""
        given = [*target.model.layers[: len(self.layers) - 1], target.model.layers[-1]]
        for layer, source in zip(self.layers, given, strict=True):
            layer.load_state_dict({name: w.float() for name, w in source.state_dict().items()})
        with torch.no_grad():
            self.norm.weight.copy_(target.model.norm.weight.float())

    def forward(self, embedding: Tensor, context: Context) -> Tensor:
        stream, everywhere = embedding.float(), context._replace(window=embedding.shape[1])
        for layer in self.layers:
            stream = layer(stream, everywhere)
        return self.norm(stream)

    def tensors(self) -> dict[str, Tensor]:
        return {f"model.{name}": weight for name, weight in self.state_dict().items()}


class DraftLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (Norm(sizes.hidden, sizes.eps) for _ in range(2))
        self.self_attn, self.mlp = Attention(sizes, sizes.hidden), Mlp(sizes)

    def forward(self, stream: Tensor, context: Context) -> Tensor:
        x = self.input_layernorm(stream)
        stream = stream + self.self_attn(x, context, [self.self_attn.keys(x, context.rotation)])
        return stream + self.mlp(self.post_attention_layernorm(stream))
