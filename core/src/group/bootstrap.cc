// SPDX-License-Identifier: Apache-2.0
// Every exchange gathers one blob of each rank at rank 0, by way of the leaders of hosts, and
// spreads what rank 0 concludes from them. A rank that sees a failure sends it to its neighbours,
// so that all ranks name the same culprit.
#include "core/src/group/bootstrap.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "core/src/base/rank_list.h"
#include "core/src/op/set_info.h"
#include "ronde/plugin/choice.h"

namespace ronde {
namespace {

// Note [Who gives up first]
// A rank that hangs is as silent as one that waits for another rank. So ranks give up a start one
// after the other, a step apart, and tell their neighbours. First leaders give up the ranks below
// them: the leaders farthest from rank 0 before the others, rank 0 last. Then ranks give up their
// parents: the ranks nearest to rank 0 before the others. Each names the neighbour that it waits
// for: if that one waited for another rank, it would have named it before.

constexpr std::chrono::milliseconds kLongestStep{700};
/// All steps take no longer, so that they end before the caller gives up (kStartSlack in
/// engine.cc).
constexpr std::chrono::milliseconds kAllSteps{3500};

}  // namespace

Bootstrap::Bootstrap(const ControlTree& tree, Clock::time_point deadline)
    : tree_(tree), deadline_(deadline) {
  const Topology& topology = tree.topology();
  const int levels = 1 + topology.depth_of(topology.leaders.back());
  const auto step = std::min(kLongestStep, kAllSteps / (2 * levels));
  children_limit_ = deadline + (levels - tree.depth()) * step;
  parent_limit_ = deadline + (levels + tree.depth()) * step;
  if (tree.children().empty()) return;
  for (int rank = tree.rank() + 1; rank < tree.size(); ++rank) {
    if (topology.is_at_or_below(rank, tree.rank())) below_.push_back(rank);
  }
}

std::vector<std::string> Bootstrap::exchange(std::string_view blob) {
  BootstrapMessage all = confer(blob, [](std::vector<std::string> blobs) {
    return BootstrapMessage{0, std::move(blobs)};
  });
  if (std::ssize(all.blobs) == tree_.size()) return std::move(all.blobs);
  throw GroupError(tree_.parent(),
                   rank_name(tree_.parent()) + " sent the parts of some ranks only");
}

std::string Bootstrap::first_text(const std::string& text, int& from) {
  BootstrapMessage first = confer(text, [](std::vector<std::string> texts) {
    const auto found =
        std::ranges::find_if(texts, [](const std::string& each) { return !each.empty(); });
    if (found == texts.end()) return BootstrapMessage{};
    return BootstrapMessage{static_cast<int>(found - texts.begin()), {std::move(*found)}};
  });
  from = first.rank;
  return first.blobs.empty() ? std::string() : std::move(first.blobs.front());
}

/// Returns, on every rank, what rank 0 concludes from the blobs of all.
BootstrapMessage Bootstrap::confer(std::string_view blob, const Conclude& conclude) {
  try {
    return tree_.is_arbiter() ? gather(blob, conclude) : send_and_wait(blob);
  } catch (const GroupError& error) {
    spread(error);
    throw;
  }
}

BootstrapMessage Bootstrap::gather(std::string_view blob, const Conclude& conclude) {
  std::vector<std::string> blobs(static_cast<std::size_t>(tree_.size()));
  blobs[0] = blob;
  std::set<int> missing(below_.begin(), below_.end());
  while (!missing.empty()) {
    BootstrapMessage message = receive(missing).second;
    take_from(missing, message.rank);
    blobs[static_cast<std::size_t>(message.rank)] = std::move(message.blobs[0]);
  }
  BootstrapMessage conclusion = conclude(std::move(blobs));
  tree_.send_down(conclusion);
  return conclusion;
}

/// Sends this rank's part to its parent and forwards the children's parts until the conclusion
/// arrives.
BootstrapMessage Bootstrap::send_and_wait(std::string_view blob) {
  tree_.send_up(BootstrapMessage{tree_.rank(), {std::string(blob)}});
  std::set<int> missing(below_.begin(), below_.end());
  for (;;) {
    auto [incoming, message] = receive(missing);
    if (incoming.peer != tree_.parent()) {
      take_from(missing, message.rank);
      tree_.send_up(incoming.bytes);
      continue;
    }
    tree_.send_down(incoming.bytes);
    return std::move(message);
  }
}

void Bootstrap::take_from(std::set<int>& missing, int rank) {
  if (missing.erase(rank) == 1) return;
  throw GroupError(rank, rank_name(rank) + " sent its part of the start twice");
}

/// Sends the error to the neighbours, which would otherwise blame this rank.
void Bootstrap::spread(const GroupError& error) {
  const FailureMessage failure{error.failed_rank(), error.what()};
  if (!tree_.is_arbiter() && error.failed_rank() != tree_.parent()) tree_.send_up(failure);
  tree_.send_down(failure);
}

BootstrapMessage Bootstrap::read(const Incoming& incoming) const {
  const int peer = incoming.peer;
  try {
    Message message = decode(incoming.bytes);
    if (const auto* failure = std::get_if<FailureMessage>(&message)) {
      throw GroupError(failure->rank, failure->text);
    }
    auto* bootstrap = std::get_if<BootstrapMessage>(&message);
    if (bootstrap == nullptr) throw Error("an unexpected control message");
    if (peer != tree_.parent()) tree_.expect_below(peer, bootstrap->rank);
    if (peer != tree_.parent() && bootstrap->blobs.size() != 1) {
      throw Error("a bootstrap message without its part");
    }
    return std::move(*bootstrap);
  } catch (const GroupError&) {
    throw;
  } catch (const Error& error) {
    throw GroupError(peer, nonsense_of(peer, error));
  }
}

/// `missing`: the ranks below this one that it waits for; if there are none, it waits for its
/// parent.
std::pair<Incoming, BootstrapMessage> Bootstrap::receive(const std::set<int>& missing) {
  const Clock::time_point until = missing.empty() ? parent_limit_ : children_limit_;
  for (;;) {
    Incoming incoming = tree_.transport().receive(until);
    if (incoming.kind == Incoming::Kind::PeerLost) {
      throw GroupError(incoming.peer, rank_name(incoming.peer) +
                                          " was lost during initialisation: " + incoming.bytes);
    }
    if (incoming.kind == Incoming::Kind::Message) {
      BootstrapMessage message = read(incoming);
      return {std::move(incoming), std::move(message)};
    }
    if (Clock::now() < until) continue;  // a wake
    const std::vector<int> silent =
        missing.empty() ? std::vector{tree_.parent()}
                        : tree_.topology().children_towards({missing.begin(), missing.end()});
    throw GroupError(silent.front(), format_ranks(silent) +
                                         " did not complete initialisation within "
                                         "RONDE_INIT_TIMEOUT_S of " +
                                         rank_name(tree_.rank()));
  }
}

/// Returns what differs between the ranks, or is invalid on some. The texts of all ranks would fill
/// the memory of rank 0 in a large job, so rank 0 compares digests and requests the text of one
/// rank for each digest if there are several.
Problem Bootstrap::configuration_difference(const std::string& fingerprint, bool is_sound) {
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
  const std::vector<std::string> firsts = confer(config_digest(fingerprint), first_of_each).blobs;
  if (firsts.size() == 1 && is_sound) return std::nullopt;
  const bool is_first = std::ranges::find(firsts, std::to_string(tree_.rank())) != firsts.end();
  const auto answer_to = [&digests](std::vector<std::string> texts) {
    std::map<std::string, std::string> text_of;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].empty()) text_of[digests[rank]] = texts[rank];
    }
    for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank] = text_of[digests[rank]];
    return BootstrapMessage{0, {config_difference(texts)}};
  };
  const BootstrapMessage answer = confer(is_first ? fingerprint : std::string(), answer_to);
  const bool differs = !answer.blobs.empty() && !answer.blobs.front().empty();
  return differs ? Problem(answer.blobs.front()) : std::nullopt;
}

void Bootstrap::compare_configurations(const RuntimeOptions& options) {
  const Topology& topology = tree_.topology();
  // A rank whose own configuration is invalid still meets the others, to report that.
  std::string fingerprint = group_wide_fingerprint(options.config);
  if (!options.world_name.empty()) fingerprint += "the world's name=" + options.world_name + "\n";
  bool is_sound = true;
  try {
    if (!options.config_error.empty()) throw UsageError(options.config_error);
    check_config(options.config);
    for (const std::vector<int>& ranks : static_process_sets(options.config)) {
      const Problem error = set_error(ranks, topology.size);
      if (error) throw UsageError("RONDE_PROCESS_SETS: " + *error);
    }
    static_cast<void>(affinity_core(options.config, topology.local_rank, topology.local_size));
    static_cast<void>(
        choose_backend(options.backends, DeviceKind::Cpu, options.config.cpu_backend, topology));
    if (options.config.gpu_backend != kAnyBackend) {
      static_cast<void>(choose_backend(options.device_backends, DeviceKind::Cuda,
                                       options.config.gpu_backend, topology));
    }
  } catch (const UsageError& error) {
    fingerprint = failed_fingerprint(error.what());
    is_sound = false;
  }
  const Problem difference = configuration_difference(fingerprint, is_sound);
  if (difference) refuse(*difference);
}

void Bootstrap::refuse(const std::string& text) {
  is_refused_ = true;
  throw UsageError(text);
}

}  // namespace ronde
