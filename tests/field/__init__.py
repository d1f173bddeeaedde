"""Bugs as people write them, in scripts that know nothing of lightkeeper: what it says of them.

Scripts after TorchFT's, torchtitan's and PyTorch's examples (`scripts`), with one line of ours, the
attach. `cases.toml` is the table of bugs and of healthy habits with their truth, `fleet` a job of
torchruns in launch loops, `acts` what is done to it from outside, `judge` what a record is worth,
`page` evidence/field.md.
"""
