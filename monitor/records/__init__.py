"""Flight records and recorded timings: read them in any format and say who is to blame. Pure.

The only code that knows PyTorch's own keys. Of our packages it imports only `model`.
"""
