// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/launched/star.h"

#include <poll.h>

#include <optional>
#include <utility>

#include "backends/socket/host.h"
#include "backends/socket/sockets.h"
#include "core/src/base/fields.h"
#include "core/src/base/rank_list.h"

namespace ronde::net {
namespace {

// What rank 0 sends begins with one of them.
constexpr char kBlobs = 'b';
constexpr char kFailure = 'f';

/// Rank 0 gives up first, and says who is missing.
constexpr std::chrono::seconds kGrace{1};

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
           "said nothing more before RONDE_INIT_TIMEOUT_S was over: it hangs");
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

/// A rank that died shows later.
void Star::deliver(const std::string& message) {
  for (auto& [rank, connection] : connections_) connection.queue(message);
  while (true) {
    std::vector<pollfd> fds;
    for (auto& [rank, connection] : connections_) {
      connection.flush();
      if (connection.has_unsent()) fds.push_back({connection.fd(), POLLOUT, 0});
    }
    if (fds.empty()) return;
    if (!wait_for_events(fds, deadline_)) fail(-1, "some rank takes nothing more: it hangs");
  }
}

std::vector<std::string> Star::ask(std::string_view blob) {
  Connection& root = connections_.at(0);
  root.queue(blob);
  // A failure may have come with the answer before, and the connection have ended since.
  while (answers_.empty()) {
    root.flush();
    const auto events = static_cast<short>(root.has_unsent() ? POLLIN | POLLOUT : POLLIN);
    std::vector<pollfd> fds = {{root.fd(), events, 0}};
    if (!wait_for_events(fds, deadline_ + kGrace)) {
      fail(0, "said nothing more before RONDE_INIT_TIMEOUT_S was over: it hangs");
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
  if (rank_ == 0) spread(error);
  throw GroupError(error);
}

void Star::spread(const GroupError& error) {
  for (auto& [rank, connection] : connections_) {
    connection.queue(kFailure + pack_fields({std::to_string(error.failed_rank()), error.what()}));
    connection.flush();
    connection.finish_sending();
    std::deque<std::string> unread;  // closed with some, it would lose what was sent
    while (connection.read(unread) == Connection::ReadState::Data) {
    }
  }
}

}  // namespace ronde::net
