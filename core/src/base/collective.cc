// SPDX-License-Identifier: Apache-2.0
#include "ronde/collective.h"

namespace ronde {

std::string_view to_string(Collective kind) noexcept {
  switch (kind) {
    case Collective::Allreduce:
      return "allreduce";
    case Collective::Broadcast:
      return "broadcast";
    case Collective::Allgather:
      return "allgather";
    case Collective::Barrier:
      return "barrier";
    case Collective::Alltoall:
      return "alltoall";
    case Collective::Reducescatter:
      return "reducescatter";
    case Collective::Send:
      return "send";
    case Collective::Recv:
      return "recv";
    case Collective::Join:
      return "join";
  }
  return "unknown collective";
}

std::string_view to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::Sum:
      return "sum";
    case ReduceOp::Average:
      return "average";
    case ReduceOp::Min:
      return "min";
    case ReduceOp::Max:
      return "max";
    case ReduceOp::Product:
      return "product";
    case ReduceOp::Adasum:
      return "adasum";
  }
  return "unknown op";
}

std::string_view to_string(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::Cpu:
      return "cpu";
    case DeviceKind::Cuda:
      return "cuda";
  }
  return "unknown device";
}

}  // namespace ronde
