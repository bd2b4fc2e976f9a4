// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

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
/// Thread-safety: UCX's: one thread at a time uses a context and its worker.
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

/// The oldest minor version of UCX 1 that Ronde takes: it tells of lost peers over TCP.
constexpr unsigned kOldestMinor = 12;

/// The UCX of this process.
struct LoadedUcx {
  std::shared_ptr<const UcpApi> api;  ///< null: it cannot be used
  std::string version;                ///< "1.13.1", or empty
  std::string problem;                ///< why it cannot be used, and what to do; else empty
};

/// Loads it and asks for its version.
LoadedUcx load_ucx(const vendor::SymbolLookup& lookup);

}  // namespace ronde::ucx
