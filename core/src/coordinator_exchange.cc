// SPDX-License-Identifier: Apache-2.0
// The exchanges of a start: what all ranks tell each other through rank 0.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "coordinator.h"
#include "rank_list.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// How much longer than the transport rank 0 waits in a start, and each rank than the one above it:
/// whoever knows better whom to name speaks first, and all before the caller gives up.
constexpr std::chrono::milliseconds kStartStep{700};

}  // namespace

std::vector<std::string> Coordinator::exchange(std::string_view blob) {
  BootstrapMessage all = confer(blob, [](std::vector<std::string> blobs) {
    return BootstrapMessage{0, std::move(blobs)};
  });
  if (std::ssize(all.blobs) == topology_.size) return std::move(all.blobs);
  throw GroupError(parent_, rank_name(parent_) + " sent the parts of some ranks only");
}

/// Of all ranks the first that says something, and that; or empty.
std::string Coordinator::first_word(const std::string& word, int& speaker) {
  const BootstrapMessage first = confer(word, [](std::vector<std::string> words) {
    const auto said = std::find_if(words.begin(), words.end(),
                                   [](const std::string& text) { return !text.empty(); });
    if (said == words.end()) return BootstrapMessage{};
    return BootstrapMessage{static_cast<int>(said - words.begin()), {std::move(*said)}};
  });
  speaker = first.rank;
  return first.blobs.empty() ? std::string() : first.blobs.front();
}

/// All ranks learn what rank 0 concludes from the blobs of all.
BootstrapMessage Coordinator::confer(std::string_view blob, const Conclude& conclude) {
  try {
    return is_arbiter() ? gather(blob, conclude) : hand_in(blob);
  } catch (const GroupError& error) {
    spread_start_failure(error);
    throw;
  }
}

BootstrapMessage Coordinator::gather(std::string_view blob, const Conclude& conclude) {
  std::vector<std::string> blobs(static_cast<std::size_t>(topology_.size));
  blobs[0] = blob;
  std::set<int> missing;
  for (int rank = 1; rank < topology_.size; ++rank) missing.insert(missing.end(), rank);
  while (!missing.empty()) {
    BootstrapMessage message = receive_bootstrap(missing).second;
    if (missing.erase(message.rank) != 1) {
      throw GroupError(message.rank, rank_name(message.rank) + " met the others twice");
    }
    blobs[static_cast<std::size_t>(message.rank)] = std::move(message.blobs[0]);
  }
  BootstrapMessage conclusion = conclude(std::move(blobs));
  send_down(conclusion);
  return conclusion;
}

/// Those of the children go the same way.
BootstrapMessage Coordinator::hand_in(std::string_view blob) {
  send_up(BootstrapMessage{topology_.rank, {std::string(blob)}});
  for (;;) {
    auto [incoming, message] = receive_bootstrap({parent_});
    if (incoming.peer != parent_) {
      transport_->send(parent_, incoming.bytes);
      continue;
    }
    send_down(incoming.bytes);
    return std::move(message);
  }
}

/// Of every exchange of the start.
Coordinator::Clock::time_point Coordinator::start_limit() const {
  const int steps = is_arbiter() ? 1 : parent_ == 0 ? 2 : 3;
  return start_deadline_ + steps * kStartStep;
}

/// The others know their neighbours alone, and would blame this rank.
void Coordinator::spread_start_failure(const GroupError& error) {
  const FailureMessage failure{error.failed_rank(), error.what()};
  if (!is_arbiter() && error.failed_rank() != parent_) send_up(failure);
  send_down(failure);
}

BootstrapMessage Coordinator::read_bootstrap(const Incoming& incoming) const {
  const int peer = incoming.peer;
  try {
    Message message = decode(incoming.bytes);
    if (const auto* failure = std::get_if<FailureMessage>(&message)) {
      throw GroupError(failure->rank, failure->text);
    }
    auto* bootstrap = std::get_if<BootstrapMessage>(&message);
    if (bootstrap == nullptr) throw Error("a control message that comes at the wrong time");
    if (peer != parent_) expect_below(peer, bootstrap->rank);
    if (peer != parent_ && bootstrap->blobs.size() != 1) {
      throw Error("a bootstrap message without its part");
    }
    return std::move(*bootstrap);
  } catch (const GroupError&) {
    throw;
  } catch (const Error& error) {
    throw GroupError(peer, nonsense_of(peer, error));
  }
}

/// `missing`: whom this rank waits for.
std::pair<Incoming, BootstrapMessage> Coordinator::receive_bootstrap(const std::set<int>& missing) {
  const Clock::time_point limit = start_limit();
  for (;;) {
    Incoming incoming = transport_->receive(limit);
    if (incoming.kind == Incoming::Kind::PeerLost) {
      throw GroupError(incoming.peer, rank_name(incoming.peer) +
                                          " was lost during initialisation: " + incoming.bytes);
    }
    if (incoming.kind == Incoming::Kind::Message) {
      BootstrapMessage message = read_bootstrap(incoming);
      return {std::move(incoming), std::move(message)};
    }
    if (Clock::now() < limit) continue;  // a wake
    throw GroupError(*missing.begin(), format_ranks({missing.begin(), missing.end()}) +
                                           " did not complete initialisation within "
                                           "RONDE_INIT_TIMEOUT_S of " +
                                           rank_name(topology_.rank));
  }
}

/// What differs between the ranks, or is wrong with some; or empty. All those texts together would
/// fill the memory of rank 0 in a large job: it compares digests, asks one rank of each kind for
/// its text where there are several, and answers with its verdict.
std::string Coordinator::configuration_difference(const std::string& fingerprint, bool is_sound) {
  std::vector<std::string> digests;  // by rank, on rank 0
  const auto first_of_each = [&digests](std::vector<std::string> of_ranks) {
    digests = std::move(of_ranks);
    BootstrapMessage firsts;
    std::set<std::string> seen;
    for (std::size_t rank = 0; rank < digests.size(); ++rank) {
      if (seen.insert(digests[rank]).second) firsts.blobs.push_back(std::to_string(rank));
    }
    return firsts;
  };
  const std::vector<std::string> speakers = confer(config_digest(fingerprint), first_of_each).blobs;
  if (speakers.size() == 1 && is_sound) return {};
  const bool speaks =
      std::find(speakers.begin(), speakers.end(), std::to_string(topology_.rank)) != speakers.end();
  const auto verdict = [&digests](std::vector<std::string> texts) {
    std::map<std::string, std::string> text_of;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].empty()) text_of[digests[rank]] = texts[rank];
    }
    for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank] = text_of[digests[rank]];
    return BootstrapMessage{0, {config_difference(texts)}};
  };
  const BootstrapMessage answer = confer(speaks ? fingerprint : std::string(), verdict);
  return answer.blobs.empty() ? std::string() : answer.blobs.front();
}

}  // namespace ronde
