// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/vendor/api_table.h"

namespace ronde::ucx {

constexpr const char* kLibrary = "libucp.so.0";

template <typename Function>
struct EntryOf;
template <typename Result, typename... Arguments>
struct EntryOf<Result(Arguments...)> {
  using Type = vendor::Entry<Result, Arguments...>;
};

/// The functions of UCX that Ronde calls, with the types of its headers.
///
/// Thread-safety: that of UCX; one thread at a time uses a context and its worker.
struct UcpApi : vendor::ApiTable {
  template <typename Function>
  using Call = typename EntryOf<Function>::Type;

  Call<decltype(ucp_get_version)> get_version{*this, "ucp_get_version"};
  Call<decltype(ucs_status_string)> status_string{*this, "ucs_status_string"};

  Call<decltype(ucp_config_read)> config_read{*this, "ucp_config_read"};
  Call<decltype(ucp_config_modify)> config_modify{*this, "ucp_config_modify"};
  Call<decltype(ucp_config_release)> config_release{*this, "ucp_config_release"};

  Call<decltype(ucp_init_version)> init{*this, "ucp_init_version"};
  Call<decltype(ucp_cleanup)> cleanup{*this, "ucp_cleanup"};
  Call<decltype(ucp_context_query)> context_query{*this, "ucp_context_query"};
  Call<decltype(ucp_context_print_info)> print_info{*this, "ucp_context_print_info"};
  Call<decltype(ucp_mem_map)> mem_map{*this, "ucp_mem_map"};
  Call<decltype(ucp_mem_unmap)> mem_unmap{*this, "ucp_mem_unmap"};

  Call<decltype(ucp_worker_create)> worker_create{*this, "ucp_worker_create"};
  Call<decltype(ucp_worker_destroy)> worker_destroy{*this, "ucp_worker_destroy"};
  Call<decltype(ucp_worker_query)> worker_query{*this, "ucp_worker_query"};
  Call<decltype(ucp_worker_release_address)> release_address{*this, "ucp_worker_release_address"};
  Call<decltype(ucp_worker_progress)> worker_progress{*this, "ucp_worker_progress"};
  Call<decltype(ucp_worker_get_efd)> worker_descriptor{*this, "ucp_worker_get_efd"};
  Call<decltype(ucp_worker_arm)> worker_arm{*this, "ucp_worker_arm"};

  Call<decltype(ucp_ep_create)> endpoint_create{*this, "ucp_ep_create"};
  Call<decltype(ucp_ep_close_nbx)> endpoint_close{*this, "ucp_ep_close_nbx"};

  Call<decltype(ucp_tag_send_nbx)> tag_send{*this, "ucp_tag_send_nbx"};
  Call<decltype(ucp_tag_recv_nbx)> tag_receive{*this, "ucp_tag_recv_nbx"};
  Call<decltype(ucp_request_check_status)> request_status{*this, "ucp_request_check_status"};
  Call<decltype(ucp_request_free)> request_free{*this, "ucp_request_free"};
};

/// The oldest supported minor version of UCX 1: it reports lost peers over TCP.
constexpr unsigned kOldestMinor = 12;

/// The UCX library of this process.
struct LoadedUcx {
  std::shared_ptr<const UcpApi> api;  ///< null: it cannot be used
  std::string version;                ///< "1.13.1", or empty
  std::string problem;                ///< why it cannot be used, and what to do; empty if it can
};

/// Loads UCX and queries its version.
LoadedUcx load_ucx(const vendor::SymbolLookup& lookup);

/// The UCX context and worker of a rank, and its connections to the other ranks.
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
            const std::string& ignored_transports = {});

  const UcpApi& api() const noexcept { return *api_; }
  ucp_worker_h handle() const noexcept { return worker_.get(); }
  int rank() const noexcept { return rank_; }

  /// The address at which other ranks reach it, by network only: UCX would use shared memory
  /// between two ranks of one kernel, which may be on two hosts for Ronde.
  std::string address() const;
  /// Sets the addresses of all ranks.
  void set_addresses(std::vector<std::string> addresses);

  /// Returns the connection to a peer, which the first call makes. Throws GroupError if the peer is
  /// lost or cannot be reached.
  ucp_ep_h connection(int peer);
  bool progress() { return api_->worker_progress(worker_.get()) != 0; }
  /// Throws GroupError if UCX has reported a lost peer.
  void check_peers() const;
  /// Throws the GroupError for a peer whose message or connection has failed with `status`.
  [[noreturn]] void throw_lost(int peer, ucs_status_t status) const;
  /// Throws Error if `status` is a failure.
  void check(ucs_status_t status, const char* symbol) const;

  /// Whether UCX uses a network with RDMA.
  bool has_rdma() const;
  bool takes_device_memory() const;

  /// Registers memory with the network. Null if that fails, as where little memory may be locked;
  /// registration only saves time.
  ucp_mem_h map_memory(void* begin, std::size_t bytes);
  void unmap_memory(ucp_mem_h memory);

  /// Closes the connections and the worker, and frees what it keeps. False if `timeout` has passed
  /// before; the worker then cannot be destroyed until it is true.
  bool close(std::chrono::milliseconds timeout);
  /// Keeps the memory of messages in progress that no operation waits for, until close(), which a
  /// thread that starts another group may have called.
  void keep(std::shared_ptr<void> memory) {
    const std::lock_guard lock(kept_mutex_);
    kept_.push_back(std::move(memory));
  }
  /// The group is dead: nothing is posted any more.
  void abort() noexcept { is_aborted_ = true; }
  bool is_aborted() const noexcept { return is_aborted_; }

 private:
  struct Peer {
    UcxWorker* owner = nullptr;
    std::string address = {};
    ucp_ep_h connection = nullptr;
    ucs_status_t status = UCS_OK;  ///< the loss that UCX has reported
  };

  bool close_connections(std::chrono::milliseconds timeout);
  static void on_loss(void* peer, ucp_ep_h connection, ucs_status_t status);
  void make_context(const std::string& ignored_transports);

  const std::shared_ptr<const UcpApi> api_;
  const int rank_;
  std::vector<Peer> peers_;  ///< by rank; never moves, as UCX has pointers to the elements
  bool is_aborted_ = false;
  int lost_ = -1;                          ///< the first peer that was lost
  std::vector<ucs_status_ptr_t> closing_;  ///< ends of connections that are in progress

  // Destroyed in reverse order: the worker, the context, the memory.
  std::mutex kept_mutex_;
  std::vector<std::shared_ptr<void>> kept_;  ///< guarded by kept_mutex_
  template <typename Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, std::function<void(Handle)>>;
  Owned<ucp_context_h> context_;
  Owned<ucp_worker_h> worker_;
};

}  // namespace ronde::ucx
