"""How many accelerators a rank says that it has: never by asking CUDA, and unknown when unclear."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from worker_server.rank.identity import accelerators_from, identity_from
from worker_server.wire import Registration, WireError, parse_identity, to_json

EIGHT = "0,1,2,3,4,5,6,7"
NO_TORCH = SimpleNamespace()


def told(environ: dict[str, str], devices: int = 0, torch: Any = NO_TORCH) -> int | None:
    return accelerators_from(environ, lambda: ["0000:01"] * devices, torch)


@pytest.mark.parametrize(
    ("environ", "devices", "expected"),
    [
        pytest.param({}, 0, None, id="nothing is known of this host"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "3"}, 8, 1, id="srun gave it one"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c"}, 8, 1, id="by uuid"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "MIG-8932f937-d72c"}, 8, 1, id="a part of one"),
        pytest.param({"HIP_VISIBLE_DEVICES": "1"}, 0, 1, id="AMD"),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": EIGHT, "LOCAL_WORLD_SIZE": "8"}, 8, 1, id="torchrun, all seen"
        ),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": EIGHT, "LOCAL_WORLD_SIZE": "4"}, 8, 2, id="two for each"
        ),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": EIGHT, "LOCAL_WORLD_SIZE": "3"}, 8, None, id="not even"
        ),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "0", "LOCAL_WORLD_SIZE": "2"}, 8, None, id="two share one"
        ),
        pytest.param({"CUDA_VISIBLE_DEVICES": EIGHT}, 8, None, id="of eight, how many are mine?"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, 8, 0, id="none on purpose"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "-1"}, 8, 0, id="none, as people write it"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 8, 1, id="what follows -1 is hidden"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, 0, id="Slurm's word for none"),
        pytest.param({"LOCAL_WORLD_SIZE": "8"}, 8, 1, id="the whole host is ours"),
        pytest.param({"LOCAL_WORLD_SIZE": "4"}, 8, None, id="another group may have the rest"),
        pytest.param({}, 1, 1, id="a host with one"),
        pytest.param({"LOCAL_WORLD_SIZE": "x"}, 8, None, id="a size that is none"),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "0", "LOCAL_WORLD_SIZE": "0"}, 8, 1, id="a size of 0"
        ),
    ],
)
def test_what_the_environment_and_the_driver_say(
    environ: dict[str, str], devices: int, expected: int | None
) -> None:
    assert told(environ, devices) == expected


def cuda(*, up: bool, contexts: tuple[bool, ...] = ()) -> Any:
    return SimpleNamespace(
        cuda=SimpleNamespace(is_initialized=lambda: up, device_count=lambda: len(contexts)),
        _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda index: contexts[index]),
    )


def test_torch_is_asked_only_where_cuda_is_up_already() -> None:
    eight = {"CUDA_VISIBLE_DEVICES": EIGHT}
    assert told(eight, torch=cuda(up=True, contexts=(False, True, False))) == 1
    assert told(eight, torch=cuda(up=True)) is None
    down = cuda(up=False)
    del down._C  # nothing else of it is touched
    del down.cuda.device_count
    assert told({"CUDA_VISIBLE_DEVICES": "0"}, torch=down) == 1


def test_neither_torch_nor_cuda_is_brought_in_by_asking() -> None:
    code = (
        "import sys; from worker_server.rank.identity import accelerators_from as ask; ask({}); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_travels_with_the_identity_and_may_be_absent() -> None:
    who = identity_from({"CUDA_VISIBLE_DEVICES": "0"}, 7, "abc", lambda: "h")
    assert who.accelerators == 1
    body = to_json(Registration(who, "http://h:1", 10.0))["identity"]
    assert parse_identity(body) == who
    del body["accelerators"]
    assert parse_identity(body).accelerators is None
    for wrong in (-1, 5000, "8", True):
        with pytest.raises(WireError, match="accelerators"):
            parse_identity({**body, "accelerators": wrong})
