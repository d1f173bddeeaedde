"""Bugs as people write them, in scripts that know nothing of lightkeeper: what it says of them.

Scripts after TorchFT's, torchtitan's and PyTorch's examples (`scripts`): TorchFT's with one line of
ours, the attach, the others with none. `table` has the bugs and the healthy habits, each with its
truth; `fleet` is a job, `acts` what is done to it from outside, `judge` what a record is worth,
`page` evidence/field.md.
"""
