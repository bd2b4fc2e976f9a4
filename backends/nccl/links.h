// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/cuda_streams.h"
#include "backends/cuda/device_query.h"
#include "backends/cuda/workbench.h"
#include "backends/gpu/host_exchange.h"
#include "backends/nccl/channel.h"
#include "backends/nccl/nccl.h"
#include "core/src/base/steps.h"
#include "ronde/backend.h"

namespace ronde::nccl {

/// The vendors' libraries, found and good enough.
struct Libraries {
  std::shared_ptr<const cuda::DriverApi> driver;
  std::shared_ptr<const NcclApi> nccl;
  int nccl_version = 0;
};

/// What a rank tells the others before they connect: plain bytes, for the control plane.
struct Identity {
  std::array<char, 16> pci_id{};
  std::array<char, 48> uuid{};
  int nccl_version = 0;
};

Identity identity_of(const cuda::Gpu& gpu, int nccl_version);

/// A rank that is to be connected.
struct Candidate {
  int rank = 0;  ///< as it is called in texts
  int host = 0;
  Identity identity;
};

/// Who shares a GPU, which NCCL cannot serve: "rank 0 and rank 1 are both on GPU-... (0000:1b:00.0)
/// of one host". Empty if nobody does.
std::string shared_gpu(const std::vector<Candidate>& candidates);

/// Which ranks have different versions of NCCL, which do not connect. Empty if none have.
std::string mixed_versions(const std::vector<Candidate>& candidates);

struct Counts {
  std::atomic<std::uint64_t> collectives{0}, messages{0}, bytes{0}, direct_chunks{0},
      packed_chunks{0}, chunks_in_order{0}, communicators{0};
};

/// What operations need of the backend.
struct Shared {
  const Libraries libraries;
  const NcclOptions options;
  const std::size_t size;
  const std::size_t rank;
  const std::shared_ptr<cuda::CudaStreams> streams;
  Counts counts = {};
};

/// How a rank is linked with the others. It all begins with the first operation, which tells the
/// GPU: the ranks of a collective tell each other who they are, and connect a lane for each stream.
/// One thread makes the calls of all lanes, so that all ranks make them in the same order.
///
/// A message has two ranks alone, which must not make the others take part: each pair that
/// exchanges messages connects by itself, with the first one. It has a stream, in which messages
/// wait for no collective, and a thread, as pairs that connect may wait for each other in a circle.
///
/// Where ranks share a GPU, another backend takes over for good (NcclOptions::fallback). What two
/// ranks have found out for their messages changes with the first collective; as both start all
/// that they have in common in the same order, they see that alike.
///
/// Thread-safety: as Backend; stats() and device_streams(): any thread.
class Links {
 public:
  Links(const Libraries& libraries, const NcclOptions& options, const BackendContext& context);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  const std::shared_ptr<Shared>& shared() const noexcept { return shared_; }
  Counts& counts() noexcept { return shared_->counts; }
  /// Those of the fallback included.
  std::shared_ptr<DeviceStreams> device_streams() const;

  /// In place of the peer of a message: all ranks, of a collective.
  static constexpr int kAllRanks = -1;

  /// Advances the connecting with `peer`, or of all ranks, without blocking; true once they are
  /// connected, or have the fallback. Throws Error if they cannot be.
  bool connect(int peer, int device);
  /// Once they are. Null: NCCL serves.
  Backend* fallback(int peer) const;
  /// Lanes take turns; every rank asks once for each operation that NCCL serves.
  std::shared_ptr<Lane> next_lane(int peer);

  /// See Backend.
  /// @{
  void abort() noexcept;
  void let_go();
  void close();
  StatsGroup stats() const;
  /// @}

 private:
  /// All ranks, or this one and a peer.
  struct Connection {
    Steps connecting;
    bool has_begun = false;
    bool is_done = false;
    bool by_fallback = false;
    std::vector<std::shared_ptr<Lane>> lanes;
    std::size_t turn = 0;
  };
  /// Those of this backend and of the fallback, as one.
  class Streams;

  const NcclOptions& options() const noexcept { return shared_->options; }
  int own_rank() const noexcept { return static_cast<int>(shared_->rank); }
  Steps connect_all(int device, Connection& all);
  Steps connect_pair(int peer, int device, Connection& pair);
  /// Waits until as many ranks have come, for no longer than the deadline of init.
  Steps connect_lane(std::shared_ptr<Lane> lane, UniqueId id, int rank, std::size_t ranks);
  std::shared_ptr<Lane> make_lane(int device, const std::shared_ptr<IssuingThread>& thread) const;
  Candidate candidate(std::size_t rank, const Identity& identity) const;
  /// True if nobody shares a GPU; else the fallback is there. Throws Error if there is none, or the
  /// ranks cannot be connected at all.
  bool can_connect(const std::vector<Candidate>& candidates);
  UniqueId new_id(int device) const;
  bool is_replaced() const;
  /// In the same order on the two or more ranks of each.
  std::vector<std::shared_ptr<Lane>> lanes() const;
  void end_connecting() noexcept;
  void end_lanes() noexcept;

  BackendContext context_;
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Streams> streams_;
  bool hangs_ = false;  ///< NCCL, in a call or in an abort: it may still use the lanes
  std::map<int, Connection> connections_;  ///< by peer
  mutable std::mutex mutex_;               ///< of who may be asked for stats() meanwhile
  std::unique_ptr<Backend> fallback_;      ///< made under mutex_
};

}  // namespace ronde::nccl
