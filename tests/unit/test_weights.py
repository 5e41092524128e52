"""Weights through shared memory."""

import threading

import pytest
import torch
from tiny_engine import tiny_policy
from torch import nn

from flashreinforce_molt.rollout.weights import WeightStore


def test_published_weights_arrive_bit_for_bit_with_their_version_and_ties() -> None:
    source, target = tiny_policy(seed=1).model, tiny_policy(seed=2).model
    store = WeightStore(source)
    store.publish(source, 7)
    assert store.read_into(target) == store.version == 7
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, target.state_dict()[name])
    assert target.lm_head.weight is target.model.embed_tokens.weight


def test_buffers_of_the_saved_state_travel_too() -> None:
    source, target = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    source.num_batches_tracked = torch.tensor(5.0, dtype=torch.float64)
    target.num_batches_tracked = torch.tensor(0.0, dtype=torch.float64)
    source.running_mean += 2
    store = WeightStore(source)
    store.publish(source, 1)
    store.read_into(target)
    assert torch.equal(target.running_mean, source.running_mean)


def test_a_reader_never_keeps_weights_of_two_versions() -> None:
    model, mirror = nn.Linear(700, 700), nn.Linear(700, 700)
    store = WeightStore(model)

    def fill(value: int) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        store.publish(model, value)

    fill(0)
    writer = threading.Thread(target=lambda: [fill(value) for value in range(1, 300)])
    writer.start()
    versions = []
    while writer.is_alive():
        version = store.read_into(mirror)
        values = {value for p in mirror.parameters() for value in (p.min().item(), p.max().item())}
        assert values == {float(version)}
        versions.append(version)
    writer.join()
    assert store.read_into(mirror) == 299
    assert versions == sorted(versions)


def test_mixed_precision_weights_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    with pytest.raises(ValueError, match="one dtype"):
        WeightStore(model)
