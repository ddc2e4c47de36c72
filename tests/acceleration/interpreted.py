"""The GPU kernels on a CPU, by Triton's interpreter: python tests/acceleration/interpreted.py says
OK, or fails.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    RobertaConfig,
    RobertaModel,
)

from closeknit.acceleration.engine import Engine, GpuEngine, UpdateParts
from closeknit.acceleration.fused_adamw import FusedAdamW
from closeknit.acceleration.gpu_trunk import build_gpu_trunks, gpu_dropout
from closeknit.acceleration.precision import Precision
from closeknit.encoders.encoder import Encoder

SHAPE = {
    "vocab_size": 60,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}


def layers(model, pair: bool) -> None:
    """Numbers and gradients of a trunk by the fused kernels, in float32, are its own."""
    for module in model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    half_weights, (gpu_trunk,) = build_gpu_trunks([model], model, torch.float32)
    R, T = 5, 19
    mask = (torch.arange(T)[None] < torch.tensor([19, 3, 7, 12, 2])[:, None]).long()
    ids = torch.randint(5, 50, (R, T))
    ids[mask == 0] = model.config.pad_token_id
    ids[0, 7] = ids[3, 1] = model.config.pad_token_id  # a text can name the padding token too
    inputs = {"input_ids": ids, "attention_mask": mask}
    if pair:
        inputs["token_type_ids"] = (torch.arange(T)[None] > 4).long() * mask
    weight = torch.randn(R, T, model.config.hidden_size) * mask[..., None]
    out = model(**inputs).last_hidden_state
    (out * weight).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    half_weights.refresh()
    with half_weights.in_use():
        gpu_trunk.begin(torch.tensor(7))
        found = gpu_trunk(inputs)
        (found * weight).sum().backward()
        half_weights.collect_gradients()
    real = mask.bool()
    assert torch.allclose(found[real], out[real], atol=1e-5)
    for name, value in expected.items():
        own = dict(model.named_parameters())[name].grad
        assert own is not None and torch.allclose(own, value, atol=1e-4, rtol=1e-3), name


def dropout() -> None:
    x = torch.ones(64, 256, requires_grad=True)
    masks = []
    for seed, site in ((5, 1), (5, 1), (5, 2), (6, 1)):
        y = gpu_dropout(x, torch.tensor(seed), site, 0.1)
        masks.append(y.detach() == 0)
        assert abs(float(masks[-1].float().mean()) - 0.1) < 0.01
    assert torch.equal(masks[0], masks[1])
    for other in masks[2:]:
        both = float((masks[0] & other).float().mean())
        assert 0.005 < both < 0.015  # independent of each other
    x.grad = None
    y = gpu_dropout(x, torch.tensor(5), 1, 0.1)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def adamw() -> None:
    """Updates are torch's; one that is not finite leaves all as it is."""
    shapes = ((70, 90), (33,), (5, 7))
    theirs = [torch.nn.Parameter(torch.randn(*shape)) for shape in shapes]
    ours = [torch.nn.Parameter(p.detach().clone()) for p in theirs]

    def optimizer(ps):
        return torch.optim.AdamW(
            [
                {"params": ps[:1], "lr": 0.01, "weight_decay": 0.1},
                {"params": ps[1:], "lr": 0.02, "weight_decay": 0.0},
            ]
        )

    reference = optimizer(theirs)
    not_finite = torch.zeros(())
    half = torch.empty(70, 90, dtype=torch.bfloat16)
    rates = torch.tensor([0.01, 0.02])
    fused = FusedAdamW(optimizer(ours), rates, 1.0, not_finite, {id(ours[0]): half}, torch.bfloat16)
    for step in range(5):
        gradients = [torch.randn_like(p) for p in theirs]
        small = gradients[0].bfloat16()
        for p, q, gradient in zip(theirs, ours, [small.float(), *gradients[1:]], strict=True):
            p.grad, q.grad = gradient.clone(), gradient.clone()
        ours[0].grad = None  # its gradient comes in half precision
        if step == 2:
            theirs[1].grad = ours[1].grad = None
        norm = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        reference.step()
        before = [q.detach().clone() for q in ours]
        fused.apply(torch.tensor(float("nan")), {id(ours[0]): small})
        assert (
            all(torch.equal(a, b) for a, b in zip(before, ours, strict=True))
            and float(not_finite) == 1
        )
        not_finite.zero_()
        assert torch.allclose(fused.apply(torch.tensor(1.0), {id(ours[0]): small}), norm, rtol=1e-5)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(theirs, ours, strict=True))
        assert torch.allclose(half.float(), ours[0], rtol=0.01)
    assert fused.steps.tolist() == [5, 4, 5]


def engine() -> None:
    """Updates by the engine of a GPU, here in float32, are those of torch; its dropout depends on
    the seed alone.
    """
    device = torch.device("cpu")
    ids = torch.randint(5, 50, (4, 9))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "special": ids < 7}
    labels = torch.tensor([0, 1, 1, 0])
    ends = {}
    for kind in ("torch", "gpu"):
        torch.manual_seed(3)
        trunk = BertModel(
            BertConfig(**SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        )
        encoder = Encoder(trunk, "first", "tiny")
        dropout = torch.nn.Dropout(0.0)
        head = torch.nn.Sequential(torch.nn.Linear(64, 64), dropout, torch.nn.Linear(64, 2))
        learners = torch.nn.ModuleDict({"encoder": encoder, "head": head}).train()
        optimizer = torch.optim.AdamW(learners.parameters(), lr=1e-3)
        parts = UpdateParts(
            optimizer, Precision("fp32", device), torch.zeros(1), 1.0, torch.zeros(()), False
        )
        own = Engine(parts) if kind == "torch" else GpuEngine(parts, learners, torch.float32)

        def outputs(own=own, encoder=encoder, head=head, seed=5) -> torch.Tensor:
            own.prepare_update()
            with own.forward_context(torch.tensor(seed)):
                return head(encoder(inputs).pooled)

        norms = []
        for _ in range(2):
            own.clear_gradients()
            own.prepare_update()
            with own.forward_context(torch.tensor(5)):
                loss = torch.nn.functional.cross_entropy(head(encoder(inputs).pooled), labels)
                loss.backward()
                own.collect_gradients(only_batch=True)
            norms.append(float(own.apply_update(loss.detach())))
        ends[kind] = norms, learners.state_dict()
        if kind == "gpu":
            assert encoder.trunk_pass is None and own.trunks[0] is not None
            dropout.p = 0.5
            same, again, other = outputs(), outputs(), outputs(seed=6)
            assert torch.equal(same, again) and not torch.allclose(same, other)
    assert torch.allclose(torch.tensor(ends["torch"][0]), torch.tensor(ends["gpu"][0]), rtol=1e-4)
    assert ends["torch"][1].keys() == ends["gpu"][1].keys()
    for name, value in ends["torch"][1].items():
        change = (ends["gpu"][1][name] - value).abs()
        # where a gradient is nothing but rounding, as of a key's bias, AdamW still takes whole steps
        assert name.endswith("key.bias") or float(change.mean()) < 2e-5, name


torch.manual_seed(0)
layers(BertModel(BertConfig(**SHAPE), add_pooling_layer=False), True)
layers(BertModel(BertConfig(**SHAPE), add_pooling_layer=False), False)
roberta = RobertaConfig(**SHAPE, max_position_embeddings=40, pad_token_id=1, type_vocab_size=1)
layers(RobertaModel(roberta, add_pooling_layer=False), False)
layers(ElectraModel(ElectraConfig(**SHAPE, embedding_size=32)), True)
layers(
    DistilBertModel(DistilBertConfig(vocab_size=60, dim=64, n_layers=2, n_heads=4, hidden_dim=96)),
    False,
)
dropout()
adamw()
engine()
print("OK")
