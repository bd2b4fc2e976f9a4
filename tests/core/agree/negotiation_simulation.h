// SPDX-License-Identifier: Apache-2.0
#pragma once

// Announcers, combiners and the negotiator together, without threads: messages are delivered one by
// one, in the order of their link and in random order between links.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "core/src/agree/announcer.h"
#include "core/src/agree/combiner.h"
#include "ronde/topology.h"
#include "tests/core/agree/negotiators.h"

namespace ronde::test {

struct Settings {
  int size = 3;
  std::vector<int> host_of = {};  ///< empty: all on one host
  int most_leaders_below = kMostLeadersBelow;
  int patience_ms = 0;  ///< of combiners
  std::uint64_t capacity = 2;
  int names = 4;
  int uses = 12;           ///< of each name
  int unnamed = 20;        ///< operations without a name
  bool absences = false;   ///< ranks that contribute nothing
  bool gathers = false;    ///< allgathers whose rows change
  bool mismatch = false;   ///< ranks that disagree
  bool expiries = false;   ///< timeouts
  bool same_shape = true;  ///< a name keeps its shape
  bool hasty = false;      ///< shutdown is called as soon as everything is submitted
  int joins = 0;           ///< so often the ranks join, each when it has submitted its share
  bool uneven = false;     ///< shares differ: the others go on without those that have joined
};

/// The outcome of one use of one operation on one rank.
struct Fate {
  std::string key;
  int use = 0;
  bool agreed = false;
  bool contributed = true;
  std::vector<std::int64_t> first_dims;
  std::string text;
  int average_over = 0;

  friend bool operator==(const Fate&, const Fate&) = default;
};

/// A pure hash of (seed, operation, use, rank), so that every rank can draw by itself.
inline std::uint32_t draw(std::uint32_t seed, int operation, int use, int rank) {
  std::seed_seq sequence{seed, static_cast<std::uint32_t>(operation),
                         static_cast<std::uint32_t>(use), static_cast<std::uint32_t>(rank)};
  std::uint32_t value = 0;
  sequence.generate(&value, &value + 1);
  return value;
}

/// One rank: its program, and the links between it and the negotiator.
struct Rank {
  explicit Rank(int rank) : number(rank), cache(rank) {}

  const int number;
  ResponseCache cache;
  Announcer announcer{cache};
  std::map<int, int> uses;  ///< of every operation so far
  std::set<int> in_flight;
  std::map<std::string, int> operation_of;  ///< key in flight -> operation
  std::uint64_t next_unnamed = 0;
  int joins = 0;  ///< that have ended
  bool has_joined = false;
  bool stopped = false;
  int parent = -1;
  std::vector<int> children;
  std::unique_ptr<Combiner> combiner;  ///< of a leader below rank 0
  std::deque<std::string> up;
  std::deque<std::string> down;
  std::vector<Fate> agreed;   ///< in order of execution
  std::vector<Fate> refused;  ///< in order of arrival
};

class Simulation {
 public:
  Simulation(std::uint32_t seed, const Settings& settings)
      : seed_(seed),
        settings_(settings),
        random_(seed),
        negotiator_(settings.size, settings.capacity) {
    std::vector<int> host_of = settings.host_of;
    host_of.resize(static_cast<std::size_t>(settings.size));
    for (int index = 0; index < settings.size; ++index) {
      Rank& rank = ranks_.emplace_back(index);
      for (int operation = 0; operation <= settings.names; ++operation) rank.uses[operation] = 0;
      const Topology topology = make_topology(index, host_of, settings.most_leaders_below);
      rank.parent = topology.parent();
      rank.children = topology.children();
      if (index == 0 || rank.children.empty()) continue;
      std::vector<int> below = everybody(settings.size);
      std::erase_if(below, [&](int other) { return !topology.is_at_or_below(other, index); });
      rank.combiner =
          std::make_unique<Combiner>(below, std::chrono::milliseconds(settings.patience_ms));
    }
  }

  /// Runs all programs to their end and shuts down.
  void run() {
    for (std::uint64_t step = 0; !all_stopped(); ++step) {
      // Far more than a run needs: something is never decided.
      if (step == 200'000) FAIL("not at its end after " << step << " steps of seed " << seed_);
      act(ranks_[random_() % ranks_.size()]);
      now_ += std::chrono::milliseconds(1);
    }
  }

  const std::deque<Rank>& ranks() const { return ranks_; }
  const Negotiator::Counters& counters() const { return negotiator_.counters(); }
  /// From leaders to the ranks above them.
  std::uint64_t host_messages() const { return host_messages_; }

  /// Returns what `rank` submitted in the use that `fate` is about.
  Request asked(const Fate& fate, int rank) const {
    const int operation = is_unnamed(fate.key) ? settings_.names : std::stoi(fate.key.substr(1));
    return request_of(operation, fate.use, rank);
  }

 private:
  void act(Rank& rank) {
    const auto action = random_() % 6;
    if (action == 0) submit(rank);
    if (action == 1) announce(rank);
    if (action == 2) deliver_up(rank);
    if (action == 3) deliver_down(rank);
    if (action == 4) combine(rank);
    if (action == 5) decide();
  }

  int most_uses(int operation) const {
    return operation == settings_.names ? settings_.unnamed : settings_.uses;
  }

  /// How many of them come before the next join.
  int uses_for_now(const Rank& rank, int operation) const {
    const int all = share(rank.joins + 1, operation);
    if (!settings_.uneven || rank.joins == settings_.joins) return all;
    // As many fewer of each, or two ranks may wait for each other's join in different ones.
    const int fewer = static_cast<int>(draw(seed_, -1, rank.joins, rank.number) % 4);
    return std::max(share(rank.joins, operation), all - fewer);
  }

  /// Uses of all that have gone into so many joins.
  int share(int joins, int operation) const {
    return most_uses(operation) * joins / (settings_.joins + 1);
  }

  /// The operations of which `rank` has not yet submitted its share.
  std::vector<int> operations_left(const Rank& rank) const {
    std::vector<int> left;
    for (int operation = 0; operation <= settings_.names; ++operation) {
      if (rank.uses.at(operation) < uses_for_now(rank, operation)) left.push_back(operation);
    }
    return left;
  }

  void join(Rank& rank) {
    if (rank.has_joined || rank.joins == settings_.joins) return;
    Submission submission;
    Request request;
    request.kind = Collective::Join;
    submission.key = {ronde::share(spec_of(request)), join_key()};
    submission.unnamed_before = rank.next_unnamed;
    submission.work = std::make_shared<WorkState>("join", std::weak_ptr<WaitHelper>(), nullptr);
    rank.has_joined = true;
    rank.announcer.add(std::move(submission));
  }

  void submit(Rank& rank) {
    std::vector<int> possible = operations_left(rank);
    if (possible.empty()) return join(rank);
    std::erase_if(possible, [&](int operation) { return rank.in_flight.contains(operation); });
    if (possible.empty()) return;
    const int operation = possible[random_() % possible.size()];
    const int use = rank.uses[operation]++;
    Submission submission;
    const Request request = request_of(operation, use, rank.number);
    const std::string& name = request.name;
    submission.start.contributes = request.contributes;
    submission.start.input = &seed_;  // none of a rank that has joined
    submission.key = {ronde::share(spec_of(request)),
                      name.empty() ? unnamed_key(rank.next_unnamed++) : ""};
    if (settings_.expiries && random_() % 3 == 0) {
      submission.deadline = now_ + std::chrono::milliseconds(random_() % 60);
    }
    if (!name.empty()) rank.in_flight.insert(operation);
    rank.operation_of[submission.key.text()] = operation;
    rank.announcer.add(std::move(submission));
  }

  Request request_of(int operation, int use, int rank) const {
    Request request;
    if (operation < settings_.names) request.name = "t" + std::to_string(operation);
    const int variant =
        settings_.same_shape ? 0 : static_cast<int>(draw(seed_, operation, use, -1)) & 1;
    request.shape = {operation % 3 + 1, variant + 1};
    if (settings_.absences) request.contributes = draw(seed_, operation, use, rank) % 2 == 0;
    if (settings_.gathers && operation % 2 == 0) {
      request.kind = Collective::Allgather;
      request.contributes = true;
      request.shape[0] = draw(seed_, operation, use, rank) % 3 == 0 ? use % 4 : rank;
    }
    if (settings_.mismatch && draw(seed_, operation, use, -2) % 4 == 0 &&
        rank == use % settings_.size) {
      request.dtype = DataType::I8;
    }
    return request;
  }

  void announce(Rank& rank) {
    const bool is_done = rank.joins == settings_.joins && operations_left(rank).empty();
    const bool nothing_left = is_done && (settings_.hasty || rank.operation_of.empty());
    const auto message = rank.announcer.announce(now_, nothing_left);
    if (!message) return;
    if (rank.combiner) {
      rank.combiner->add(rank.number, *message, now_);
    } else {
      rank.up.push_back(encode(HostReadyMessage{{{{rank.number}, *message}}}));
    }
  }

  void combine(Rank& rank) {
    if (!rank.combiner) return;
    if (const auto message = rank.combiner->take(now_)) {
      ++host_messages_;
      rank.up.push_back(encode(*message));
    }
  }

  void deliver_up(Rank& rank) {
    if (rank.up.empty()) return;
    const Message message = decode(rank.up.front());
    rank.up.pop_front();
    for (const auto& [ranks, part] : std::get<HostReadyMessage>(message).parts) {
      if (rank.parent <= 0) {
        negotiator_.add(ranks, part, now_);
      } else {
        ranks_[static_cast<std::size_t>(rank.parent)].combiner->add(ranks, part, now_);
      }
    }
  }

  void decide() {
    const auto decision = negotiator_.decide();
    // All ranks submit the same, so none ever waits for a rank that has left.
    if (const auto departure = negotiator_.departure()) FAIL(departure->text);
    if (!decision) return;
    ranks_[0].down.push_back(encode(*decision));
    send_down(ranks_[0], *decision);
  }

  void send_down(const Rank& from, const DecisionMessage& decision) {
    for (const int child : from.children) {
      ranks_[static_cast<std::size_t>(child)].down.push_back(encode(decision));
    }
  }

  void deliver_down(Rank& rank) {
    if (rank.down.empty()) return;
    const auto message = std::get<DecisionMessage>(decode(rank.down.front()));
    rank.down.pop_front();
    if (rank.combiner) {
      rank.combiner->pass(message);
      send_down(rank, message);
    }
    AppliedDecision applied = rank.announcer.apply(message);
    for (const Submission& agreed : applied.agreed) {
      rank.agreed.push_back(settings_.uneven ? end_uneven(rank, agreed) : end_even(rank, agreed));
    }
    for (const Refused& refused : applied.refused) {
      rank.refused.push_back(end(rank, refused.submission, false, true, {}, refused.text));
    }
    rank.stopped = applied.shutdown;
    if (applied.join) end_join(rank, applied.next_unnamed);
  }

  void end_join(Rank& rank, std::uint64_t next_unnamed) {
    const bool fits =
        settings_.uneven ? next_unnamed >= rank.next_unnamed : next_unnamed == rank.next_unnamed;
    if (!fits) FAIL("the count of operations without a name went on at a wrong one");
    rank.next_unnamed = next_unnamed;
    rank.has_joined = false;
    ++rank.joins;
    for (auto& [operation, uses] : rank.uses) uses = share(rank.joins, operation);
  }

  static Fate end_even(Rank& rank, const Submission& agreed) {
    if (agreed.average_over != 0) FAIL("it went on without a rank that joined after it");
    return end(rank, agreed, true, agreed.contributed, agreed.rows->first_dims, "");
  }

  /// A rank that has joined does not know which use it is.
  static Fate end_uneven(Rank& rank, const Submission& agreed) {
    const bool stands_in = agreed.start.input == nullptr;
    if (!stands_in) end(rank, agreed, true, true, {}, "");
    if (stands_in && (!rank.has_joined || agreed.average_over == 0)) {
      FAIL("a rank stands in that has not joined");
    }
    return {agreed.key.text(), 0, true, agreed.contributed, {}, "", agreed.average_over};
  }

  static Fate end(Rank& rank, const Submission& submission, bool agreed, bool contributed,
                  std::vector<std::int64_t> first_dims, std::string text) {
    const auto found = rank.operation_of.find(submission.key.text());
    if (found == rank.operation_of.end()) FAIL("an operation ended twice");
    const int operation = found->second;
    const bool unnamed = submission.spec().name.empty();
    // The number of this use: names are used one after the other.
    const int use = unnamed ? std::stoi(submission.key.number.substr(1)) : rank.uses[operation] - 1;
    rank.in_flight.erase(operation);
    rank.operation_of.erase(found);
    return {submission.key.text(), use, agreed, contributed, std::move(first_dims),
            std::move(text),       0};
  }

  bool all_stopped() const { return std::ranges::all_of(ranks_, &Rank::stopped); }

  const std::uint32_t seed_;
  const Settings settings_;
  std::mt19937 random_;
  TimePoint now_{};
  std::uint64_t host_messages_ = 0;
  PlainNegotiator negotiator_;
  std::deque<Rank> ranks_;
};

}  // namespace ronde::test
