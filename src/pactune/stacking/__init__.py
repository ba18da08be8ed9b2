"""Many runs as one: which may be joined, how they are joined and split, and how they run in lockstep.

Runs yield requests. The runner answers requests of one kind together: it stacks tensors of equal shapes and runs the
stack as a single run. A new kind of request belongs in `requests` and gets a method of `Runner`.
"""
