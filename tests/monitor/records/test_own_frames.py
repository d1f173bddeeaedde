from monitor.records.job import Sites


def test_the_wrapper_of_an_attached_rank_is_not_the_call_site() -> None:
    frames = [
        {"name": "all_reduce", "filename": "/venv/site-packages/torch/distributed/c.py", "line": 1},
        {"name": "recorded", "filename": "/src/worker_server/collectives.py", "line": 185},
        {"name": "step", "filename": "/job/train.py", "line": 7},
    ]
    sites = Sites()
    number = sites.of(frames)
    assert sites.texts[number] == "train.py:7 step"
