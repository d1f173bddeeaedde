"""Code inside the training process: it reports, and never raises into training or blocks it.

Belongs here: the attach, the reporter, the hooks into torch and TorchFT, and the page in shared
memory that carries the reports. Does not belong here: HTTP (except the admission question), and
what the sidecar can find out by itself. The sidecar reads `page`, `identity` and `settings` and
imports nothing else of this package, because the rest may import torch.
"""
