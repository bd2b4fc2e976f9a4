// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "backends/cuda/device_context.h"
#include "backends/cuda/kernels/segments.h"
#include "backends/cuda/stream.h"
#include "ronde/dtype.h"
#include "ronde/kernels.h"

namespace ronde::cuda {

/// So long a kernel waits for another rank: far longer than a group takes to find out that it is
/// dead, which ends the wait (PeerSignals::release).
constexpr std::chrono::minutes kAwaitLimit{60};

/// What limits a launch, and so how many blocks it gets.
enum class Traffic : std::uint8_t {
  Local,  ///< the memory of this GPU alone, or none that is slower: all multiprocessors work
  Link,   ///< the link to other GPUs, which few blocks saturate: the others stay free
};

/// Ronde's kernels on one GPU. All are loaded at once: loading one later might wait for what is
/// queued, and that for other ranks.
///
/// Thread-safety: full.
class KernelSet {
 public:
  /// `image`: that of kernel_image(). Throws Error if there is none, DriverError if it has no code
  /// for this GPU.
  KernelSet(std::shared_ptr<const DeviceContext> context, const void* image);
  ~KernelSet();
  KernelSet(const KernelSet&) = delete;
  KernelSet& operator=(const KernelSet&) = delete;

  const std::shared_ptr<const DeviceContext>& context() const noexcept { return context_; }

  /// Whether there is a copying kernel between the two types: equal ones, or a half type and F32 or
  /// F64.
  static bool can_copy(DataType from, DataType to) noexcept;

  struct Move {
    const void* source = nullptr;  ///< null: the neutral element of `op` is written
    void* target = nullptr;
    std::size_t count = 0;  ///< of elements
  };
  struct How {
    DataType from = DataType::F32;
    DataType to = DataType::F32;  ///< can_copy
    Scaling scaling = {};
    ReduceOp op = ReduceOp::Sum;
    /// Any NaN becomes the one quiet NaN, where it would be copied as it is otherwise.
    bool canonical = false;
    Traffic traffic = Traffic::Local;
  };
  /// Packs and unpacks: queues copies with conversion and scale on the way, kMostSegments by each
  /// launch, within the GPU's own memory or what it maps. Where only bits are moved, addresses need
  /// no alignment; elsewhere, and in reduce(), one that is not a multiple of the element's bytes
  /// throws Error.
  void move(const Stream& stream, std::span<const Move> moves, const How& how);

  /// Inputs of a reduction at equal distances, of any number.
  struct Strided {
    DevicePointer first = 0;
    std::size_t bytes = 0;  ///< from each to the next
    std::size_t count = 0;
  };
  /// Queues the reduction of inputs (one or more; kMostInputs at most if each has an address of its
  /// own) in their order. As Kernels::reduce in core, to the bit. The output may be an input.
  /// @{
  void reduce(const Stream& stream, DevicePointer output, std::span<const DevicePointer> inputs,
              std::size_t count, const Reduction& reduction, Traffic traffic = Traffic::Local);
  void reduce(const Stream& stream, DevicePointer output, const Strided& inputs, std::size_t count,
              const Reduction& reduction);
  /// @}

  /// Queues what writes `value` to flags (kMostInputs at most), also of other GPUs, once all that
  /// is queued now has run, and shows.
  void signal(const Stream& stream, std::span<const DevicePointer> flags, std::uint32_t value);
  /// Queues what waits until each of these flags has come to `value`, and occupies a part of the
  /// GPU meanwhile; or until `released`, a word of host memory, is not 0. After kAwaitLimit it
  /// gives up, and with it the whole context fails.
  void await(const Stream& stream, std::span<const DevicePointer> flags, std::uint32_t value,
             DevicePointer released);

 private:
  void load(const char* name);
  void reduce(const Stream& stream, DevicePointer output, kernels::ReductionArguments how,
              std::size_t count, const Reduction& reduction, Traffic traffic);
  unsigned blocks_for(std::uint64_t tiles, Traffic traffic, std::uint64_t link_blocks) const;
  void launch(const Stream& stream, const std::string& name, unsigned blocks,
              std::span<void*> arguments);

  const std::shared_ptr<const DeviceContext> context_;
  ModuleHandle module_ = nullptr;
  std::map<std::string, FunctionHandle> functions_;  ///< all that there are
};

}  // namespace ronde::cuda
