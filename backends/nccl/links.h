// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/cuda_streams.h"
#include "backends/cuda/registration_cache.h"
#include "backends/device/host_exchange.h"
#include "backends/device/steps.h"
#include "backends/nccl/channel.h"
#include "backends/nccl/fusion_memory.h"
#include "backends/nccl/identity.h"
#include "backends/nccl/nccl.h"
#include "ronde/backend.h"

namespace ronde::nccl {

/// The vendors' libraries, found and good enough.
struct Libraries {
  std::shared_ptr<const cuda::DriverApi> driver;
  std::shared_ptr<const NcclApi> nccl;
  int nccl_version = 0;
};

/// A channel between all ranks with what collectives work in.
struct Lane {
  /// Outlives what is below.
  std::unique_ptr<cuda::Workbench> bench;
  Channel channel;
  std::unique_ptr<FusionMemory> fusion;
};

/// How a rank is linked with the others. It all begins with the first operation, which tells the
/// GPU: the ranks of a collective tell each other who they are, and connect a lane for each stream.
/// A message has two ranks alone, which must not make the others take part: each pair that
/// exchanges messages connects by itself, with the first one.
///
/// Where ranks share a GPU, another backend takes over for good (NcclOptions::fallback). What two
/// ranks have found out for their messages changes with the first collective; as both start all
/// that they have in common in the same order, they see that alike.
///
/// Thread-safety: as Backend; stats() and device_streams(): any thread.
class Links {
 public:
  Links(Libraries libraries, const NcclOptions& options, const BackendContext& context);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  std::size_t size() const noexcept { return size_; }
  std::size_t rank() const noexcept { return rank_; }
  const NcclOptions& options() const noexcept { return options_; }
  cuda::CudaStreams& streams() const noexcept { return *streams_; }
  /// Those of the fallback included.
  std::shared_ptr<DeviceStreams> device_streams() const;

  /// Advances the ranks' connecting without blocking; true once they are connected, or have the
  /// fallback. Throws Error if they cannot be.
  bool connect(int device);
  /// The same for the messages with `peer`.
  bool connect_to(int peer, int device);

  /// Null: NCCL serves.
  /// @{
  Backend* fallback() const noexcept { return is_replaced_ ? fallback_.get() : nullptr; }
  Backend* fallback_to(int peer) const;
  /// @}

  /// They take turns; every rank asks once for each collective.
  Lane& next_lane();
  /// Of messages: its stream is that of the first lane.
  const Channel& channel_to(int peer) const;

  /// See Backend.
  /// @{
  void abort() noexcept;
  void let_go();
  void close();
  /// @}

  struct Counts {
    std::atomic<std::uint64_t> collectives{0}, messages{0}, bytes{0}, direct_chunks{0},
        packed_chunks{0}, chunks_in_order{0}, communicators{0};
  };
  Counts& counts() noexcept { return counts_; }
  StatsGroup stats() const;

 private:
  struct Pair {
    device::Steps connecting;
    bool has_begun = false;
    bool is_done = false;
    bool by_fallback = false;
    Channel channel;
  };
  /// Those of this backend and of the fallback, as one.
  class Streams;

  device::Steps connect_all(int device);
  device::Steps connect_lane(Lane& lane, cuda::Workbench& bench, device::HostExchange& exchange);
  device::Steps connect_pair(int peer, int device, Pair& pair);
  cuda::Workbench& bench(std::size_t lane, int device);
  Candidate candidate(std::size_t rank, const Identity& identity) const;
  /// True if nobody shares a GPU; else the fallback is there. Throws Error if there is none, or the
  /// ranks cannot be connected at all.
  bool can_connect(const std::vector<Candidate>& candidates);
  UniqueId new_id(const cuda::DeviceContext& context) const;
  std::shared_ptr<NonBlockingCommunicator> begin_communicator(cuda::Workbench& bench,
                                                              const UniqueId& id, int size,
                                                              int rank);
  /// In the same order on the two or more ranks of each.
  template <typename Visit>
  void for_each_communicator(Visit visit) const {
    for (const Lane& lane : lanes_) {
      if (lane.channel.communicator()) visit(*lane.channel.communicator());
    }
    for (const auto& [peer, pair] : pairs_) {
      if (pair.channel.communicator()) visit(*pair.channel.communicator());
    }
  }

  const Libraries libraries_;
  const NcclOptions options_;
  BackendContext context_;
  const std::size_t size_;
  const std::size_t rank_;
  const std::shared_ptr<cuda::CudaStreams> streams_;
  const std::shared_ptr<Streams> all_streams_;
  cuda::RegistrationCache registrations_;
  device::Steps connecting_;
  bool is_connecting_ = false;
  bool is_connected_ = false;
  bool is_replaced_ = false;
  std::vector<Lane> lanes_;
  std::map<int, Pair> pairs_;
  std::uint64_t turn_ = 0;
  Counts counts_;
  mutable std::mutex mutex_;           ///< of who may be asked for stats() meanwhile
  std::unique_ptr<Backend> fallback_;  ///< made under mutex_
};

}  // namespace ronde::nccl
