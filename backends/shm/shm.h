// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ronde/plugin/board.h"
#include "ronde/plugin/factory.h"

/// The backend and the board of ranks that share a host, for programs that put a Runtime together.
namespace ronde {

/// Options of the shared-memory backend, equal on all ranks. The defaults are measured
/// (docs/performance.md); tests set others to reach rare cases.
struct ShmOptions {
  enum class Reduce : std::uint8_t {
    Auto,     ///< depends on the number of ranks and the size
    OneShot,  ///< every rank reduces everything
    TwoShot,  ///< every rank reduces a slice for all
  };
  enum class Stores : std::uint8_t {
    Auto,  ///< tries all and uses the fastest
    Regular,
    Streaming,
  };

  /// A rank's part of the slot buffer: slots, and bytes in each (a multiple of 64; 0: depends on
  /// the numbers of ranks and cores).
  std::size_t slots = 4;
  std::size_t slot_bytes = 0;
  Reduce reduce = Reduce::Auto;
  Stores stores = Stores::Auto;
};

/// Makes the backend, on all ranks of a host at the same time. Its name is "shm".
BackendFactory shm_backend_factory(const ShmOptions& options = {});

/// Makes the board of ranks that are processes of one host: a page of words that all map, and an
/// eventfd of each. Null where the transport offers none (Transport::wake_fd).
MakeBoard shm_board_factory();

}  // namespace ronde
