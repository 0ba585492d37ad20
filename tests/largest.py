"""How large the largest tensor was that some code made."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [
            t.untyped_storage().nbytes() for t in tree_leaves(out) if isinstance(t, torch.Tensor)
        ]
        self.largest = max([self.largest, *sizes])
        return out
