// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "ronde/kernels.h"
#include "ronde/plugin/calls.h"

namespace ronde::shm {

/// Element types of an allreduce: the type in the user's memory, and the wire type, in which
/// elements are staged, reduced and sent. They differ where the call has a wire_dtype.
class ElementFormat {
 public:
  explicit ElementFormat(const AllreduceCall& call)
      : kernels_(best_kernels()),
        user_(call.dtype),
        wire_(call.effective_wire_dtype()),
        prescale_(call.prescale) {}

  bool converts() const noexcept { return user_ != wire_; }
  DataType wire() const noexcept { return wire_; }
  std::size_t user_bytes() const noexcept { return size_of(user_); }
  std::size_t wire_bytes() const noexcept { return size_of(wire_); }

  /// Factor of a reduction's inputs; 1 where the conversion has scaled them.
  double prescale() const noexcept { return converts() ? 1.0 : prescale_; }

  /// Copies `count` elements from the user's memory; if it converts them, scaled.
  void pack(std::byte* to, const std::byte* from, std::size_t count, Store store) const {
    if (converts()) {
      kernels_.narrow(to, from, count, conversion({prescale_, 1.0}), store);
    } else {
      kernels_.copy(to, from, count * size_of(wire_), store);
    }
  }

  /// Copies `count` elements back to the user's memory.
  void unpack(std::byte* to, const std::byte* from, std::size_t count, Store store) const {
    if (converts()) {
      kernels_.widen(to, from, count, conversion({}), store);
    } else {
      kernels_.copy(to, from, count * size_of(wire_), store);
    }
  }

 private:
  Conversion conversion(const Scaling& scaling) const {
    return {.half = wire_, .full = user_, .scaling = scaling};
  }

  const Kernels& kernels_;
  const DataType user_;
  const DataType wire_;
  const double prescale_;
};

}  // namespace ronde::shm
