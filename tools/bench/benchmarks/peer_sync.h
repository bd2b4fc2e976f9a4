// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backends/cuda/ipc/ipc_peers.h"
#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/gpu_resources.h"
#include "tools/bench/session/session.h"

namespace ronde::tool {

/// A bare synchronisation of all ranks' threads and then of their GPUs' streams: the floor under an
/// allreduce of few bytes.
class PeerSync {
 public:
  /// On GPU `device`.
  PeerSync(Session& session, const GpuAccess& access, int device, IpcSync way);

  /// Whether it works; the same on all ranks. Collective.
  bool connect();
  void run();
  /// Releases what belongs to other ranks.
  void forget() { peers_.forget(); }

 private:
  Session& session_;
  const int device_;
  const std::shared_ptr<cuda::CudaStreams> streams_;
  cuda::GpuResources bench_;
  cuda::IpcPeers peers_;
  gpu::HostExchange exchange_;
};

}  // namespace ronde::tool
