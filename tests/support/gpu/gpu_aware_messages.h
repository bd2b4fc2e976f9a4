// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backends/vendor/api_table.h"
#include "ronde/backend.h"
#include "tests/support/inproc/inproc.h"

namespace ronde::test {

/// An MPI that takes addresses of GPUs, as far as messages go: the memory of fake GPUs is the
/// host's. It can be made to fail as such libraries do. Shared by the ranks of a process.
///
/// Thread-safety: full, but for what is set before ranks start.
struct GpuAwareMessages {
  /// Between so many threads.
  explicit GpuAwareMessages(int size) : GpuAwareMessages(inproc::Group(size).backend_factory()) {}
  explicit GpuAwareMessages(BackendFactory messages) : inner(std::move(messages)) {}
  /// `problem`: why the rank that uses it cannot have it, if so.
  BackendFactory factory(const std::string& problem = {});

  /// CudaOptions::wrap_mpi_calls: this library does need the context of a GPU.
  vendor::WrapCalls wrap();

  /// What a message of this rank does in place of arriving.
  enum class Fault {
    None,
    NotBegun,  ///< the call fails
    Fails,     ///< it fails later
    Lost,      ///< it ends, but nothing has arrived
    Hangs,
  };

  const BackendFactory inner;
  bool serves_sets = false;
  /// Of messages that this rank receives, or as it sends them if `of_sends`.
  int faulty_rank = -1;
  std::atomic<Fault> fault{Fault::None};
  bool of_sends = false;
  std::size_t of_bytes = 0;  ///< only of messages of this size; 0: of all
  std::atomic<int> made{0}, closed{0}, aborted{0}, sent{0}, received{0};
  std::atomic<int> wrapped{0};  ///< by so many ranks now
  /// Calls that begin, ask for or end messages on a thread without the context of a GPU.
  std::atomic<int> without_context{0};

  /// Makes a call as all of them are made.
  void call(const std::function<void()>& make);

 private:
  class Wrapping;

  std::mutex mutex_;
  std::vector<std::shared_ptr<const vendor::CallWrapper>> wrappers_;
};

}  // namespace ronde::test
