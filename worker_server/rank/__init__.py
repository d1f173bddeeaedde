"""What runs inside the training process: it tells, and never raises into training or blocks it.

Belongs here: the attach, the reporter, what hooks see of torch and TorchFT, and the page in shared
memory through which all of it is told. Does not belong here: HTTP (but for the question of
admission), and what the sidecar can find out by itself. The sidecar reads `page`, `identity` and
`settings` and imports nothing else of this package, for the rest may import torch.
"""
