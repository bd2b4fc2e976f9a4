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

#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/driver/cuda_streams.h"
#include "backends/gpu/driver/device_query.h"
#include "backends/gpu/gpu_resources.h"
#include "backends/nccl/nccl.h"
#include "backends/nccl/stream_channel.h"
#include "core/src/base/steps.h"
#include "ronde/backend.h"

namespace ronde::nccl {

/// The loaded libraries of the vendors.
struct Libraries {
  std::shared_ptr<const cuda::DriverApi> driver;
  std::shared_ptr<const NcclApi> nccl;
  int nccl_version = 0;
};

/// What the ranks exchange before they connect: plain bytes, for the control plane.
struct Candidate {
  int rank = 0;  ///< as texts name it
  int host = 0;
  int nccl_version = 0;
  std::array<char, 16> pci_id{};
  std::array<char, 48> uuid{};
};

Candidate candidate_of(int rank, int host, const cuda::Gpu& gpu, int nccl_version);

/// Names two ranks that share a GPU, which NCCL does not support: "rank 0 and rank 1 are both on
/// GPU-... (0000:1b:00.0)". Empty if none do.
std::string shared_gpu(const std::vector<Candidate>& candidates);

/// Names two ranks with different versions of NCCL, which do not connect. Empty if there are none.
std::string mixed_versions(const std::vector<Candidate>& candidates);

struct Counts {
  std::atomic<std::uint64_t> collectives{0}, messages{0}, bytes{0}, direct_chunks{0},
      packed_chunks{0}, chunks_in_order{0}, communicators{0};
};

/// What operations share with the backend.
struct Shared {
  const Libraries libraries;
  const NcclOptions options;
  const std::size_t size;
  const std::size_t rank;
  const std::shared_ptr<cuda::CudaStreams> streams;
  Counts counts = {};
};

/// Connects a rank with the others. The first operation determines the GPU; in the first collective
/// all ranks exchange their Candidates, and connect a channel for each stream. One thread makes the
/// calls of all channels, so that all ranks make them in the same order.
///
/// Two ranks that exchange messages connect without the others, with the first message. They have a
/// stream, so that messages wait for no collective, and a thread, as pairs that connect may wait
/// for each other in a circle.
///
/// If ranks share a GPU, another backend replaces NCCL for good (NcclOptions::fallback). The first
/// collective may change what two ranks have found for their messages; both see that alike, as they
/// start common operations in the same order.
///
/// Thread-safety: as Backend; stats() and device_streams(): any thread.
class Communicators {
 public:
  Communicators(const Libraries& libraries, const NcclOptions& options,
                const BackendContext& context);
  ~Communicators();

  const std::shared_ptr<Shared>& shared() const noexcept { return shared_; }
  Counts& counts() noexcept { return shared_->counts; }
  /// Includes those of the fallback.
  std::shared_ptr<DeviceStreams> device_streams() const;

  /// The peer of a collective.
  static constexpr int kAllRanks = -1;

  /// Advances connecting with `peer`, or all ranks, without blocking; true once they are connected,
  /// or have the fallback. Throws Error if connecting fails.
  bool connect(int peer, int device);
  /// The fallback, after connect(); null: NCCL runs the operation.
  Backend* fallback(int peer) const;
  /// Channels take turns; every rank calls it once for each operation by NCCL.
  std::shared_ptr<StreamChannel> next_channel(int peer);

  // As those of Backend:
  void abort() noexcept;
  void release_peer_memory();
  void close();
  StatsGroup stats() const;

 private:
  /// Of all ranks, or of this one and a peer.
  struct Connection {
    Steps connecting;
    bool has_begun = false;
    bool is_done = false;
    bool by_fallback = false;
    std::vector<std::shared_ptr<StreamChannel>> channels;
    std::size_t turn = 0;
  };
  /// The streams of this backend and of the fallback.
  class Streams;

  const NcclOptions& options() const noexcept { return shared_->options; }
  int own_rank() const noexcept { return static_cast<int>(shared_->rank); }
  Steps connect_all(int device, Connection& all);
  Steps connect_pair(int peer, int device, Connection& pair);
  /// Waits for `ranks` ranks, up to NcclOptions::init_timeout_s.
  Steps connect_channel(std::shared_ptr<StreamChannel> channel, UniqueId id, int rank,
                        std::size_t ranks);
  std::shared_ptr<StreamChannel> make_channel(int device,
                                              const std::shared_ptr<IssuingThread>& thread) const;
  Candidate own_candidate(int device) const;
  /// True if no ranks share a GPU; else the fallback is made. Throws Error if there is none, or the
  /// versions differ.
  bool can_connect(const std::vector<Candidate>& candidates);
  UniqueId new_id(int device) const;
  bool is_replaced() const;
  /// All channels; the ranks of a channel have theirs in the same order.
  std::vector<std::shared_ptr<StreamChannel>> channels() const;
  void end_connecting() noexcept;
  void end_channels() noexcept;

  BackendContext context_;
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Streams> streams_;
  bool hangs_ = false;  ///< NCCL does, in a call or an abort, and may use the channels
  std::map<int, Connection> connections_;  ///< by peer
  mutable std::mutex mutex_;               ///< guards fallback_ against stats()
  std::unique_ptr<Backend> fallback_;
};

}  // namespace ronde::nccl
