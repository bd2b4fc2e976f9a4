// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "ronde/backend.h"
#include "tests/support/inproc/inproc.h"

namespace ronde::test {

/// Messages of an MPI that takes addresses of GPUs, between ranks that are threads: the memory of
/// fake GPUs is the host's. They can be made to fail as such libraries do.
///
/// Thread-safety: full, but for what is set before ranks start.
struct GpuAwareMessages {
  explicit GpuAwareMessages(const inproc::Group& group) : inner(group.backend_factory()) {}
  /// `problem`: why the rank that uses it cannot have it, if so.
  BackendFactory factory(const std::string& problem = {});

  /// What a message of the faulty rank does in place of arriving.
  enum class Fault { None, NotBegun, Fails, Hangs };

  const BackendFactory inner;
  int faulty_rank = -1;
  std::atomic<Fault> fault{Fault::None};
  bool of_sends = false;  ///< else of receives
  std::atomic<int> made{0}, closed{0}, aborted{0}, begun{0};
  /// Calls that begin or poll messages on a thread without the context of a GPU.
  std::atomic<int> without_context{0};
};

}  // namespace ronde::test
