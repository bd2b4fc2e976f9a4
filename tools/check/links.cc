// SPDX-License-Identifier: Apache-2.0
#include "tools/check/check.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "ronde/error.h"

namespace ronde::tool {
namespace {

/// Passes over all links, as what else runs on the cores slows some of them for a while.
constexpr int kPasses = 3;
/// Messages of each size in a pass.
constexpr int kRounds = 5;

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/// A link on one of its two ranks. The sender says that a message is ready; the receiver starts its
/// clock, requests it, stops the clock when all is there, and compares.
class LinkCheck {
 public:
  LinkCheck(Session& session, const MessagePath& path, Link& link)
      : raw_(session.raw()),
        path_(path),
        link_(link),
        sends_(raw_.topology().rank == link.from),
        largest_(session.options().max_bytes) {
    const std::vector<int> local = raw_.topology().host_ranks();
    peer_ = sends_ ? link.to : link.from;
    if (path.is_within_host) {
      peer_ = static_cast<int>(std::ranges::find(local, peer_) - local.begin());
    }
  }

  /// Both ranks run the same messages; the receiver notes in the link what it sees.
  void run(const std::vector<std::size_t>& sizes) try {
    for (const std::size_t size : sizes) {
      for (int round = 0; round < kRounds; ++round) {
        std::uint64_t seed = 0;
        for (const int part : {link_.from, link_.to, ++link_.messages}) {
          seed = mixed(seed + static_cast<std::uint64_t>(part) + 1);
        }
        bytes_.resize(size);
        sends_ ? send_message(bytes_of(seed)) : receive_message(bytes_of(seed));
      }
    }
  } catch (const std::exception& error) {
    throw Error("message " + std::to_string(link_.messages) + " from rank " +
                std::to_string(link_.from) + " to rank " + std::to_string(link_.to) + " over " +
                path_.name + ": " + error.what());
  }

 private:
  void send_message(const ElementRule& rule) {
    fill(DataType::U8, bytes_.data(), bytes_.size(), rule);
    send(&word_, 1);
    receive(&word_, 1);
    send(bytes_.data(), bytes_.size());
  }

  void receive_message(const ElementRule& rule) {
    const std::size_t size = bytes_.size();
    // No byte that is not written can be right.
    fill(DataType::U8, bytes_.data(), size, [&](std::size_t i) { return ~rule(i); });
    receive(&word_, 1);
    const auto start = std::chrono::steady_clock::now();
    send(&word_, 1);
    receive(bytes_.data(), size);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (size == 1) link_.latency_us = std::min(link_.latency_us, time.count() / 2);
    if (size == largest_) {
      const double gbs = static_cast<double>(size) / (1e3 * time.count());
      link_.bandwidth_gbs = std::max(link_.bandwidth_gbs, gbs);
    }
    const std::string wrong = difference(DataType::U8, bytes_.data(), size, rule);
    if (wrong.empty() || link_.wrong++ > 0) return;
    link_.first_wrong =
        "message " + std::to_string(link_.messages) + ", of " + size_text(size) + ": " + wrong;
  }

  void send(const std::byte* from, std::size_t size) {
    raw_.finish(*path_.backend.send({from, size, DataType::U8, peer_}), size_text(size));
  }
  void receive(std::byte* to, std::size_t size) {
    raw_.finish(*path_.backend.recv({to, size, DataType::U8, peer_}), size_text(size));
  }

  RawSubject& raw_;
  const MessagePath& path_;
  Link& link_;
  const bool sends_;
  const std::size_t largest_;
  int peer_ = 0;  ///< the number of the other rank at the backend
  std::vector<std::byte> bytes_;
  std::byte word_{};
};

}  // namespace

ElementRule bytes_of(std::uint64_t seed) {
  return [seed](std::size_t index) { return static_cast<int>(mixed(seed + index) & 0xffU); };
}

void compare_with_medians(std::vector<Link>& links) {
  for (const bool within : {true, false}) {
    Samples latencies, times;
    for (const Link& link : links) {
      if (link.is_within_host != within) continue;
      latencies.push_back(link.latency_us);
      times.push_back(1 / link.bandwidth_gbs);
    }
    if (times.empty()) continue;
    const double latency_us = median(latencies), time = median(times);
    for (Link& link : links) {
      if (link.is_within_host != within) continue;
      link.latency_ratio = link.latency_us / latency_us;
      link.bandwidth_ratio = link.bandwidth_gbs * time;
    }
  }
}

std::vector<Link> check_links(Session& session, const MessagePath& path) {
  // Odd sizes do not fit the blocks that transports cut data into.
  constexpr std::size_t kStep = 32;
  std::vector<std::size_t> sizes = {1};
  const std::size_t largest = session.options().max_bytes;
  while (sizes.back() < largest) sizes.push_back(std::min(sizes.back() * kStep + 1, largest));
  const int rank = session.topology().rank;
  const std::vector<int>& host_of = session.topology().host_of;
  std::vector<Link> links;
  for (std::size_t from = 0; from < host_of.size(); ++from) {
    for (std::size_t to = 0; to < host_of.size(); ++to) {
      const bool within = host_of[from] == host_of[to];
      if (from == to || (path.is_within_host && !within)) continue;
      links.push_back({static_cast<int>(from), static_cast<int>(to), within});
    }
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    for (Link& link : links) {
      session.peers().barrier();  // links would else share the network, the memory and the cores
      if (rank == link.from || rank == link.to) LinkCheck(session, path, link).run(sizes);
    }
  }
  std::erase_if(links, [&](const Link& link) { return link.to != rank; });
  const std::string seen = nlohmann::json(links).dump();
  links.clear();
  for (const std::string& text : session.peers().all_of(seen)) {
    for (const auto& link : nlohmann::json::parse(text)) links.push_back(link);
  }
  compare_with_medians(links);
  return links;
}

}  // namespace ronde::tool
