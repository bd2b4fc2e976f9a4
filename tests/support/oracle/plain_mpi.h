// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <functional>
#include <string>
#include <utility>

#include "tests/support/oracle/elements.h"

namespace ronde::test {

/// The test program's own MPI, to check Ronde's results with: initialised with MPI_THREAD_MULTIPLE
/// at first use, on a communicator of its own, and finalised when the program ends. Every member
/// function is collective and blocks. One thread.
class PlainMpi {
 public:
  static PlainMpi& instance();

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  void barrier();

  /// Equally many numbers of every rank, rank after rank.
  std::vector<std::int64_t> gather(const std::vector<std::int64_t>& numbers);
  /// Texts may differ in length.
  std::vector<std::string> gather(const std::string& text);

  /// Whether every rank holds these very bits.
  bool same_everywhere(std::span<const std::byte> bytes);

  PlainMpi(const PlainMpi&) = delete;
  PlainMpi& operator=(const PlainMpi&) = delete;

 private:
  PlainMpi();
  ~PlainMpi();

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

/// Environment variables, set for the time of ronde::init() only.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// A group over the program's own MPI: plain MPI first, then ronde::init(), `body`, and
/// ronde::shutdown(). Quiet, and with a fusion buffer of 4 KiB unless the variables say otherwise.
/// What `body` throws goes on without a shutdown.
void with_group(const std::function<void(PlainMpi& mpi)>& body, const Variables& variables = {});

/// The same over ranks on simulated hosts, with the backend for several: `hosts` has a letter for
/// each rank, such as "aabb".
void with_hosts(const std::string& hosts, const std::function<void(PlainMpi& mpi)>& body,
                const Variables& variables = {});

/// The same once over each backend between ranks of one host: `body(mpi, backend)`.
void with_each_backend(const std::function<void(PlainMpi& mpi, const std::string& backend)>& body,
                       const Variables& variables = {});

}  // namespace ronde::test
