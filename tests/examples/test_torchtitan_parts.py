"""Parts of examples/torchtitan without torchtitan: what they lean on of it is stood in for.

With torchtitan itself: test_torchtitan.py.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.examples.fleet import EXAMPLES

pytestmark = pytest.mark.integration  # torch

TITAN = EXAMPLES / "torchtitan"


class Checkpoints:
    """Stands for torchtitan's TorchFTCheckpointManager, as far as ours leans on it."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    def __init__(self, config, **parts):
        self.ft_manager = parts["ft_manager"].manager
        self.ft_manager.set_state_dict_fns(None, None)
        self.saved = []

    def _save(self, curr_step, last_step=False):
        self.saved.append(curr_step)
        return True


class Manager:
    """Stands for torchft's."""

    def __init__(self):
        self.registered = {}
        self.step = 0

    def set_state_dict_fns(self, load, save):
        self.registered["torchtitan's"] = load, save

    def register_state_dict_fn(self, key, load, save):
        self.registered[key] = load, save

    def current_step(self):
        return self.step


class Plain:
    """The trainer, or a scheduler: a state of a few numbers."""

    def __init__(self, step=0):
        self.step = step

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def stand_in(monkeypatch, name, **attributes):
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def load(name):
    spec = importlib.util.spec_from_file_location(f"titan_{name}", TITAN / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def healing(monkeypatch):
    name = "torchtitan.experiments.torchft.checkpoint"
    stand_in(monkeypatch, name, TorchFTCheckpointManager=Checkpoints)
    return load("healing")


@pytest.fixture
def reported(healing, monkeypatch):
    """Fingerprints that were asked for: how many weights, and the step."""
    fingerprints = []
    reporter = SimpleNamespace(
        fingerprint=lambda weights, step: fingerprints.append((len(weights), step))
    )
    monkeypatch.setattr(healing.lightkeeper, "attach", lambda: reporter)
    return fingerprints


def group(healing, seed):
    """What a group has: a model of one layer that took `seed` steps."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(seed):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    manager, trainer, scheduler = Manager(), Plain(seed), Plain(seed)
    checkpoints = healing.HealingCheckpoints(
        healing.HealingCheckpoints.Config(),
        ft_manager=SimpleNamespace(manager=manager),
        model_parts=[model], optimizers=[optimizer], lr_schedulers=scheduler,
        states={"train_state": trainer},
    )  # fmt: skip
    [(key, (taken, handed))] = manager.registered.items()
    assert key == "shards"  # and torchtitan's own pair was not registered
    return SimpleNamespace(
        model=model, optimizer=optimizer, trainer=trainer, scheduler=scheduler, manager=manager,
        load=taken, hand=handed, checkpoints=checkpoints,
    )  # fmt: skip


def test_a_group_that_heals_has_the_weights_moments_and_rates_of_the_other(healing):
    donor, healed = group(healing, 3), group(healing, 1)
    donor.optimizer.param_groups[0]["lr"] = 0.025  # as a scheduler leaves it
    storage = healed.model.weight.data_ptr()
    healed.load(donor.hand())
    assert healed.model.weight.data_ptr() == storage  # in place: FSDP keeps its shards
    for made, given in zip(healed.model.parameters(), donor.model.parameters(), strict=True):
        assert torch.equal(made, given)
        moments, theirs = healed.optimizer.state[made], donor.optimizer.state[given]
        assert all(torch.equal(moments[name], theirs[name]) for name in theirs)
    assert healed.optimizer.param_groups[0]["lr"] == 0.025
    assert (healed.trainer.step, healed.scheduler.step) == (3, 3)


def test_the_model_is_asked_for_nothing_while_it_runs(healing):
    donor = group(healing, 2)

    def asked(*_, **__):
        raise AssertionError("FSDP2 shards the model for this")

    donor.model.state_dict = donor.optimizer.state_dict = asked
    with torch.no_grad():
        donor.model.weight.fill_(7)
    handed = donor.hand()["tensors"]
    assert torch.equal(handed["0.weight"], torch.full((2, 3), 7.0))  # today's, not a copy


def test_weights_are_fingerprinted_once_for_each_committed_step(healing, reported):
    here = group(healing, 1)
    for step, committed in ((1, 1), (2, 1), (3, 2)):  # the second attempt was dropped
        here.manager.step = committed
        assert here.checkpoints._save(step)
    assert reported == [(2, 1), (2, 2)]
    assert here.checkpoints.saved == [1, 2, 3]


@pytest.fixture
def text(monkeypatch):
    @dataclass
    class DatasetConfig:
        path: str
        loader: object
        sample_processor: object

    class BaseTokenizer:
        @dataclass
        class Config:
            pass

    datasets = {}
    stand_in(monkeypatch, "datasets", Dataset=SimpleNamespace(from_list=list))
    stand_in(monkeypatch, "torchtitan.components.tokenizer", BaseTokenizer=BaseTokenizer)
    stand_in(monkeypatch, "torchtitan.hf_datasets", DatasetConfig=DatasetConfig)
    stand_in(monkeypatch, "torchtitan.hf_datasets.text_datasets", DATASETS=datasets)
    return load("stdlib_text"), datasets


def test_the_tokenizer_gives_back_what_it_took(text):
    tokenizer = text[0].ByteTokenizer()
    tokens = tokenizer.encode("Ärger\n", add_bos=True, add_eos=True)
    assert (tokens[0], tokens[-1], len(tokens)) == (256, 257, 9)
    assert max(tokens) < tokenizer.get_vocab_size()
    assert tokenizer.decode(tokens) == "Ärger\n"


def test_the_text_is_the_library_of_this_python(text):
    dataset = text[1]["stdlib"]
    documents = dataset.loader(dataset.path)
    assert len(documents) > 100
    assert any("class TextWrapper" in dataset.sample_processor(document) for document in documents)


@pytest.fixture
def without_gpu(monkeypatch):
    """The patch, carried out until the test ends; what FSDP was asked for by whom."""
    asked = []

    class FSDPModule:
        def set_gradient_divide_factor(self, factor):
            asked.append(factor)

        def set_force_sum_reduction_for_comms(self, on):
            asked.append(f"plain sum {on}")

    stand_in(monkeypatch, "torch.distributed.fsdp", FSDPModule=FSDPModule)
    for name in ("_get_available_device_type", "_get_device_module"):
        monkeypatch.setattr(torch._utils, name, getattr(torch._utils, name))  # undone at the end
    load("without_gpu").patch()
    return FSDPModule(), asked


def test_torch_names_the_cpu_when_it_is_asked_for_an_accelerator(without_gpu):
    device_type = torch._utils._get_available_device_type()
    device = torch._utils._get_device_module(device_type)
    assert (device_type, device.get_device_name(), device.current_device()) == ("cpu", "cpu", 0)
    device.set_device(torch.device("cpu", 1))
    device.synchronize()
    device.reset_peak_memory_stats()
    device.empty_cache()
    peak_bytes = device.memory_stats()["reserved_bytes.all.peak"]
    assert 1e7 < peak_bytes < device.get_device_properties().total_memory


def test_fsdp_is_asked_for_a_sum_that_gloo_has(without_gpu):
    module, asked = without_gpu
    module.set_gradient_divide_factor(1.0)
    assert asked == [1.0, "plain sum True"]


@pytest.fixture
def commands(tmp_path):
    """`lightkeeper` that writes down what it is to become, and with which environment."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "lightkeeper").write_text(
        '#!/bin/sh\necho "$REPLICA_GROUP $REPLICA_GROUP_ID/$REPLICA_GROUPS $LIGHTKEEPER_JOB"\n'
        'for word in "$@"; do echo "$word"; done\n'
    )
    (programs / "lightkeeper").chmod(0o755)

    def run(*words, **more):
        done = subprocess.run(
            ["sh", TITAN / "group.sh", *words], check=True, capture_output=True, text=True,
            timeout=30, env={"PATH": f"{programs}:{os.environ['PATH']}", **more},
        )  # fmt: skip
        return done.stdout.splitlines()

    return run


def test_a_group_runs_under_the_name_that_the_lighthouse_knows(commands):
    header, *command = commands("1", "4", "--training.steps", "9", RANKS="8")
    assert header == "torchtitan_ft_1 1/4 torchtitan"
    assert command[:3] == ["run", "--", "torchrun"]
    assert command[command.index("--nproc-per-node") + 1] == "8"
    assert command[command.index("--master-port") + 1] == "29601"
    assert command[-7:] == [
        str(TITAN / "run.py"), "--module", "debugmodel", "--config", "fault_tolerant",
        "--training.steps", "9",
    ]  # fmt: skip


def test_groups_on_several_hosts_tell_where_they_are(commands):
    header, *command = commands(
        "0", "2", MASTER_ADDR="host-1", MASTER_PORT="29500", LIGHTKEEPER_JOB="pretrain"
    )
    assert header.endswith(" pretrain")
    assert command[command.index("--master-addr") + 1] == "host-1"
    assert command[command.index("--master-port") + 1] == "29500"


def test_every_file_that_the_readme_names_is_there():
    readme = (TITAN / "README.md").read_text()
    for path in TITAN.glob("*.*"):
        if path.name != "README.md":
            assert f"`{path.name}`" in readme
