// SPDX-License-Identifier: Apache-2.0
#include "tools/check/check.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ranges>

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

/// Returns the rule of the link's current message.
ElementRule rule_of(const Link& link) {
  std::uint64_t seed = 0;
  for (const int part : {link.from, link.to, link.messages}) {
    seed = mixed(seed + static_cast<std::uint64_t>(part) + 1);
  }
  return bytes_of(seed);
}

/// Sends a link's messages on one of its ranks, and receives them on the other one, which notes in
/// the link what it sees. The sender says that a message is ready; the receiver starts its clock,
/// requests it, stops the clock when all is there, and compares.
void check_link(RawSubject& raw, const MessagePath& path, const std::vector<std::size_t>& sizes,
                Link& link) try {
  const bool sends = raw.topology().rank == link.from;
  const int other = sends ? link.to : link.from;
  const int peer = path.is_within_host ? raw.topology().seen_by(other).local_rank : other;
  const auto send = [&](const std::byte* from, std::size_t size) {
    raw.finish(*path.backend.send({from, size, DataType::U8, peer}), size_text(size));
  };
  const auto receive = [&](std::byte* to, std::size_t size) {
    raw.finish(*path.backend.recv({to, size, DataType::U8, peer}), size_text(size));
  };
  std::vector<std::byte> bytes;  // reused, as its registration serves several messages
  std::byte word{};
  for (std::size_t i = 0; i < sizes.size() * kRounds; ++i) {
    ++link.messages;
    const std::size_t size = sizes[i / kRounds];
    bytes.resize(size);
    const ElementRule rule = rule_of(link);
    if (sends) {
      fill(DataType::U8, bytes.data(), size, rule);
      send(&word, 1);
      receive(&word, 1);
      send(bytes.data(), size);
      continue;
    }
    // No byte that is not written can be right.
    fill(DataType::U8, bytes.data(), size, [&](std::size_t index) { return ~rule(index); });
    receive(&word, 1);
    const auto start = std::chrono::steady_clock::now();
    send(&word, 1);
    receive(bytes.data(), size);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (size == 1) link.latency_us = std::min(link.latency_us, time.count() / 2);
    if (size == sizes.back()) {
      const double gbs = static_cast<double>(size) / (1e3 * time.count());
      link.bandwidth_gbs = std::max(link.bandwidth_gbs, gbs);
    }
    const std::string wrong = difference(DataType::U8, bytes.data(), size, rule);
    if (wrong.empty() || link.wrong++ > 0) continue;
    link.first_wrong =
        "message " + std::to_string(link.messages) + ", of " + size_text(size) + ": " + wrong;
  }
} catch (const std::exception& error) {
  throw Error("message " + std::to_string(link.messages) + " from rank " +
              std::to_string(link.from) + " to rank " + std::to_string(link.to) + " over " +
              path.name + ": " + error.what());
}

}  // namespace

ElementRule bytes_of(std::uint64_t seed) {
  return [seed](std::size_t index) { return static_cast<int>(mixed(seed + index) & 0xffU); };
}

void compare_with_medians(std::vector<Link>& links) {
  for (const bool within : {true, false}) {
    auto kind =
        std::views::filter(links, [&](const Link& link) { return link.is_within_host == within; });
    if (kind.empty()) continue;
    Samples latencies, times;
    for (const Link& link : kind) {
      latencies.push_back(link.latency_us);
      times.push_back(1 / link.bandwidth_gbs);
    }
    const double latency_us = median(latencies), time = median(times);
    for (Link& link : kind) {
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
      if (rank == link.from || rank == link.to) check_link(session.raw(), path, sizes, link);
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
