"""Frameworks' events as steps and phases; the frameworks are stood in for."""

from __future__ import annotations

import importlib
import pickle
import tomllib
from types import SimpleNamespace

import pytest

from lightkeeper.worker_server.integrations import lightning
from lightkeeper.worker_server.rank.torch_hooks import StepCounter
from tests.worker_server.ranks import ROOT, run_python
from tests.worker_server.sources import WrittenDown


class Optimizer:
    """Whatever has a step."""


def test_each_step_of_the_first_optimizer_is_a_step():
    calls = WrittenDown()
    count, generator, critic = StepCounter(calls), Optimizer(), Optimizer()
    for optimizer in (generator, critic, critic, generator, critic):
        count(optimizer)
    assert calls.said == ["step 0", "step 1"]


def test_another_optimizer_is_counted_when_the_first_is_gone():
    calls = WrittenDown()
    count, second = StepCounter(calls), Optimizer()
    count(Optimizer())
    count(second)
    assert calls.said == ["step 0", "step 1"]


def test_another_optimizer_is_counted_when_the_first_has_long_been_silent():
    calls = WrittenDown()
    count, warm_up, second = StepCounter(calls), Optimizer(), Optimizer()
    count(warm_up)
    for _ in range(65):
        count(second)
    assert calls.said == ["step 0", "step 1", "step 2"]


class Base:
    """Lightning's Callback, as far as ours leans on it."""


class CallbackUnderTest(lightning.TrainerHooks, Base):
    """A callback as the factory makes it."""


class Trainer:
    global_step = 0
    global_rank = 3
    world_size = 4
    accumulate_grad_batches = 1

    def __init__(self):
        self.saved = []

    def save_checkpoint(self, path, weights_only=False):
        self.saved.append((path, weights_only))


class Tensor:
    """One number on a device."""

    def __init__(self, value, device):
        self.value = value
        self.device = SimpleNamespace(type=device)

    def __float__(self):
        assert self.device.type == "cpu"
        return self.value

    def numel(self):
        return 1


@pytest.fixture
def following():
    calls, ranks = WrittenDown(), []

    def attach(**given):
        ranks.append(given)
        return calls

    callback, trainer = CallbackUnderTest(attach), Trainer()
    callback.setup(trainer, None, "fit")
    callback.setup(trainer, None, "validate")
    assert ranks == [{"rank": 3, "world_size": 4}]
    assert calls.take() == ["from lightning"]
    return callback, trainer, calls


def batch(callback, trainer, loss=None, steps=1):
    callback.on_train_batch_start(trainer, None, object(), 0)
    callback.on_before_backward(trainer, None, loss)
    callback.on_after_backward(trainer, None)
    if steps:
        callback.on_before_optimizer_step(trainer, None, Optimizer())
    trainer.global_step += steps
    callback.on_train_batch_end(trainer, None, {"loss": loss}, object(), 0)


def test_a_batch_of_lightning_is_a_step_with_its_phases(following):
    callback, trainer, calls = following
    batch(callback, trainer, Tensor(2.5, "cpu"))
    assert calls.take() == [
        "begin 0", "<forward", "forward>", "<backward", "backward>", "<optimizer", "optimizer>",
        "end 0 True 2.5 0", "<data",
    ]  # fmt: skip
    callback.on_train_batch_start(trainer, None, object(), 1)
    assert calls.said == ["data>", "begin 1", "<forward"]


def test_batches_that_are_accumulated_are_one_step_and_no_failed_commits(following):
    callback, trainer, calls = following
    trainer.accumulate_grad_batches = 2
    batch(callback, trainer, Tensor(1.0, "cpu"), steps=0)
    batch(callback, trainer, Tensor(1.0, "cpu"))
    steps = [said for said in calls.said if said.startswith(("begin", "end"))]
    assert steps == ["begin 0", "end 0 True 2.0 0"]


@pytest.mark.parametrize(
    "outputs",
    [None, {}, Tensor(1.0, "cuda"), {"loss": Tensor(1.0, "cuda")}, {"loss": "x"}],
    ids=["nothing", "no loss", "gpu", "gpu in a dict", "no tensor"],
)
def test_a_loss_that_costs_a_wait_for_the_gpu_is_not_read(following, outputs):
    callback, trainer, calls = following
    callback.on_train_batch_start(trainer, None, object(), 0)
    trainer.global_step = 1
    callback.on_train_batch_end(trainer, None, outputs, object(), 0)
    assert "end 0 True None 0" in calls.said
    assert not callback.failed


def test_evaluation_and_checkpoints_between_batches_are_declared(following):
    callback, trainer, calls = following
    batch(callback, trainer)
    calls.take()
    callback.on_validation_start(trainer, None)
    callback.on_validation_end(trainer, None)
    trainer.save_checkpoint("a.ckpt", weights_only=True)
    assert calls.said == ["<evaluation", "evaluation>", "<checkpoint", "checkpoint>"]
    assert trainer.saved == [("a.ckpt", True)]


def test_a_checkpoint_that_fails_ends_its_phase_and_fails_as_it_fails(following):
    _, trainer, calls = following
    with pytest.raises(TypeError):
        trainer.save_checkpoint()
    assert calls.said == ["<checkpoint", "checkpoint>"]


def test_a_hook_that_fails_is_one_warning_and_the_end_of_our_hooks(following):
    callback, _, calls = following
    with pytest.warns(RuntimeWarning, match="stopped following Lightning"):
        callback.on_train_batch_start(object())
    callback.on_train_batch_start(object())  # a second warning would be an error here
    callback.on_validation_start()
    assert calls.said == []


ASK = """
import sys
from lightkeeper.worker_server.integrations import lightning as ours
print([len(make()) for make in (ours.lightning_callbacks, ours.fabric_callbacks,
                                ours.pytorch_lightning_callbacks)],
      [name for name in ("torch", "lightning", "mmap") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("environ", "says"),
    [({}, "[0, 0, 0] []"), ({"LIGHTKEEPER_ATTACH": "done:torchrun", "RANK": "0"}, "[0, 0, 0] []")],
    ids=["not asked", "inherited from a rank"],
)
def test_lightnings_factories_give_nothing_and_import_nothing_unless_asked(environ, says):
    done = run_python("-c", ASK, **environ)
    assert (done.stdout.strip(), done.stderr) == (says, "")


@pytest.fixture
def package_of_callbacks(tmp_path, monkeypatch):
    """Stands for `lightning.pytorch`."""
    (tmp_path / "stands_for_pl").mkdir()
    (tmp_path / "stands_for_pl" / "__init__.py").write_text("")
    (tmp_path / "stands_for_pl" / "callbacks.py").write_text("class Callback:\n    mark = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "stands_for_pl"


def test_the_callback_is_of_lightnings_kind_and_survives_being_sent_to_a_spawned_rank(
    package_of_callbacks,
):
    callback = lightning._callback(package_of_callbacks)
    again = pickle.loads(pickle.dumps(callback))
    assert (callback.mark, again.mark, type(again).__name__) == (7, 7, "LightkeeperCallback")


def test_the_entry_points_are_functions_that_are_there():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert sorted(points) == [
        "lightning.fabric.callbacks_factory", "lightning.pytorch.callbacks_factory",
        "pytorch_lightning.callbacks_factory", "torch.backends",
    ]  # fmt: skip
    for entry in points.values():
        module, _, name = entry["lightkeeper"].partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_a_file_of_our_name_beside_the_script_is_neither_run_nor_an_error(tmp_path):
    (tmp_path / "lightkeeper.py").write_text("raise SystemExit('it was run')")
    code = "import sys, _lightkeeper; print(_lightkeeper.autoload(), 'lightkeeper' in sys.modules)"
    for asks, says in ({}, ""), ({"LIGHTKEEPER_ATTACH": "1"}, "lightkeeper.py has its name\n"):
        done = run_python("-c", code, cwd=tmp_path, **asks)
        assert (done.returncode, done.stdout) == (0, "[] False\n")
        assert done.stderr.endswith(says)
        assert done.stderr.count("\n") == bool(says)
