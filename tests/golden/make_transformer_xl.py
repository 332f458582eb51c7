"""Write tests/golden/transformer_xl.safetensors: outputs of the last working Transformer-XL of transformers.

transformers 4.37.2 is the last release whose Transformer-XL runs; 5 has removed it. The weights are drawn by numpy, so
that no version of torch matters. Run in an environment of its own that has torch, safetensors and

    pip install --no-deps transformers==4.37.2 tokenizers==0.15.2 huggingface-hub==0.25.2 && pip install regex requests
    python tests/golden/make_transformer_xl.py

For each case: the weights, two rows of ids, and for three segments with memory the last hidden states, the
log-probabilities and the losses; the memory after the third; the gradients of the first segment's mean loss.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

SEGMENT, SEGMENTS, ROWS = 6, 3, 2
SMALL = {"d_model": 16, "d_embed": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "clamp_len": -1, "same_length": False}
CASES = {
    "plain": SMALL | {"vocab_size": 50, "cutoffs": [], "div_val": 1, "n_layer": 2, "mem_len": 10},
    "adaptive": SMALL
    | {"vocab_size": 60, "cutoffs": [10, 30], "div_val": 2, "n_layer": 3, "mem_len": 12}
    | {"clamp_len": 9, "same_length": True},
    "pre-norm": SMALL
    | {"vocab_size": 60, "cutoffs": [10, 30], "div_val": 4, "n_layer": 2, "mem_len": 7}
    | {"d_head": 6, "pre_lnorm": True},
    "narrow-embeddings": SMALL
    | {"vocab_size": 60, "cutoffs": [10, 30], "div_val": 1, "n_layer": 2, "mem_len": 7}
    | {"d_embed": 12, "untie_r": False, "tie_projs": [False, True, True]},
}


def outputs(case: dict[str, object]) -> dict[str, torch.Tensor]:
    """Build the model of a case and return its weights, inputs and outputs."""
    network = TransfoXLLMHeadModel(TransfoXLConfig(**case)).eval()
    random = np.random.default_rng(7)
    tensors = {}
    with torch.no_grad():
        for name, parameter in sorted(network.named_parameters()):
            parameter.copy_(torch.from_numpy((random.standard_normal(parameter.shape) * 0.2).astype("f4")))
            tensors[f"weights/{name}"] = parameter.detach()
    ids = torch.from_numpy(random.integers(0, case["vocab_size"], (ROWS, SEGMENTS * SEGMENT)))
    tensors["ids"] = ids
    memory = None
    for number, segment in enumerate(ids.split(SEGMENT, 1)):
        with torch.no_grad():
            tensors[f"hidden/{number}"] = network.transformer(segment, mems=memory).last_hidden_state
            tensors[f"log-probabilities/{number}"] = network(segment, mems=memory).prediction_scores
            labelled = network(segment, mems=memory, labels=segment)
        tensors[f"losses/{number}"] = labelled.losses
        memory = labelled.mems
    tensors["memory"] = torch.stack(memory)
    first = ids[:, :SEGMENT]
    network(first, labels=first).loss.backward()
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            tensors[f"gradients/{name}"] = parameter.grad
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


if __name__ == "__main__":
    tensors = {f"{name}/{key}": value for name, case in CASES.items() for key, value in outputs(case).items()}
    # One key: safetensors writes several in random order.
    save_file(tensors, Path(__file__).with_name("transformer_xl.safetensors"), {"cases": json.dumps(CASES)})
