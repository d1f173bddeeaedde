"""The FT trainer: proof that the rest works, and the example that users copy.

Belongs here: a real fault-tolerant training job, small enough to read in one sitting
(`train`: one rank), the faults that can be injected into it (`faults`), and what keeps one
replica group running (`supervisor`). Does not belong here: any judgement about who is
healthy; the trainer knows no monitor. Of our packages it imports only `worker_server`.

Start reading at `train.py`.
"""

if __name__ != "lightkeeper.trainer":
    raise ImportError(f"`{__name__}` is `lightkeeper.trainer` now", name=__name__)
