"""The operators of torchvision by name, for a torch that cannot load them."""

import importlib.metadata

OPERATORS = (
    "nms", "qnms", "roi_align", "_roi_align_backward", "qroi_align", "ps_roi_align",
    "_ps_roi_align_backward", "roi_pool", "_roi_pool_backward", "ps_roi_pool",
    "_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward",
)  # fmt: skip
_kept = []


def declare() -> None:
    """Called by torch when it has been imported (entry point group `torch.backends`)."""
    import torch

    try:
        version = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return
    if torch.version.cuda is not None or version.endswith("+cpu") or _kept:
        return  # torchvision can load its own
    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(f"{name}(Tensor x) -> Tensor")
    _kept.append(library)
