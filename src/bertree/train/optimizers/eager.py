"""Optimizers that do not import PyTorch's compiler.

`torch.optim.Optimizer` wraps some methods so that `torch.compile` leaves them alone. Their first call imports the
compiler, which takes longer than all steps of a short run. Optimizers are not compiled here, so their methods need no
wrappers.
"""

from torch.optim import Optimizer

from bertree.model.torch_internals import eager_method


class EagerMethods:
    """The wrapped methods of an optimizer as they are inside; to be inherited from before the optimizer's class."""

    add_param_group = eager_method(Optimizer.add_param_group)
    load_state_dict = eager_method(Optimizer.load_state_dict)
    state_dict = eager_method(Optimizer.state_dict)
    zero_grad = eager_method(Optimizer.zero_grad)
