"""Flight records in one normal form. The only code that knows PyTorch's own keys.

Belongs here: torch's formats, the WorkerServer's collective ring, the frozen types that
detectors read. No `eval`, no pickle.
"""
