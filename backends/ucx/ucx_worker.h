// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/ucx/ucp_api.h"

namespace ronde::ucx {

/// One rank in UCX: its context, its worker, and its connections to the other ranks.
///
/// Thread-safety: as Fabric. Any thread may read `counters`.
class UcxWorker {
 public:
  struct Counters {
    std::atomic<std::uint64_t> messages{0}, sent_bytes{0}, received_messages{0}, received_bytes{0},
        connections{0};
  };
  Counters counters;

  /// Throws Error if UCX fails.
  UcxWorker(std::shared_ptr<const UcpApi> api, int rank, int ranks,
            const std::string& transports_not_meant = {});

  const UcpApi& api() const noexcept { return *api_; }
  ucp_worker_h handle() const noexcept { return worker_.get(); }
  int rank() const noexcept { return rank_; }

  /// Where other ranks reach it: by network only. UCX would take two ranks of one kernel for ranks
  /// of one host, which for Ronde may be two, and take memory for the network.
  std::string address() const;
  /// The addresses of all ranks.
  void set_addresses(std::vector<std::string> addresses);

  /// The connection to a peer, made by the first call. Throws GroupError if the peer is lost or
  /// cannot be connected to.
  ucp_ep_h connection(int peer);
  bool progress() { return api_->worker_progress(worker_.get()) != 0; }
  /// Throws GroupError if UCX has told of a lost peer.
  void check_peers() const;
  /// Throws the GroupError of a peer with which a message, or the connection, has failed so.
  [[noreturn]] void throw_lost(int peer, ucs_status_t status) const;
  /// Throws Error if a call has failed.
  void check(ucs_status_t status, const char* symbol) const;

  /// A network of it reads and writes memory without a core.
  bool has_rdma() const;
  bool takes_device_memory() const;

  /// Closes the connections and the worker. False if `bound` has passed before: it then cannot be
  /// destroyed.
  bool close(std::chrono::milliseconds bound);
  /// Messages are in progress that nobody will wait for: keeps what they may still touch.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }
  bool keeps_memory() const noexcept { return !kept_.empty(); }

 private:
  struct Peer {
    UcxWorker* owner = nullptr;
    std::string address = {};
    ucp_ep_h connection = nullptr;
    ucs_status_t status = UCS_OK;  ///< as UCX has told of its loss
  };

  static void on_loss(void* peer, ucp_ep_h connection, ucs_status_t status);
  void make_context(const std::string& transports_not_meant);

  const std::shared_ptr<const UcpApi> api_;
  const int rank_;
  std::vector<Peer> peers_;  ///< by rank; never moves, as UCX knows where they are
  int lost_ = -1;            ///< the first peer that was lost

  // Destroyed in this order: the worker, the context, the memory.
  std::vector<std::shared_ptr<void>> kept_;
  template <typename Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, std::function<void(Handle)>>;
  Owned<ucp_context_h> context_;
  Owned<ucp_worker_h> worker_;

  friend std::shared_ptr<void> register_memory(const std::shared_ptr<UcxWorker>& worker,
                                               void* begin, std::size_t bytes);
};

/// Registers memory with the network until the result is destroyed.
std::shared_ptr<void> register_memory(const std::shared_ptr<UcxWorker>& worker, void* begin,
                                      std::size_t bytes);

}  // namespace ronde::ucx
