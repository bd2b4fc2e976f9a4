// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/launched/launched_start.h"

#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "backends/socket/handshake_client.h"
#include "backends/socket/handshake_server.h"
#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "core/src/base/rank_list.h"

// Note [Start without a launcher of MPI]
// Rank 0 listens at a port that all ranks know from their variables, and the others connect to it;
// both sides prove that they belong to one job (Note [Handshake]). Rank 0 listens until all have
// connected. Over these connections the ranks compare their settings and build the tree (Note
// [Bootstrap of the tree]); then the connections end.

namespace ronde::net {
namespace {

// The first byte of a message of rank 0.
constexpr char kBlobs = 'b';
constexpr char kFailure = 'f';

/// The others wait so much longer than rank 0, which knows who is missing.
constexpr std::chrono::seconds kGrace{1};

constexpr const char* kThisHost = "127.0.0.1";

/// Returns the numeric addresses of a name, or sets `problem` to why there are none.
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

}  // namespace

Star::Star(int rank, int size, std::vector<Peer> neighbours, Clock::time_point deadline)
    : rank_(rank), size_(size), deadline_(deadline) {
  for (Peer& peer : neighbours) connections_.try_emplace(peer.rank, std::move(peer.socket));
}

std::vector<std::string> Star::exchange(std::string_view blob) {
  if (rank_ != 0) return ask(blob);
  std::vector<std::string> blobs = collect(blob);
  deliver(kBlobs + pack_fields(blobs));
  return blobs;
}

std::vector<std::string> Star::collect(std::string_view blob) {
  std::vector<std::string> blobs(static_cast<std::size_t>(size_));
  blobs.front() = blob;
  std::map<int, Connection*> awaited;
  for (auto& [rank, connection] : connections_) awaited.emplace(rank, &connection);
  while (!awaited.empty()) {
    std::vector<pollfd> fds;
    for (const auto& [rank, connection] : awaited) fds.push_back({connection->fd(), POLLIN, 0});
    if (!wait_for_events(fds, deadline_)) {
      fail(awaited.begin()->first,
           "sent nothing more before RONDE_INIT_TIMEOUT_S was over: it hangs");
    }
    std::size_t i = 0;
    std::erase_if(awaited, [&](const auto& entry) {
      if (fds[i++].revents == 0) return false;
      std::deque<std::string> messages;
      const auto state = entry.second->read(messages);
      if (!messages.empty()) {
        blobs[static_cast<std::size_t>(entry.first)] = std::move(messages.front());
        return true;
      }
      if (state == Connection::ReadState::Ended) {
        fail(entry.first, "was lost: " + entry.second->end_text());
      }
      return false;
    });
  }
  return blobs;
}

/// Sends `message` to all others; a rank that has died is noticed later.
void Star::deliver(const std::string& message) {
  for (auto& [rank, connection] : connections_) connection.queue(message);
  while (true) {
    std::vector<pollfd> fds;
    for (auto& [rank, connection] : connections_) {
      connection.flush();
      if (connection.has_unsent()) fds.push_back({connection.fd(), POLLOUT, 0});
    }
    if (fds.empty()) return;
    if (!wait_for_events(fds, deadline_)) fail(-1, "some rank reads nothing more: it hangs");
  }
}

std::vector<std::string> Star::ask(std::string_view blob) {
  Connection& root = connections_.at(0);
  root.queue(blob);
  // A failure may have arrived with the previous answer, before the connection ended.
  while (answers_.empty()) {
    root.flush();
    const auto events = static_cast<short>(root.has_unsent() ? POLLIN | POLLOUT : POLLIN);
    std::vector<pollfd> fds = {{root.fd(), events, 0}};
    if (!wait_for_events(fds, deadline_ + kGrace)) {
      fail(0, "sent nothing more before RONDE_INIT_TIMEOUT_S was over: it hangs");
    }
    if ((fds[0].revents & ~POLLOUT) == 0) continue;
    const auto state = root.read(answers_);
    if (answers_.empty() && state == Connection::ReadState::Ended) {
      fail(0, "was lost: " + root.end_text());
    }
  }
  const std::string answer = std::move(answers_.front());
  answers_.pop_front();
  return read_answer(answer);
}

std::vector<std::string> Star::read_answer(const std::string& message) const {
  const std::string_view text = message;
  if (text.starts_with(kBlobs)) {
    std::vector<std::string> blobs =
        unpack_fields_from(0, text.substr(1), static_cast<std::size_t>(size_));
    if (blobs.size() == static_cast<std::size_t>(size_)) return blobs;
  } else if (text.starts_with(kFailure)) {
    const std::vector<std::string> fields = unpack_fields_from(0, text.substr(1), 2);
    throw GroupError(number_in<int>(fields[0]).value_or(-1), fields[1]);
  }
  fail_unreadable(0);
}

void Star::fail(int rank, const std::string& text) {
  const std::string who = rank < 0 ? "" : rank_name(rank) + " ";
  const GroupError error(rank, rank_name(rank_) + " cannot start: " + who + text +
                                   " (while the ranks met). Its own output may say why");
  if (rank_ == 0) broadcast(error);
  throw GroupError(error);
}

void Star::broadcast(const GroupError& error) {
  for (auto& [rank, connection] : connections_) {
    connection.queue(kFailure + pack_fields({std::to_string(error.failed_rank()), error.what()}));
    connection.flush();
    connection.finish_sending();
    std::deque<std::string> unread;  // closing with unread messages may lose what was sent
    while (connection.read(unread) == Connection::ReadState::Data) {
    }
  }
}

namespace {

class LaunchedStart {
 public:
  explicit LaunchedStart(const LaunchedOptions& options) : options_(options) {}

  std::unique_ptr<Transport> run() {
    if (!launch_.problem.empty()) throw UsageError(launch_.problem);
    check_numbers(launch_.rank, launch_.size);
    Star star = launch_.size == 1   ? Star(0, 1, {}, deadline_)
                : launch_.rank == 0 ? await_all()
                                    : join();
    return connect_ranks("socket", {launch_.rank, launch_.size, launch_.local_rank}, options_,
                         deadline_, [&](std::string_view blob) { return star.exchange(blob); });
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
    // Rank 0 gives up first, as it knows which rank hangs.
    Star star(0, launch_.size, std::move(meeting.peers), server.deadline());
    if (meeting.missing.empty()) return star;
    const GroupError error(meeting.missing.front(),
                           meeting.missing_text + why_many() + where_awaited());
    star.broadcast(error);  // before the name lookup, which may take longer than the others wait
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

  /// Resolves the name until the deadline: a cluster creates the names of pods with the pods.
  std::vector<std::string> root_addresses() const {
    constexpr std::chrono::milliseconds kLongestRetryPause{1000};
    std::chrono::milliseconds pause{50};
    std::string problem;
    for (bool first = true;; first = false) {
      std::vector<std::string> addresses = resolve(root_host(), problem);
      // A link such as that of 'fe80::1%eth0' has another name on other hosts.
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
      pause = std::min(2 * pause, kLongestRetryPause);
    }
  }

  std::string root_host() const { return launch_.one_host ? kThisHost : launch_.root_host; }

  /// Says which variable gives the number of ranks.
  std::string why_many() const {
    if (launch_.size_source.empty()) return {};
    const bool of_slurm = launch_.size_source == "SLURM_NTASKS";
    return ". Their number is of " + launch_.size_source + "=" + std::to_string(launch_.size) +
           ": to run alone, " + (of_slurm ? "use 'srun -n 1'" : "unset it");
  }

  /// Says where rank 0 is awaited, for ranks that miss others.
  std::string where_awaited() const {
    return ". Rank 0 is awaited at " + root_host() + " (" +
           (launch_.one_host ? "as all ranks are on this host" : launch_.host_source) + "), port " +
           std::to_string(launch_.port) + " (" + launch_.port_source + ")";
  }

  /// A remark on rank 0's address if it is wrong; looks the name up.
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
