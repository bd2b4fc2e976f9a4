# SPDX-License-Identifier: Apache-2.0
"""Horovod's calls for PyTorch, on Ronde: ``import ronde.torch as hvd``.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Ranks are started by ``ronde run``, torchrun, srun, or, in a build with MPI, mpiexec.
"""

from ronde.torch import elastic
from ronde.torch.basics import (HorovodInternalError, ProcessSet, add_process_set, ccl_built,
                                cross_rank, cross_size, cuda_built, ddl_built, global_process_set,
                                gloo_built, gloo_enabled, init, is_homogeneous, is_initialized,
                                local_rank, local_size, mpi_built, mpi_enabled,
                                mpi_threads_supported, nccl_built, rank, remove_process_set,
                                rocm_built, shutdown, size, start_timeline, stop_timeline)
from ronde.torch.compression import Compression
from ronde.torch.elastic import HostsUpdatedInterrupt
from ronde.torch.functions import (allgather_object, broadcast_object, broadcast_optimizer_state,
                                   broadcast_parameters)
from ronde.torch.operations import (Adasum, Average, Max, Min, Product, Sum, allgather,
                                    allgather_async, allreduce, allreduce_, allreduce_async,
                                    allreduce_async_, alltoall, alltoall_async, barrier, broadcast,
                                    broadcast_, broadcast_async, broadcast_async_,
                                    grouped_allgather, grouped_allgather_async, grouped_allreduce,
                                    grouped_allreduce_, grouped_allreduce_async,
                                    grouped_allreduce_async_, grouped_reducescatter,
                                    grouped_reducescatter_async, join, poll, reducescatter,
                                    reducescatter_async, sparse_allreduce_async, synchronize)
from ronde.torch.optimizer import DistributedOptimizer
from ronde.torch.sync_batch_norm import SyncBatchNorm
