// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ronde/plugin/factory.h"

/// The backend of ranks that share a host, for programs that put a Runtime together.
namespace ronde {

/// How the shared-memory backend works. Must be equal on all ranks. The defaults are measured
/// (docs/performance.md); tests set others to meet the rare cases often.
struct ShmOptions {
  enum class Reduce : std::uint8_t {
    Auto,     ///< by the number of ranks and the size
    OneShot,  ///< every rank reduces everything
    TwoShot,  ///< every rank reduces a slice for all
  };
  enum class Stores : std::uint8_t {
    Auto,  ///< tries all, takes the fastest
    Regular,
    Streaming,
  };

  /// A rank's part of the slot buffer: slots, and bytes in each (a multiple of 64; 0: by the
  /// numbers of ranks and cores).
  std::size_t slots = 4;
  std::size_t slot_bytes = 0;
  Reduce reduce = Reduce::Auto;
  Stores stores = Stores::Auto;
};

/// Makes the backend, on all ranks of a host at the same time. Its name is "shm".
BackendFactory shm_backend_factory(const ShmOptions& options = {});

}  // namespace ronde
