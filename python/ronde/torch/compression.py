# SPDX-License-Identifier: Apache-2.0
"""Compression of tensors that are reduced."""

from typing import Any

import torch
from torch import Tensor


class NoneCompressor:
    """Sends tensors as they are. A class of your own has the same two functions."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """Returns what travels, and what decompress() needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """Returns the tensor in its own type again."""
        return tensor


class FP16Compressor(NoneCompressor):
    """Sends floating-point tensors as ``wire_dtype``."""

    wire_dtype = torch.float16

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, Any]:
        return (tensor.to(cls.wire_dtype) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx)


class BF16Compressor(FP16Compressor):
    """As fp16, with the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressions that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
