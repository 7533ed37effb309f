"""Torch lives here: a silo's local training. Importing this package does not import torch."""


def configure_threads(count: int = 1) -> None:
    """Let torch use this many threads in this process.

    Silos that share a machine fight for its cores otherwise. Imports torch.

    Args:
        count: 1 or more.
    """
    import torch

    torch.set_num_threads(count)
