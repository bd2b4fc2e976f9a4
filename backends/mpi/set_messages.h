// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backends/mpi/mpi_environment.h"
#include "ronde/plugin/backend.h"

namespace ronde::mpi {

/// The channel of a process set's messages.
///
/// Note [No communicator a set]
/// MPI 3.1 makes communicators of some ranks by blocking calls only, which a rank that dies
/// meanwhile would hold for ever. A duplicate of the world is made without blocking, once, and
/// messages need no more than that: those of a set bear its number as their tag. Between two ranks
/// of a set they are sent and received in one order, that of the set's operations.
struct SetChannel {
  std::shared_ptr<MpiEnvironment> environment;
  MPI_Comm communicator = MPI_COMM_NULL;
  std::vector<int> peers;  ///< ranks of the communicator, by rank in the set
  int tag = 0;
  std::size_t max_count = 0;   ///< bytes of one MPI call
  bool between_hosts = false;  ///< the ranks are on several hosts
};

/// An operation in steps, each of which posts messages and may use what has arrived before.
///
/// Thread-safety: as Operation.
class SetOperation final : public Operation {
 public:
  using Step = std::function<void(SetOperation&)>;

  SetOperation(std::shared_ptr<const SetChannel> channel, std::vector<Step> steps)
      : channel_(std::move(channel)), steps_(std::move(steps)) {}
  /// Messages that are still in flight keep their scratch memory for ever.
  ~SetOperation() override;

  bool poll() override;
  std::uint64_t progress() const override { return ended_; }

  // Steps call these. The memory must stay until the next step.

  void send(std::size_t peer, const std::byte* from, std::size_t bytes);
  void receive(std::size_t peer, std::byte* to, std::size_t bytes);
  /// Memory of so many bytes that lives as long as the operation.
  std::byte* scratch(std::size_t bytes);

 private:
  template <typename Function, typename Bytes>
  void start(const char* name, const Function& function, std::size_t peer, Bytes* data,
             std::size_t bytes);

  struct State {
    std::vector<MPI_Request> requests;
    std::vector<std::vector<std::byte>> scratch;
  };

  const std::shared_ptr<const SetChannel> channel_;
  const std::vector<Step> steps_;
  std::size_t next_ = 0;     ///< the step to take once all messages have ended
  std::uint64_t ended_ = 0;  ///< messages
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace ronde::mpi
