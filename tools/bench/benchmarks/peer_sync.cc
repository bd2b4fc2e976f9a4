// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/benchmarks/peer_sync.h"

#include <numeric>

#include "backends/cuda/cuda.h"
#include "backends/gpu/kernels/kernel_image.h"

namespace ronde::tool {
namespace {

constexpr std::size_t kBytes = 4096;

template <typename Number>
std::vector<Number> all_ranks(const Topology& topology) {
  std::vector<Number> ranks(static_cast<std::size_t>(topology.size));
  std::iota(ranks.begin(), ranks.end(), Number{0});
  return ranks;
}

}  // namespace

PeerSync::PeerSync(Session& session, const GpuAccess& access, int device, IpcSync way)
    : session_(session),
      device_(device),
      streams_(std::make_shared<cuda::CudaStreams>(cuda::load_driver(access.symbols).api)),
      bench_(*streams_, device,
             access.kernel_image != nullptr ? access.kernel_image : cuda::kernel_image(), kBytes,
             cuda::kBytesBehind),
      peers_(bench_, way, true, all_ranks<int>(session.topology()),
             all_ranks<std::size_t>(session.topology()),
             static_cast<std::size_t>(session.topology().rank)),
      exchange_(session.raw().host(), session.topology().size) {}

bool PeerSync::connect() {
  if (session_.topology().size == 1 || session_.topology().hosts() > 1) return false;
  std::string problem;
  const cuda::VisibleDevices all;
  Steps steps = peers_.connect(exchange_, all, CudaOptions().ipc_patience, problem);
  session_.raw().wait_until([&] { return steps.poll(); }, "the trial of CUDA IPC");
  return problem.empty();
}

void PeerSync::run() {
  peers_.record();
  // As in an operation, the ranks' threads tell each other that all have queued theirs.
  exchange_.start(device_);
  session_.raw().wait_until([&] { return exchange_.poll(); }, "a synchronisation");
  peers_.wait_for_all();
  const auto event = streams_->mark(bench_.stream());
  session_.raw().wait_until([&] { return event->passed(); }, "a synchronisation on the GPU");
}

}  // namespace ronde::tool
