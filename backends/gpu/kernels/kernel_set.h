// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "backends/gpu/driver/device_context.h"
#include "backends/gpu/driver/stream.h"
#include "backends/gpu/kernels/segments.h"
#include "ronde/dtype.h"
#include "ronde/kernels.h"

namespace ronde::cuda {

/// What limits a kernel's speed, and so its number of blocks.
enum class Traffic : std::uint8_t {
  Local,  ///< this GPU's memory: all multiprocessors work
  Link,  ///< the link to other GPUs, which few blocks saturate: the other multiprocessors stay free
};

/// Ronde's kernels on one GPU. All are loaded at once: loading one later might wait for queued
/// work, which waits for peers.
///
/// Thread-safety: full.
class KernelSet {
 public:
  /// `image`: kernel_image(). Throws Error if it is null, DriverError if it has no code for the
  /// GPU.
  KernelSet(std::shared_ptr<const DeviceContext> context, const void* image);

  struct Move {
    const void* source = nullptr;  ///< null: the neutral element of `op` is written
    void* target = nullptr;
    std::size_t count = 0;  ///< of elements
  };
  struct How {
    DataType from = DataType::F32;
    DataType to = DataType::F32;  ///< equal, or a half type and F32 or F64 in either order
    Scaling scaling = {};
    ReduceOp op = ReduceOp::Sum;
    /// Replaces any NaN by the one quiet NaN, also where bits would be copied.
    bool canonical = false;
    Traffic traffic = Traffic::Local;
  };
  /// Packs and unpacks: queues copies with conversion and scaling, kMostSegments by each launch,
  /// within the GPU's own or mapped memory. Addresses need no alignment where only bits are moved;
  /// elsewhere, and in reduce(), one that is not aligned to its element throws Error.
  void move(const Stream& stream, std::span<const Move> moves, const How& how);

  /// Queues the reduction of one or more inputs in their order, with the bits of Kernels::reduce()
  /// in core. The output may be an input. More than kMostInputs must be at equal distances.
  void reduce(const Stream& stream, DevicePointer output, std::span<const DevicePointer> inputs,
              std::size_t count, const Reduction& reduction, Traffic traffic = Traffic::Local);

 private:
  void load(const char* name);
  void launch(const Stream& stream, const std::string& name, std::uint64_t tiles, Traffic traffic,
              void* arguments);

  struct Kernel {
    FunctionHandle function = nullptr;
    std::uint64_t resident = 0;  ///< blocks that run at the same time: more would run in waves
  };

  const std::shared_ptr<const DeviceContext> context_;
  Owned<ModuleHandle, &DriverApi::module_unload> module_;
  std::map<std::string, Kernel> kernels_;  ///< by name
};

}  // namespace ronde::cuda
