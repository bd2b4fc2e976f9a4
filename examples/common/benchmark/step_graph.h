// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

namespace example {

/// What a GPU is given in each step: recorded once, and then given as a whole. A CUDA graph.
///
/// Thread-safety: none.
class StepGraph {
 public:
  virtual ~StepGraph() = default;

  /// The stream in which it records. Whatever touches the same tensors runs there, too, from before
  /// the first step on, as autograd keeps the stream in which it met a parameter. Nothing: there
  /// are no streams.
  virtual std::optional<c10::Stream> stream() const = 0;

  /// Runs `work`, and records what it queues in stream(), the current one; none of it is executed.
  /// Tensors that `work` leaves behind have their memory from the graph, and no values yet. Once.
  virtual void capture(const std::function<void()>& work) = 0;

  /// Queues what was recorded, on the same memory; the program's code of it does not run. In
  /// stream(), after capture().
  virtual void replay() = 0;
};

/// Makes a CUDA graph on the GPU of that number; the caller owns it.
using CudaGraphMaker = StepGraph* (*)(int device);

/// Opens the module in `folder` that makes CUDA graphs. It links libtorch_cuda, which no program
/// here does, so that they run with a LibTorch without CUDA. It stays open. Throws InputError where
/// it is not there or does not open, with what to do.
CudaGraphMaker load_cuda_graphs(const std::filesystem::path& folder);

/// Where the module is: the folder of the program that runs.
std::filesystem::path program_folder();

/// A CUDA graph on `device`. Throws InputError if that is no GPU, and what load_cuda_graphs()
/// throws.
std::unique_ptr<StepGraph> make_cuda_graph(c10::Device device);

}  // namespace example
