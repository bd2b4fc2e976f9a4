// SPDX-License-Identifier: Apache-2.0
// A module of its own, as it links libtorch_cuda: see load_cuda_graphs().
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "common/benchmark/step_graph.h"

namespace example {
namespace {

class CudaGraph final : public StepGraph {
 public:
  explicit CudaGraph(c10::DeviceIndex device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)) {}

  std::optional<c10::Stream> stream() const override { return stream_.unwrap(); }

  void capture(const std::function<void()>& work) override {
    // The graph has memory of its own, in which nothing that lies idle elsewhere is used.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Of this thread: Ronde's go on meanwhile.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      abandon();
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  void abandon() noexcept {
    try {
      graph_.capture_end();
    } catch (const c10::Error&) {
      // It says that the capture failed; of what it failed the caller is told.
    }
  }

  c10::cuda::CUDAStream stream_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace
}  // namespace example

extern "C" [[gnu::visibility("default")]] example::StepGraph* example_make_cuda_graph(int device) {
  return new example::CudaGraph(static_cast<c10::DeviceIndex>(device));
}
