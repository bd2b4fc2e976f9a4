// SPDX-License-Identifier: Apache-2.0
#include "tools/check/links.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <sstream>

#include "ronde/error.h"

namespace ronde::tool {
namespace {

/// Messages of each size.
constexpr int kRounds = 8;
/// How often links that seem slow are measured again, as what else runs on the cores slows them.
constexpr int kRepeats = 2;

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/// A link on one of its two ranks. The sender waits for the receiver to be ready, sends, and stops
/// its clock when the receiver has said that all is there. The receiver compares after that.
class LinkCheck {
 public:
  LinkCheck(Session& session, const MessagePath& path, Link& link)
      : raw_(session.raw()), path_(path), link_(link), sends_(raw_.topology().rank == link.from) {
    const std::vector<int> local = raw_.topology().host_ranks();
    peer_ = path.is_within_host
                ? static_cast<int>(std::ranges::find(local, other()) - local.begin())
                : other();
  }

  void run(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      for (int round = 0; round < kRounds; ++round) {
        const double time = message(size);
        if (size == path_.sizes.front()) keep_shorter(link_.latency_us, time / 2);
        if (size == path_.sizes.back()) keep_shorter(link_.largest_us, time);
      }
    }
  }

 private:
  static void keep_shorter(double& shortest, double now) {
    shortest = shortest > 0 ? std::min(shortest, now) : now;
  }

  /// Returns the microseconds that it took, at the sender.
  double message(std::size_t size) {
    using Clock = std::chrono::steady_clock;
    const auto ends =
        static_cast<std::uint64_t>(link_.from) << 32 | static_cast<std::uint64_t>(link_.to);
    const std::uint64_t seed = mixed(mixed(ends) + ++link_.messages);
    expected_.resize(size);
    for (std::size_t i = 0; i < size; ++i) expected_[i] = check_byte(seed, i);
    std::byte word{};
    if (sends_) {
      receive(&word, 1);
      const auto start = Clock::now();
      send(expected_.data(), size);
      receive(&word, 1);
      return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    }
    // No byte that is not written can be right.
    received_.resize(size);
    std::ranges::transform(expected_, received_.begin(), std::bit_not<>());
    send(&word, 1);
    receive(received_.data(), size);
    send(&word, 1);
    compare();
    return 0;
  }

  void compare() {
    const auto [right, got] = std::ranges::mismatch(expected_, received_);
    if (right == expected_.end() || link_.wrong++ > 0) return;
    std::ostringstream text;
    text << "message " << link_.messages << ", of " << size_text(expected_.size()) << ": byte "
         << right - expected_.begin() << std::hex << " is 0x" << std::to_integer<int>(*got)
         << " and should be 0x" << std::to_integer<int>(*right);
    link_.first_wrong = text.str();
  }

  void send(const std::byte* from, std::size_t size) {
    finish([&] { return path_.backend->send({from, size, DataType::U8, peer_}); }, size);
  }
  void receive(std::byte* to, std::size_t size) {
    finish([&] { return path_.backend->recv({to, size, DataType::U8, peer_}); }, size);
  }

  int other() const { return sends_ ? link_.to : link_.from; }

  template <typename Start>
  void finish(const Start& start, std::size_t size) {
    const std::string what = "a message of " + size_text(size) + " between rank " +
                             std::to_string(raw_.topology().rank) + " and rank " +
                             std::to_string(other()) + " over " + path_.name;
    try {
      raw_.finish(*start(), what);
    } catch (const std::exception& error) {
      throw Error(what + ": " + error.what());
    }
  }

  RawSubject& raw_;
  const MessagePath& path_;
  Link& link_;
  const bool sends_;
  int peer_ = 0;  ///< the number of the other rank at the backend
  std::vector<std::byte> expected_, received_;
};

/// Checks the `chosen` links one after the other, as they would else share the network, the memory
/// and the cores; then tells every rank what their two ends saw.
void run_links(Session& session, const MessagePath& path, std::vector<Link>& links,
               const std::vector<std::size_t>& sizes,
               const std::function<bool(const Link&)>& chosen) {
  const int rank = session.topology().rank;
  Json seen = Json::array();
  for (std::size_t i = 0; i < links.size(); ++i) {
    Link& link = links[i];
    if (!chosen(link)) continue;
    session.peers().barrier();
    if (rank != link.from && rank != link.to) continue;
    LinkCheck(session, path, link).run(sizes);
    seen.push_back(rank == link.from ? Json{i, link.messages, link.latency_us, link.largest_us}
                                     : Json{i, link.wrong, link.first_wrong});
  }
  for (const std::string& text : session.peers().all_of(seen.dump())) {
    for (const Json& one : Json::parse(text)) {
      Link& link = links.at(one.at(0));
      if (one.size() == 3) {
        link.wrong = one.at(1);
        link.first_wrong = one.at(2);
      } else {
        link.messages = one.at(1);
        link.latency_us = one.at(2);
        link.largest_us = one.at(3);
      }
    }
  }
  compare_with_medians(links);
}

}  // namespace

std::byte check_byte(std::uint64_t seed, std::size_t index) {
  return static_cast<std::byte>(mixed(seed + index / 8) >> (index % 8 * 8));
}

void compare_with_medians(std::vector<Link>& links) {
  const auto compare = [&](double Link::*time, double Link::*ratio, bool within) {
    Samples times;
    for (const Link& link : links) {
      if (link.is_within_host == within) times.push_back(link.*time);
    }
    for (Link& link : links) {
      if (link.is_within_host == within) link.*ratio = link.*time / median(times);
    }
  };
  for (const bool within : {true, false}) {
    compare(&Link::latency_us, &Link::latency_ratio, within);
    compare(&Link::largest_us, &Link::largest_ratio, within);
  }
}

std::vector<Link> check_links(Session& session, const MessagePath& path, double slow_factor) {
  const std::vector<int>& host_of = session.topology().host_of;
  std::vector<Link> links;
  for (std::size_t from = 0; from < host_of.size(); ++from) {
    for (std::size_t to = 0; to < host_of.size(); ++to) {
      const bool within = host_of[from] == host_of[to];
      if (from == to || (path.is_within_host && !within)) continue;
      links.push_back({static_cast<int>(from), static_cast<int>(to), within});
    }
  }
  run_links(session, path, links, path.sizes, [](const Link&) { return true; });
  for (int again = 0; again < kRepeats; ++again) {
    run_links(session, path, links, {path.sizes.front(), path.sizes.back()},
              [&](const Link& link) { return link.is_slow(slow_factor); });
  }
  return links;
}

}  // namespace ronde::tool
