// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/launched/launched_start.h"

#include <netdb.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backends/socket/handshake_client.h"
#include "backends/socket/handshake_server.h"
#include "backends/socket/host.h"
#include "backends/socket/launched/star.h"
#include "backends/socket/socket_tree.h"
#include "backends/socket/sockets.h"
#include "backends/socket/start_facts.h"
#include "backends/timeout.h"
#include "ronde/error.h"

// Note [Start without a launcher of MPI]
// Rank 0 listens at a port that all ranks know from their variables, and the others connect to it;
// both sides prove that they belong to one job (Note [Handshake]). Listening ends when all are
// there. Over these connections they compare what they were told and build the tree (Note
// [Bootstrap of the tree]); then the connections end.

namespace ronde::net {
namespace {

constexpr const char* kThisHost = "127.0.0.1";

/// The numeric addresses of a name. `problem`: why there are none.
std::vector<std::string> resolve(const std::string& host, std::string& problem) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &first); code != 0) {
    problem = ::gai_strerror(code);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, &::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    std::string text = numeric_text(*entry->ai_addr, entry->ai_addrlen);
    if (!text.empty()) addresses.push_back(std::move(text));
  }
  return addresses;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

class LaunchedStart {
 public:
  explicit LaunchedStart(const LaunchedOptions& options) : options_(options) {}

  std::unique_ptr<Transport> run() {
    if (!launch_.problem.empty()) throw UsageError(launch_.problem);
    check_numbers(launch_.rank, launch_.size);
    const std::string host = options_.host.empty() ? host_identity() : options_.host;
    Star star = launch_.size == 1   ? Star(0, 1, {}, deadline_)
                : launch_.rank == 0 ? await_all()
                                    : join();
    const Exchange exchange = [&](std::string_view blob) { return star.exchange(blob); };
    compare_facts({launch_.size, launch_.local_rank, host}, options_.one_host, exchange);
    const TreeOptions tree_options = {.rank = launch_.rank,
                                      .size = launch_.size,
                                      .deadline = deadline_,
                                      .host = host,
                                      .offer_loopback = options_.offer_loopback,
                                      .job_key = options_.job_key,
                                      .ports = options_.ports};
    return std::make_unique<SocketTree>(tree_options, exchange);
  }

 private:
  Star await_all() {
    try {
      make_room_for_files(static_cast<std::size_t>(launch_.size));
    } catch (const Error& error) {
      throw GroupError(0, std::string("rank 0 cannot await the others: ") + error.what());
    }
    std::vector<UniqueFd> listeners;
    listeners.push_back(listen());
    std::vector<int> others(static_cast<std::size_t>(launch_.size) - 1);
    std::iota(others.begin(), others.end(), 1);
    HandshakeServer server(0, std::move(others), credentials_, std::move(listeners), launch_.port);
    Meeting meeting;
    server.run(deadline_, meeting);
    // The first to give up is rank 0: it knows which rank hangs.
    Star star(0, launch_.size, std::move(meeting.peers), server.deadline());
    if (meeting.missing.empty()) return star;
    const GroupError error(meeting.missing.front(),
                           meeting.missing_text + why_many() + where_awaited());
    star.spread(error);  // before a name is looked up: that may take longer than the others wait
    throw GroupError(error.failed_rank(), error.what() + where_it_leads());
  }

  UniqueFd listen() const {
    std::uint16_t port = 0;
    const Reach reach = launch_.one_host ? Reach::ThisHost : Reach::Everybody;
    if (reach == Reach::Everybody && options_.job_key.empty() && options_.warn) {
      options_.warn("rank 0 listens at port " + std::to_string(launch_.port) +
                    " of all its addresses until the ranks have met, and whoever reaches it may "
                    "say to be one of them: set RONDE_JOB_KEY to the same secret for all ranks");
    }
    try {
      return listen_tcp({launch_.port, launch_.port}, reach, port);
    } catch (const Error& error) {
      throw GroupError(
          0, "rank 0 cannot await the others at port " + std::to_string(launch_.port) + " (" +
                 launch_.port_source + "): " + error.what() +
                 ". If another program or job has it, choose a free one by RONDE_PORT, the "
                 "same for all ranks");
    }
  }

  Star join() {
    std::vector<Address> addresses;
    for (const std::string& address : root_addresses()) {
      addresses.push_back(tcp_address(address, launch_.port));
    }
    std::vector<Peer> root(1);
    root[0].rank = 0;
    try {
      HandshakeClient client(launch_.rank, 0, credentials_, addresses);
      root[0].socket = client.run(deadline_);
    } catch (const GroupError& error) {
      if (error.failed_rank() != 0) throw;
      throw GroupError(0, error.what() + where_awaited() + where_it_leads());
    }
    return {launch_.rank, launch_.size, std::move(root), deadline_};
  }

  /// Names of a cluster's pods come into being with them: it is tried until the deadline.
  std::vector<std::string> root_addresses() const {
    constexpr std::chrono::milliseconds kLongestPause{1000};
    std::chrono::milliseconds pause{50};
    std::string problem;
    for (bool first = true;; first = false) {
      std::vector<std::string> addresses = resolve(root_host(), problem);
      // Other hosts call the link of 'fe80::1%eth0' otherwise.
      if (std::erase_if(addresses, is_link_local) > 0) {
        problem = "it has no address that holds beyond one link";
      }
      if (!addresses.empty()) return addresses;
      const std::string text = "rank " + std::to_string(launch_.rank) +
                               " cannot find rank 0: " + launch_.host_source + ", " +
                               launch_.root_host + ", does not resolve: " + problem;
      if (Clock::now() >= deadline_) throw GroupError(launch_.rank, text);
      if (first && options_.warn) options_.warn(text + ". It is tried again");
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline_ - Clock::now()));
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  std::string root_host() const { return launch_.one_host ? kThisHost : launch_.root_host; }

  /// What says that there are others at all.
  std::string why_many() const {
    if (launch_.size_source.empty()) return {};
    const bool of_slurm = launch_.size_source == "SLURM_NTASKS";
    return ". Their number is of " + launch_.size_source + "=" + std::to_string(launch_.size) +
           ": to run alone, " + (of_slurm ? "use 'srun -n 1'" : "unset it");
  }

  /// What a rank that missed others has to look at.
  std::string where_awaited() const {
    return ". Rank 0 is awaited at " + root_host() + " (" +
           (launch_.one_host ? "as all ranks are on this host" : launch_.host_source) + "), port " +
           std::to_string(launch_.port) + " (" + launch_.port_source + ")";
  }

  /// A remark on the address, if it is wrong; asks the system for it.
  std::string where_it_leads() const {
    if (launch_.one_host) return {};
    std::string problem;
    const std::vector<std::string> addresses = resolve(launch_.root_host, problem);
    if (launch_.rank != 0) {
      const bool here =
          !addresses.empty() && std::all_of(addresses.begin(), addresses.end(), is_loopback);
      return here ? ", which is this rank's own host: from another one it leads nowhere" : "";
    }
    const bool is_own = std::any_of(addresses.begin(), addresses.end(), [](const auto& address) {
      return is_loopback(address) || is_own_address(address);
    });
    return is_own ? "" : ", which is no address of the host that rank 0 is on";
  }

  const LaunchedOptions& options_;
  const Launch& launch_ = options_.launch;
  const Credentials credentials_ = {launch_.job, launch_.size, JobKey(options_.job_key, "")};
  const Clock::time_point deadline_ = Clock::now() + milliseconds_of(options_.init_timeout_s);
};

}  // namespace
}  // namespace ronde::net

namespace ronde {

std::function<std::unique_ptr<Transport>()> launched_transport_factory(LaunchedOptions options) {
  return [options = std::move(options)] { return net::LaunchedStart(options).run(); };
}

}  // namespace ronde
