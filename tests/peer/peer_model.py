# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face model, an MTP module made of its layers, and the taps of both.

Nothing here computes a layer: every number comes from a module of `transformers`. What is ours is
the order in which the MTP part is fed and the names under which outputs are kept.
"""

import copy
import importlib.util
import os

# Only the plain PyTorch path is an independent reference: no kernels from a hub, no network.
os.environ.setdefault("USE_HUB_KERNELS", "NO")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_causal_mask

NUM_DRAFTS = 3

FAMILIES = {
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
    "qwen3_5_moe": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
    "qwen3_5_moe_text": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
}


class RecordError(Exception):
    """A recording that must not be trusted, or cannot be made."""


def producer(device):
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"transformers {transformers.__version__}, torch {torch.__version__}, {where}, eager"


def require_full_precision():
    """Float32 products and convolutions without TF32, bfloat16 sums in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def require_plain_path():
    """Raises RecordError where an installed package would replace the plain PyTorch path."""
    for package in ("fla", "causal_conv1d"):
        if importlib.util.find_spec(package) is not None:
            raise RecordError(f"package {package} is installed and would replace the plain path")


class Mtp(nn.Module):
    """The multi-token predictor: one full-attention decoder layer, index 0 of its own stack."""

    def __init__(self, target):
        super().__init__()
        config = copy.deepcopy(target.config)
        config.layer_types = ["full_attention"]
        config.num_hidden_layers = 1
        self.config = config
        self.rotary = [target.model.rotary_emb]  # in a list: shared, not a submodule of ours
        layer_class, norm_class = type(target.model.layers[0]), type(target.model.norm)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = norm_class(hidden, eps=eps)
        self.pre_fc_norm_hidden = norm_class(hidden, eps=eps)
        self.layers = nn.ModuleList([layer_class(config, 0)])
        self.norm = norm_class(hidden, eps=eps)

    def forward(self, embeddings, hidden, positions, cache):
        """embeddings, hidden [1, n, H]; positions [1, n]; appends n rows to the cache."""
        embeddings = self.pre_fc_norm_embedding(embeddings)
        hidden = self.pre_fc_norm_hidden(hidden)
        x = self.fc(torch.cat((embeddings, hidden), dim=-1))
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=None,
            past_key_values=cache,
            position_ids=positions,
        )
        # M-RoPE takes a row an axis; some releases of the library add the axis themselves.
        axes = positions
        if self.config.model_type.startswith("qwen3_5"):
            axes = positions[None].expand(3, -1, -1)
        x = self.layers[0](
            x,
            position_embeddings=self.rotary[0](x, axes),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
        )
        return self.norm(x)


def layer_taps(layer, prefix):
    """Normative taps of a decoder layer: {tap: module}, a tuple of taps for a tuple output."""
    taps = {prefix: layer}
    names = ["input_layernorm", "post_attention_layernorm", "mlp"]
    if hasattr(layer, "self_attn"):
        names += ["self_attn"]
        names += [f"self_attn.{n}" for n in ("q_proj", "k_proj", "v_proj", "o_proj")]
        names += ["self_attn.q_norm", "self_attn.k_norm"]
    else:
        inputs = (
            "in_proj_qkvz",
            "in_proj_ba",
            "in_proj_qkv",
            "in_proj_z",
            "in_proj_a",
            "in_proj_b",
        )
        names += ["linear_attn", "linear_attn.norm", "linear_attn.out_proj"]
        names += [f"linear_attn.{n}" for n in inputs if hasattr(layer.linear_attn, n)]
    if hasattr(layer.mlp, "experts"):
        names += ["mlp.experts", "mlp.shared_expert", "mlp.shared_expert_gate"]
        names += [f"mlp.shared_expert.{n}" for n in ("gate_proj", "up_proj", "down_proj")]
        router = tuple(f"{prefix}.mlp.gate.{n}" for n in ("logits", "weights", "ids"))
        taps[router] = layer.mlp.gate
    else:
        names += [f"mlp.{n}" for n in ("gate_proj", "up_proj", "down_proj")]
    for name in names:
        taps[f"{prefix}.{name}"] = layer.get_submodule(name)
    return taps


def joined(parts):
    """[{tap: rows}, ...] -> {tap: all rows}."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def sequences(inputs):
    """(context ids, new ids) of each sequence of a case."""
    starts, context_starts = inputs["query_start_loc"], inputs["context_start_loc"]
    for s in range(len(starts) - 1):
        context = inputs["context_ids"][context_starts[s] : context_starts[s + 1]]
        yield context, inputs["input_ids"][starts[s] : starts[s + 1]]


class PeerModel:
    """Target and MTP on one device in one dtype, with a recorder on every normative tap."""

    def __init__(self, config, dtype, device="cpu"):
        require_plain_path()
        require_full_precision()
        model_type = config["model_type"]
        if model_type not in FAMILIES:
            raise RecordError(f"model_type is {model_type}, expected one of {sorted(FAMILIES)}")
        config_class, model_class = FAMILIES[model_type]
        keys = {k: v for k, v in config.items() if k not in ("model_type", "transformers_version")}
        self.config = config_class(**keys)
        self.dtype, self.device = dtype, torch.device(device)
        # .to() casts the rotary inv_freq as well, which from_pretrained(dtype=..) would not.
        target = model_class._from_config(self.config, attn_implementation="eager")
        self.target = target.to(self.device, dtype).eval()
        self.mtp = Mtp(self.target).to(self.device, dtype).eval()
        self.rows = None  # taps of the pass under way: {tap: [n, columns]}
        self._hook()

    def _hook(self):
        model = self.target.model
        taps = {
            "model.embed_tokens": model.embed_tokens,
            "model.norm": model.norm,
            "model": model,
            "lm_head": self.target.lm_head,
        }
        for index, layer in enumerate(model.layers):
            taps |= layer_taps(layer, f"model.layers.{index}")
        mtp_taps = {
            f"mtp.{name}": self.mtp.get_submodule(name)
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        }
        mtp_taps |= layer_taps(self.mtp.layers[0], "mtp.layers.0")
        for name, module in (taps | mtp_taps).items():
            module.register_forward_hook(self._keeper(name))

        def names(table):
            return {n for key in table for n in ([key] if isinstance(key, str) else key)}

        self.tap_names, self.mtp_tap_names = names(taps), names(mtp_taps)

    def _keeper(self, name):
        def keep(module, _inputs, output):
            if self.rows is None:
                return
            if hasattr(output, "last_hidden_state"):
                output = output.last_hidden_state
            if isinstance(name, str):
                self._store(name, output[0] if isinstance(output, tuple) else output)
            else:
                for part, tensor in zip(name, output, strict=True):
                    self._store(part, tensor)

        return keep

    def _store(self, name, tensor):
        if name in self.rows:
            raise RecordError(f"{name}: its module ran twice in one pass")
        # Every tap flattens to one row a token: [1, n, ..], [n, ..] and [n * heads, dv] alike.
        self.rows[name] = tensor.detach().reshape(self.num_rows, -1).to("cpu", copy=True)

    def _capture(self, num_rows, expected, call):
        """Runs `call` and returns its result and the taps, which must be exactly `expected`."""
        self.rows, self.num_rows = {}, num_rows
        try:
            result = call()
            found = self.rows
        finally:
            self.rows = None
        if set(found) != expected:
            raise RecordError(f"taps differ from the norm: {sorted(set(found) ^ expected)}")
        return result, found

    def parameters(self):
        """Every parameter under its library name, the MTP's under `mtp.`."""
        named = dict(self.target.named_parameters())
        named |= {f"mtp.{name}": value for name, value in self.mtp.named_parameters()}
        return named

    @torch.no_grad()
    def load(self, weights):
        """Copies `weights` in; RecordError for a name too many, too few, or another shape."""
        own = self.parameters()
        if set(own) != set(weights):
            raise RecordError(f"weights differ from the model: {sorted(set(own) ^ set(weights))}")
        for name, value in weights.items():
            if own[name].shape != value.shape or own[name].dtype != value.dtype:
                raise RecordError(
                    f"{name}: {value.dtype} {list(value.shape)}, "
                    f"expected {own[name].dtype} {list(own[name].shape)}"
                )
            own[name].copy_(value)

    @torch.no_grad()
    def randomise(self, generator):
        """Weights at which every branch matters: unit-gain matrices, slow and fast decays."""
        for name, value in sorted(self.parameters().items()):
            draw = torch.randn(value.shape, generator=generator, dtype=torch.float32)
            if name.endswith("A_log"):
                # A log-uniform in [0.02, 4]: memories from one token to longer than a chunk
                span = torch.rand(value.shape, generator=generator, dtype=torch.float32)
                draw = torch.log(torch.tensor(0.02)) + span * torch.log(torch.tensor(200.0))
            elif name.endswith("dt_bias"):
                draw *= 0.5
            elif name.endswith("linear_attn.norm.weight"):
                draw = 1.0 + 0.1 * draw  # the one norm that is not zero-centred
            elif name.endswith("conv1d.weight"):
                draw *= 0.5
            elif value.dim() == 1:
                draw *= 0.1
            elif not name.endswith("embed_tokens.weight"):
                draw /= value.shape[-1] ** 0.5
            value.copy_(draw)

    def _target(self, ids, positions, cache=None):
        """Logits [n, V] and final hidden states [n, H] of one sequence."""
        # The library cannot make a mask for a stack without attention that has a cache.
        attention = "full_attention" in self.config.layer_types
        out = self.target.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=None if attention else {"linear_attention": None},
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return self.target.lm_head(out.last_hidden_state)[0], out.last_hidden_state[0]

    def _token_by_token(self, ids, start, cache):
        """Feeds `ids` one at a time, the recurrent form; returns hidden states and taps."""
        hidden, taps = [], []
        for i, token in enumerate(ids):
            position = torch.tensor([start + i], device=self.device)
            (_, row), found = self._capture(
                1, self.tap_names, lambda t=token[None], p=position: self._target(t, p, cache)
            )
            hidden.append(row)
            taps.append(found)
        return torch.cat(hidden), joined(taps)

    @torch.no_grad()
    def run_sequence(self, context, ids):
        """One sequence: `context` [c] is in the cache, `ids` [n] are this step's tokens.

        Returns (taps of the n rows, MTP steps, draft ids [NUM_DRAFTS]).
        """
        num_context, num_new = len(context), len(ids)
        context, ids = context.to(self.device), ids.to(self.device)
        cache, history = None, ids.new_empty(0, self.config.hidden_size, dtype=self.dtype)
        if num_context:
            cache = DynamicCache(config=self.config)
            history, _ = self._token_by_token(context, 0, cache)
        positions = torch.arange(num_context, num_context + num_new, device=self.device)
        (logits, hidden), taps = self._capture(
            num_new, self.tap_names, lambda: self._target(ids, positions, cache)
        )
        history = torch.cat((history, hidden))
        steps, drafts = self._draft(torch.cat((context, ids)), history, logits[-1], num_new)
        return taps, steps, drafts

    @torch.no_grad()
    def other_form(self, inputs):
        """Target taps of a case with every token fed alone; run_case uses the chunked form."""
        parts = []
        for context, ids in sequences(inputs):
            _, taps = self._token_by_token(
                torch.cat((context, ids)).to(self.device), 0, DynamicCache(config=self.config)
            )
            parts.append({name: rows[len(context) :] for name, rows in taps.items()})
        return joined(parts)

    def _draft(self, ids, hidden, last_logits, num_new):
        """Greedy drafts after a target pass; `ids` [n] and `hidden` [n, H] are the whole history.

        Step 0 runs over the whole history and keeps its last `num_new` rows; step j > 0 appends the
        row of draft j - 1.
        """
        cache = DynamicCache(config=self.mtp.config)
        num_history = len(ids)
        step_ids = torch.cat((ids[1:], last_logits.argmax()[None]))
        step_hidden, positions = hidden, torch.arange(num_history, device=self.device)
        steps, drafts = [], []
        for step in range(NUM_DRAFTS):
            embeddings = self.target.model.embed_tokens(step_ids)
            out, taps = self._capture(
                len(step_ids),
                self.mtp_tap_names,
                lambda: self.mtp(embeddings[None], step_hidden[None], positions[None], cache)[0],
            )
            taps |= {
                "input_ids": step_ids,
                "positions": positions,
                "logits": nn.functional.linear(out, self.target.lm_head.weight),
            }
            taps = {name: value.cpu() for name, value in taps.items()}
            kept = num_new if step == 0 else 1
            steps.append({name: value[-kept:] for name, value in taps.items()})
            drafts.append(taps["logits"][-1].argmax())
            step_ids, step_hidden = drafts[-1][None].to(self.device), out[-1:]
            positions = torch.tensor([num_history + step], device=self.device)
        return steps, torch.stack(drafts)

    def run_case(self, inputs):
        """All sequences of a case, one after the other, rows concatenated."""
        results = [self.run_sequence(*sequence) for sequence in sequences(inputs)]
        taps, steps, drafts = zip(*results, strict=True)
        return {
            "inputs": inputs,
            "taps": joined(taps),
            "mtp": [joined(parts) for parts in zip(*steps, strict=True)],
            "draft_ids": torch.stack(drafts),
        }
