#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains ResNet or EDSR on random images over Ronde, and prints images per second.

    torchrun --nproc-per-node 2 resnet.py                           PyTorch's DDP over Ronde
    torchrun --nproc-per-node 2 resnet.py --door fsdp               FSDP2: sharded parameters
    torchrun --nproc-per-node 2 resnet.py --door hvd                Horovod's calls
    torchrun --nproc-per-node 2 resnet.py --efficiency ronde gloo   steps of both backends, in turns,
                                                                    against those of unconnected ranks
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

LAYERS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}
Step = Callable[[], None]


def convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)


class Block(nn.Module):
    """A residual block of two 3x3 convolutions, or of a bottleneck (1x1, 3x3, 1x1)."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        shapes = (
            [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
            if bottleneck
            else [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        )
        parts: list[nn.Module] = []
        for shape in shapes:
            parts += [convolution(*shape), nn.BatchNorm2d(shape[1]), nn.ReLU()]
        self.branch = nn.Sequential(*parts[:-1])
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(images) + self.shortcut(images))


def make_resnet(name: str) -> nn.Module:
    """He et al., "Deep Residual Learning for Image Recognition", table 1."""
    bottleneck = name == "resnet50"
    parts: list[nn.Module] = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU()]
    parts.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for layer, blocks in enumerate(LAYERS[name]):
        for block in range(blocks):
            stride = 2 if layer > 0 and block == 0 else 1
            parts.append(Block(channels, 64 << layer, stride, bottleneck))
            channels = (64 << layer) * (4 if bottleneck else 1)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class ResidualPair(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.pair = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.pair(images)


def make_edsr(width: int = 64, blocks: int = 16) -> nn.Module:
    """Lim et al., "Enhanced Deep Residual Networks for Single Image Super-Resolution": baseline, x2."""
    body = [ResidualPair(width) for _ in range(blocks)]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *body,
        nn.Conv2d(width, 4 * width, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Conv2d(width, 3, 3, padding=1),
    )


def make_task(options: argparse.Namespace) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    """Returns a model, equal on all ranks, and its loss on this rank's own batch."""
    torch.manual_seed(0)
    side = options.image_size
    model = make_edsr() if options.model == "edsr" else make_resnet(options.model)
    torch.manual_seed(1 + dist.get_rank())
    images = torch.randn(options.batch_size, 3, side, side)
    if options.model == "edsr":
        targets = torch.randn(options.batch_size, 3, 2 * side, 2 * side)
        return model, lambda net: nn.functional.l1_loss(net(images), targets)
    classes = torch.randint(1000, (options.batch_size,))
    return model, lambda net: nn.functional.cross_entropy(net(images), classes)


def make_step(options: argparse.Namespace, door: str, group: dist.ProcessGroup | None) -> Step:
    """Returns a training step; door "none" leaves the ranks unconnected."""
    model, loss = make_task(options)
    if door == "ddp":
        model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    elif door == "fsdp":
        mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
        for part in [*model, model]:
            if any(True for _ in part.parameters()):
                fully_shard(part, mesh=mesh)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if door == "hvd":
        import ronde.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def time_steps(step: Step, count: int) -> float:
    """Returns the milliseconds of a step; all ranks begin together."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return 1000 * (time.perf_counter() - begin) / count


def train(options: argparse.Namespace) -> None:
    step = make_step(options, options.door, None)
    time_steps(step, options.warmup)
    rates = [options.batch_size * 1000 / time_steps(step, options.steps) for _ in range(options.rounds)]
    if dist.get_rank() == 0:
        rate = statistics.median(rates)
        print(f"{options.model}: {rate:.1f} images/s a rank, {rate * dist.get_world_size():.1f} in all")


def compare(options: argparse.Namespace) -> None:
    """The steps of each backend and of unconnected ranks take turns, as machines change their speed."""
    steps = {"unconnected": make_step(options, "none", None)}
    for backend in options.efficiency:
        group = dist.new_group(backend=backend)
        steps[f"{options.door} over {backend}"] = make_step(options, options.door, group)
    for step in steps.values():
        time_steps(step, options.warmup)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            times[name].append(time_steps(step, options.steps))
    alone = times["unconnected"]
    if dist.get_rank() == 0:
        for name, series in times.items():
            efficiency = [100 * a / b for a, b in zip(alone, series)]
            print(
                f"{options.model}, {dist.get_world_size()} ranks, {name}: "
                f"{statistics.median(series):.1f} ms a step, efficiency "
                f"{statistics.median(efficiency):.1f} % ({min(efficiency):.1f} to {max(efficiency):.1f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--door", choices=("ddp", "fsdp", "hvd"), default="ddp")
    parser.add_argument("--backend", default="ronde", help="of torch.distributed (default: ronde)")
    parser.add_argument("--model", choices=(*LAYERS, "edsr"), default="resnet50")
    parser.add_argument("--batch-size", type=int, default=8, help="images a rank and step")
    parser.add_argument("--image-size", type=int, default=64, help="side of an image, pixels")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the first round")
    parser.add_argument("--steps", type=int, default=3, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--efficiency", nargs="+", metavar="BACKEND", help="compare these")
    options = parser.parse_args()
    if options.door == "hvd":
        import ronde.torch as hvd

        hvd.init()
    dist.init_process_group(options.backend)  # the one word that changes
    compare(options) if options.efficiency else train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
